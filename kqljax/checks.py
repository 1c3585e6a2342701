"""Errors that help: every value that crosses into the library is looked at here.

Three tiers. Shapes, dtypes and static sizes are always checked, also while tracing. Values are checked outside jit.
Inside jit a bad value becomes a flag in `KQLInfo`.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from kqljax.errors import describe, first_bad, is_known
from kqljax.kernels import Kernel, NormalisationWarning, num_terms

if TYPE_CHECKING:
    from kqljax.config import KQLConfig
    from kqljax.state import KQLState, Transition

Array = jax.Array


def whole_number(name: str, value: Any, least: int, remedy: str) -> int:
    """`value` as an int of at least `least`."""
    if isinstance(value, jax.core.Tracer):
        raise ValueError(f"{name} is a size and must be known before tracing: give it to jax.jit as static_argnames={name!r}.")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {describe(value)}. {remedy}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}. {remedy}")
    return number


def check_static(cfg: KQLConfig) -> None:
    """Sizes and choices of a config; they are known even while tracing."""
    from kqljax.config import EVICTIONS, TIE_BREAKS
    from kqljax.features import FeatureMap

    if not isinstance(cfg.kernel, Kernel):
        raise ValueError(
            f"kernel must be a kqljax kernel, got {describe(cfg.kernel)}. "
            "Use RBF(eta=0.02), Linear(), Matern32(), Matern52(), or a subclass of kqljax.Kernel."
        )
    whole_number("num_actions", cfg.num_actions, 1, "It is the number of discrete actions.")
    whole_number("horizon", cfg.horizon, 1, "It is T, the number of transitions the state can hold.")
    whole_number("backups", cfg.backups, 1, "The paper makes 1 Bellman backup a step.")
    if cfg.tie_break not in TIE_BREAKS:
        raise ValueError(f"tie_break must be one of {', '.join(map(repr, TIE_BREAKS))}, got {describe(cfg.tie_break)}.")
    if cfg.features is None:
        _check_exact_options(cfg)
        return
    if not isinstance(cfg.features, FeatureMap):
        raise ValueError(
            f"features must be a feature map or None, got {describe(cfg.features)}. "
            "Make one with kqljax.features, for example features.nystrom(kernel, states, num_actions)."
        )
    cfg.features.check(cfg.kernel, None, cfg.num_actions)
    if cfg.refresh_rows is not None:
        whole_number("refresh_rows", cfg.refresh_rows, 1, "None brings all rows up to date.")
    if cfg.memory is not None:
        whole_number("memory", cfg.memory, 1, "None keeps all transitions.")
    if cfg.eviction not in EVICTIONS:
        raise ValueError(f"eviction must be one of {', '.join(map(repr, EVICTIONS))}, got {describe(cfg.eviction)}.")
    if cfg.backups > 1 and cfg.refresh_rows is not None:
        raise ValueError(
            f"backups={cfg.backups} goes over the whole table at every step, which refresh_rows is there to avoid: use one or "
            "the other."
        )


def _check_exact_options(cfg: KQLConfig) -> None:
    for name, default in (("refresh_rows", None), ("memory", None), ("eviction", "oldest")):
        if getattr(cfg, name) != default:
            raise ValueError(
                f"{name}={getattr(cfg, name)!r} is an option of the weight-space engine: give features= too, for example "
                "features.nystrom(kernel, states, num_actions)."
            )


def check_config(cfg: KQLConfig, obs_dim: int | None = None) -> None:
    """Values of a config; call outside jit. A config with batched leaves is checked entry by entry."""
    check_static(cfg)
    if not is_known(cfg):
        raise ValueError("KQLConfig.validate() looks at values: call it outside jax.jit and jax.vmap.")
    gamma, lam = check_gamma_and_lam(cfg.gamma, cfg.lam)
    beta, end = _real("beta", cfg.beta), _real("terminal_value", cfg.terminal_value)
    _require("beta", beta, np.isfinite(beta) & (beta >= 0), "at least 0", "The paper uses sqrt(lam) / (1 - gamma).")
    tolerance = 1e-5
    _require(
        "terminal_value", end, (end >= 0) & (end * (1 - gamma) <= 1 + tolerance), "in [0, 1 / (1 - gamma)]",
        "It is the discounted sum of normalised rewards after the end.",
    )  # fmt: skip
    cap = 2 * np.sqrt(cfg.horizon + lam) / (1 - gamma)
    if np.any(beta > cap):
        warnings.warn(
            f"beta = {first_bad(beta, beta <= cap)} is above 2 sqrt(T + lam) / (1 - gamma), the range of Algorithm 1; "
            "the regret bound does not cover it.",
            NormalisationWarning,
            stacklevel=3,
        )
    if obs_dim is not None:
        _check_kernel(cfg, obs_dim, warns=True)


def check_gamma_and_lam(gamma: Any, lam: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two numbers that others are derived from, as float64."""
    gamma, lam = _real("gamma", gamma), _real("lam", lam)
    _require("gamma", gamma, (gamma >= 0) & (gamma < 1), "in [0, 1)", "The paper uses 0.95.")
    _require("lam", lam, np.isfinite(lam) & (lam > 0), "above 0", "The paper uses 1 / (10 * horizon).")
    return gamma, lam


