"""The benchmarks' quick modes, so that they cannot rot, and the reference they time against."""

import json

import agent
import check
import compiled
import headline
import kovi
import numerics
import numpy as np
import oracle
import pytest
import recipe
import regret
import scaling
import step_time
from numpy_kql import NumpyKQL


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
