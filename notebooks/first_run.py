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

# %% [markdown]
# # A first run
#
# KQL on MountainCar: 600 steps, one seed. The car must swing back and forth to gain height, and the reward says nothing until
# it reaches the flag. Optimism finds it; then the map of values shows what was learned.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kqljax

jax.config.update("jax_enable_x64", True)

task = kqljax.make_task("MountainCar-v0")
cfg = task.config(horizon=600)
run = jax.jit(kqljax.train, static_argnames="stages")(task, cfg, jax.random.key(7), stages=3)
print("times the flag was reached in training:", int(run.log.terminated.sum()))

# %% [markdown]
# The policy that maximises the optimistic value, on new episodes:

# %%
returns = kqljax.evaluate(task, cfg, run.state, jax.random.key(8), num_episodes=20)
print(f"mean return over 20 episodes: {returns.mean():.1f} (a random policy gets -200)")

# %% [markdown]
# Value and width over position and velocity. Where the car has been, the width is small and the value is known.

# %%
axis = np.linspace(-1, 1, 60)
position, velocity = np.meshgrid(axis, axis)
grid = jnp.stack([jnp.ravel(position), jnp.ravel(velocity)], axis=1)
q_hat, width = jax.jit(jax.vmap(lambda obs: kqljax.kql_predict(cfg, run.state, obs)))(grid)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for panel, values, title in zip(panels, (q_hat.max(1), width.max(1)), ("value, max over actions", "width"), strict=True):
    image = panel.pcolormesh(position, velocity, np.reshape(values, position.shape), shading="auto", rasterized=True)
    figure.colorbar(image, ax=panel)
    panel.plot(*np.asarray(run.state.posterior.pairs.obs).T, ".", color="white", markersize=1.5)
    panel.set(title=title, xlabel="position, normalised")
panels[0].set_ylabel("velocity, normalised")
plt.show()
