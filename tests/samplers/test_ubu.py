"""UBU has the law that the mathematics says, and the judges can fail.

The free motion U is judged against the matrix exponential of its generator, which knows none of the
closed forms that the code has.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import laws
import sghmc
from gaussian_settings import MATRICES, PRECISION, SIZE, falling
from planted_faults import becomes, planted
from sghmc import theory
from sghmc.core import random
from sghmc.samplers.friction import SGHMCState
from sghmc.samplers.splitting import UBUKernel, _tanh_gap
from sghmc.theory import affine
from sghmc.types import StepInfo

NOISE = laws.positive(7, SIZE, 0.2, 1.1)
SETTINGS = {
    "scalar": (1.3, 0.8),
    "diagonal": MATRICES["diagonal"][:2],
    "dense": MATRICES["dense"][:2],
    "without friction": (0.0, MATRICES["dense"][1]),
}


def free_motion(time, friction, mass, temperature) -> laws.GaussianStep:
    """Of (θ, r): e^{Gt} and ∫ e^{Gs} D e^{Gᵀs} ds, both from one exponential (Van Loan, 1978)."""
    nothing, inverse = np.zeros((SIZE, SIZE)), np.linalg.inv(mass)
    generator = np.block([[nothing, inverse], [nothing, -friction @ inverse]])
    diffusion = scipy.linalg.block_diag(nothing, 2 * temperature * friction)
    both = scipy.linalg.expm(
        time * np.block([[-generator, diffusion], [np.zeros_like(generator), generator.T]])
    )
    transition = both[2 * SIZE :, 2 * SIZE :].T
    return laws.GaussianStep(transition, transition @ both[: 2 * SIZE, 2 * SIZE :])


def ubu_step(precision, step_size, friction, mass, temperature, gradient_noise):
    half = free_motion(step_size / 2, friction, mass, temperature)
    nothing = np.zeros((SIZE, SIZE))
    kick = np.block([[np.eye(SIZE), nothing], [-step_size * precision, np.eye(SIZE)]])
    of_kick = np.asarray(scipy.linalg.block_diag(nothing, step_size**2 * gradient_noise))
    last = half.transition
    before = last @ (kick @ half.noise @ kick.T + of_kick) @ last.T
    return laws.GaussianStep(last @ kick @ half.transition, before + half.noise)


def judge_step(sampler, t: int = 0):
    held: Any = affine.held(sampler, t)
    friction, mass = (laws.dense(value, SIZE) for value in (held.friction, held.mass))
    expected = ubu_step(PRECISION, held.step_size, friction, mass, held.temperature, NOISE)
    laws.assert_same_step(laws.real_step(sampler, PRECISION, NOISE, t=t, num_steps=4), expected)


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_those_of_the_mathematics(name):
    judge_step(sghmc.UBU(0.4, *SETTINGS[name], temperature=1.7))


def test_steps_of_schedules():
    friction, temperature = (lambda t: 1.3 + 0.2 * t), (lambda t: 1.7 - 0.1 * t)
    judge_step(sghmc.UBU(falling(0.4), friction, SETTINGS["dense"][1], 0.0, temperature), 2)


def test_bias_on_a_gaussian():
    """−ε²τM⁻¹/6 whatever the friction, then a term of order ε³."""
    for name in ("scalar", "dense"):
        friction, mass = SETTINGS[name]
        sampler = sghmc.UBU(0.01, friction, mass, temperature=1.7)
        foretold = -(0.01**2) * 1.7 / 6 * np.linalg.inv(laws.dense(mass, SIZE))
        laws.assert_close(laws.bias(sampler, PRECISION), foretold, rtol=0.02)
        laws.judge_order(sghmc.UBU(0.5, friction, mass, temperature=1.7), PRECISION, order=2)


def test_position_and_momentum_are_independent_to_second_order_where_gibbs_updates_look():
    whole, half = (
        np.linalg.norm(
            theory.stationary_law(
                sghmc.UBU(step, *SETTINGS["dense"], temperature=1.7), PRECISION
            ).state_covariance[:SIZE, SIZE:]
        )
        for step in (0.02, 0.01)
    )
    assert np.log2(whole / half) == pytest.approx(2, abs=0.1)


@pytest.mark.slow
def test_stable_where_documented():
    for friction in (0.01, 1.3, 100.0):
        limit = theory.stability_limit(sghmc.UBU(0.1, friction, mass=0.8), 2.0)
        assert limit > 2 * np.sqrt(0.8 / 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_small_frictions_lose_no_digits(dtype):
    """(y − tanh y)/y² against its series; at 1e-6 the difference itself is 0 in both precisions."""
    with jax.enable_x64(dtype == np.float64):
        y = jnp.asarray([0.0, 1e-6, 1e-3, 0.05, 0.999999, 1.0, 3.0, 80.0], dtype)
        seen = np.asarray(_tanh_gap(y), np.float64)
    y = np.asarray(y, np.float64)
    terms = (1 / 3, -2 / 15, 17 / 315, -62 / 2835, 1382 / 155925)
    series = sum(c * y ** (2 * i + 1) for i, c in enumerate(terms))
    direct = (y - np.tanh(y)) / np.maximum(y, 0.1) ** 2
    expected = np.where(y < 0.1, series, direct)
    np.testing.assert_allclose(seen, expected, rtol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("noise", [0.3, sghmc.EmpiricalFisher()])
def test_gradient_noise_is_refused(noise):
    with pytest.raises(ValueError, match=r"UBU cannot subtract gradient noise.*use BAOAB or SGHMC"):
        sghmc.UBU(0.1, 1.0, gradient_noise=noise)


# The planted faults.


class KickFirst(UBUKernel):
    def step(self, t, noise, state, oracle):
        potential, grad = oracle(0, state.position)
        state = SGHMCState(state.position, self._kicked(t, state.velocity, grad))
        return self._freed(t, noise, 2, self._freed(t, noise, 0, state)), StepInfo(potential)


class SameNoiseTwice(UBUKernel):
    def _freed(self, t, noise, first, state):
        return super()._freed(t, noise, 0, state)


class UncorrelatedNoise(UBUKernel):
    def _freed(self, t, noise, first, state):
        swapped = [
            jnp.concatenate([random.copy_of(noise, first + i, state.position) for i in (1, 0)] * 2)
        ]
        _, velocity = super()._freed(t, noise, first, state)
        position, _ = super()._freed(t, swapped, 0, state)
        return SGHMCState(position, velocity)


@pytest.mark.slow_cases("UncorrelatedNoise")
@pytest.mark.parametrize("kind", [KickFirst, SameNoiseTwice, UncorrelatedNoise])
def test_the_judge_sees_the_fault(kind):
    sampler = sghmc.UBU(0.4, *SETTINGS["scalar"], temperature=1.7)
    judge_step(sampler)
    with pytest.raises(AssertionError):
        judge_step(planted(sampler, becomes(kind)))


def test_momenta_of_another_temperature_are_multiplied_by_the_root():
    kernel = sghmc.UBU(0.1, 1.0).prepare(jnp.zeros(2))
    state = SGHMCState(jnp.array([1.0, 2.0]), jnp.array([3.0, -4.0]))
    found = kernel.rescale_momenta(0, state, jnp.asarray(2.25))
    np.testing.assert_allclose(found.velocity, [4.5, -6.0], rtol=1e-6)
    np.testing.assert_array_equal(found.position, state.position)


def test_the_kinetic_temperature_is_that_of_the_momenta():
    """rᵀM⁻¹r/d, with v = εM⁻¹r."""
    kernel = sghmc.UBU(0.1, 1.0, mass=np.array([2.0, 5.0])).prepare(jnp.zeros(2))
    state = SGHMCState(jnp.zeros(2), 0.1 * jnp.array([3.0, -4.0]))
    assert kernel.kinetic_temperature(0, state) == pytest.approx((2 * 9 + 5 * 16) / 2)
