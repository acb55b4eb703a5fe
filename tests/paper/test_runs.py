"""A part of a run is no run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import paper

TARGET = sghmc.Potential(lambda theta: theta**2 / 2)
SAMPLER = sghmc.SGHMC(0.1, friction=1.0)


@pytest.mark.slow
def test_draws_are_those_of_sample():
    arguments = jax.random.key(0), TARGET, SAMPLER, jnp.zeros(())
    options = {"num_samples": 5, "num_chains": 2, "thinning": 3, "progress": False}
    drawn, sampled = paper.draw(*arguments, **options), sghmc.sample(*arguments, **options)
    np.testing.assert_array_equal(drawn.positions, sampled.positions)


def test_a_run_that_was_interrupted_raises(monkeypatch):
    """In its last block, too: whoever presses Ctrl-C wants no further run."""
    arguments = jax.random.key(0), TARGET, SAMPLER, jnp.zeros(())
    whole = sghmc.sample(*arguments, num_samples=5, progress=False)
    part = dataclasses.replace(whole, is_interrupted=True)
    monkeypatch.setattr(paper, "sample", lambda *_, **__: part)
    with pytest.raises(KeyboardInterrupt):
        paper.draw(num_samples=5)
