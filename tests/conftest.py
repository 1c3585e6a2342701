"""The tests run in float64 unless they say otherwise; the library itself never touches jax's
configuration.
"""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)

MOST_MAPPINGS = 30_000
"""Half of what Linux gives a process by default. Every compiled program holds some, and past the
limit the compiler dies.
"""


@pytest.fixture(autouse=True)
def _room_for_programs():
    """Compiled programs are dropped before the process runs out of memory mappings: a thousand
    tests compile that many.
    """
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and mappings.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A directory for compiled programs that all test processes and their children share."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="module")
def compile_once(compiled):
    """Programs that were compiled before, here or in another test process, are taken from the
    common directory.
    """
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(compiled))
    jax.config.update(names[1], 0.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
