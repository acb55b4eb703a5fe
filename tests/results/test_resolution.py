"""Steps below the last digit of the parameters are seen, and others are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc

TARGET = sghmc.Potential(lambda x: 0.5 * jnp.sum(x.astype(jnp.float32) ** 2))


def verdict(sampler, start):
    samples = sghmc.sample(
        jax.random.key(0), TARGET, sampler, start, num_samples=4, num_chains=2, progress=False
    )
    return samples.health().verdict


@pytest.mark.parametrize(
    ("sampler", "size", "dtype", "is_lost"),
    [
        (sghmc.SGHMC(0.003, 1.0), 1.0, jnp.bfloat16, True),  # its spread is 5 % off
        (sghmc.SGHMC(0.03, 1.0), 1.0, jnp.bfloat16, False),
        (sghmc.SGHMC(0.03, 1.0, mass=400.0), 1.0, jnp.bfloat16, True),
        (sghmc.SGHMC(0.003, 1.0), 1.0, jnp.float32, False),
        (sghmc.SGLD(1e-6), 1.0, jnp.bfloat16, True),
        (sghmc.SGLD(1e-3), 1.0, jnp.bfloat16, False),
        (sghmc.SGHMC(0.003, 1.0), 1e5, jnp.float32, True),
    ],
)
def test_moves_lost_in_rounding(sampler, size, dtype, is_lost):
    start = jnp.full(3, size, dtype)
    assert ("lost in rounding" in verdict(sampler, start)) == is_lost


def test_settings_that_differ_by_parameter_are_not_judged():
    found = verdict(sghmc.SGHMC(0.003, 1.0, mass=np.ones(3)), jnp.ones(3, jnp.bfloat16))
    assert "lost in rounding" not in found
