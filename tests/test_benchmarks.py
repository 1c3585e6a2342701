"""The benchmarks' quick modes, so that they cannot rot, and the reference they time against."""

import dataclasses
import json
from typing import NamedTuple

import agent
import check
import compiled
import headline
import jax
import jax.numpy as jnp
import kovi
import noise
import numerics
import numpy as np
import opponents
import oracle
import pytest
import recipe
import regret
import scaling
import step_time
import tuned_dqn
from numpy_kql import NumpyKQL

import kqljax


def test_step_time(capsys):
    step_time.main(["--smoke"])
    printed = capsys.readouterr().out
    assert "|   40 |" in printed
    assert "growth exponent, engine" in printed


def test_step_time_checks_before_it_prints(monkeypatch, capsys):
    monkeypatch.setattr(NumpyKQL, "_optimistic", lambda self, q_hat, width_sq: q_hat)
    with pytest.raises(SystemExit, match="no time is worth printing"):
        step_time.main(["--smoke"])
    assert "|   20 |" not in capsys.readouterr().out


def test_numerics(capsys):
    numerics.main(["--smoke"])
    assert capsys.readouterr().out.count("| MountainCar-v0 |") == 7


def test_agent(tmp_path):
    found = agent.main(["--smoke", "--out", str(tmp_path)])
    assert set(found["ratios"]) == {"cold_to_numpy", "warm_to_numpy", "late_to_early_step"}
    assert found["cold"]["return"] == found["warm"]["return"] == -200.0
    assert 0 < found["predict"]["median_seconds"] < found["predict"]["first_seconds"]
    assert "300 steps, 300 transitions kept" in found["long"]["agent"]
    assert found["long"]["max_rss_gib"] > 0.1
    assert not any(tmp_path.iterdir())


def test_headline(capsys):
    document = headline.main(["--smoke"])
    printed = capsys.readouterr().out
    assert "| **learning in rounds, 2 seeds × one task, training and evaluation** |" in printed  # noqa: RUF001
    assert "| CartPole-v0 |" in printed
    assert len(document["rounds"]["CartPole-v0"]["returns"]) == 2


def test_headline_checks_returns_before_it_prints():
    with pytest.raises(
        SystemExit,
        match=r"MountainCar-v0: interquartile mean -140.00, below -132.55; no time is worth printing",
    ):
        headline.check_returns({"MountainCar-v0": np.full(4, -140.0)})
    headline.check_returns({"MountainCar-v0": np.full(4, -120.0)})
    with pytest.raises(
        SystemExit, match="CartPole-v0: not finite in seeds 2001; no time is worth printing"
    ):
        headline.finite_returns("CartPole-v0", (np.array([200.0, np.nan]), np.array([True, True])))


def test_regret(capsys):
    regret.main(["--smoke"])
    printed = capsys.readouterr().out
    assert printed.count("| kql-greedy |") == 2
    assert "growth exponents: kql " in printed


