"""How large the data of a run are in the eyes of its kernel: dimensions over time, and the Gram spectrum."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from kqljax import theory
from kqljax.config import KQLConfig
from kqljax.posterior.gram import GramPosterior
from kqljax.report.style import INK, QUIET, finish, line, panels
from kqljax.state import KQLState

_EFFECTIVE, _PSEUDO = "#0072B2", "#E69F00"


def gram_spectrum(cfg: KQLConfig, state: KQLState) -> np.ndarray:
    """Eigenvalues `[t]` of the Gram matrix of the stored pairs, the largest first; rounding below 0 is cut off."""
    with jax.enable_x64(True):
        post = _exact(state)
        is_taken = np.asarray(post.is_taken)
        pairs = jax.tree.map(lambda rows: rows[is_taken], post.pairs)
        values = np.linalg.eigvalsh(np.asarray(jax.jit(lambda kernel: kernel.matrix(pairs, pairs))(cfg.kernel)))
    return np.maximum(values[::-1], 0.0)


def draw_dimensions(cfg: KQLConfig, state: KQLState, columns: int = 2) -> Any:
    """Effective and pseudo dimension after each step: how fast the run keeps finding something new."""
    with jax.enable_x64(True):
        is_taken = np.asarray(_exact(state).is_taken)
        found = theory.dimensions_over_time(cfg, state)
        effective, pseudo = (np.asarray(each)[is_taken] for each in found)
    steps = np.arange(1, len(effective) + 1)
    figure, cells = panels(2, 4.9, 3.0, share_y=False, columns=columns)
    texts = "effective dimension, tr (K + λI)⁻¹K", "pseudo dimension, ln det(I + K/λ)"
    for panel, values, text, colour in zip(cells, (effective, pseudo), texts, (_EFFECTIVE, _PSEUDO), strict=True):
        panel.plot(steps, values, color=colour, lw=2)
        panel.annotate(
            f"{values[-1]:.1f}", (steps[-1], values[-1]), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
            color=INK,
        )  # fmt: skip
        panel.set_title(text, loc="left", fontsize=10.5, color=INK)
        panel.set_xlabel("transitions", fontsize=9, color=INK)
        panel.set_ylim(0)
        panel.margins(x=0.02)
        panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    return finish(figure, [], f"{len(steps)} transitions, λ = {float(cfg.lam):.2g}")


def draw_spectrum(cfg: KQLConfig, state: KQLState) -> Any:
    """Eigenvalues of the Gram matrix beside lambda: those above it are what the regression can see."""
    values = gram_spectrum(cfg, state)
    lam = float(cfg.lam)
    figure, (panel,) = panels(1, 6.4, 3.4, share_y=False)
    count = int(np.sum(values > lam))
    # Far below lambda they are rounding; a few decades show the slope.
    floor = max(lam * 1e-4, float(values[0]) * 1e-17)
    shown = np.arange(1, len(values) + 1)[values > floor]
    panel.semilogy(shown, values[values > floor], ".", color=_EFFECTIVE, ms=4)
    panel.axhline(lam, color=INK, lw=1.2, ls=(0, (5, 3)))
    panel.axvline(count + 0.5, color=QUIET, lw=1.0)
    panel.set_xlabel("index", fontsize=9, color=INK)
    panel.set_ylabel("eigenvalue", fontsize=9, color=INK)
    panel.grid(axis="y", color="#E8E8E8", lw=0.7)
    effective = float(np.sum(values / (values + lam)))
    marks = [
        line("eigenvalues of the Gram matrix K", marker="o", ms=4, ls="none", color=_EFFECTIVE),
        line(f"λ = {lam:.2g}, with {count} eigenvalues above it", lw=1.2, ls=(0, (5, 3)), color=INK),
    ]
    return finish(figure, marks, f"{len(values)} transitions, effective dimension {effective:.1f}")


def _exact(state: KQLState) -> GramPosterior:
    post = state.posterior
    if not isinstance(post, GramPosterior):
        raise ValueError(
            "this figure reads the exact engine's state, and this one has features. Train with features=None, or see "
            "theory.state_dimensions for their last values."
        )
    if not bool(np.any(np.asarray(post.is_taken))):
        raise ValueError("the state holds no transitions yet: learn first.")
    return post
