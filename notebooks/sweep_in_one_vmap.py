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

# %% [markdown] # A sweep of β and η in one vmap  Numbers in a config are leaves of a pytree, so a
# whole grid of settings trains side by side in one compiled program: one `vmap` for the settings
# around another for the seeds. (For sweeps of hours, with checkpoints and a table: `kqljax sweep
# --help`.)

# %%
import dataclasses
import os
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kqljax

SHORT = "KQLJAX_SHORT" in os.environ

STEPS, EPISODES, SEEDS = (60, 2, 1) if SHORT else (600, 20, 3)
task = kqljax.make_task("MountainCar-v0")
etas = jnp.array([0.02, 0.08] if SHORT else [0.005, 0.02, 0.08, 0.32])
factors = jnp.array([0.0, 1.0] if SHORT else [0.0, 0.25, 1.0, 4.0])  # of the paper's beta

# %% [markdown] Many runs at once want the weight-space engine: its state is small, and float32 is
# enough for it. η is traced here, so the basis is given by its order.

# %%
ORDER = 3 if SHORT else 8


def mean_return(key, eta, factor):
    kernel = kqljax.RBF(eta=eta)
    features = kqljax.features.taylor(kernel, task.obs_dim, task.num_actions, order=ORDER)
    cfg = task.config(kernel, horizon=STEPS, engine=kqljax.Weights(features))
    cfg = dataclasses.replace(cfg, beta=factor * cfg.beta)
    train_key, eval_key = jax.random.split(key)
    run = kqljax.train(train_key, task, cfg, STEPS, dtype=jnp.float32)
    return kqljax.evaluate(eval_key, task, run, EPISODES).mean()


over_seeds = jax.vmap(mean_return, in_axes=(0, None, None))
over_betas = jax.vmap(over_seeds, in_axes=(None, None, 0))
sweep = jax.jit(jax.vmap(over_betas, in_axes=(None, 0, None)))

start = time.perf_counter()
returns = np.asarray(
    sweep(jax.random.split(jax.random.key(0), SEEDS), etas, factors)
)  # [etas, betas, seeds]
print(
    f"{returns.size} runs of {STEPS} steps in {time.perf_counter() - start:.1f} s, compilation and "
    "evaluation included"
)

# %% [markdown]
# How good is the basis? Its error is a bound that grows with η: (2ηl)^N / N!.

# %%
for eta in np.asarray(etas):
    features = kqljax.features.taylor(
        kqljax.RBF(eta=float(eta)), task.obs_dim, task.num_actions, order=ORDER
    )
    print(f"eta = {eta:.3f}: the kernel is off by at most {features.error:.1e}")

# %%
figure, panel = plt.subplots(figsize=(6, 3.8), layout="constrained")
mean = returns.mean(axis=2)
image = panel.imshow(mean, cmap="viridis", aspect="auto", vmin=-200)
panel.set_xticks(range(len(factors)), [f"{factor:g}" for factor in np.asarray(factors)])
panel.set_yticks(range(len(etas)), [f"{eta:.3f}" for eta in np.asarray(etas)])
panel.set(
    xlabel="β, in multiples of the paper's",
    ylabel="η",
    title=f"mean return, {SEEDS} seed{'s' * (SEEDS > 1)}",
)
for i in range(mean.shape[0]):
    for j in range(mean.shape[1]):
        colour = "black" if mean[i, j] > -150 else "white"
        panel.text(j, i, f"{mean[i, j]:.0f}", ha="center", va="center", color=colour)
figure.colorbar(image, ax=panel)
plt.show()

# %% [markdown] Without the bonus (β = 0) the car never leaves the valley. A few seeds say little:
# the spread between seeds is large.
