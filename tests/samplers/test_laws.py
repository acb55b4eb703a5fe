"""Every sampler has the law that the mathematics says, and the judges that say so can fail.

Which judge was seen to catch which fault (each is planted in `test_the_judge_sees_the_fault`):

| judge | caught |
| --- | --- |
| `judge_sghmc` | √C → C in the noise; moving θ by the old r (explicit Euler); 2ε for ε; twice the \
gradient; V̂ forgotten, times τ, times τ²; the noise or the friction without the mass; τ ignored |
| `judge_sghmc_scalar` | √C → C; V̂ forgotten, times τ; 2ε for ε; explicit Euler |
| `judge_sgld` | noise without P, with P for √P; V̂ forgotten, times τ, times τ²; 2ε for ε |
| `judge_hmc` | momenta without the mass; a whole kick at the start; 2ε for ε |
| `judge_order` | explicit Euler; V̂ forgotten; momenta resampled literally, or from N(0, τM) |
| `judge_schedule` | velocities kept in units of the old step size; ε_t V̂ for the largest ε V̂ |
| `judge_middle` | a whole drift back; none |
| `judge_minibatch` | N/n forgotten; N/n on the prior too |
| `judge_momentum_descent` | noise at temperature 0; friction by the new velocity |
| leapfrog | a whole kick at the end is neither reversible nor of the right acceptance |
"""

import dataclasses
import itertools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import laws
import sghmc
from gaussian_settings import (
    DENSE_FRICTION,
    DENSE_MASS,
    DENSE_NOISE,
    DIAGONAL_FRICTION,
    DIAGONAL_MASS,
    DIAGONAL_NOISE,
    MATRICES,
    PRECISION,
    SIZE,
    falling,
)
from planted_faults import becomes, planted
from sghmc import theory
from sghmc.core import matrices, random, tree
from sghmc.core.checks import value_at
from sghmc.paper.literal import LiteralSGHMC, LiteralSGHMCKernel
from sghmc.samplers.hmc import HMCKernel, HMCNoise, HMCState
from sghmc.samplers.sghmc import SGHMCKernel, SGHMCState
from sghmc.types import StepInfo


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("excess", [0.0, 0.9])
@pytest.mark.parametrize("name", MATRICES)
def test_sghmc_law(name, excess, temperature):
    friction, mass, gradient_noise = MATRICES[name]
    laws.judge_sghmc(
        sghmc.SGHMC(0.25, friction, mass, gradient_noise, temperature), PRECISION, excess
    )


def test_algorithm_2_pairs_the_same_positions_with_the_next_momenta():
    """θ moves first: the same S_θθ and S_rr, and S_θr = −½εM⁻¹S_rr."""
    sampler = LiteralSGHMC(0.25, *MATRICES["dense"], temperature=1.7)
    law = theory.stationary_law(sampler, PRECISION, DENSE_NOISE)
    flip = np.diag(np.repeat([1.0, -1.0], SIZE))
    ours = laws.sghmc_covariance(PRECISION, 0.25, DENSE_FRICTION, DENSE_MASS, 1.7)
    laws.assert_close(law.state_covariance, flip @ ours @ flip)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize(("gradient_noise", "subtracted"), [(2.1, 2.1), (2.1, 0.0), (2.1, 0.7)])
def test_sghmc_law_of_one_parameter(gradient_noise, subtracted, temperature):
    sampler = sghmc.SGHMC(0.3, 1.3, 0.8, subtracted, temperature)
    laws.judge_sghmc_scalar(sampler, 2.3, gradient_noise)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("excess", [0.0, 0.9])
@pytest.mark.parametrize("name", MATRICES)
def test_sgld_law(name, excess, temperature):
    preconditioner, _, gradient_noise = MATRICES[name]
    sampler = sghmc.SGLD(0.15, preconditioner, gradient_noise, temperature)
    laws.judge_sgld(sampler, PRECISION, excess)


@pytest.mark.slow_cases("dense-1", "diag-1", "diag-2", "scalar-1", "scalar-7")
@pytest.mark.parametrize("num_steps", [1, 2, 7])
@pytest.mark.parametrize("mass", [0.8, DIAGONAL_MASS, DENSE_MASS], ids=["scalar", "diag", "dense"])
def test_hmc_law_without_accept_step(mass, num_steps):
    laws.judge_hmc(sghmc.HMC(0.35, num_steps, mass, metropolis=False), PRECISION)


@pytest.mark.parametrize("name", MATRICES)
def test_steps_are_those_of_the_mathematics_for_any_noise(name):
    """Not only the law: F and LLᵀ, with V of no relation to V̂."""
    friction, mass, subtracted = MATRICES[name]
    c, m, v = (laws.dense(value, SIZE) for value in MATRICES[name])
    noise = laws.positive(7, SIZE, 0.2, 1.1)
    laws.assert_same_step(
        laws.real_step(sghmc.SGHMC(0.25, friction, mass, subtracted, 1.7), PRECISION, noise),
        laws.sghmc_step(PRECISION, 0.25, c, m, 1.7, noise, v),
    )
    laws.assert_same_step(
        laws.real_step(sghmc.SGLD(0.15, friction, subtracted, 1.7), PRECISION, noise),
        laws.sgld_step(PRECISION, 0.15, c, 1.7, noise, v),
    )


