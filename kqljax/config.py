"""The parameters of Algorithm 1."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import numpy as np

from kqljax._arrays import register
from kqljax._checks import check_gamma_and_lam, describe, first_bad, is_known, require, whole_number
from kqljax.engines.base import Engine, Sizes
from kqljax.engines.exact import Exact
from kqljax.kernels import Kernel, NormalisationWarning
from kqljax.state import KQLState

TIE_BREAKS = ("first", "random")


@functools.partial(register, static=("num_actions", "horizon", "tie_break"))
@dataclasses.dataclass(frozen=True, kw_only=True)
class KQLConfig:
    """What Algorithm 1 takes as parameters.

    Numbers are pytree leaves: changing or vmapping them does not recompile. Defaults of `lam` and
    `beta` are the paper's and are computed when the config is made; to change gamma or the horizon
    and keep them, make a new config. `kqljax.theory.from_theory` makes one with the beta of Theorem
    1.

    Attributes:
      kernel: kernel on (state, action) pairs.
      num_actions: A (static).
      horizon: T, transitions that the state can hold (static).
      engine: what carries the regression: `Exact()`, or `Weights(features)`.
      gamma: discount factor in [0, 1).
      lam: ridge parameter, by default 1 / (10 T).
      beta: confidence width, by default sqrt(lam) / (1 - gamma).
      terminal_value: value of the absorbing state after termination.
      tie_break: "first" or "random", which of several maximal actions is taken (static).

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=1000)
      >>> cfg.lam, round(cfg.beta, 6)
      (0.0001, 0.2)
    """

    kernel: Kernel
    num_actions: int
    horizon: int
    engine: Engine = Exact()  # noqa: RUF009 - it has no fields
    gamma: Any = 0.95
    lam: Any = None
    beta: Any = None
    terminal_value: Any = 0.0
    tie_break: str = "first"

    def __post_init__(self) -> None:
        # Defaults, and of values only what they need: leaves may be tracers. The rest is for
        # validate().
        self._check_static()
        if self.lam is None:
            object.__setattr__(self, "lam", 1.0 / (10 * self.horizon))
        if self.beta is None:
            if is_known(self.gamma, self.lam):
                check_gamma_and_lam(self.gamma, self.lam)
            object.__setattr__(self, "beta", self.lam**0.5 / (1 - self.gamma))

    def validate(self, obs_dim: int | None = None) -> KQLConfig:
        """Raises ValueError where a value is out of range; returns the config. Call it outside jit.

        A config with batched leaves is checked entry by entry. With `obs_dim`, also warns
        (`NormalisationWarning`) where the kernel leaves the paper's normalisation, ||K_x|| in [1/2,
        1] on observations in [-1, 1]^l.

        Examples:
          >>> kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=10, beta=-1.0).validate()
          Traceback (most recent call last):
              ...
          ValueError: beta must be at least 0, got -1.0. The paper uses sqrt(lam) / (1 - gamma).
        """
        self._check_static()
        if not is_known(self):
            raise ValueError(
                "KQLConfig.validate() looks at values: call it outside jax.jit and jax.vmap."
            )
        gamma, lam = check_gamma_and_lam(self.gamma, self.lam)
        remedy = "The paper uses sqrt(lam) / (1 - gamma)."
        beta = require("beta", self.beta, lambda x: np.isfinite(x) & (x >= 0), "at least 0", remedy)
        require(
            "terminal_value",
            self.terminal_value,
            lambda x: (x >= 0) & (x * (1 - gamma) <= 1 + 1e-5),
            "in [0, 1 / (1 - gamma)]",
            "It is the discounted sum of normalised rewards after the end.",
        )
        cap = 2 * np.sqrt(self.horizon + lam) / (1 - gamma)
        if np.any(beta > cap):
            warnings.warn(
                f"beta = {first_bad(beta, beta <= cap)} is above 2 sqrt(T + lam) / (1 - gamma), "
                "the range "
                "of Algorithm 1; the regret bound does not cover it.",
                NormalisationWarning,
                stacklevel=2,
            )
        if obs_dim is not None and not self.is_batched:
            self.kernel.validate(obs_dim, self.num_actions, warns=True)
        return self

    def check(self, obs_dim: int) -> None:
        """What a state for observations `[obs_dim]` needs: values where they are known, and the
        kernel.
        """
        if is_known(self):
            self.validate()
            if not self.is_batched:
                self.kernel.validate(obs_dim, self.num_actions, warns=False)

    def check_state(self, state: KQLState) -> int:
        """The length l of an observation; ValueError where the state was made with another
        config.
        """
        obs_dim = self.engine.check(state.posterior, self.kernel, self.num_actions)
        remedy = "Make the state with kql_init and this config."
        actions = state.posterior.rows.mean.shape[-2]
        if actions != self.num_actions:
            raise ValueError(
                f"the state was made for {actions} actions, the config has "
                f"num_actions={self.num_actions}. {remedy}"
            )
        made, lam = state.posterior.lam, self.lam
        if is_known(made, lam) and not np.allclose(made, lam, rtol=1e-5, atol=0):
            raise ValueError(
                f"the state was made with lam={np.asarray(made)}, the config has "
                f"lam={np.asarray(lam)}; lam is part of a state's factor. {remedy}"
            )
        return obs_dim

    @property
    def is_batched(self) -> bool:
        """Whether the numbers are those of many configs, as a vmap takes them."""
        return bool(np.ndim(self.lam) or np.ndim(self.gamma) or np.ndim(self.beta))

    def _check_static(self) -> None:
        """Sizes and choices; they are known even while tracing."""
        if not isinstance(self.kernel, Kernel):
            raise ValueError(
                f"kernel must be a kqljax kernel, got {describe(self.kernel)}. "
                "Use RBF(eta=0.02), Linear(), Matern32(), Matern52(), or a subclass of "
                "kqljax.Kernel."
            )
        whole_number("num_actions", self.num_actions, 1, "It is the number of discrete actions.")
        whole_number(
            "horizon", self.horizon, 1, "It is T, the transitions that the state can hold."
        )
        if self.tie_break not in TIE_BREAKS:
            known = ", ".join(map(repr, TIE_BREAKS))
            raise ValueError(f"tie_break must be one of {known}, got {describe(self.tie_break)}.")
        if not hasattr(self.engine, "prepare"):
            raise ValueError(
                "engine must be kqljax.Exact() or kqljax.Weights(features), got "
                f"{describe(self.engine)}."
            )
        self.engine.validate(self.kernel, self.lam, Sizes(self.num_actions, self.horizon))
