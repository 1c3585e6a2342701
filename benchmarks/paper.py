"""The figures of the paper's Table 1, the rule for seeds, and the colours of algorithms."""

FIRST_REPORTING_SEED = 1000
"""Seeds below are for tuning: a figure that was tuned on is not evidence."""
PAPER_TASKS = ("MountainCar-v0", "Pendulum-v1", "Acrobot-v1", "CartPole-v0")


def _row(*figures: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(PAPER_TASKS, figures, strict=True))


PAPER = {
    "dqn": _row((-200.00, 0.00), (-274.67, 393.03), (-161.31, 96.13), (149.68, 4.75)),
    "kql-linear": _row((-200.00, 0.00), (-1413.57, 202.19), (-500.00, 0.00), (9.32, 0.70)),
    "kql-rbf": _row((-132.55, 17.02), (-167.01, 97.32), (-107.23, 35.20), (200.00, 0.00)),
}
PAPER["sb3-dqn"] = PAPER["dqn"]
PAPER["kql-rounds"] = PAPER["kql-rbf"]
"""Algorithm -> task -> mean and standard deviation over 100 episodes."""

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {
    "kql-rbf": "#0072B2",
    "kql-rounds": "#003D66",
    "kql-features": "#009E73",
    "kql-features32": "#4DB99A",
    "kql-linear": "#E69F00",
    "kql-greedy": "#56B4E9",
    "dqn": "#D55E00",
    "kovi": "#B8A200",
    "random": "#7A7A7A",
}
OTHER = "#CC79A7"
