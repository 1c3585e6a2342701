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

# %% [markdown] # From exact to features  The exact engine keeps all pairs and costs O(t²) a step.
# Where the kernel is, up to a small error, an inner product of a few features, the same algorithm
# costs a constant plus O(t), and float32 is enough. How much is lost, and how much is won?

# %%
import os
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kqljax
from kqljax import features

SHORT = "KQLJAX_SHORT" in os.environ

jax.config.update("jax_enable_x64", True)

STEPS = 80 if SHORT else 600
task = kqljax.make_task("MountainCar-v0")
kernel = kqljax.RBF(eta=0.02)
exact = task.config(kernel, horizon=STEPS)
run = jax.jit(lambda key: kqljax.train(key, task, exact, STEPS))(jax.random.key(0))
values = kqljax.kql_tables(exact, run.state).q_tilde

# %% [markdown] ## How many features?  The paper's appendix gives an orthonormal basis. Cut off at a
# degree, it is a feature map with a bound on its error. Here each map learns from the transitions
# of the exact run, and its values are compared with the exact ones. What a map leaves out of the
# kernel counts as not known, so a coarse map makes the values too optimistic.

# %%
stored = run.state.posterior
transitions = kqljax.Transition(
    stored.obs.T, stored.action, run.state.reward, stored.next_obs.T, run.state.terminated
)


def replay(cfg, dtype):
    def body(state, transition):
        state, _ = kqljax.kql_step(cfg, state, transition)
        return state, None

    state, _ = jax.lax.scan(body, kqljax.kql_init(cfg, task.obs_dim, dtype), transitions)
    return kqljax.kql_tables(cfg, state).q_tilde


orders = (3,) if SHORT else (2, 3, 4, 5, 6, 8)
found = []
for order in orders:
    basis = features.taylor(kernel, task.obs_dim, task.num_actions, order=order)
    cfg = task.config(kernel, horizon=STEPS, engine=kqljax.Weights(basis))
    errors = []
    for dtype in (jnp.float64, jnp.float32):
        found_values = jax.jit(replay, static_argnames="dtype")(cfg, dtype)
        errors.append(float(jnp.abs(found_values - values).max()))
    found.append((basis.num_weights, basis.error, *errors))
    print(
        f"order {order}: {basis.num_weights} weights, kernel off by {basis.error:.1e}, "
        f"values by {errors[0]:.1e} in float64, {errors[1]:.1e} in float32"
    )

# %%
weights, bounds, double, single = np.array(found).T
figure, panel = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
panel.semilogy(weights, double, "o-", label="values, float64", color="#0072B2")
panel.semilogy(weights, single, "s--", label="values, float32", color="#56B4E9")
panel.semilogy(weights, bounds, "x:", label="kernel, the bound", color="#7A7A7A")
panel.set(xlabel="weights", ylabel="largest error", title="MountainCar, values up to 20")
panel.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What it buys: time
#
# `features.nystrom` projects on as many states of the task as a tolerance needs.

# %%
states = kqljax.tasks.sample_states(task)
nystrom = features.nystrom(kernel, states, task.num_actions, tolerance=1e-2 if SHORT else 1e-6)
fast = task.config(kernel, horizon=STEPS, engine=kqljax.Weights(nystrom))
print(type(nystrom).__name__, "with", nystrom.num_weights, "weights")
for name, cfg, dtype in (
    ("exact, float64", exact, jnp.float64),
    ("features, float32", fast, jnp.float32),
):
    program = jax.jit(
        lambda key, cfg, dtype=dtype: kqljax.train(key, task, cfg, STEPS, dtype=dtype).state.q_hat
    )
    program = program.lower(jax.random.key(0), cfg).compile()
    start = time.perf_counter()
    program(jax.random.key(1), cfg).block_until_ready()
    print(f"{name}: {time.perf_counter() - start:.2f} s for {STEPS} steps")

# %% [markdown]
# The agent takes the config: `kqljax.KQL("MountainCar-v0", recipe=fast)`.