def test_bias_orders():
    laws.judge_order(sghmc.SGHMC(0.5, *MATRICES["dense"], temperature=1.7), PRECISION, order=2)
    laws.judge_order(sghmc.SGLD(0.3, DENSE_MASS, DENSE_NOISE, 1.7), PRECISION, order=1)
    laws.judge_order(sghmc.HMC(0.5, 5, DENSE_MASS, metropolis=False), PRECISION, order=2)


def constant(value: float) -> Any:
    return optax.constant_schedule(value)


@pytest.mark.slow
def test_constant_schedules_are_constants():
    scheduled = sghmc.SGHMC(constant(0.25), constant(1.3), DENSE_MASS, DENSE_NOISE, constant(1.7))
    plain = sghmc.SGHMC(0.25, 1.3, DENSE_MASS, DENSE_NOISE, 1.7)
    for t in (0, 5):
        laws.assert_same_step(
            laws.real_step(scheduled, PRECISION, DENSE_NOISE, t=t),
            laws.real_step(plain, PRECISION, DENSE_NOISE, t=t),
        )
    laws.assert_same_step(
        laws.real_step(sghmc.SGLD(constant(0.15), DENSE_MASS, 1.2, constant(1.7)), PRECISION, t=5),
        laws.real_step(sghmc.SGLD(0.15, DENSE_MASS, 1.2, 1.7), PRECISION),
    )
    laws.assert_same_step(
        laws.real_step(sghmc.HMC(constant(0.35), 3, DENSE_MASS, False), PRECISION, t=5),
        laws.real_step(sghmc.HMC(0.35, 3, DENSE_MASS, False), PRECISION),
    )


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_learning_rate_and_momentum_decay_are_the_same_sampler(is_scheduled):
    """η = ε², α = εC, M = 1."""
    step_size, friction = 0.25, 1.3
    rate, decay = step_size**2, step_size * friction
    if is_scheduled:
        rate, decay = constant(rate), constant(decay)
    laws.assert_same_step(
        laws.real_step(
            sghmc.SGHMC.from_learning_rate(rate, decay, DENSE_NOISE, 1.7), PRECISION, 0.4, t=3
        ),
        laws.real_step(sghmc.SGHMC(step_size, friction, 1.0, DENSE_NOISE, 1.7), PRECISION, 0.4),
    )


CHANGING = sghmc.SGHMC(
    falling(0.4), lambda t: 1.3 + 0.2 * t, DENSE_MASS, DENSE_NOISE, lambda t: 1.7 - 0.1 * t
)
CHANGING_STEP = sghmc.SGHMC(falling(0.4), DENSE_FRICTION, DENSE_MASS, DENSE_NOISE, 1.7)


@pytest.mark.parametrize("sampler", [CHANGING, CHANGING_STEP])
def test_changing_schedules(sampler):
    laws.judge_schedule(sampler, PRECISION, DIAGONAL_NOISE, num_steps=4)


@pytest.mark.slow
def test_changing_schedule_of_a_whole_run():
    """The positions of float32 steps, noise and all, against the recursion of r and θ in NumPy."""
    mass, noise = DIAGONAL_MASS, DIAGONAL_NOISE
    sampler = sghmc.SGHMC(falling(0.4), DIAGONAL_FRICTION, mass, noise, 1.7)
    position = np.array([1.0, -0.5, 2.0])
    kernel = sampler.prepare(jnp.asarray(position, jnp.float32), num_steps=8)
    target = sghmc.Potential(lambda x: x @ (jnp.asarray(PRECISION, jnp.float32) @ x) / 2)
    oracle = sghmc.FullBatch().prepare(target, position).oracle(target, [])
    normals = np.random.default_rng(0).normal(size=(9, SIZE))
    state = kernel.init([jnp.asarray(normals[-1], jnp.float32)], jnp.asarray(position, jnp.float32))
    momentum = np.sqrt(1.7 * mass) * normals[-1]
    for t in range(8):
        epsilon = 0.4 * 0.8**t
        injected = np.sqrt(2 * epsilon * 1.7 * DIAGONAL_FRICTION - epsilon**2 * noise)
        momentum = (
            momentum
            - epsilon * PRECISION @ position
            - epsilon * DIAGONAL_FRICTION / mass * momentum
            + injected * normals[t]
        )
        position = position + epsilon / mass * momentum
        state, _ = kernel.step(t, [jnp.asarray(normals[t], jnp.float32)], state, oracle)
        np.testing.assert_allclose(state.position, position, rtol=2e-5)


@pytest.mark.parametrize("every", [2, 5])
def test_repaired_resampling(every):
    """Third order, where the second is promised: the −¼ε²τM⁻¹ of mid-drift points is made good."""
    sampler = sghmc.SGHMC(0.5, *MATRICES["dense"], temperature=1.7, resample_every=every)
    laws.judge_order(sampler, PRECISION, order=3)


@pytest.mark.parametrize("every", [2, 5])
def test_literal_resampling_is_off_however_small_the_step(every):
    exact = 1.7 * np.linalg.inv(PRECISION)
    sampler = LiteralSGHMC(0.5, *MATRICES["dense"], temperature=1.7, resample_every=every)
    for factor in (1e-3, 1e-4):
        bias = laws.bias(sampler.rescaled(factor), PRECISION)
        laws.assert_close(exact + bias, exact * every / (every - 1), rtol=10 * factor)


