"""Silent broadcasting between ranks and reused random keys are errors in every test."""

import jax
import pytest

from cases import SLOW_SAMPLERS

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Contract tests of some samplers are slow."""
    for item in items:
        call = getattr(item, "callspec", None)
        if call and any(str(value) in SLOW_SAMPLERS for value in call.params.values()):
            item.add_marker(pytest.mark.slow)
