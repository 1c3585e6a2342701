"""Theorem 1's numbers: covering numbers, confidence width, regret bound, configs from them."""

import math

import jax
import numpy as np
import pytest

import kqljax
from kqljax import theory

SIZES = {"obs_dim": 2, "num_actions": 3}


def test_covering_numbers_follow_the_lemmas():
    eps = 0.01
    d = 5
    assert theory.log_covering_functions(kqljax.Linear(), eps, **SIZES) == pytest.approx(
        d * math.log(1 + 2 / eps)
    )
    assert theory.log_covering_operators(kqljax.Linear(), eps, **SIZES) == pytest.approx(
        d**2 * math.log(1 + 2 / eps)
    )
    eta, d = 0.1 * (2 + 1 - 1 / 3), 4
    first = math.ceil(2 * (math.log(2 / eps) + math.e**2 * eta)) ** d * math.log(1 + 4 / eps)
    second = math.ceil(2 * (math.log(2 * math.sqrt(2) / eps) + math.e**2 * eta)) ** (
        2 * d
    ) * math.log(1 + 4 / eps)
    assert theory.log_covering_functions(kqljax.RBF(eta=0.1), eps, **SIZES) == pytest.approx(first)
    assert theory.log_covering_operators(kqljax.RBF(eta=0.1), eps, **SIZES) == pytest.approx(second)


def test_covering_numbers_in_log_space():
    tiny = theory.log_covering_functions(kqljax.Linear(), log_epsilon=-1e5, **SIZES)
    assert tiny == pytest.approx(5 * (1e5 + math.log(2)))
    # An image: the number is beyond all floats, and nothing is NaN on the way.
    huge = theory.log_covering_operators(kqljax.RBF(eta=1.0), 1e-30, obs_dim=400, num_actions=3)
    assert huge == math.inf
    assumed = theory.assume(
        kqljax.RBF(eta=1.0), obs_dim=400, num_actions=3, horizon=100, rho=1.0, sigma=1.0
    )
    assert theory.confidence_width(assumed) == pytest.approx(2 * math.sqrt(100 + 1e-3) / 0.05)
    with jax.enable_x64(False):
        narrow = theory.covering_term(kqljax.Linear(), horizon=10**6, gamma=0.99, lam=1e-8, **SIZES)
    wide = theory.covering_term(kqljax.Linear(), horizon=10**6, gamma=0.99, lam=1e-8, **SIZES)
    assert np.isfinite(wide) and narrow == pytest.approx(float(wide), rel=1e-5)


def test_covering_term_is_of_the_granularities_of_the_theorem():
    T, gamma, lam = 50, 0.9, 0.3
    expected = theory.log_covering_functions(
        kqljax.RBF(eta=0.2), lam**2 * (1 - gamma) / (4 * T**2), **SIZES
    ) + theory.log_covering_operators(
        kqljax.RBF(eta=0.2), lam**3 * (1 - gamma) / (32 * (T + lam) ** 3), **SIZES
    )
    assert theory.covering_term(
        kqljax.RBF(eta=0.2), horizon=T, gamma=gamma, lam=lam, **SIZES
    ) == pytest.approx(expected)


def numbers(**changes):
    theorem = {"horizon": 200, "gamma": 0.9, "lam": 0.05, "rho": 1.5, "p": 0.1}
    mdp = {"epsilon": 0.01, "sigma": 0.4, "d_lambda": 7.0, "c_lambda": 30.0}
    return theorem | mdp | changes


def beta_by_hand(n):
    T, lam, d = n["horizon"], n["lam"], n["d_lambda"]
    inner = d * math.log(math.e * (T + lam) / lam) + math.log(2 / n["p"]) + n["c_lambda"]
    free = (
        3 * n["rho"] * math.sqrt(lam)
        + n["epsilon"] * math.sqrt(T * d)
        + 2 * n["sigma"] * math.sqrt(inner)
    )
    return min(2 * math.sqrt(T + lam), free) / (1 - n["gamma"])


@pytest.mark.parametrize(
    "changes", [{}, {"sigma": 0.0}, {"epsilon": 0.0, "sigma": 1.0}, {"rho": 500.0}, {"lam": 3.0}]
)
def test_confidence_width(changes):
    n = numbers(**changes)
    assert theory.confidence_width(theory.Assumptions(**n)) == pytest.approx(beta_by_hand(n))


def test_regret_bound_is_the_last_line_of_the_proof():
    n = numbers()
    T, lam, d, gap = n["horizon"], n["lam"], n["d_lambda"], 1 - n["gamma"]
    log_ratio = math.log(math.e * (T + lam) / lam)
    inner = d * log_ratio + math.log(2 / n["p"]) + n["c_lambda"]
    front = (
        6 * n["rho"] * math.sqrt(lam)
        + 2 * n["epsilon"] * math.sqrt(T * d)
        + 4 * n["sigma"] * math.sqrt(inner)
    )
    expected = front * math.sqrt(T * d / lam * log_ratio / (math.log(1 + 1 / lam) * gap**5))
    expected += (
        6 * n["epsilon"] * T / gap**2
        + n["sigma"] * math.sqrt(2 * T * math.log(2 / n["p"])) / gap
        + 2 / gap
    )
    bound = theory.regret_bound(theory.Assumptions(**n))
    assert bound.total == pytest.approx(expected)
    assert bound.total == pytest.approx(sum(float(part) for part in bound))
    # beta's parts are in it: without noise and misfit only two terms are left.
    quiet = theory.regret_bound(theory.Assumptions(**numbers(sigma=0.0, epsilon=0.0)))
    assert quiet.epsilon == quiet.sigma == quiet.approximation == quiet.martingale == 0
    assert quiet.total == quiet.rho + quiet.boundary