def test_middle_of_a_drift_has_the_exact_law():
    laws.judge_middle(sghmc.SGHMC(0.25, *MATRICES["dense"], temperature=1.7), PRECISION)


@pytest.mark.slow
def test_kinetic_temperature_is_the_temperature():
    """E[rᵀ(M⁻¹ − ½εM⁻¹CM⁻¹)r]/d − τ is of order ε², where rᵀM⁻¹r/d − τ is of order ε."""
    errors = []
    for step_size in (0.02, 0.01):
        sampler = sghmc.SGHMC(step_size, DENSE_FRICTION, DENSE_MASS, temperature=1.7)
        covariance = theory.stationary_law(sampler, PRECISION).state_covariance[SIZE:, SIZE:]
        with jax.enable_x64(True):
            kernel = sampler.prepare(jnp.zeros(SIZE))
            roots = np.linalg.inv(DENSE_MASS) @ np.linalg.cholesky(covariance) * step_size
            errors.append(
                sum(
                    float(kernel.kinetic_temperature(0, SGHMCState(v, v)))
                    for v in jnp.array(roots.T)
                )
                - 1.7
            )
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


def test_at_full_momentum_decay_sghmc_is_sgld():
    """α = 1, C = M/ε: step ε², preconditioner M⁻¹; V, V̂ and τ included, so all lags agree."""
    step_size, noise = 0.6, laws.positive(7, SIZE, 0.2, 1.1)
    inertial = laws.real_step(
        sghmc.SGHMC(step_size, DENSE_MASS / step_size, DENSE_MASS, DENSE_NOISE, 1.7),
        PRECISION,
        noise,
    )
    langevin = laws.real_step(
        sghmc.SGLD(step_size**2, np.linalg.inv(DENSE_MASS), DENSE_NOISE, 1.7), PRECISION, noise
    )
    np.testing.assert_allclose(inertial.transition[:, SIZE:], 0, atol=1e-12)
    laws.assert_close(inertial.transition[:SIZE, :SIZE], langevin.transition)
    laws.assert_close(inertial.noise[:SIZE, :SIZE], langevin.noise)


def test_large_friction_tends_to_sgld():
    """C → ∞ at α ≤ 1 (so ε ~ 1/C): SGLD with step ε and preconditioner C⁻¹, at equal lags."""

    def gap(scale: float) -> float:
        friction, step_size = scale * DENSE_FRICTION, 0.2 / scale
        inertial = laws.real_step(sghmc.SGHMC(step_size, friction, DENSE_MASS), PRECISION)
        langevin = laws.real_step(sghmc.SGLD(step_size, np.linalg.inv(friction)), PRECISION)
        lag = round(5 * scale**2)
        lagged = (
            np.linalg.matrix_power(step.transition, lag) @ step.covariance
            for step in (inertial, langevin)
        )
        return float(np.max(np.abs(np.subtract(*(x[:SIZE, :SIZE] for x in lagged)))))

    gaps = [gap(scale) for scale in (4.0, 8.0, 16.0)]
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.2)
    assert gaps[1] / gaps[2] == pytest.approx(4, rel=0.2)


def test_gradient_noise_equal_to_the_friction_heats():
    """V = C, V̂ = 0: the law at temperature 1 + ε/2, whose χ² is that of the supplement."""
    step_size = 0.3
    laws.judge_sghmc(sghmc.SGHMC(step_size, DENSE_FRICTION, DENSE_MASS), PRECISION, excess=1.0)
    zero = np.zeros((SIZE, SIZE))
    exact = np.block([[np.linalg.inv(PRECISION), zero], [zero, DENSE_MASS]])
    divergence = theory.chi_squared((1 + step_size / 2) * exact, exact)
    assert divergence == pytest.approx((1 - (step_size / 2) ** 2) ** -SIZE - 1)


def test_chi_squared():
    covariance, reference = laws.positive(5, SIZE, 0.9, 1.4), laws.positive(6, SIZE, 0.8, 1.2)
    inner = 2 * np.linalg.inv(covariance) - np.linalg.inv(reference)
    determinants = [np.linalg.det(x) for x in (reference, covariance, inner)]
    expected = determinants[0] ** 0.5 / determinants[1] * determinants[2] ** -0.5 - 1
    assert theory.chi_squared(covariance, reference) == pytest.approx(expected, rel=1e-10)


def test_skew_reversibility_holds_between_mid_drift_points_only():
    step_size = 0.25
    sampler = sghmc.SGHMC(step_size, *MATRICES["dense"], temperature=1.7)
    step = laws.real_step(sampler, PRECISION, DENSE_NOISE)
    identity, zero = np.eye(SIZE), np.zeros((SIZE, SIZE))
    drift = np.block([[identity, step_size / 2 * np.linalg.inv(DENSE_MASS)], [zero, identity]])
    back = np.linalg.inv(drift)
    middle = back @ step.covariance @ back.T
    assert laws.is_skew_reversible(back @ step.transition @ drift, middle)
    np.testing.assert_allclose(middle[:SIZE, SIZE:], 0, atol=1e-12)
    assert not laws.is_skew_reversible(step.transition, step.covariance)


