"""The tests run in float64 unless they say otherwise; the library itself never touches jax's configuration."""

import jax

jax.config.update("jax_enable_x64", True)
