"""Silent broadcasting between ranks and reused random keys are errors in every test."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
