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

# %% [markdown] # Inside a step  KQL is a pure function: `state, info = kql_step(cfg, state,
# transition)`. Here it runs jitted in a loop of our own, and what its state holds is checked, live,
# against Fact 1 of the paper, which says in closed form what Algorithm 1 computes:  1. Ŵ_t = (Σ K⊗K
# + λI)⁻¹ over the pairs seen so far, 2. Q̂_t = (Σ (r_τ + γ max_a Q̃_{t−1}[τ + 1][a]) K_τ) Ŵ_t, 3.
# Q̃_t[τ][a] = Q̂_t(s_τ, a) + β ‖K_(s_τ, a)‖ in the norm of Ŵ_t, cut off at 0 and 1/(1 − γ).

# %%
import os

import gymnasium
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kqljax

SHORT = "KQLJAX_SHORT" in os.environ

jax.config.update("jax_enable_x64", True)  # the exact engine wants float64

STEPS = 60 if SHORT else 250
cfg = kqljax.KQLConfig(
    kernel=kqljax.RBF(eta=0.02), num_actions=3, horizon=STEPS, terminal_value=20.0
)
state = kqljax.kql_init(cfg, obs_dim=2)
step = jax.jit(
    kqljax.kql_step, donate_argnames="state"
)  # donated: the large arrays are written in place
act = jax.jit(kqljax.kql_act)
key = jax.random.key(0)  # for random ties; here the first action is taken

# %% [markdown]
# Observations go to [-1, 1], rewards to [0, 1]; a time limit is not an end.

# %%
env = gymnasium.make("MountainCar-v0")


def unit(obs):
    return jnp.asarray((obs - np.array([-0.3, 0.0])) / np.array([0.9, 0.07]))


rows, previous = [], None
raw, _ = env.reset(seed=0)
for _ in range(STEPS):
    obs = unit(raw)
    action, _ = act(key, cfg, state, obs)
    raw, reward, terminated, truncated, _ = env.step(int(action))
    transition = kqljax.Transition(obs, action, reward + 1.0, unit(raw), terminated)
    previous = np.asarray(kqljax.kql_tables(cfg, state).q_tilde).copy()
    # Q̃_t at the state just reached: what line 23 reads for the newest pair, before that pair is
    # stored.
    newest = np.asarray(act(key, cfg, state, transition.next_obs)[1])
    state, info = step(cfg, state, transition)
    rows.append(transition)
    if terminated or truncated:
        raw, _ = env.reset()
print(
    "stored:",
    int(state.num_stored),
    " finite:",
    bool(info.is_finite),
    " residual:",
    f"{float(info.residual):.1e}",
)

# %% [markdown] ## Fact 1, from nothing but the transitions  In plain NumPy, with the Gram matrix of
# all pairs and one linear solve. Targets use the Q̃ of one step before.

# %%
states, actions = np.array([row.obs for row in rows]), np.array([int(row.action) for row in rows])
rewards, ends = (
    np.array([float(row.reward) for row in rows]),
    np.array([row.terminated for row in rows]),
)
successors = np.array([row.next_obs for row in rows])


def kernel(obs, action, other_obs, other_action):
    squared = ((obs[:, None] - other_obs[None]) ** 2).sum(-1) + 2.0 * (
        action[:, None] != other_action[None]
    )
    return np.exp(-0.02 * squared)


lam, beta, gamma = cfg.lam, cfg.beta, cfg.gamma
values = previous.copy()
values[STEPS - 1] = newest
targets = rewards + gamma * np.where(ends, cfg.terminal_value, values.max(axis=1))
system = kernel(states, actions, states, actions) + lam * np.eye(STEPS)

q_hat, width = np.zeros((STEPS, 3)), np.zeros((STEPS, 3))
for a in range(3):
    cross = kernel(states, actions, successors, np.full(STEPS, a))
    solved = np.linalg.solve(system, cross)
    q_hat[:, a] = solved.T @ targets
    width[:, a] = np.sqrt(np.maximum(1.0 - (cross * solved).sum(axis=0), 0.0) / lam)
q_tilde = np.clip(q_hat + beta * width, 0, 1 / (1 - gamma))

tables = kqljax.kql_tables(cfg, state)
for name, ours, theirs in (
    ("Q̂", q_hat, tables.q_hat),
    ("Γ̂", width, tables.width),
    ("Q̃", q_tilde, tables.q_tilde),
):
    difference = np.abs(ours - np.asarray(theirs)).max()
    print(f"{name}: largest difference {difference:.1e} on values up to {np.abs(ours).max():.1f}")
    assert difference < 1e-5

# %% [markdown] The state got there without ever solving a system: each step borders the inverse
# Cholesky factor by one row.

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
panels[0].plot(np.asarray(tables.q_tilde).max(axis=1), label="max Q̃", color="#0072B2")
panels[0].plot(np.asarray(tables.q_hat).max(axis=1), label="max Q̂", color="#E69F00")
panels[0].set(
    title="values at the states reached, after the last step",
    xlabel="step at which the state was reached",
)
panels[0].legend(frameon=False)
(whitener,) = state.posterior.whitener  # one block: the state had all its room from the beginning
image = panels[1].imshow(np.log10(np.abs(np.asarray(whitener)) + 1e-12), vmin=-4)
panels[1].set(title="the inverse Cholesky factor, log₁₀ of its entries")
figure.colorbar(image, ax=panels[1])
plt.show()
