"""A step as an affine map, and what is refused."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import theory
from sghmc.samplers.langevin import SGLDKernel, SGLDState
from sghmc.theory import affine
from sghmc.types import StepInfo

PRECISION = np.array([[2.0, 0.6], [0.6, 0.7]])


def test_double_precision_stays_inside():
    theory.stationary_law(sghmc.SGLD(0.1), 2.0)
    assert jnp.zeros(1).dtype == jnp.float32


def test_an_accept_step_is_refused():
    with pytest.raises(ValueError, match="metropolis=False"):
        theory.stationary_law(sghmc.HMC(0.1, 3), PRECISION)


class _CubicKernel(SGLDKernel):
    def step(self, t, noise, state, oracle):
        return SGLDState(state.position - 0.1 * state.position**3), StepInfo(jnp.zeros(()))


class _CubicSampler(sghmc.SGLD):
    def prepare(self, like, num_steps=1):
        kernel = super().prepare(like, num_steps)
        return _CubicKernel(
            kernel.step_size, kernel.preconditioner, kernel.noise, kernel.temperature
        )


def test_a_step_that_is_not_affine_is_refused():
    with pytest.raises(ValueError, match="_CubicSampler is not affine"):
        theory.stationary_law(_CubicSampler(0.1), PRECISION)


@pytest.mark.parametrize("precision", [-1.0, [[1.0, 2.0], [2.0, 1.0]]])
def test_a_precision_must_be_positive(precision):
    with pytest.raises(ValueError, match="precision"):
        theory.stationary_law(sghmc.SGLD(0.1), precision)


def test_a_new_step_size_does_not_retrace():
    """`stability_limit` and `tune` ask for many: each must cost linear algebra, not compilation."""
    differentiate: Any = affine._differentiated()
    before = differentiate._cached._cache_size()
    for step_size in (0.11, 0.12, 0.13):
        theory.affine_map(sghmc.SGLD(step_size), np.diag([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert differentiate._cached._cache_size() == before + 1
