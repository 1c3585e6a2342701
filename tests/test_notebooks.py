"""Notebooks are text; here they are executed from beginning to end, with little work."""

import re

import pytest
from build_notebooks import execute, notebooks

NAMES = {
    "quickstart",
    "inside_a_step",
    "sweep_in_one_vmap",
    "exact_to_features",
    "theory_on_a_run",
    "bring_your_own",
}


def test_they_are_there():
    assert {path.stem for path in notebooks()} == NAMES


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = execute(path, is_short=True)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = re.findall(r"^(?:plt\.show\(\)|maps\.draw)", path.read_text(), re.MULTILINE)
    shown = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(shown) == len(figures) >= 1
    # Nothing that a reader would have to puzzle over.
    assert not [output["text"] for output in outputs if output.get("name") == "stderr"]