def test_entropy_of_noisy_hamiltonian_dynamics_grows():
    """Theorem 3.1: in Alg. 2's order, without friction, a step adds ½ ln det(I + ε²V[(FSFᵀ)⁻¹]_rr).

    Many small steps add up to the closed form, and the energy grows by (B/m)t.
    """
    step_size, diffusion, curvature, mass = 1e-3, 0.3, 2.5, 1.7
    variance = 2 * diffusion / step_size
    step = laws.real_step(LiteralSGHMC(step_size, 0.0, mass), curvature, variance)
    assert np.linalg.det(step.transition) == pytest.approx(1)
    covariance, growth = np.diag([1 / curvature, mass]), 0.0
    for _ in range(3000):
        moved = step.transition @ covariance @ step.transition.T
        added = np.log1p(step_size**2 * variance * np.linalg.inv(moved)[1, 1]) / 2
        before, covariance = covariance, moved + step.noise
        ratio = np.linalg.det(covariance) / np.linalg.det(before)
        assert np.log(ratio) / 2 == pytest.approx(added, rel=1e-9)
        growth += added
    expected = theory.entropy_growth(3000 * step_size, curvature, mass, diffusion)
    assert growth == pytest.approx(expected, rel=3 * step_size)
    energy = curvature * covariance[0, 0] / 2 + covariance[1, 1] / mass / 2
    assert energy - 1 == pytest.approx(diffusion / mass * 3000 * step_size, rel=3 * step_size)


def trajectory(kernel: HMCKernel, is_informed: bool):
    """z = (θ, M⁻¹r) after a trajectory on a target that is not Gaussian."""
    target = sghmc.Potential(lambda x: jnp.sum(x**4) / 4 + jnp.cos(x[0] * x[1]))
    oracle = sghmc.FullBatch().prepare(target, jnp.zeros(SIZE)).oracle(target, [])

    def flow(z):
        start = HMCState(z[:SIZE], z[SIZE:])
        start = kernel.with_cached_evaluation(start, oracle) if is_informed else start
        end, _, _ = kernel._trajectory(kernel.constant_step_size(), start, oracle)
        return jnp.concatenate([end.position, end.velocity])

    return jax.jit(flow)


def judge_leapfrog(sampler: sghmc.HMC):
    for is_informed in (False, True):
        with jax.enable_x64(True):
            flow = trajectory(sampler.prepare(jnp.zeros(SIZE)), is_informed)
            start = jnp.array([0.7, -1.1, 0.4, 1.3, 0.2, -0.8])
            flip = jnp.repeat(jnp.array([1.0, -1.0]), SIZE)
            assert float(jnp.max(jnp.abs(flow(start) - start))) > 0.1
            np.testing.assert_allclose(flip * flow(flip * flow(start)), start, atol=1e-10)
            determinant = np.linalg.det(np.asarray(jax.jacfwd(flow)(start)))
            assert determinant == pytest.approx(1, rel=1e-10)


def judge_acceptance(sampler: Any, curvature: float):
    """Mean acceptance (4/π) arctan(λ^{−½}) in equilibrium, λ = ‖F‖² in whitened coordinates.

    64 chains started in equilibrium; their means are independent, so 5 standard errors raise a
    false alarm for about 5 keys in 10⁶ (t distribution, 63 degrees of freedom). The key is fixed.
    """
    half_kick = np.array([[1, 0], [-sampler.step_size * curvature / 2, 1]])
    drift = np.array([[1, sampler.step_size / sampler.mass], [0, 1]])
    flow = np.linalg.matrix_power(half_kick @ drift @ half_kick, sampler.num_steps)
    scale = np.sqrt([curvature, 1 / sampler.mass])
    expected = 4 / np.pi * np.arctan(1 / np.linalg.norm(flow * np.outer(scale, 1 / scale), 2))
    start_key, key = jax.random.split(jax.random.key(7))
    samples = sghmc.sample(
        key,
        sghmc.Potential(lambda x: curvature * jnp.sum(x**2) / 2),
        sampler,
        jax.random.normal(start_key, (64, 1)) / np.sqrt(curvature),
        init_axis=0,
        num_chains=64,
        num_samples=500,
        progress=False,
    )
    means = np.asarray(samples.info.acceptance).mean(axis=1)
    standard_error = means.std(ddof=1) / np.sqrt(len(means))
    assert 0.5 < expected < 0.95
    assert standard_error < 0.01
    assert abs(means.mean() - expected) < 5 * standard_error, (means.mean(), expected)


@pytest.mark.slow
def test_temperature_zero_is_gradient_descent_with_momentum():
    laws.judge_momentum_descent(
        sghmc.SGHMC.from_learning_rate(0.013, 0.07, temperature=0.0), num_steps=100
    )


@pytest.mark.slow
def test_temperature_zero_is_our_momentum():
    target = sghmc.Potential(lambda x: jnp.sum(x**4) / 4)
    oracle = sghmc.FullBatch().prepare(target, jnp.zeros(2)).oracle(target, [])
    position = jnp.array([1.0, -2.0])
    states = []
    for sampler in (
        sghmc.SGHMC.from_learning_rate(0.013, 0.07, temperature=0.0),
        sghmc.Momentum(0.013, 0.07),
    ):
        kernel: Any = sampler.prepare(position)
        state = kernel.init([jnp.ones(2)], position)
        for t in range(50):
            state, _ = kernel.step(t, [jnp.full(2, 0.7)], state, oracle)
        states.append(state)
    np.testing.assert_array_equal(states[0].position, states[1].position)
    np.testing.assert_array_equal(states[0].velocity, states[1].velocity)


