"""Experiments: settings times seeds, one compile a group, with checkpoints, here or on a cluster.

    grid = expand_grid({"task": "CartPole-v0", "recipe": ["default", "paper"]})
    results = run_sweep(Sweep(settings=grid, seeds=8), "results/recipes")

The same call again goes on after an interruption. `kqljax sweep` is the same from the command line;
docs/scaling.md is the guide to devices and clusters.
"""

from kqljax.lab.grid import Sweep
from kqljax.lab.run import Results, run_sweep
from kqljax.lab.settings import LabError, expand_grid, tidy_settings

__all__ = ["LabError", "Results", "Sweep", "expand_grid", "run_sweep", "tidy_settings"]
