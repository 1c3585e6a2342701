"""A hundred settings that share shapes are compiled once; and what is compiled lowers for accelerators."""

import jax
import numpy as np
import pytest
from jax import export

from kqljax import rollout
from kqljax.sweep import Sweep, expand_grid, run_sweep
from kqljax.sweep.groups import make_groups, make_schedule
from kqljax.sweep.segments import Programs
from kqljax.sweep.settings import make_cases, tidy_settings


def test_a_hundred_settings_compile_once(monkeypatch, tmp_path):
    grid = {
        "task": "CartPole-v0",
        "eta": list(np.linspace(0.01, 1.0, 5)),
        "gamma": list(np.linspace(0.5, 0.95, 5)),
        "beta": [0.1, 1.0],
        "params.gravity": [9.0, 10.0],
    }
    settings = expand_grid(grid)
    assert len(settings) == 100
    traces, compiled = [], []
    advance = rollout.advance

    def counted(*arguments):
        traces.append(None)
        return advance(*arguments)

    def heard(event, seconds, **more):
        # All programs of a sweep are called so.
        if event == "/jax/core/compile/backend_compile_duration" and more.get("fun_name") == "jit(one)":
            compiled.append(seconds)

    monkeypatch.setattr(rollout, "advance", counted)
    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        # Four chunks of 25 settings, two segments each.
        sweep = Sweep(settings=settings, seeds=1, steps=8, stages=1, every=4, episodes=1, chunk=25)
        rows = run_sweep(sweep, tmp_path)["rows"]
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    assert len(rows) == 100
    assert len({row["largest_residual"] for row in rows}) > 50  # they did differ
    assert len(compiled) == 3, "one program to begin, one for segments, one to evaluate"
    assert len(traces) <= 2, "a scan looks at its body once, or twice where types have to settle"


@pytest.mark.parametrize(
    "settings",
    [
        [{"task": "MountainCar-v0", "eta": 0.02}, {"task": "MountainCar-v0", "eta": 0.1}],
        [{"task": "Pendulum-v1", "features": "fourier", "frequencies": 8, "dtype": "float32"}],
    ],
    ids=["exact", "features in float32"],
)
def test_the_training_segment_lowers_for_every_platform(settings):
    group = make_groups(make_cases(tidy_settings(settings), 16))[0]
    (segment,) = make_schedule(group.case, 16, 1, None)
    programs = Programs(group, "seeds", jax.devices()[:1])
    rows, seeds = group.rows([0, len(settings) - 1]), np.arange(2, dtype=np.uint32)
    carry = programs.template(rows, seeds, [segment])
    program = programs.segment_program(carry, 16)
    exported = export.export(program, platforms=("cpu", "cuda", "tpu"))(group.fixed, rows, carry, np.int32(0))
    assert exported.platforms == ("cpu", "cuda", "tpu")
    assert "callback" not in exported.mlir_module()
