"""Every public name is documented, and the README's code runs as it stands."""

import inspect
import json
import re
from pathlib import Path

import pytest

import kqljax
from kqljax.beside import place_beside, take_times
from kqljax.report.table import markdown_table

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", kqljax.__all__)
def test_public_names_are_documented(name):
    thing = getattr(kqljax, name)
    assert thing.__doc__, f"{name} has no docstring"
    assert thing.__doc__.strip()
    if inspect.isclass(thing) and issubclass(thing, tuple):
        for field in thing._fields:
            assert re.search(rf"\b{field}\b", thing.__doc__), f"{name}.{field} is not documented"


def test_public_names_are_there_and_sorted():
    by_kind = sorted(kqljax.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert kqljax.__all__ == by_kind
    for name in kqljax.__all__:
        assert hasattr(kqljax, name)


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["agent"].num_timesteps == 1000
    assert names["returns"].shape == (20,)
    assert bool(names["info"].is_stored)
    assert names["widths"].shape == (3,)
    assert names["run"].state.q_tilde.dtype == "float32"


def test_readme_table_is_the_committed_result():
    results = ROOT / "benchmarks" / "results"
    document = place_beside(json.loads((results / "table1.json").read_text()), results / "sb3_dqn.json")
    document = take_times(document, [results / "times.json", results / "times_sb3.json"])
    assert markdown_table(document) in (ROOT / "README.md").read_text()


def test_links_in_documents_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
