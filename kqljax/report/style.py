"""Canvas, legend and colours of all figures.

Matplotlib is the extra `plots` and is imported when a figure is made. Figures have canvases of
their own: neither the backend nor the style of the calling program is touched.
"""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kqljax.io import replace_file

INK, QUIET, RULE = "#222222", "#8C8C8C", "#E8E8E8"


def require_matplotlib() -> None:
    """Raises ImportError with the remedy where the extra is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib: pip install 'kqljax[plots]'.")


def panels(
    count: int, width: float, height: float, share_y: bool, columns: int = 2
) -> tuple[Any, list[Any]]:
    """A figure with `count` panels, at most `columns` in a row."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Shown(Figure):  # matplotlib is imported late, so the class is made here
        def _repr_png_(self) -> bytes:
            """What a notebook shows, also where pyplot knows nothing of the figure."""
            return png(self)

    columns = min(columns, count)
    rows = -(-count // columns)
    size = width * columns, height * rows + 0.6
    figure = Shown(figsize=size, dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    cells = list(figure.subplots(rows, columns, squeeze=False, sharey=share_y).flat)
    for spare in cells[count:]:
        spare.set_visible(False)
    for panel in cells[:count]:
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.spines["bottom"].set_color(QUIET)
        panel.tick_params(colors=INK, labelsize=9)
        panel.tick_params(axis="y", length=0)
        panel.set_axisbelow(True)
    return figure, cells[:count]


def label(panel: Any, title: str = "", x: str = "", y: str = "") -> None:
    """Title and names of the axes, where given."""
    if title:
        panel.set_title(title, loc="left", fontsize=10.5, color=INK)
    if x:
        panel.set_xlabel(x, fontsize=9, color=INK)
    if y:
        panel.set_ylabel(y, fontsize=9, color=INK)


def finish(figure: Any, marks: Sequence[Any], note: str) -> Any:
    """The figure with a legend below, under a note."""
    # A wide figure has room for the legend in one line, a single panel has not.
    columns = max(1, len(marks)) if figure.get_figwidth() > 7 else 1
    place = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    legend = figure.legend(handles=marks, title=note, **place)
    legend.get_title().set(fontsize=9, color=INK)
    return figure


def line(label: str, **style: Any) -> Any:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def png(figure: Any) -> bytes:
    """The figure as a PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", facecolor="white")
    return data.getvalue()


def save(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Writes the figure as a PNG, whole or not at all."""
    replace_file(Path(path), lambda file: file.write(png(figure)))
    return Path(path)
