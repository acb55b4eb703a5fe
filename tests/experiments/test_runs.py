"""A part of a run is no run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.experiments import runs

TARGET = sghmc.Potential(lambda theta: theta**2 / 2)
SAMPLER = sghmc.SGHMC(0.1, friction=1.0)


def test_draws_are_those_of_sample():
    arguments = jax.random.key(0), TARGET, SAMPLER, jnp.zeros(())
    options = {"num_samples": 5, "num_chains": 2, "thinning": 3, "progress": False}
    drawn, sampled = runs.draw(*arguments, **options), sghmc.sample(*arguments, **options)
    np.testing.assert_array_equal(drawn.positions, sampled.positions)


@pytest.mark.parametrize(("num_draws", "is_whole"), [(5, True), (4, False), (0, False)])
def test_a_run_that_was_interrupted_raises(monkeypatch, num_draws, is_whole):
    class Part:
        pass

    part = Part()
    part.num_draws = num_draws  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(runs, "sample", lambda *_, **__: part)
    if is_whole:
        assert runs.draw(num_samples=5) is part
    else:
        with pytest.raises(KeyboardInterrupt):
            runs.draw(num_samples=5)