DATA = np.array([0.3, -1.2, 2.5, 0.9])
BATCH = 2


def quadratic_posterior(kind=sghmc.Posterior) -> sghmc.Posterior:
    with jax.enable_x64(True):
        return kind(
            lambda theta, x: -0.7 * jnp.sum((x - theta) ** 2),
            lambda theta: -0.4 * jnp.sum((theta - 1) ** 2),
            DATA,
        )


def judge_minibatch(posterior, replacement):
    """∇Ũ has variance (N²/n)s², times 1 − n/N without replacement and with divisor N − 1."""
    draw = itertools.product if replacement else itertools.permutations
    repeat = {"repeat": BATCH} if replacement else {"r": BATCH}
    batches = np.array(list(draw(range(len(DATA)), **repeat)))
    per_example = 1.4 * DATA
    noise = len(DATA) ** 2 / BATCH * np.var(per_example, ddof=0 if replacement else 1)
    noise *= 1 if replacement else 1 - BATCH / len(DATA)
    sampler = sghmc.SGLD(0.05, gradient_noise=noise, temperature=1.7)
    gradient = sghmc.Minibatch(BATCH, replacement=replacement)
    laws.judge_minibatch(posterior, sampler, gradient, batches, float(noise))


@pytest.mark.parametrize("replacement", [True, False])
def test_minibatches_bring_the_noise_that_is_subtracted(replacement):
    judge_minibatch(quadratic_posterior(), replacement)


# The planted faults.


def noise_with(**changes):
    """The noise that the sampler would have with other settings."""

    def plant(sampler, kernel, like):
        changed = {name: change(sampler) for name, change in changes.items()}
        other = dataclasses.replace(sampler, **changed).prepare(like)
        return dataclasses.replace(kernel, noise=other.noise)

    return plant


def part_with(part: str, **changes):
    """One part of the kernel from other settings."""

    def plant(sampler, kernel, like):
        other = dataclasses.replace(sampler, **changes).prepare(like)
        return dataclasses.replace(kernel, **{part: getattr(other, part)})

    return plant


def twice_the_step(sampler, kernel, like):
    return sampler.rescaled(2).prepare(like)


def twice_the_gradient(sampler, kernel, like):
    doubled = matrices.scaled(kernel.learning_rate, 2.0)
    return dataclasses.replace(kernel, learning_rate=doubled)


def square(name: str):
    return lambda sampler: np.square(x) if np.ndim(x := getattr(sampler, name)) < 2 else x @ x


class ExplicitEuler(SGHMCKernel):
    def step(self, t, noise, state, oracle):
        velocity, potential = self._kick(t, noise, state.position, state.velocity, oracle)
        position = self._drift(t, state.position, state.velocity)
        return SGHMCState(position, velocity), StepInfo(potential)


class FreshMomentaOfMass(SGHMCKernel):
    def _fresh(self, t, normals, half_decay):
        return super()._fresh(t, normals, 0)


class StaleUnits(SGHMCKernel):
    def _drift(self, t, position, velocity, fraction=1.0):
        return tree.add_scaled(position, fraction, velocity)


class NoiseOfLargestStep(SGHMCKernel):
    def _kick(self, t, noise, position, velocity, oracle):
        shift = self.noise.sqrt(
            2 * value_at(self.temperature, t) * self._decay(t),
            self.unit**2,
            random.copy_of(noise, 0, position),
        )
        silent = jax.tree.map(jnp.zeros_like, noise)
        kicked, potential = super()._kick(t, silent, position, velocity, oracle)
        return tree.add_scaled(kicked, 1, shift), potential


class WholeDriftBack(SGHMCKernel):
    def mid_drift(self, t, state):
        return self._drift(t, state.position, state.velocity, -1.0)


class NoDriftBack(SGHMCKernel):
    def mid_drift(self, t, state):
        return state.position


class FrictionOfNewVelocity(SGHMCKernel):
    def _kick(self, t, noise, position, velocity, oracle):
        potential, grad = oracle(0, position)
        kicked = tree.add_scaled(velocity, -1, self.learning_rate @ grad)
        return tree.add_scaled(kicked, -1, self.decay @ kicked), potential


class WholeLastKick(HMCKernel):
    def _trajectory(self, epsilon, state, oracle):
        end, first, last = super()._trajectory(epsilon, state, oracle)
        grad = oracle(self.num_steps, end.position).grad
        velocity = tree.add_scaled(end.velocity, -epsilon / 2, self.inverse_mass @ grad)
        return end._replace(velocity=velocity), first, last


class WholeFirstKick(HMCKernel):
    def _trajectory(self, epsilon, state, oracle):
        grad = oracle(0, state.position).grad
        velocity = tree.add_scaled(state.velocity, -epsilon / 2, self.inverse_mass @ grad)
        return super()._trajectory(epsilon, state._replace(velocity=velocity), oracle)


class UnscaledPosterior(sghmc.Posterior):
    def estimate(self, params, batch):
        return -jnp.sum(self.log_likelihoods(params, batch)) - self.log_prior_at(params)


