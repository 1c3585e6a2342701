"""The parameters of Algorithm 1, and the choice of an engine."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kqljax import checks
from kqljax.engines import Engine
from kqljax.engines.exact import ExactEngine
from kqljax.engines.weights import WeightEngine
from kqljax.errors import is_known
from kqljax.features import FeatureMap
from kqljax.kernels import Kernel
from kqljax.pytrees import register

TIE_BREAKS = ("first", "random")
EVICTIONS = ("oldest", "reservoir")

_STATIC = ("num_actions", "horizon", "backups", "tie_break", "refresh_rows", "memory", "eviction")


@functools.partial(register, static=_STATIC)
@dataclasses.dataclass(frozen=True, kw_only=True)
class KQLConfig:
    """What Algorithm 1 takes as parameters.

    Numbers and the kernel's parameters are pytree leaves: changing or vmapping them does not recompile. Defaults of
    `lam` and `beta` are the paper's and are computed when the config is made; to change gamma or the horizon and keep
    them, make a new config.

    Attributes:
      kernel: kernel on (state, action) pairs.
      num_actions: A (static).
      horizon: T, transitions that the state can hold (static).
      gamma: discount factor in [0, 1).
      lam: ridge parameter, by default 1 / (10 T).
      beta: confidence width, by default sqrt(lam) / (1 - gamma).
      terminal_value: value of the absorbing state after termination.
      backups: Bellman backups a step; the paper makes one (static).
      tie_break: "first" or "random", which of several maximal actions is taken (static).
      features: a map of `kqljax.features`, which selects the weight-space engine; None is the exact one. What follows is for
        long runs with features only, static, and to be kept for a whole run; docs/features.md says what each trades.
      refresh_rows: table rows and targets brought up to date at a step, drawn at random; None is all of them.
      memory: transitions kept, whose targets still change; older ones stay in the regression with the last target they
        had. None keeps all `horizon`.
      eviction: "oldest" or "reservoir" (a uniform sample), which transition leaves a full memory.

    Examples:
      >>> cfg = kqljax.KQLConfig(kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=1000)
      >>> cfg.lam, round(cfg.beta, 6)
      (0.0001, 0.2)
    """

    kernel: Kernel
    num_actions: int
    horizon: int
    gamma: Any = 0.95
    lam: Any = None
    beta: Any = None
    terminal_value: Any = 0.0
    backups: int = 1
    tie_break: str = "first"
    features: FeatureMap | None = None
    refresh_rows: int | None = None
    memory: int | None = None
    eviction: str = "oldest"

    def __post_init__(self) -> None:
        # Defaults, and of values only what they need: leaves may be tracers. The rest is for validate().
        checks.check_static(self)
        if self.lam is None:
            object.__setattr__(self, "lam", 1.0 / (10 * self.horizon))
        if self.beta is None:
            if is_known(self.gamma, self.lam):
                checks.check_gamma_and_lam(self.gamma, self.lam)
            object.__setattr__(self, "beta", self.lam**0.5 / (1 - self.gamma))

    @classmethod
    def from_theory(
        cls,
        kernel: Kernel,
        *,
        obs_dim: int,
        num_actions: int,
        horizon: int,
        rho: Any,
        gamma: Any = 0.95,
        lam: Any = None,
        epsilon: Any = 0.0,
        sigma: Any = 0.0,
        p: Any = 0.05,
        d_lambda: Any = None,
        c_lambda: Any = None,
        **others: Any,
    ) -> KQLConfig:
        """A config with the beta of Theorem 1, from assumptions on the MDP; see `kqljax.theory.assume`.

        Args:
          rho: bounds the norms of reward and transition operator in the RKHS.
          epsilon: how far they are from the RKHS.
          sigma: stochasticity of the MDP, 0 where it is deterministic, 1 always holds.
          p: probability that the regret bound fails.
          d_lambda: bound on the effective dimension, by default that of the kernel.
          c_lambda: bound on the covering numbers, by default that of the kernel.
          others: further fields of the config.

        Examples:
          >>> cfg = kqljax.KQLConfig.from_theory(kqljax.RBF(eta=0.02), obs_dim=2, num_actions=3, horizon=1000, rho=1.0)
          >>> round(cfg.beta, 6)
          0.6
        """
        from kqljax.theory import guarantee

        assumed = guarantee.assume(
            kernel, obs_dim=obs_dim, num_actions=num_actions, horizon=horizon, rho=rho, gamma=gamma, lam=lam,
            epsilon=epsilon, sigma=sigma, p=p, d_lambda=d_lambda, c_lambda=c_lambda,
        )  # fmt: skip
        beta: Any = guarantee.confidence_width(assumed)
        beta = float(beta) if is_known(beta) and beta.ndim == 0 else beta
        return cls(
            kernel=kernel, num_actions=num_actions, horizon=horizon, gamma=gamma, lam=assumed.lam, beta=beta, **others
        )  # fmt: skip

    @property
    def engine(self) -> Engine:
        """The engine that carries the regression."""
        if self.features is None:
            return ExactEngine(self.kernel, self.lam)
        return WeightEngine(self.features, self.lam, self.memory, self.eviction)

    @property
    def is_lazy(self) -> bool:
        """Whether parts of the table wait for their turn."""
        return self.refresh_rows is not None

    @property
    def capacity(self) -> int:
        """Transitions that are kept: the memory, or the horizon."""
        return self.horizon if self.memory is None else min(self.memory, self.horizon)

    def validate(self, obs_dim: int | None = None) -> KQLConfig:
        """Raises ValueError where a value is out of range; returns the config.

        With `obs_dim`, also warns (`NormalisationWarning`) where the kernel leaves the paper's normalisation
        ||K_x|| in [1/2, 1] on observations in [-1, 1]^l. Call it outside jit.

        Examples:
          >>> kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=3, horizon=10, beta=-1.0).validate()
          Traceback (most recent call last):
              ...
          ValueError: beta must be at least 0, got -1.0. The paper uses sqrt(lam) / (1 - gamma).
        """
        checks.check_config(self, obs_dim)
        return self
