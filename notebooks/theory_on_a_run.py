# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] # Theory on a run  What Theorem 1 speaks of, measured: how large the data are to the
# kernel, what the confidence width would have to be, and the regret of a run where the optimal
# value is known.

# %%
import os

import jax
import matplotlib.pyplot as plt
import numpy as np

import kqljax
from kqljax import theory

SHORT = "KQLJAX_SHORT" in os.environ

jax.config.update("jax_enable_x64", True)

# %% [markdown] ## The dimension of a run  The bound grows with the effective dimension of the data,
# tr (K + λI)⁻¹K, not with their number. On MountainCar the kernel soon sees little that is new.

# %%
STEPS = 80 if SHORT else 800
task = kqljax.make_task("MountainCar-v0")
cfg = task.config(horizon=STEPS)
run = jax.jit(lambda key: kqljax.train(key, task, cfg, STEPS))(jax.random.key(0))
print(
    f"{STEPS} pairs, effective dimension "
    f"{float(theory.state_dimensions(cfg, run.state).effective):.1f}"
)
found = theory.dimensions_over_time(cfg, run.state)

figure, panels = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
panels[0].plot(found.effective, color="#0072B2")
panels[0].set(xlabel="transitions", title="effective dimension, tr (K + λI)⁻¹K", ylim=(0, None))
panels[1].plot(found.pseudo, color="#E69F00")
panels[1].set(xlabel="transitions", title="pseudo dimension, ln det(I + K/λ)", ylim=(0, None))
plt.show()

# %% [markdown] ## What the theorem asks for  The β of Theorem 1 beside the heuristic of the paper's
# experiments, √λ/(1 − γ), for an MDP in the RKHS (ε = 0) that is deterministic (σ = 0). A regret
# bound above T says nothing: no regret is larger than T.

# %%
for horizon in (1000, 10**5, 10**7):
    assumed = theory.assume(cfg.kernel, obs_dim=2, num_actions=3, horizon=horizon, rho=1.0)
    width, bound = (
        float(theory.confidence_width(assumed)),
        float(theory.regret_bound(assumed).total),
    )
    print(
        f"T = {horizon:>8}: beta {width:8.3g} (heuristic "
        f"{float(theory.paper_beta(assumed.lam, 0.95)):.3g}), regret bound {bound:.3g}, "
        f"{'below' if bound < horizon else 'above'} T"
    )

# %% [markdown] ## Measured regret  A chain of states: the left end pays a little, the right end a
# lot, and the walk starts on the left. Values are known here, so the regret can be measured and the
# optimism of Q̃ watched at every pair and step. The band at the end of the run is what cannot be
# known: the rewards after it.

# %%
import sys
from pathlib import Path

# The chain and its optimal values are in the repository: benchmarks/mdps.py.
folders = (Path.cwd(), *Path.cwd().parents)
sys.path.insert(0, str(next(f / "benchmarks" for f in folders if (f / "benchmarks").is_dir())))
import mdps

LENGTH, T = 6, 100 if SHORT else 600
mdp = mdps.chain(LENGTH)
task, best = mdp.task(), mdps.solve_tabular(mdp.transition, mdp.reward, 0.9)
chain_cfg = task.config(
    mdp.kernel(), horizon=T, gamma=0.9, lam=1.0 / T, beta=1.0, terminal_value=0.0
)
watched = theory.watch_optimism(jax.random.key(0), chain_cfg, task, mdp.transition, best.q)
regret = theory.measured_regret(best.v[watched.state], watched.reward, chain_cfg.gamma)
print(
    "Q̃ was above Q* at", f"{float((watched.above >= -1e-9).mean()):.1%}", "of all pairs and steps"
)

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
panels[0].plot(np.asarray(watched.state), ".", ms=2, color="#0072B2")
panels[0].set(xlabel="step", ylabel="state", title="where it went")
panels[1].fill_between(np.arange(1, T + 1), regret.lower, regret.upper, color="#0072B2", alpha=0.3)
panels[1].plot(np.arange(1, T + 1), regret.upper, color="#0072B2", label="measured regret")
panels[1].plot(
    np.arange(1, T + 1),
    np.arange(1, T + 1),
    color="#7A7A7A",
    ls="--",
    label="T: the most there can be",
)
panels[1].set(
    xlabel="step", title="cumulative γ-regret", ylim=(0, 1.3 * float(regret.upper.max()) + 1)
)
panels[1].legend(frameon=False)
plt.show()
