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

# %% [markdown] # Bring your own environment and kernel  The agent learns in any gymnasium
# environment whose observations are vectors. By default it fits its kernel to the transitions.
# Algorithm 1 of the paper learns with any positive definite kernel that you can write down for two
# single pairs.

# %%
import os

import gymnasium
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from gymnasium import spaces

import kqljax

SHORT = "KQLJAX_SHORT" in os.environ

# %% [markdown] ## An environment  A robot on a ring has to find its charger. It sees its angle,
# moves by a step to either side or stays, and is paid when it stands near the charger. Nothing here
# knows of KQL.


# %%
class Ring(gymnasium.Env):
    """Angle in [0, 2 pi); actions: back, stay, on."""

    observation_space = spaces.Box(0.0, 2 * np.pi, (1,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, charger=2.5):
        self.charger = charger

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.angle = 2 * np.pi * 0.9
        return np.array([self.angle]), {}

    def step(self, action):
        self.angle = (self.angle + 0.25 * (action - 1) + self.np_random.normal(0, 0.02)) % (
            2 * np.pi
        )
        away = abs((self.angle - self.charger + np.pi) % (2 * np.pi) - np.pi)
        return np.array([self.angle]), float(np.exp(-20 * away**2)), False, False, {}


env = gymnasium.wrappers.TimeLimit(Ring(), 60)

# %% [markdown] ## The observation  On a ring 0 and 2π are the same place, which a Gaussian kernel
# does not know: there the angle jumps. With cosine and sine in place of the angle nothing jumps,
# and the agent needs no more.


# %%
def on_circle(obs):
    return np.array([np.cos(obs[0]), np.sin(obs[0])])


circle = gymnasium.wrappers.TransformObservation(
    env, on_circle, spaces.Box(-1.0, 1.0, (2,), np.float64)
)

# %% [markdown] ## A kernel  The other way is a kernel that knows the ring, with Algorithm 1. A
# kernel is one method for two single pairs; its fields are parameters, which can be swept without a
# new compile. The observation comes in [-1, 1], the action one-hot.


# %%
class Periodic(kqljax.Kernel):
    width: float = 0.5

    def evaluate(self, x, y):
        turn = jnp.pi * (x.obs - y.obs)[0]  # [-1, 1] is once around
        return jnp.exp((jnp.cos(turn) - 1.0) / self.width) * (
            0.2 + 0.8 * jnp.dot(x.action, y.action)
        )


STEPS = 60 if SHORT else 300
agents = {
    "rounds": kqljax.KQL(circle, reward_range=(0, 1), seed=0),
    "periodic": kqljax.KQL(env, recipe="paper", kernel=Periodic(), reward_range=(0, 1), seed=0),
    "RBF": kqljax.KQL(env, recipe="paper", kernel=kqljax.RBF(eta=2.0), reward_range=(0, 1), seed=0),
}
for name, agent in agents.items():
    agent.learn(STEPS)
    print(
        f"{name}: reward a step over the last {STEPS // 3} steps "
        f"{agent.history['reward'][-STEPS // 3 :].mean():.2f}"
    )

# %%
angles = np.linspace(0, 2 * np.pi, 200)
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True, layout="constrained")
for panel, name in zip(panels, ("periodic", "RBF"), strict=True):
    optimistic = agents[name].beliefs(angles[:, None]).optimistic
    for action, colour in enumerate(("#0072B2", "#7A7A7A", "#D55E00")):
        panel.plot(
            angles, optimistic[:, action], color=colour, label=("back", "stay", "on")[action]
        )
    panel.axvline(2.5, color="black", lw=0.8, ls="--")
    panel.set(title=f"{name}: Q̃ of each action", xlabel="angle (dashed: the charger)")
panels[0].legend(frameon=False)
plt.show()

# %% [markdown] The periodic kernel's values meet at 0 and 2π. If you are not sure that a kernel is
# positive definite, look at the smallest eigenvalue of a Gram matrix:

# %%
points = kqljax.Pair(jnp.linspace(-1, 1, 40)[:, None], jnp.eye(3)[jnp.arange(40) % 3])
print(
    "smallest eigenvalue:",
    float(np.linalg.eigvalsh(np.asarray(Periodic().matrix(points, points), np.float64)).min()),
)

# %% [markdown] ## When it does not learn  - Does the observation hold what matters? A kernel sees
# nothing else. - Are the bounds right? `agent.obs_bounds` should fit the states that are visited;
# give `obs_bounds=` where they do not. - Is an end good or bad? After it the agent counts on raw
# reward 0 for ever; `end_value=` says otherwise. - Algorithm 1: is the reward rare? One reward of 1
# an episode is little beside 1/(1 − γ), which it expects of the unknown at first. A smaller `beta`
# of a `KQLConfig` ends exploration sooner. - Algorithm 1: too smooth a kernel cannot tell good from
# bad nearby, too narrow a one has to visit every place: try other widths.
