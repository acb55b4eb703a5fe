"""The numbers in what is said of a run that went wrong."""

import jax.numpy as jnp
import numpy as np

from sghmc.engine import messages
from sghmc.engine.chain import NEVER
from sghmc.gradients.noise import RunningNoise


def test_the_chain_that_failed_first_is_named():
    said = messages.divergence(np.array([NEVER, 9, 4, NEVER, 4]))
    assert said.startswith("Chain 2 became non-finite at step 4 (3 of 5 chains did).")


def noise():
    return RunningNoise(
        jnp.zeros(3),
        jnp.zeros(3),
        jnp.asarray([NEVER, 30, 20], jnp.int32),
        jnp.asarray([1.0, 5.0, 8.0]),
        jnp.asarray([1.0, 4.0, 2.0]),
    )


def test_too_much_noise_is_told_with_both_numbers_and_by_how_much():
    said = messages.too_much_noise(noise(), is_raised=False)
    assert "in chain 2 from step 20 on (2 of 3 chains)" in said
    assert "V̂ is 8 times the friction" in said
    assert "leaves room for 2 times only" in said
    assert "a step_size at most 0.25 times as large, 4 times the friction" in said


def test_a_friction_raised_too_far_is_told_by_its_decay():
    """The decay εC/M with C ∝ ε grows with the step size squared."""
    said = messages.too_much_noise(noise(), is_raised=True)
    assert "momentum decay εC/M 8, but every chain diverges from 2 on" in said
    assert "a step_size at most 0.5 times as large" in said
