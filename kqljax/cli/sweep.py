"""The command `kqljax sweep`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from kqljax.cli.base import INTERRUPTED, NO_DEFAULT, UsageError, errors_for_people, work_bar

if TYPE_CHECKING:
    from kqljax.lab import Results, Sweep

_GRID = (
    "task", "recipe", "kernel", "eta", "gamma", "lam", "beta", "features", "tolerance", "dtype",
)  # fmt: skip
_SIZES = ("seeds", "first_seed", "steps", "episodes", "curve_points", "chunk")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
Words = Annotated[tuple[str, ...], arg(metavar="X ...", help_behavior_hint="")]
Number = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepCommand:
    """Runs every setting with every seed, and writes one table, results.csv, to the directory.

    A sweep that was interrupted, in whatever way, goes on with the same command. With more seeds or
    values only what is missing is run. Several values of a setting make a grid: all combinations.

    examples:
      kqljax sweep --task MountainCar-v0 --recipe default paper --seeds 4 --out results/recipes
      kqljax sweep --task CartPole-v0 --recipe paper --eta 0.01 0.02 --gamma 0.9 0.95 --out grid
      kqljax sweep --file grid.toml --out results/grid
      kqljax sweep --task Acrobot-v1 --scheduler tcp://HOST:8786 --out results/acrobot

    A file, TOML or JSON, has the same names:
      seeds = 8
      [grid]                      # or [[settings]], a list without combinations
      task = ["MountainCar-v0"]
      recipe = ["paper"]
      eta = [0.01, 0.02, 0.05]
      "params.gravity" = [0.0025, 0.003]
    """

    out: Annotated[Path, arg(metavar="DIR")]
    """Directory for checkpoints and results."""
    task: Words = ()
    """MountainCar-v0, Pendulum-v1, Acrobot-v1, CartPole-v0, CartPole-v1."""
    recipe: Words = ()
    """default learns in rounds, paper is Algorithm 1 (default: default)."""
    kernel: Words = ()
    """rbf, linear, matern32, matern52; this to --dtype are of recipe paper (default: rbf)."""
    eta: Words = ()
    """Inverse squared width of the RBF kernel (default: the paper's for the task)."""
    gamma: Words = ()
    """Discount factor (default: 0.95)."""
    lam: Words = ()
    """Ridge parameter (default: 1 / (10 steps))."""
    beta: Words = ()
    """Confidence width (default: sqrt(lam) / (1 - gamma))."""
    features: Words = ()
    """none is the exact engine; linear, taylor, fourier, nystrom (default: none)."""
    tolerance: Words = ()
    """Largest error of the features (default: 1e-6)."""
    dtype: Words = ()
    """Of the state, float64 or float32 (default: float64)."""
    other: Annotated[
        tuple[str, ...], arg(name="set", metavar="NAME=VALUE ...", help_behavior_hint="")
    ] = ()
    """Other settings: params.NAME of the environment, rounds.NAME of the recipe, length_scale,
    frequencies, tie_break. The same name again is another value."""
    file: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Settings from a TOML or JSON file; options add to its grid."""
    seeds: Number = None
    """Seeds of each setting (default: 8)."""
    first_seed: Number = None
    """The first of them (default: 0)."""
    steps: Number = None
    """Steps of training (default: 1000)."""
    episodes: Number = None
    """Evaluation episodes (default: 100)."""
    curve_points: Number = None
    """Points of a learning curve, for curves.csv (default: 0)."""
    chunk: Number = None
    """Runs side by side on an accelerator at most (default: as many as fit)."""
    memory: Annotated[str | None, arg(metavar="BYTES", help_behavior_hint="")] = None
    """What a device may use, such as 8GB (default: most of what it has)."""
    scheduler: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """A Dask scheduler whose workers make the runs (default: this process does)."""
    no_figure: bool = False
    """Draws no sweep.png."""
    top: Annotated[int, NO_DEFAULT] = 10
    """Settings of a task to print (default: 10)."""
    json: bool = False
    """Prints a summary as JSON in place of the table."""

    def run(self) -> int:
        """Runs the sweep and prints the best settings; exit code."""
        if self.scheduler is None:
            use_all_cores()
        from kqljax.lab import run_sweep

        with errors_for_people():
            sweep, memory = self.make_sweep(), self.memory and parse_bytes(self.memory)
            client = self.scheduler and _connect(self.scheduler)
            options: dict[str, Any] = {"client": client or None, "memory": memory or None}
            try:
                with work_bar("runs") as bar:
                    results = run_sweep(sweep, self.out, say=_say, report=bar, **options)
            except KeyboardInterrupt:
                _say(f"stopped; finished runs are in {self.out}, the same command goes on.")
                return INTERRUPTED
            finally:
                if client:
                    client.close()
            self._tell(sweep, results)
        return 0

    def make_sweep(self) -> Sweep:
        """The sweep that options and file ask for."""
        from kqljax.lab import Sweep, expand_grid, tidy_settings

        document = _read_file(self.file) if self.file else {}
        if unknown := set(document) - {*_SIZES, "grid", "settings"}:
            known = f"Known: grid, settings, {', '.join(_SIZES)}."
            raise UsageError(f"{self.file}: unknown {', '.join(sorted(unknown))}. {known}")
        grid: dict[str, Any] = dict(document.get("grid", {}))
        grid |= {name: list(values) for name in _GRID if (values := getattr(self, name))}
        for word in self.other:
            name, sign, value = word.partition("=")
            if not sign:
                raise UsageError(f"--set takes NAME=VALUE, got {word!r}.")
            again = [each.partition("=")[2] for each in self.other if each.startswith(f"{name}=")]
            grid[name] = again
        if "settings" in document:
            lists = {n: v if isinstance(v, list) else [v] for n, v in grid.items()}
            if any(len(values) != 1 for values in lists.values()):
                raise UsageError(f"{self.file} lists its settings: give one value, no grid.")
            common = {name: values[0] for name, values in lists.items()}
            settings = tidy_settings([{**common, **each} for each in document["settings"]])
        elif "task" in grid:
            settings = expand_grid(grid)
        else:
            example = "kqljax sweep --task MountainCar-v0 --out results"
            raise UsageError(f"--task is missing, for example: {example}")
        sizes = {name: document[name] for name in _SIZES if name in document}
        sizes |= {name: value for name in _SIZES if (value := getattr(self, name)) is not None}
        return Sweep(settings=settings, **sizes)

    def _tell(self, sweep: Sweep, results: Results) -> None:
        from kqljax.report import style, sweeps

        files = ["results.csv", *(["curves.csv"] if results.curves else [])]
        if not self.no_figure:
            try:
                figure = sweeps.draw_sweep(results.rows, sweep.names)
                files.append(style.save(figure, self.out / "sweep.png").name)
            except ImportError as error:
                _say(f"no figure: {error}")
        if self.json:
            print(json.dumps(sweeps.summarise_rows(results.rows, sweep.names), indent=1))
            return
        sweeps.print_best(results.rows, sweep.names, self.top)
        print(f"wrote {', '.join(str(self.out / name) for name in files)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def use_all_cores() -> None:
    """A CPU device for each core, one BLAS thread each. Before jax is first used."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import jax

    if "JAX_NUM_CPU_DEVICES" not in os.environ and hasattr(os, "sched_getaffinity"):
        try:
            jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
        except RuntimeError:
            return  # jax is in use already, with the devices it has


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--scheduler needs the extra: pip install 'kqljax[dask]'.") from error
    try:
        return Client(address, timeout=20)
    except (OSError, ValueError) as error:
        words = f"no Dask scheduler answers at {address} ({error or type(error).__name__})."
        raise UsageError(f"{words} Start one: dask scheduler; dask worker {address}") from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {path}: {error}. It must be TOML, or JSON (.json)."
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} must hold a table with grid or settings.")
    return document


def parse_bytes(text: str) -> int:
    """A number of bytes from words such as 8GB or 500MiB."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmg]i?)?b?\s*", text.lower())
    size = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if size <= 0:
        raise UsageError(f"--memory must be a number of bytes such as 8GB or 2GiB, got {text!r}.")
    return size