def test_growth_of_the_bound():
    """With lam = 1 / (10 T) the linear bound grows as sqrt(T) (Remark on linear kernels)."""
    totals = [
        theory.regret_bound(theory.assume(kqljax.Linear(), **SIZES, horizon=T, rho=2.0)).rho
        for T in (10**3, 10**5, 10**7)
    ]
    assert totals[1] / totals[0] == pytest.approx(10, rel=0.05)
    assert totals[2] / totals[1] == pytest.approx(10, rel=0.05)


def test_numbers_are_leaves():
    """One compile and one vmap over lam and gamma."""
    assumed = theory.Assumptions(**numbers())
    batch = theory.Assumptions(**numbers(lam=np.array([0.01, 0.05, 0.5])))
    axes = theory.Assumptions(**dict.fromkeys(numbers(), None) | {"lam": 0})
    found = jax.jit(jax.vmap(theory.confidence_width, in_axes=(axes,)))(batch)
    assert found[1] == pytest.approx(theory.confidence_width(assumed))
    np.testing.assert_allclose(found, [beta_by_hand(numbers(lam=lam)) for lam in (0.01, 0.05, 0.5)])


def test_paper_beta():
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=1000)
    assert theory.paper_beta(cfg.lam, cfg.gamma) == pytest.approx(cfg.beta) == pytest.approx(0.2)
    with pytest.raises(ValueError, match="gamma must be in"):
        theory.paper_beta(1e-4, 1.0)


def test_config_from_theory():
    cfg = theory.from_theory(
        kqljax.RBF(eta=0.02), **SIZES, horizon=1000, rho=2.0, tie_break="random"
    )
    assert cfg.beta == pytest.approx(3 * 2.0 * math.sqrt(1e-4) / 0.05)
    assert (cfg.lam, cfg.gamma, cfg.horizon, cfg.tie_break) == (1e-4, 0.95, 1000, "random")
    cfg.validate(obs_dim=2)
    noisy = theory.from_theory(kqljax.Linear(), **SIZES, horizon=10**6, rho=2.0, sigma=1.0, lam=1.0)
    assumed = theory.assume(kqljax.Linear(), **SIZES, horizon=10**6, rho=2.0, sigma=1.0, lam=1.0)
    assert noisy.beta == pytest.approx(theory.confidence_width(assumed))
    assert assumed.d_lambda == 5 and assumed.c_lambda > 0


def test_kernels_without_lemmas():
    quiet = theory.assume(kqljax.Matern32(), **SIZES, horizon=100, rho=1.0)
    assert quiet.d_lambda == 100 and quiet.c_lambda == 0
    with pytest.raises(ValueError, match="no covering numbers for Matern32.*Give c_lambda="):
        theory.assume(kqljax.Matern32(), **SIZES, horizon=100, rho=1.0, sigma=0.5)
    given = theory.assume(
        kqljax.Matern32(), **SIZES, horizon=100, rho=1.0, sigma=0.5, c_lambda=12.0
    )
    assert given.c_lambda == 12.0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lam": 0.0}, "lam must be above 0"),
        ({"lam": -1.0}, "lam must be above 0"),
        ({"gamma": 1.0}, "gamma must be in"),
        ({"p": 0.0}, "p must be in \\(0, 1\\)"),
        ({"p": 1.0}, "p must be in \\(0, 1\\)"),
        ({"p": math.nan}, "p must be in \\(0, 1\\)"),
        ({"rho": 0.05}, "rho must be at least 1 - gamma"),
        ({"rho": math.inf}, "rho must be at least 1 - gamma"),
        ({"d_lambda": 0.5}, "d_lambda must be at least 1"),
        ({"c_lambda": -1.0}, "c_lambda must be at least 0"),
        ({"epsilon": -0.1}, "epsilon must be at least 0"),
        ({"sigma": 1.5}, "sigma must be in \\[0, 1\\]"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"rho": "two"}, "rho must be a real number"),
    ],
)
def test_out_of_the_theorem(changes, message):
    with pytest.raises(ValueError, match=message):
        theory.confidence_width(theory.Assumptions(**numbers(**changes)))
    with pytest.raises(ValueError, match=message):
        theory.regret_bound(theory.Assumptions(**numbers(**changes)))


def test_wrong_granularity():
    with pytest.raises(ValueError, match="epsilon must be above 0"):
        theory.log_covering_functions(kqljax.RBF(), 0.0, **SIZES)
    with pytest.raises(ValueError, match="either epsilon= or log_epsilon="):
        theory.log_covering_functions(kqljax.RBF(), **SIZES)