class PriorScaledPosterior(sghmc.Posterior):
    def estimate(self, params, batch):
        scale = self.num_examples / len(batch)
        return -scale * (jnp.sum(self.log_likelihoods(params, batch)) + self.log_prior_at(params))


SGHMC_FAULTS = {
    "C for √C": noise_with(friction=square("friction")),
    "θ moved by the old r": becomes(ExplicitEuler),
    "2ε for ε": twice_the_step,
    "twice the gradient": twice_the_gradient,
    "V̂ forgotten": noise_with(gradient_noise=lambda s: 0.0),
    "V̂ times τ": noise_with(gradient_noise=lambda s: s.temperature * s.gradient_noise),
    "V̂ times τ²": noise_with(gradient_noise=lambda s: s.temperature**2 * s.gradient_noise),
    "noise without the mass": noise_with(mass=lambda s: 1.0),
    "friction without the mass": part_with("decay", mass=1.0),
    "τ ignored": part_with("temperature", temperature=1.0),
}
SGLD_FAULTS = {
    "noise without P": noise_with(preconditioner=lambda s: 1.0),
    "P for √P": noise_with(preconditioner=square("preconditioner")),
    "V̂ forgotten": SGHMC_FAULTS["V̂ forgotten"],
    "V̂ times τ": SGHMC_FAULTS["V̂ times τ"],
    "V̂ times τ²": SGHMC_FAULTS["V̂ times τ²"],
    "2ε for ε": twice_the_step,
    "τ ignored": SGHMC_FAULTS["τ ignored"],
}
HMC_FAULTS = {
    "momenta without the mass": part_with("mass", mass=1.0),
    "a whole kick at the start": becomes(WholeFirstKick),
    "2ε for ε": twice_the_step,
}


def on_gaussian(judge):
    return lambda sampler: judge(sampler, PRECISION)


def judge_one_parameter(sampler):
    laws.judge_sghmc_scalar(sampler, 2.3, 2.9)


def judge_second_order(sampler):
    laws.judge_order(sampler, PRECISION, order=2)


def judge_third_order(sampler):
    laws.judge_order(sampler, PRECISION, order=3)


def judge_changing(sampler):
    laws.judge_schedule(sampler, PRECISION, DIAGONAL_NOISE, num_steps=4)


def judge_some_acceptance(sampler):
    judge_acceptance(sampler, curvature=2.1)


def inertial(name: str) -> sghmc.SGHMC:
    return sghmc.SGHMC(0.2, *MATRICES[name], temperature=1.7)


def langevin(name: str) -> sghmc.SGLD:
    preconditioner, _, noise = MATRICES[name]
    return sghmc.SGLD(0.1, preconditioner, noise, 1.7)


def some(faults: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: faults[name] for name in names}


FAULTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # the judge, a sound sampler, what it sees
    **{
        f"SGHMC, {name}": (on_gaussian(laws.judge_sghmc), inertial(name), SGHMC_FAULTS)
        for name in ("scalar", "diagonal", "dense")
    },
    **{
        f"SGLD, {name}": (on_gaussian(laws.judge_sgld), langevin(name), SGLD_FAULTS)
        for name in ("scalar", "diagonal", "dense")
    },
    "HMC": (
        on_gaussian(laws.judge_hmc),
        sghmc.HMC(0.2, 7, DENSE_MASS, metropolis=False),
        HMC_FAULTS,
    ),
    "SGHMC, one parameter": (
        judge_one_parameter,
        inertial("scalar"),
        some(
            SGHMC_FAULTS, "C for √C", "V̂ forgotten", "V̂ times τ", "2ε for ε", "θ moved by the old r"
        ),
    ),
    "order": (
        judge_second_order,
        inertial("dense"),
        some(SGHMC_FAULTS, "V̂ forgotten", "θ moved by the old r"),
    ),
    "order with resampling": (
        judge_third_order,
        sghmc.SGHMC(0.5, *MATRICES["dense"], temperature=1.7, resample_every=2),
        {
            "literally": becomes(LiteralSGHMCKernel),
            "from N(0, τM)": becomes(FreshMomentaOfMass),
        },
    ),
    "schedule": (
        judge_changing,
        CHANGING_STEP,
        {
            "units of the old step": becomes(StaleUnits),
            "V̂ of the largest step": becomes(NoiseOfLargestStep),
        },
    ),
    "middle": (
        on_gaussian(laws.judge_middle),
        inertial("dense"),
        {"whole drift": becomes(WholeDriftBack), "no drift": becomes(NoDriftBack)},
    ),
    "descent": (
        laws.judge_momentum_descent,
        sghmc.SGHMC.from_learning_rate(0.013, 0.07, temperature=0.0),
        {
            "noise": part_with("temperature", temperature=1e-6),
            "friction of the new velocity": becomes(FrictionOfNewVelocity),
        },
    ),
    "leapfrog": (
        judge_leapfrog,
        sghmc.HMC(0.2, 5, DENSE_MASS),
        {"whole last kick": becomes(WholeLastKick)},
    ),
    "acceptance": (
        judge_some_acceptance,
        sghmc.HMC(1.1, 3, 0.8),
        {"whole last kick": becomes(WholeLastKick)},
    ),
}


@pytest.mark.slow_cases("acceptance", "leapfrog")
@pytest.mark.parametrize("group", FAULTS)
def test_the_judge_passes_the_sound_sampler(group):
    judge, sampler, _ = FAULTS[group]
    judge(planted(sampler, lambda sampler, kernel, like: kernel))


