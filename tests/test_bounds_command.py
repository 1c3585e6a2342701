"""`kqljax bounds`: the numbers it prints are the library's, and wrong ones get help."""

import json

import pytest

import kqljax
from kqljax import cli, theory


def test_table(capsys):
    assert cli.main(["bounds", "--kernel", "rbf", "--eta", "0.02", "--horizon", "1000"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "rbf, eta = 0.02",
        "observations of length 2, 3 actions",
        "d_lambda",
        "covering numbers",
        "paper's heuristic",
    ):
        assert words in printed
    assert "above T: it says nothing" in printed


def test_json_has_the_library_s_numbers(capsys):
    command = (
        "bounds --kernel linear --horizon 5000 --lam 1 --rho 2 --sigma 0.5 --epsilon 0.001 --p 0.1 --obs-dim 4 --actions 2"
    )
    assert cli.main([*command.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assumed = theory.assume(
        kqljax.Linear(), obs_dim=4, num_actions=2, horizon=5000, lam=1.0, rho=2.0, sigma=0.5, epsilon=0.001, p=0.1
    )
    assert found["beta"] == pytest.approx(theory.confidence_width(assumed))
    assert found["regret_bound"] == pytest.approx(theory.regret_bound(assumed).total)
    assert found["d_lambda"] == 6
    assert found["beta_rho"] + found["beta_epsilon"] + found["beta_sigma"] == pytest.approx(found["beta"])


def test_measured_dimensions(capsys):
    assert cli.main(["bounds", "--task", "MountainCar-v0", "--horizon", "40", "--measure", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 1 < found["measured_effective_dimension"] <= found["d_lambda"] == 40
    assert found["measured_effective_dimension"] < found["measured_pseudo_dimension"]
    assert (found["obs_dim"], found["num_actions"]) == (2, 3)


def test_numbers_beyond_all_floats_are_null_in_json(capsys):
    assert cli.main(["bounds", "--eta", "1", "--obs-dim", "400", "--sigma", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["covering_term"] is None and found["regret_bound"] is None
    assert found["beta"] == pytest.approx(found["beta_cap"])


def test_help(capsys):
    assert cli.main(["bounds", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "kqljax bounds --kernel rbf --eta 0.02 --horizon 1000" in printed


@pytest.mark.parametrize(
    "words, message",
    [
        ("--lam 0", "lam must be above 0"),
        ("--p 1", "p must be in (0, 1)"),
        ("--rho 0.01", "rho must be at least 1 - gamma"),
        ("--gamma 1", "gamma must be in [0, 1)"),
        ("--d-lambda 0.5", "d_lambda must be at least 1"),
        ("--horizon 0", "--horizon must be at least 1"),
        ("--eta -1", "--eta must be at least 0"),
        ("--obs-dim -1", "--obs-dim must be at least 1"),
        ("--task Nowhere-v0", "unknown task 'Nowhere-v0'"),
        ("--measure", "give --task too"),
        ("--kernel cubic", "invalid choice"),
    ],
)
def test_wrong_input(capsys, words, message):
    assert cli.main(["bounds", *words.split()]) == 2
    assert message in capsys.readouterr().err
