"""The tests run in float64 unless they say otherwise; the library itself never touches jax's configuration."""

import os

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """A directory for compiled programs that all test processes and their children share."""
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="module")
def compile_once(compiled):
    """Programs that were compiled before, here or in another test process, are taken from the common directory."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(compiled))
    jax.config.update(names[1], 0.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