@pytest.mark.parametrize(
    ("group", "fault"),
    [(group, fault) for group, (_, _, faults) in FAULTS.items() for fault in faults],
)
def test_the_judge_sees_the_fault(group, fault):
    judge, sampler, faults = FAULTS[group]
    with pytest.raises(AssertionError):
        judge(planted(sampler, faults[fault]))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("kind", [UnscaledPosterior, PriorScaledPosterior])
def test_the_judge_sees_a_wrong_factor_of_the_batch(kind, replacement):
    with pytest.raises(AssertionError):
        judge_minibatch(quadratic_posterior(kind), replacement)


@pytest.mark.parametrize(("uniform", "factor"), [(0.0, 0.6), (0.5, 1.0), (1.0, 1.4)])
def test_jitter_goes_both_ways(uniform, factor):
    kernel, plain = (
        sghmc.HMC(0.1, 3, metropolis=False, jitter=jitter).prepare(jnp.zeros(2))
        for jitter in (0.4, 0.0)
    )
    target = sghmc.Potential(lambda theta: jnp.sum(theta**4))
    oracle = sghmc.FullBatch().prepare(target, jnp.zeros(2)).oracle(target, [])
    start = HMCState(jnp.ones(2), jnp.zeros(2))
    noise = HMCNoise([jnp.array([0.3, -1.0])], jnp.array([0.5, uniform]), None)
    plain = dataclasses.replace(plain, step_size=0.1 * factor)
    moved, _ = kernel.step(0, noise, start, oracle)
    wanted, _ = plain.step(0, noise, start, oracle)
    np.testing.assert_allclose(moved.position, wanted.position, rtol=1e-6)


@pytest.mark.parametrize("kind", [sghmc.SGHMC, sghmc.BAOAB])
def test_settings_grow_with_the_data(kind):
    """U grows with N, and the variance of a batch's gradient with N²."""
    grown = kind(0.1, 2.0, 3.0, gradient_noise=0.5).for_growth(4.0)
    assert (grown.friction, grown.mass, grown.gradient_noise) == (8.0, 12.0, 8.0)


@pytest.mark.parametrize("mass", [DIAGONAL_MASS, DENSE_MASS], ids=["diagonal", "dense"])
def test_a_chain_begins_with_momenta_of_the_first_temperature(mass):
    """r = √τ M^½ n up to a rotation, in units of the largest step; r of a velocity is Mv/ε."""
    sampler = sghmc.SGHMC(lambda t: 0.1 + 0.1 * t, 1.3, mass, temperature=lambda t: 0.49 + t)
    with jax.enable_x64(True):
        kernel = sampler.prepare(jnp.zeros(SIZE), 4)
        momenta = np.stack(
            [kernel.momentum(kernel.init([n], jnp.zeros(SIZE))) for n in jnp.eye(SIZE)], axis=1
        )
        laws.assert_close(momenta @ momenta.T, 0.49 * laws.dense(mass, SIZE))
        velocity = kernel.init([jnp.ones(SIZE)], jnp.zeros(SIZE)).velocity
        momentum = kernel.momentum(SGHMCState(velocity, velocity))
        laws.assert_close(momentum, laws.dense(mass, SIZE) @ np.asarray(velocity) / 0.4)


@pytest.mark.parametrize("kind", [sghmc.SGHMC, sghmc.BAOAB, sghmc.OBABO])
def test_the_temperature_of_momenta_is_that_of_their_form(kind):
    """rᵀM⁻¹r/d, and for SGHMC rᵀ(M⁻¹ − ½εM⁻¹CM⁻¹)r/d."""
    with jax.enable_x64(True):
        kernel = kind(0.25, DENSE_FRICTION, DENSE_MASS, temperature=1.7).prepare(jnp.zeros(SIZE))
        r, inverse = np.array([0.5, -1.2, 2.0]), np.linalg.inv(DENSE_MASS)
        velocity = jnp.asarray(0.25 * inverse @ r)
        found = float(kernel.kinetic_temperature(0, SGHMCState(velocity, velocity)))
    slowed = 0.125 * inverse @ DENSE_FRICTION @ inverse if kind is sghmc.SGHMC else 0
    assert found == pytest.approx(r @ (inverse - slowed) @ r / SIZE, rel=1e-10)


def test_another_mass_keeps_the_law_of_momenta():
    """Velocities, v = uM⁻¹r, are multiplied by √(M_old/M_new)."""
    kernel = sghmc.SGHMC(0.25, 1.3, DIAGONAL_MASS).prepare(jnp.zeros(SIZE))
    state = SGHMCState(jnp.arange(3.0), jnp.array([0.5, -1.0, 2.0]))
    heavier = DIAGONAL_MASS * np.array([4.0, 0.25, 9.0])
    _, moved = kernel.with_mass(state, jnp.asarray(heavier, jnp.float32))
    np.testing.assert_allclose(moved.velocity, [0.25, -2.0, 2 / 3], rtol=1e-6)
    np.testing.assert_array_equal(moved.position, state.position)


