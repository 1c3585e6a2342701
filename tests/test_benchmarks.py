"""The benchmarks' quick modes, so that they cannot rot, and the reference they time against."""

import json

import beyond
import check
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
    assert capsys.readouterr().out.count("| MountainCar-v0 |") == 5


def test_headline(capsys):
    headline.main(["--smoke"])
    printed = capsys.readouterr().out
    assert "(c) KQL, 2 seeds x 1 tasks, training and evaluation:" in printed
    assert "| MountainCar-v0 | 2 |" in printed


def test_headline_checks_returns_before_it_prints(tmp_path):
    with pytest.raises(SystemExit, match="outside of the committed seeds.*no time is worth printing"):
        headline.check_returns({"MountainCar-v0": {"iqm": -60.0}}, "features")
    headline.check_returns({"MountainCar-v0": {"iqm": -149.0}}, "features")


def test_regret(capsys):
    regret.main(["--smoke"])
    printed = capsys.readouterr().out
    assert printed.count("| kql-greedy |") == 2
    assert "growth exponents: kql " in printed


def test_recipe(capsys, tmp_path):
    document = recipe.main(["--smoke", "--parts", "table", "ablation", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| the paper's figure | -132.55 |" in printed
    assert {record["variant"] for record in document["results"]} == {"robust", "paper", "one backup"}
    assert (tmp_path / "recipe.png").stat().st_size > 1000
    # What is there is not run again.
    again = recipe.main(["--smoke", "--parts", "ablation", "--out", str(tmp_path)])
    assert again["results"] == document["results"]
    # But for what was made with another recipe, which is dropped.
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(again | {"recipes": again["recipes"] | {"one backup": "Recipe(name='other')"}}))
    left = recipe.main(["--smoke", "--parts", "table", "--out", str(tmp_path)])
    assert left["results"] == [record for record in document["results"] if record["variant"] != "one backup"]


def test_kovi(capsys):
    kovi.main(["--smoke"])
    printed = capsys.readouterr().out
    assert "| textbook |" in printed
    assert "| pooled |" in printed


def test_beyond(capsys):
    beyond.main(["--smoke"])
    printed = capsys.readouterr().out
    assert "| 4 | kql-rbf | 80 |" in printed
    assert "| 4 | dqn | 120 |" in printed
    assert "| kql-rbf | 1 |" in printed


def test_scaling(capsys, tmp_path):
    scaling.main(["--smoke", "--engines", "features32", "lazy32", "vmapped32", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("| MountainCar-v0 | lazy32 |") == 1
    scaling.draw([{"task": "a", "engine": "exact", "horizon": t, "microseconds_a_step": t} for t in (1, 2)], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    (tmp_path / "scaling.json").write_text('{"rows": [{"engine": "exact"}, {"engine": "lazy32"}]}')
    assert scaling.kept_rows(tmp_path / "scaling.json", ["lazy32"]) == [{"engine": "exact"}]
    assert scaling.kept_rows(tmp_path / "none.json", ["lazy32"]) == []
    slopes = scaling.exponents([{"engine": "exact", "horizon": t, "microseconds_a_step": 3 * t**2} for t in (1000, 4000)])
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
