"""Experiments: settings times seeds, compiled once a group, with checkpoints, here or on a Dask cluster.

    sweep = Sweep(settings=expand_grid({"task": "CartPole-v0", "recipe": ["default", "paper"]}), seeds=8)
    results = run_sweep(sweep, "results/recipes")    # the same call again goes on after an interruption

`kqljax sweep` is the same from the command line; docs/scaling.md is the guide to devices and clusters.
"""

from kqljax.lab.grid import Sweep
from kqljax.lab.run import Results, run_sweep
from kqljax.lab.settings import LabError, expand_grid, tidy_settings

__all__ = ["LabError", "Results", "Sweep", "expand_grid", "run_sweep", "tidy_settings"]