def test_descent_with_and_without_momentum():
    """v ← v − αv − ηg, θ ← θ + v, by schedules; without momentum θ ← θ − ηg."""
    theta, v, slope = np.array([1.0, -2.0]), np.array([0.3, 0.5]), np.array([0.7, 1.1])
    oracle = sghmc.gradients.Oracle(
        lambda i, at: sghmc.types.Evaluation(jnp.float32(5.0), jnp.asarray(slope)), None, False
    )
    moving = sghmc.Momentum(lambda t: 0.1 * (t + 1), lambda t: 0.2 * (t + 1))
    kernel = moving.prepare(jnp.zeros(2), 3)
    state = kernel.init([], jnp.asarray(theta))
    np.testing.assert_array_equal(state.velocity, [0, 0])
    end, info = kernel.step(1, [], state._replace(velocity=jnp.asarray(v)), oracle)
    new = 0.6 * v - 0.2 * slope
    np.testing.assert_allclose(kernel.momentum(end), new, rtol=1e-6)
    np.testing.assert_allclose(end.position, theta + new, rtol=1e-6)
    assert info.potential == 5.0
    kernel = sghmc.SGD(lambda t: 0.1 * (t + 1)).prepare(jnp.zeros(2), 3)
    end, _ = kernel.step(1, [], kernel.init([], jnp.asarray(theta)), oracle)
    np.testing.assert_allclose(end.position, theta - 0.2 * slope, rtol=1e-6)
    slower = sghmc.Momentum(0.1, 0.2).rescaled(0.5)
    assert (slower.learning_rate, slower.momentum_decay) == (0.025, 0.1)
    assert sghmc.SGD(0.1).rescaled(0.5).learning_rate == 0.05


def test_what_is_not_given_is_what_the_pages_say():
    """Masses, temperatures and preconditioners of 1, no V̂, an accept step, no resampling."""
    usual: list[Any] = [
        (sghmc.SGHMC(0.1, 1.0), (1.0, 0.0, 1.0, None, "end")),
        (sghmc.BAOAB(0.1, 1.0), (1.0, 0.0, 1.0)),
        (sghmc.SGLD(0.1), (1.0, 0.0, 1.0)),
        (sghmc.PSGLD(0.1), (0.99, 1.0, True, 1.0)),
        (sghmc.HMC(0.1, 3), (1.0, True, 0.0, None)),
        (sghmc.MCHMC(0.1, 3), (True, 0.0, None)),
        (sghmc.SGNHT(0.1), (1.0, 1.0, 1.0, "scalar", 1.0)),
        (sghmc.SGRHMC(0.1, jnp.square), (1.0, 1.0, False)),
        (sghmc.Cyclical(sghmc.SGLD(0.1), 10), (0.5,)),
        (sghmc.ReplicaExchange(sghmc.SGLD(0.1), [1, 2]), (10, None)),
        (sghmc.Austerity(), (0.05, 500)),
    ]
    for settings, expected in usual:
        values = [getattr(settings, field.name) for field in dataclasses.fields(settings)]
        assert tuple(values[-len(expected) :]) == expected, settings


def test_draws_are_taken_where_the_sampler_observes():
    state = SGHMCState(jnp.array([1.0]), jnp.array([0.5]))
    for where, expected in [("end", 1.0), ("middle", 0.75)]:
        kernel = sghmc.SGHMC(0.1, 1.0, observe=cast(Any, where)).prepare(jnp.zeros(1))
        assert kernel.draw_from(3, state) == expected


def test_schedules_are_judged_at_the_step_that_needs_most():
    """ε and τ both change: neither the largest ε nor the largest V̂ decides, but the worst step."""

    def at(steps, values):
        return lambda t: jnp.interp(jnp.asarray(t, float), jnp.array(steps), jnp.array(values))

    like = jnp.zeros(2)
    worst = sghmc.SGLD(
        at([0.0, 5.0, 9.0], [0.3, 0.2, 0.1]), 2.0, 4.0, at([0.0, 5.0, 9.0], [9.0, 0.1, 9.0])
    )
    with pytest.raises(
        ValueError, match=r"is 1\.6, but must be at most 2τ = 0\.2\. Take .* 0\.125 "
    ):
        worst.prepare(like, 10)
    worst.prepare(like, 4)  # which ends before it
    with pytest.raises(ValueError, match=r"decay εC/M reaches 2\.5, .* from 2 on"):
        sghmc.SGHMC(at([0.0, 9.0], [0.1, 0.5]), 5.0).prepare(like, 10)
    with pytest.raises(ValueError, match=r"ε²V̂ = 0\.25 .* 2ετC, is only 0\.2\. Take 1\.25 times"):
        sghmc.SGHMC(at([0.0, 9.0], [0.1, 0.5]), 1.0, gradient_noise=1.0, temperature=0.2).prepare(
            like, 10
        )
    with pytest.raises(ValueError, match="is -1 at step 9"):
        sghmc.SGLD(at([0.0, 8.0, 9.0], [0.1, 0.1, -1.0])).prepare(like, 10)


def test_sgld_has_room_for_gradient_noise_up_to_what_it_injects():
    """2τ ≥ εPV̂."""
    sghmc.SGLD(0.1, 2.0, gradient_noise=9.9).prepare(jnp.zeros(2))
    with pytest.raises(ValueError, match=r"gradient_noise is too large.*at most 2τ = 2\. "):
        sghmc.SGLD(0.1, 2.0, gradient_noise=10.1).prepare(jnp.zeros(2))
