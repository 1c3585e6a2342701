"""Every public name has an example in its docstring, and all examples say what happens."""

import doctest
import importlib
import inspect
import pkgutil
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kqljax
from kqljax import features, theory

PREPARED = {
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "kqljax": kqljax,
    "features": features,
    "theory": theory,
}
"""What kqljax's own docstring says an example may count on; conftest.py has switched float64 on."""


def public_things():
    """Name and object: what the packages export, and what one may call on the agent."""
    for package in (kqljax, features, theory):
        for name, thing in vars(package).items():
            if not name.startswith("_") and not inspect.ismodule(thing):
                yield f"{package.__name__}.{name}", thing
    for name, thing in vars(kqljax.KQL).items():
        if not name.startswith("_") and not isinstance(thing, property):
            yield f"kqljax.KQL.{name}", getattr(kqljax.KQL, name)


@pytest.mark.parametrize(
    "name, thing", list(public_things()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_public_names_have_an_example(name, thing):
    """An example, or the name of what has one: "see `NAME`". What functions return is shown
    there.
    """
    text = inspect.getdoc(thing) or ""
    if ">>> " in text or (
        inspect.isclass(thing)
        and (issubclass(thing, tuple) or getattr(thing, "_is_protocol", False))
    ):
        return
    others = re.findall(r"[Ss]ee `(?:KQL\.)?(\w+)`", " ".join(text.split()))
    owners = (kqljax, kqljax.KQL, features, theory)
    shown = [
        inspect.getdoc(getattr(owner, other, None)) or "" for owner in owners for other in others
    ]
    assert any(">>> " in each for each in shown), (
        f"{name} has no example, and names nothing that has one"
    )


def modules():
    """All modules of the library that have examples, by name."""
    found = [name for _, name, _ in pkgutil.walk_packages(kqljax.__path__, "kqljax.")]
    return [
        name
        for name in ("kqljax", *found)
        if ">>> " in inspect.getsource(importlib.import_module(name))
    ]


def test_examples_run():
    # One test, one process: the examples share their compiled programs.
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    finder = doctest.DocTestFinder()
    report = []
    for name in modules():
        for case in finder.find(importlib.import_module(name), globs=dict(PREPARED)):
            runner.run(case, out=report.append)
    assert not runner.failures, "".join(report)
    assert runner.tries > 200
