"""Which module may import which: the contract in pyproject.toml, and that it notices."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(folder):
    """Runs import-linter on the package in a folder."""
    command = Path(sys.executable).with_name("lint-imports")
    if not command.exists():
        pytest.fail("import-linter is not installed: pip install -e '.[dev]'")
    return subprocess.run(
        [str(command), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(
        ROOT / "kqljax", tmp_path / "kqljax", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_arrows_of_the_house():
    assert (found := lint(ROOT)).returncode == 0, found.stdout


@pytest.mark.parametrize(
    "file, line",
    [
        ("kql.py", "from kqljax.engines.exact import Exact"),
        ("kernels.py", "from kqljax.config import KQLConfig"),
        ("rounds/fit.py", "import kqljax.training"),
    ],
)
def test_a_wrong_arrow_is_noticed(copy, file, line):
    path = copy / "kqljax" / file
    head, rest = path.read_text().split("from __future__ import annotations\n", 1)
    path.write_text(f"{head}from __future__ import annotations\n{line}\n{rest}")
    found = lint(copy)
    assert found.returncode == 1
    assert "BROKEN" in found.stdout


def test_no_import_of_the_package_inside_of_a_function():
    """A cycle could hide there. A command imports what it needs when it runs: --help is to be
    quick.
    """
    for path in (ROOT / "kqljax").rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                    names += (
                        [each.name for each in node.names] if isinstance(node, ast.Import) else []
                    )
                    assert not any(re.match(r"kqljax(\.|$)", name) for name in names), (
                        f"{path.name}: {function.name}"
                    )
