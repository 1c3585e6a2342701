"""Pytree registration: types stay apart, and instances survive what jax does with them."""

import dataclasses
import itertools

import jax
import pytest
from cases import KERNELS

import kqljax
from kqljax._arrays import register


def test_different_kernels_never_share_a_structure():
    """jit's cache looks structures up by equality: two kernels that compare equal can answer for
    each other.
    """
    # A second RBF kernel has the same structure, and leaves of another shape.
    kernels = {name: case[0] for name, case in KERNELS.items() if name != "rbf of two etas"}
    structures = {name: jax.tree.structure(kernel) for name, kernel in kernels.items()}
    for one, other in itertools.combinations(structures, 2):
        assert structures[one] != structures[other], (one, other)
    assert jax.tree.structure(kqljax.RBF(eta=0.1)) == jax.tree.structure(kqljax.RBF(eta=0.2))


def test_none_stays_none():
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=5)
    axes = jax.tree.map(lambda _: None, cfg)
    assert axes.lam is None
    assert axes.beta is None
    assert axes.horizon == 5


def test_paths_name_the_fields():
    cfg = kqljax.KQLConfig(kernel=kqljax.RBF(), num_actions=2, horizon=5)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(cfg)]
    assert paths == [".kernel.eta", ".gamma", ".lam", ".beta", ".terminal_value"]


def test_unknown_static_field_is_refused():
    @dataclasses.dataclass
    class Thing:
        size: int

    with pytest.raises(ValueError, match=r"Thing has no field shape; its fields are size"):
        register(Thing, static=("shape",))
