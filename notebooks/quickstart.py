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

# %% [markdown] # Quickstart  Two lines to a solved MountainCar. The car is too weak for the hill:
# it has to swing back and forth, and the reward says nothing until it reaches the flag. A random
# policy never gets there: it returns -200.

# %%
import os

import gymnasium
import matplotlib.pyplot as plt
import numpy as np

import kqljax
from kqljax.agent import episodes
from kqljax.report import maps

SHORT = "KQLJAX_SHORT" in os.environ  # set in the tests, to see that everything runs

agent = kqljax.KQL("MountainCar-v0", seed=0)
agent.learn(120 if SHORT else 1000)

# %%
found = agent.evaluate(2 if SHORT else 20)
print(f"{agent}\n{found}")

# %% [markdown] `predict` is that of Stable-Baselines3, so the agent also goes into its
# `evaluate_policy`. `beliefs` has the mean and the spread of an ensemble of kernel widths, which
# `predict` acts by, and the optimistic values that the agent explores by. Every step pays between 0
# and 1; the ensemble discounts with 0.99, optimism with 0.97.

# %%
obs = np.array([-0.5, 0.0])
action, _ = agent.predict(obs, deterministic=True)
believed = agent.beliefs(obs)
print("action:", action)
print(
    "mean:",
    believed.mean.round(2),
    " spread:",
    believed.spread.round(2),
    " optimistic:",
    believed.optimistic.round(2),
)

# %% [markdown] What it believes: value, spread and policy over position and velocity, with one
# episode drawn on them. Where the car has been the members of the ensemble agree.

# %%
(episode,) = episodes.run(agent, [gymnasium.make("MountainCar-v0")], 1, seed=1, max_steps=None)
maps.draw_maps(agent, episode=episode)

# %% [markdown] ## Optimism as it learns  A callback is called after every step. This one keeps a
# picture of the optimistic value at four moments. Asking for it fits the policy to the transitions
# so far, so it asks rarely.

# %%
moments = (10, 40, 80, 120) if SHORT else (100, 250, 500, 1000)
low, high = agent.obs_bounds
position, velocity = np.meshgrid(np.linspace(low[0], high[0], 50), np.linspace(low[1], high[1], 50))
grid = np.stack([position.ravel(), velocity.ravel()], axis=1)
pictures = {}


def keep(agent, step):
    if step.num_timesteps in moments:
        value = agent.beliefs(grid).optimistic.max(axis=1)
        pictures[step.num_timesteps] = value.reshape(position.shape), agent.history["obs"]


kqljax.KQL("MountainCar-v0", seed=0).learn(moments[-1], callback=keep)

figure, panels = plt.subplots(1, 4, figsize=(13, 3.2), sharey=True, layout="constrained")
for panel, (moment, (value, seen)) in zip(panels, pictures.items(), strict=True):
    panel.pcolormesh(
        position, velocity, value, shading="auto", rasterized=True
    )  # each on a scale of its own
    panel.plot(*seen.T, ".", color="white", markersize=1.2)
    panel.set(title=f"{moment} steps: {value.min():.2f} to {value.max():.2f}", xlabel="position")
panels[0].set_ylabel("velocity")
plt.show()

# %% [markdown] At first the optimistic value is 33.3 everywhere, the largest there is. Steps
# without reward pull it down where the car has been and, because the kernel is wide, around it.
# What is left farther out draws the car outwards, until it finds the flag. From there the true
# value spreads backwards. Until a first end is stored, the values are not cut off at 33.3.  ## Keep
# it

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as directory:
    agent.save(Path(directory) / "car.npz")
    again = kqljax.KQL.load(Path(directory) / "car.npz")
print("the same values:", bool(np.all(again.q_values(grid) == agent.q_values(grid))))
again.learn(20)
print(again)
