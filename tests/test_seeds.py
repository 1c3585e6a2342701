"""Many seeds on many devices are the same runs as one by one."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import features


def walk(key, scale):
    def body(x, key):
        x = x + scale * jax.random.normal(key)
        return x, x

    return jax.lax.scan(body, 0.0, jax.random.split(key, 5))[1]


@pytest.mark.parametrize("batch_size", [None, 1, 2, 5])
def test_same_as_vmap(batch_size):
    keys = jax.random.split(jax.random.key(0), 5)
    found = kqljax.across_seeds(walk, batch_size=batch_size)(keys, 2.0)
    np.testing.assert_allclose(found, jax.vmap(walk, in_axes=(0, None))(keys, 2.0), rtol=1e-12)
    assert found.shape == (5, 5)


def test_arguments_do_not_recompile():
    traces = []

    def run(key, scale):
        traces.append(1)
        return walk(key, scale)

    program, keys = kqljax.across_seeds(run), jax.random.split(jax.random.key(0), 3)
    program(keys, 1.0)
    count = len(traces)
    program(keys, 2.0)
    assert len(traces) == count


def test_a_trained_seed_is_the_one_that_train_gives():
    task = kqljax.make_task("MountainCar-v0")
    cfg = task.config(
        horizon=30, engine=kqljax.Weights(features.taylor(kqljax.RBF(eta=task.eta), 2, 3, order=3))
    )
    keys = jax.random.split(jax.random.key(0), 3)
    program = kqljax.across_seeds(
        lambda key, task, cfg: kqljax.train(key, task, cfg, 30).log.action
    )
    alone = jax.jit(lambda key: kqljax.train(key, task, cfg, 30).log.action)
    np.testing.assert_array_equal(program(keys, task, cfg), jnp.stack([alone(key) for key in keys]))


def test_three_devices_train_and_evaluate():
    """Seeds that do not come out even, on more devices than cores: the same actions, and it ends.

    Batched LAPACK calls of two CPU devices would wait for each other for ever.
    """
    script = """
        import jax
        jax.config.update("jax_num_cpu_devices", 3)
        import jax.numpy as jnp
        import numpy as np
        import kqljax
        from kqljax import features

        task = kqljax.make_task("Pendulum-v1")
        made = features.taylor(kqljax.RBF(eta=1.0), 3, 3, order=3)
        cfg = task.config(horizon=40, engine=kqljax.Weights(made))

        def run(key, task, cfg):
            done = kqljax.train(key, task, cfg, 40, dtype=jnp.float32)
            return done.log.action, kqljax.evaluate(key, task, done, 3)

        keys = jax.random.split(jax.random.key(0), 4)
        assert len(jax.devices()) == 3
        actions, returns = kqljax.across_seeds(run)(keys, task, cfg)
        same, _ = kqljax.across_seeds(run, devices=jax.devices()[:1])(keys, task, cfg)
        assert actions.shape == (4, 40) and returns.shape == (4, 3)
        assert (np.asarray(actions) == np.asarray(same)).mean() > 0.95
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