def test_recipe(capsys, tmp_path):
    document = recipe.main(["--smoke", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| the paper's figure | 200.00 |" in printed
    cells = {(row["part"], row["variant"], row["steps"]) for row in document["results"]}
    of_parts = {("finish", "no looking ahead", 60), ("learning", "five backups", 60)}
    assert cells == of_parts | {
        (part, "recipe", 60) for part in ("table", "finish", "learning")
    } | {("steps", "recipe", 40)}
    assert all(row["is_sound"] for row in document["results"])
    assert (tmp_path / "recipe.png").stat().st_size > 1000
    # What is there is not run again.
    again = recipe.main(["--smoke", "--parts", "learning", "--out", str(tmp_path)])
    assert again["results"] == document["results"]
    # But for what was made with other numbers, which is dropped.
    path = tmp_path / "recipe.json"
    path.write_text(
        json.dumps(
            again | {"recipes": again["recipes"] | {"learning: five backups": "Recipe(gamma=0.5)"}}
        )
    )
    left = recipe.main(["--smoke", "--parts", "table", "--out", str(tmp_path)])
    assert left["results"] == [
        row for row in document["results"] if row["variant"] != "five backups"
    ]


def test_what_a_part_is_worth_is_paired_over_seeds():
    base = {seed: 100.0 * seed for seed in range(40)}
    gain, low, high = recipe.paired({seed: value - 3.0 for seed, value in base.items()}, base)
    assert gain == low == high == -3.0
    noise = np.random.default_rng(0).normal(size=40)
    gain, low, high = recipe.paired(
        {seed: value + noise[seed] for seed, value in base.items()}, base
    )
    assert low < gain < high
    assert abs(high - low - 2 * 1.64 * noise.std() / np.sqrt(40)) < 0.1
    assert recipe.paired({1: 5.0, 99: 0.0}, base)[0] == -95.0  # only seeds that both have


def test_kovi(capsys):
    kovi.main(["--smoke"])
    printed = capsys.readouterr().out
    assert "| textbook |" in printed
    assert "| pooled |" in printed


def test_scaling(capsys, tmp_path):
    scaling.main(["--smoke", "--engines", "features32", "vmapped32", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("| MountainCar-v0 | vmapped32 |") == 1
    scaling.draw(
        [{"task": "a", "engine": "exact", "horizon": t, "microseconds_a_step": t} for t in (1, 2)],
        tmp_path / "a.png",
    )
    assert (tmp_path / "a.png").stat().st_size > 1000
    (tmp_path / "scaling.json").write_text('{"rows": [{"engine": "exact"}, {"engine": "lazy32"}]}')
    assert scaling.kept_rows(tmp_path / "scaling.json", ["lazy32"]) == [{"engine": "exact"}]
    assert scaling.kept_rows(tmp_path / "none.json", ["lazy32"]) == []
    slopes = scaling.exponents(
        [{"engine": "exact", "horizon": t, "microseconds_a_step": 3 * t**2} for t in (1000, 4000)]
    )
    assert abs(slopes["exact"] - 2) < 1e-9


def test_numpy_reference_is_algorithm_1():
    obs = step_time.observations(40)
    reference = oracle.Oracle(oracle.rbf(1.0), 3, 0.95, 1 / 400, np.sqrt(1 / 400) / 0.05)
    agent = NumpyKQL(4, 3, 40, eta=1.0)
    for t in range(40):
        assert agent.act(obs[t]) == reference.act(obs[t])
        for each in (agent, reference):
            extra = (False,) if each is reference else ()
            each.step(obs[t], step_time.taken(t), step_time.reward(obs[t]), obs[t + 1], *extra)
    q_hat, width, _ = reference.tables()
    np.testing.assert_allclose(agent.q_hat, q_hat, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(agent.width_sq), width, atol=1e-8)


def test_check(capsys):
    assert check.main(["--smoke"]) == 0
    assert capsys.readouterr().out.count(", T = 20 |") == 3


def test_check_sees_a_fall(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(check, "COMMITTED", tmp_path / "check.json")
    monkeypatch.setattr(check, "measures", lambda smoke: {"one": lambda: 3.0, "other": lambda: 5.0})
    monkeypatch.setattr(check.jax.config, "update", lambda *_: None)
    assert check.main(["--write"]) == 0
    monkeypatch.setattr(check, "measures", lambda smoke: {"one": lambda: 2.1, "other": lambda: 3.0})
    assert check.main([]) == 1
    assert "fell by more than a third: other" in capsys.readouterr().err


@pytest.mark.skipif(compiled.missing("tpu") is not None, reason="no libtpu here: make compiled")
def test_compiled(capsys):
    rows = compiled.main(["--smoke"])
    assert [row["what"] for row in rows] == ["train", "step"]
    assert all(row["large_copies"] == 0 for row in rows) and rows[1]["loops"] == 0
    assert "| TPU v5e | training, weights, float32, 128 seeds |" in capsys.readouterr().out


def test_compiled_reads_programs():
    """Kernels, loops and copies of a program that was written by hand."""
    text = """\
%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %a = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %c = f32[4,8]{1,0} copy(%a)
  ROOT %f = (s32[], f32[4,8]{1,0}) fusion(%c), kind=kLoop, calls=%g
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = (s32[], f32[4,8]{1,0}) while(%x), condition=%k, body=%body, x={"known_trip_count":{"n":"7"}}
  ROOT %r = f32[4,8]{1,0} add(%x, %x)
}
"""
    program = compiled.Program(text)
    assert list(program.loops()) == [("body", 7)]
    assert [each.operation for each in program.kernels("body")] == ["copy", "fusion"]
    assert compiled.size_of("f32[4,8]{1,0}") == 128 and program.moved() == 3 * 128 + 4 + 128 + 128


OPPONENTS = ("search", "tuned", "planning", "default")


def test_opponents(capsys, tmp_path):
    document = opponents.main(["--smoke", "--parts", *OPPONENTS, "--out", str(tmp_path)])
    found = {(row["part"], row["algorithm"]) for row in document["results"]}
    assert found == {("search", "candidate 0"), *(("curve", name) for name in OPPONENTS[1:])}
    assert all(row["is_sound"] and row["cpu_seconds"] > 0 for row in document["results"])
    printed = capsys.readouterr().out
    assert (
        "| | Published (one run) | KQL, paper's settings | KQL, default | DQN, tuned |" in printed
    )
    assert "| CartPole-v0 | 200.00 | - | " in printed
    assert "after 120 steps; 1 seed from 1000 on." in printed
    assert (tmp_path / "opponents.png").stat().st_size > 1000
    # What is there is not run again, but for what was made with other settings.
    path = tmp_path / "opponents.json"
    document["made_with"]["planning"]["settings"]["CartPole-v0"] = "Planner(gamma=0.5)"
    path.write_text(json.dumps(document))
    again = opponents.main(["--smoke", "--page", "--out", str(tmp_path)])
    assert again["results"] == [
        row for row in document["results"] if row["algorithm"] != "planning"
    ]


@pytest.mark.skipif(not opponents.has_sb3(), reason="stable-baselines3 is not installed")
def test_opponents_of_stable_baselines(tmp_path):
    document = opponents.main(["--smoke", "--parts", "sb3", "--out", str(tmp_path)])
    (row,) = document["results"]
    assert (row["algorithm"], row["steps"], row["episodes"]) == ("sb3", [110, 120], [2, 2])
    assert all(8 <= mean <= 200 for mean in row["return_mean"])


def test_opponents_takes_the_best_of_the_search():
    size = opponents.SMOKE._replace(
        candidates=tuned_dqn.candidates(3), search=opponents.Search((0, 1), 2, (2,))
    )
    document = {"results": []}

    def put(at, seed, value):
        job = opponents.Job(opponents.SEARCH, f"{opponents.CANDIDATE}{at}", "CartPole-v0", seed)
        document["results"].append({**job._asdict(), "return_mean": [value]})

    for at, values in enumerate([(50.0, 60.0), (None, 90.0), (70.0, 20.0)]):
        for seed, value in enumerate(values):
            put(at, seed, value)
    assert opponents.best(size, "CartPole-v0", document) is None
    # A run that diverged is worth less than any other; the two that are kept get another seed.
    left = {(job.algorithm, job.seed) for job in opponents.jobs(size, "search", document)}
    assert {("candidate 0", 2), ("candidate 2", 2)} <= left and ("candidate 1", 2) not in left
    put(0, 2, 10.0)
    put(2, 2, 90.0)
    assert opponents.best(size, "CartPole-v0", document) == 2


def test_a_target_of_several_steps_ends_with_the_episode():
    settings = dataclasses.replace(tuned_dqn.candidates()[0], n_steps=3, gamma=0.5)
    terminated = jnp.array([False, False, True, False, False, False])
    is_last = jnp.array([False, False, True, False, True, False])
    blank = jnp.zeros((6, 1))
    replay = tuned_dqn.Replay(
        blank,
        jnp.zeros(6, int),
        jnp.arange(1.0, 7.0),
        blank,
        terminated,
        is_last,
        jnp.full(6, 80.0),
    )
    # Rows 0 to 2 end the task, 3 and 4 meet a time limit, 5 is the newest.
    expected = [1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3, 4 + 5 / 2 + 80 / 4, 5 + 80 / 2, 6 + 80 / 2]
    np.testing.assert_allclose(tuned_dqn.targets(settings, replay, 6), expected)
    # With four rows stored, row 3 is the newest.
    assert tuned_dqn.targets(settings, replay, 4)[3] == 4 + 80 / 2


def test_noise():
    plain, noisy, sticky = (noise.make_task("Pendulum-v1", kind) for kind in (None, *noise.KINDS))
    keys = jax.random.split(jax.random.key(0), 2000)
    obs = jax.vmap(lambda key: noisy.reset(key)[0])(keys)
    # cos^2 + sin^2 = 1 without noise; its deviation is 2 * 0.02 in the first order.
    assert abs(jnp.std(jnp.sum(obs[:, :2] ** 2, axis=1)) - 0.04) < 0.004
    _, state = noisy.reset(keys[0])
    step = noisy.step(keys[1], state, jnp.int32(2))
    np.testing.assert_array_equal(step.obs, step.next_obs)

    _, state = sticky.reset(keys[0])
    first = sticky.step(keys[0], state, jnp.int32(0)).env_state
    assert first.last == -2.0 and first.has_last
    repeats = jax.vmap(lambda key: sticky.step(key, first, jnp.int32(2)).env_state.last == -2.0)(
        keys
    )
    assert abs(jnp.mean(repeats) - noise.STICKINESS) < 0.03
    _, state = plain.reset(keys[0])
    assert not hasattr(state, "last")


def test_slippery_frozen_lake():
    task = noise.make_task(noise.FROZEN_LAKE)
    # The optimal policy reaches the goal in 74% of the episodes of at most 100 steps.
    best = jnp.array([0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0], jnp.int32)

    class Best(NamedTuple):
        def begin(self, key):
            return ()

        def act(self, key, memory, obs):
            return best[jnp.argmax(obs, axis=1)], memory

    returns = kqljax.evaluate(jax.random.key(0), task, Best(), 2000)
    assert abs(returns.mean() - 0.74) < 0.04
