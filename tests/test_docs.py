"""Every public name is documented, and the README's code runs as it stands."""

import inspect
import re
from pathlib import Path

import pytest

import kqljax

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
    assert len(set(kqljax.__all__)) == len(kqljax.__all__)
    for name in kqljax.__all__:
        assert hasattr(kqljax, name)


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["returns"].shape == (20,)
    assert bool(names["info"].is_stored)
    assert names["widths"].shape == (3,)


def test_links_in_documents_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
