"""Sweeps: many seeds, many settings, many devices, and nothing lost.

    sweep = Sweep(settings=expand_grid({"task": "MountainCar-v0", "eta": [0.01, 0.02, 0.05]}), seeds=8, steps=1000)
    document = run_sweep(sweep, "results/eta")       # the same call again goes on after an interruption

Settings that share shapes share one compile and one vmap. Between compiled segments of steps the host looks at the runs,
writes a checkpoint and stops those whose numbers are no longer finite. `kqljax sweep` is the same from the command line,
docs/scaling.md the guide to devices and hosts.
"""

from kqljax.sweep.errors import SweepError
from kqljax.sweep.plan import Sweep
from kqljax.sweep.run import Progress, run_sweep
from kqljax.sweep.settings import SettingError, expand_grid, tidy_settings

__all__ = ["Progress", "SettingError", "Sweep", "SweepError", "expand_grid", "run_sweep", "tidy_settings"]
