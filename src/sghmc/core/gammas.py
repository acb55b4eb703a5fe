"""Gamma variates, by rejection."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt32

from sghmc.core import random

__all__ = ["gammas"]


def gammas(key: UInt32[Array, " word"], shape: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Gamma variates with rate 1, by Marsaglia & Tsang's rejection (2000).

    Attempt i takes row i of the key's variates; below 1, a variate of shape + 1 is scaled down. In
    place of `jax.random.gamma`, which takes XLA for CPUs several times as long to compile.
    """
    flat = shape.reshape(-1)
    d = jnp.where(flat < 1, flat + 1, flat) - 1 / 3
    width, dtype = flat.size, flat.dtype

    def attempt(state):
        i, accepted, is_done = state
        r = random.normals(key, i, 1, width, dtype=dtype) / (3 * jnp.sqrt(d))
        u = random.uniforms(key, i, 1, width, slot=width, dtype=dtype)
        is_inside = r > -1
        r = jnp.where(is_inside, r, 0)
        # x²/2 + d − dv + d log v with v = (1 + r)³, put so that large shapes lose no digits.
        log_ratio = 3 * d * (jnp.log1p(r) - r * (1 - r * (1 / 2 - r / 3)))
        is_good = is_inside & (jnp.log(u) < log_ratio)
        return i + 1, jnp.where(is_done, accepted, (1 + r) ** 3), is_done | is_good

    first = jnp.int32(1), jnp.ones_like(d), jnp.zeros(width, bool)
    v = lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, first)[1]
    # 1 − u is never 0, and so no variate is.
    below = (1 - random.uniforms(key, 0, 1, width, dtype=dtype)) ** (1 / flat)
    return (d * v * jnp.where(flat < 1, below, 1)).reshape(shape.shape)