def _real(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise ValueError(f"{name} must be a real number, got {describe(value)}.")
    return array.astype(np.float64)


def require(name: str, value: Any, is_good: Callable[[np.ndarray], Any], range_: str, remedy: str) -> np.ndarray:
    """`value` as float64, where `is_good` says True of it."""
    array = _real(name, value)
    _require(name, array, is_good(array), range_, remedy)
    return array


def check_positive(name: str, value: Any, remedy: str) -> np.ndarray:
    """`value` as float64, finite and above 0."""
    return require(name, value, lambda x: np.isfinite(x) & (x > 0), "above 0", remedy)


def _require(name: str, value: np.ndarray, good: Any, range_: str, remedy: str) -> None:
    if not np.all(good):
        raise ValueError(f"{name} must be {range_}, got {first_bad(value, good)}. {remedy}")


def _check_kernel(cfg: KQLConfig, obs_dim: int, warns: bool) -> None:
    # A config whose numbers are batched holds many kernels, each a config of its own.
    if not (np.ndim(cfg.lam) or np.ndim(cfg.gamma) or np.ndim(cfg.beta)):
        cfg.kernel.validate(obs_dim, cfg.num_actions, warns=warns)


def check_init(cfg: KQLConfig, obs_dim: Any, dtype: Any, capacity: Any) -> np.dtype:
    """Arguments of kql_init; returns the dtype of the state."""
    check_static(cfg)
    whole_number("obs_dim", obs_dim, 1, "It is l, the length of an observation.")
    if capacity is not None:
        whole_number("capacity", capacity, 1, "Leave it out for the config's horizon.")
        if cfg.memory is not None and capacity > cfg.memory:
            raise ValueError(f"capacity={capacity} is more than memory={cfg.memory}, the transitions the config keeps.")
    if cfg.features is not None:
        cfg.features.check(cfg.kernel, obs_dim, cfg.num_actions)
    if is_known(cfg):
        check_config(cfg)
        _check_kernel(cfg, obs_dim, warns=False)
    wanted = check_dtype(cfg, dtype, max(cfg.horizon, capacity or 0))
    if cfg.features is not None:
        cfg.features.check(cfg.kernel, obs_dim, cfg.num_actions, wanted)
    return wanted


def check_dtype(cfg: KQLConfig, dtype: Any, capacity: int) -> np.dtype:
    """The state's dtype: float32 or float64, the latter only where jax has it."""
    wanted = np.dtype(dtype) if dtype is not None else widest_float()
    if wanted not in (np.dtype("float32"), np.dtype("float64")):
        raise ValueError(f"dtype must be float32 or float64, got {wanted}.")
    if wanted == np.dtype("float64") and widest_float() != wanted:
        raise ValueError(f"dtype float64 is switched off in jax. {X64_REMEDY}")
    if wanted == np.dtype("float32") and cfg.features is None:
        least = least_float32_lam(capacity)
        if not is_known(cfg.lam):
            # Inside jit the value of lam cannot be looked at: only who asks for float32 by name gets it.
            if dtype is None:
                raise ValueError(
                    f"the exact engine needs float64, or float32 with lam of at least {least:.2g} at {capacity} "
                    "transitions (docs/numerics.md), and inside jit it cannot see lam. "
                    f"{X64_REMEDY} Or give dtype=jnp.float32 and watch KQLInfo.is_finite and residual."
                )
        elif (lam := float(np.min(np.asarray(cfg.lam)))) < least:
            raise ValueError(
                f"the exact engine cannot keep its factor in float32 at lam={lam:.3g} and {capacity} transitions: it would "
                f"diverge (docs/numerics.md). Use float64, or lam of at least {least:.2g}. {X64_REMEDY}"
            )
    return wanted


def widest_float() -> np.dtype:
    """float64 where jax has it enabled, else float32."""
    return np.dtype(jax.dtypes.canonicalize_dtype(np.float64))


def least_float32_lam(horizon: int) -> float:
    """The smallest lam that the exact engine takes in float32, 32 T eps: there Q-hat stays within 1% of its range.

    The Gram matrix has eigenvalues up to T, so rounding perturbs it by about T eps, and lam must stand well above that.
    benchmarks/numerics.py prints what happens on either side.
    """
    return 32 * horizon * float(np.finfo(np.float32).eps)


X64_REMEDY = (
    "Set the environment variable JAX_ENABLE_X64=1, call jax.config.update('jax_enable_x64', True) at the start of "
    "your program, or run inside `with jax.enable_x64(True):`."
)


def check_state(cfg: KQLConfig, state: KQLState) -> None:
    """A state that was made with a config like this one."""
    if state.q_tilde.shape[-1] != cfg.num_actions:
        raise ValueError(
            f"the state was made for {state.q_tilde.shape[-1]} actions, the config has num_actions={cfg.num_actions}. "
            "Make the state with kql_init and this config."
        )
    if cfg.features is None:
        _check_exact_state(cfg, state)
    else:
        _check_weight_state(cfg, state)


def _check_exact_state(cfg: KQLConfig, state: KQLState) -> None:
    if not hasattr(state.table, "cross"):
        raise ValueError("the state was made with features, the config has none. Make the state with kql_init and this config.")
    terms = num_terms(cfg.kernel, state.table.obs.shape[-1], cfg.num_actions)
    stored = state.table.cross.shape[-1] // state.capacity
    if terms != stored:
        raise ValueError(
            f"the state stores {stored} terms a pair, the kernel {type(cfg.kernel).__name__} has {terms}: the state was made "
            "with another kernel. Make it with kql_init and this config."
        )


def _check_weight_state(cfg: KQLConfig, state: KQLState) -> None:
    assert cfg.features is not None
    if hasattr(state.table, "cross"):
        raise ValueError("the config has features, the state was made without. Make the state with kql_init and this config.")
    (features, actions, width), expected = state.posterior.root.shape[-3:], cfg.features.root.shape[-3:]
    found = actions, features, width
    if found != expected:
        raise ValueError(
            f"the state was made for a feature map with root {found}, the config's has {expected} (actions, features, "
            "weights). Make the state with kql_init and this config."
        )


def check_obs(state: KQLState, obs: Any, name: str = "obs") -> Array:
    """An observation `[l]` that fits the state."""
    obs = np.asarray(obs) if isinstance(obs, (list, tuple)) else obs
    expected = state.table.obs.shape[-1]
    shape = np.shape(obs)
    if shape != (expected,):
        hint = " Use jax.vmap for a batch of observations." if len(shape) > 1 else ""
        raise ValueError(f"{name} must have shape ({expected},), got {describe(obs)}.{hint}")
    kind = jnp.result_type(obs)
    if not (jnp.issubdtype(kind, jnp.floating) or jnp.issubdtype(kind, jnp.integer)):
        raise ValueError(f"{name} must be real numbers, got {describe(obs)}.")
    if is_known(obs) and not np.all(np.isfinite(np.asarray(obs))):
        raise ValueError(f"{name} must be finite, got {first_bad(obs, np.isfinite(np.asarray(obs)))}.")
    return jnp.asarray(obs, state.table.obs.dtype)


def check_key(key: Array | None) -> Array:
    """The key that a random tie-break draws with."""
    if key is None:
        raise ValueError("tie_break='random' draws an action: give kql_act a key, or use tie_break='first'.")
    return key


def check_transition(cfg: KQLConfig, state: KQLState, transition: Transition) -> None:
    """Shapes and dtypes always, values outside jit."""
    check_state(cfg, state)
    for name in ("obs", "next_obs"):
        check_obs(state, getattr(transition, name), f"transition.{name}")
    kinds = {"action": jnp.integer, "reward": jnp.number, "terminated": jnp.bool_}
    words = {"action": "an integer", "reward": "a real number", "terminated": "a bool"}
    for name, kind in kinds.items():
        value = getattr(transition, name)
        found = jnp.result_type(value)
        is_kind = jnp.issubdtype(found, kind) and not jnp.issubdtype(found, jnp.complexfloating)
        if np.shape(value) != () or not is_kind:
            raise ValueError(f"transition.{name} must be {words[name]} of shape (), got {describe(value)}.")
    if is_known(transition):
        action, reward = int(transition.action), float(transition.reward)
        if not 0 <= action < cfg.num_actions:
            raise ValueError(f"transition.action must be in 0..{cfg.num_actions - 1}, got {action}.")
        if not 0 <= reward <= 1:
            raise ValueError(
                f"transition.reward must be in [0, 1], got {reward}. Map the task's raw rewards to [0, 1] affinely."
            )


def is_valid(num_actions: int, transition: Transition) -> Array:
    """`[]` bool: the values of a transition are such that it may be learned from."""
    return (
        jnp.all(jnp.isfinite(jnp.asarray(transition.obs)))
        & jnp.all(jnp.isfinite(jnp.asarray(transition.next_obs)))
        & (transition.reward >= 0)
        & (transition.reward <= 1)
        & (transition.action >= 0)
        & (transition.action < num_actions)
    )
