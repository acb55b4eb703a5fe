"""The judges: exact laws on Gaussian targets, closed forms against the step that runs.

The closed forms are those of the mathematics, derived without the code: U = ½θᵀAθ, `precision` A,
`step_size` ε, `friction` C, `mass` M, `temperature` τ, gradient noise V of which V̂ is subtracted. A
judge takes a sampler, reads its settings, and raises AssertionError when the law of its step is
another one. Judges count because they are seen to fail: `test_laws.py` plants the faults.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

import sghmc
from sghmc import theory
from sghmc.samplers.sghmc import SGHMCState


def dense(value, size: int) -> np.ndarray:
    """A number, a diagonal or a matrix as a matrix."""
    array = np.asarray(value, float)
    return array if array.ndim == 2 else np.diag(np.broadcast_to(array, (size,)))


def positive(seed: int, size: int, lowest: float, highest: float) -> np.ndarray:
    """A dense positive matrix in a random basis: two of them do not commute."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return (basis * np.geomspace(lowest, highest, size)) @ basis.T


def sghmc_covariance(precision, step_size, friction, mass, temperature) -> np.ndarray:
    """Of (θ, r), r the momentum that θ was just moved by."""
    stiff = np.linalg.inv(mass - step_size / 2 * friction - step_size**2 / 4 * precision)
    of_position = temperature * (np.linalg.inv(precision) + step_size**2 / 4 * stiff)
    of_momentum = temperature * mass @ stiff @ mass
    across = step_size / 2 * np.linalg.solve(mass, of_momentum)
    return np.block([[of_position, across], [across.T, of_momentum]])


def sghmc_variance(curvature, step_size, friction, mass, temperature, excess_noise) -> float:
    """Of one θ, for any V − V̂."""
    decay, rate = step_size * friction / mass, step_size**2 / mass
    heat = 1 + step_size * excess_noise / (2 * friction * temperature)
    return temperature / curvature * heat / (1 - rate * curvature / (4 - 2 * decay))


def sghmc_time(curvature, step_size, friction, mass) -> float:
    """1 + Σρ of one θ."""
    decay = step_size * friction / mass
    return friction / (step_size * curvature) + (1 - decay) / (2 - decay)


def sgld_covariance(precision, step_size, preconditioner, temperature) -> np.ndarray:
    curved = precision @ preconditioner @ precision
    return temperature * np.linalg.inv(precision - step_size / 2 * curved)


def hmc_covariance(precision, step_size, mass) -> np.ndarray:
    """For any number of leapfrog steps."""
    return np.linalg.inv(
        precision - step_size**2 / 4 * precision @ np.linalg.solve(mass, precision)
    )


def baoab_covariance(precision, step_size, mass, temperature) -> np.ndarray:
    """Of (θ, r), r before the kick, at every friction and step size."""
    across = step_size / 2 * np.eye(len(precision))
    return temperature * np.block([[np.linalg.inv(precision), across], [across, mass]])


def obabo_covariance(precision, step_size, mass, temperature) -> np.ndarray:
    """Of (θ, r), r the momentum that θ was just moved by, at every friction."""
    position = hmc_covariance(precision, step_size, mass)
    across = step_size / 2 * position @ precision
    momentum = mass + step_size / 2 * precision @ across
    return temperature * np.block([[position, across], [across.T, momentum]])


class GaussianStep(NamedTuple):
    """z' = F z + N(0, Q)."""

    transition: np.ndarray
    noise: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        size = len(self.transition)
        kronecker = np.eye(size**2) - np.kron(self.transition, self.transition)
        return np.linalg.solve(kronecker, self.noise.reshape(-1)).reshape(size, size)


def sghmc_step(
    precision, step_size, friction, mass, temperature, gradient_noise, subtracted
) -> GaussianStep:
    """r ← r − εAθ − εCM⁻¹r + N(0, 2ετC − ε²V̂ + ε²V), then θ ← θ + εM⁻¹r, in matrices."""
    size = len(precision)
    identity, nothing = np.eye(size), np.zeros((size, size))
    inverse = np.linalg.inv(mass)
    kick = np.block(
        [[identity, nothing], [-step_size * precision, identity - step_size * friction @ inverse]]
    )
    drift = np.block([[identity, step_size * inverse], [nothing, identity]])
    injected = 2 * step_size * temperature * friction
    noise = injected + step_size**2 * (gradient_noise - subtracted)
    of_kick = np.block([[nothing, nothing], [nothing, noise]])
    return GaussianStep(drift @ kick, drift @ of_kick @ drift.T)


def splitting_step(
    order, precision, step_size, friction, mass, temperature, gradient_noise, subtracted
) -> GaussianStep:
    """The letters of `order`, each as often as it comes: B kicks, A drifts, O is the friction.

    All kicks of a step share their gradient, noise included: a part's columns of noise are those
    of the gradient, then those of the friction.
    """
    size = len(precision)
    identity, nothing = np.eye(size), np.zeros((size, size))
    inverse = np.linalg.inv(mass)
    damping, half = (
        scipy.linalg.expm(-step_size * share * friction @ inverse) for share in (1, 0.5)
    )
    injected = temperature * (mass - damping @ mass @ damping.T)
    injected = injected - step_size**2 * half @ subtracted @ half.T
    kick, drift = (step_size / order.count(letter) for letter in "BA")
    root = np.linalg.cholesky(gradient_noise)
    parts = {
        "A": (np.block([[identity, drift * inverse], [nothing, identity]]), nothing, nothing),
        "B": (np.eye(2 * size), kick * root, nothing),
        "O": (np.block([[identity, nothing], [nothing, damping]]), nothing, _root(injected)),
    }
    transition, noise = np.eye(2 * size), np.zeros((2 * size, 2 * size))
    slope = np.block([[identity, nothing]])  # the gradient's θ, that at the start of the step
    for letter in order:
        part, *columns = parts[letter]
        transition, noise = part @ transition, part @ noise
        noise[size:] += np.hstack(columns)
        if letter == "B":
            transition[size:] -= kick * precision @ slope
    return GaussianStep(transition, noise @ noise.T)


def _root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(values)


def sgld_step(
    precision, step_size, preconditioner, temperature, gradient_noise, subtracted
) -> GaussianStep:
    excess = preconditioner @ (gradient_noise - subtracted) @ preconditioner
    return GaussianStep(
        np.eye(len(precision)) - step_size * preconditioner @ precision,
        2 * step_size * temperature * preconditioner + step_size**2 * excess,
    )


def real_step(
    sampler, precision: ArrayLike, gradient_noise: ArrayLike = 0.0, **when: int
) -> GaussianStep:
    """The step that runs, differentiated."""
    step = theory.affine_map(sampler, precision, gradient_noise, **when)
    return GaussianStep(step.transition, step.noise @ step.noise.T)


def assert_same_step(seen: GaussianStep, expected: GaussianStep):
    for a, b in zip(seen, expected, strict=True):
        assert_close(a, b)


def assert_close(seen, expected, rtol=1e-8):
    """Matrices equal, relative to the largest entry of each."""
    np.testing.assert_allclose(seen, expected, rtol=0, atol=rtol * np.max(np.abs(expected)))


def judge_sghmc(sampler, precision, excess: float = 0.0):
    """The law of (θ, r) when the gradient has noise V = V̂ + κC, κ the `excess`."""
    size = len(precision)
    friction, mass = dense(sampler.friction, size), dense(sampler.mass, size)
    gradient_noise = dense(sampler.gradient_noise, size) + excess * friction
    temperature = sampler.temperature + sampler.step_size * excess / 2
    expected = sghmc_covariance(precision, sampler.step_size, friction, mass, temperature)
    law = theory.stationary_law(sampler, precision, gradient_noise)
    assert_close(law.state_covariance, expected)
    assert_close(law.covariance, expected[:size, :size])


def judge_sghmc_scalar(sampler, curvature: float, gradient_noise: float):
    """Variance and autocorrelation time of one parameter, for any V and V̂."""
    friction, mass = sampler.friction, sampler.mass
    law = theory.stationary_law(sampler, curvature, gradient_noise)
    variance = sghmc_variance(
        curvature,
        sampler.step_size,
        friction,
        mass,
        sampler.temperature,
        gradient_noise - sampler.gradient_noise,
    )
    assert_close(law.covariance, variance)
    assert_close(law.autocorrelation_time, sghmc_time(curvature, sampler.step_size, friction, mass))


def judge_sgld(sampler, precision, excess: float = 0.0):
    """The law of θ when the gradient has noise V = V̂ + κP⁻¹, κ the `excess`."""
    size = len(precision)
    preconditioner = dense(sampler.preconditioner, size)
    gradient_noise = dense(sampler.gradient_noise, size) + excess * np.linalg.inv(preconditioner)
    temperature = sampler.temperature + sampler.step_size * excess / 2
    law = theory.stationary_law(sampler, precision, gradient_noise)
    expected = sgld_covariance(precision, sampler.step_size, preconditioner, temperature)
    assert_close(law.covariance, expected)
    assert_close(law.state_covariance, expected)


def judge_hmc(sampler, precision):
    """The law of θ without accept step."""
    law = theory.stationary_law(sampler, precision)
    mass = dense(sampler.mass, len(precision))
    assert_close(law.covariance, hmc_covariance(precision, sampler.step_size, mass))


def bias(sampler, precision) -> np.ndarray:
    """S_θθ − τA⁻¹ when V̂ is right."""
    law = theory.stationary_law(sampler, precision, getattr(sampler, "gradient_noise", 0.0))
    return law.covariance - getattr(sampler, "temperature", 1.0) * np.linalg.inv(precision)


def judge_order(sampler, precision, order: int):
    """The bias falls as ε^order: halving a small ε divides it by 2^order."""
    whole, half = (
        np.linalg.norm(bias(sampler.rescaled(factor), precision)) for factor in (1 / 32, 1 / 64)
    )
    assert abs(np.log2(whole / half) - order) < 0.1, (whole, half)


def judge_schedule(sampler, precision, gradient_noise, num_steps: int):
    """Every step of a run with schedules, in physical units: ε_t, C_t and τ_t of that step."""
    size = len(precision)
    mass, subtracted = dense(sampler.mass, size), dense(sampler.gradient_noise, size)
    for t in range(num_steps):
        step_size, friction, temperature = (
            np.asarray(setting(t) if callable(setting) else setting, float)
            for setting in (sampler.step_size, sampler.friction, sampler.temperature)
        )
        expected = sghmc_step(
            precision,
            step_size,
            dense(friction, size),
            mass,
            temperature,
            dense(gradient_noise, size),
            subtracted,
        )
        seen = real_step(sampler, precision, gradient_noise, t=t, num_steps=num_steps)
        assert_same_step(seen, expected)


def judge_middle(sampler, precision):
    """Where Gibbs updates look, half a drift back, the law of θ is exactly τA⁻¹."""
    size = len(precision)
    law = theory.stationary_law(sampler, precision, sampler.gradient_noise)
    inverse_mass = np.linalg.inv(dense(sampler.mass, size))
    with jax.enable_x64(True):
        kernel = sampler.prepare(jnp.zeros(size))

        def middle(z):
            velocity = kernel.unit * (inverse_mass @ z[size:])
            return kernel.mid_drift(0, SGHMCState(z[:size], velocity))

        back = np.asarray(jax.jit(jax.jacfwd(middle))(jnp.zeros(2 * size)))
    covariance = back @ law.state_covariance @ back.T
    assert_close(covariance, sampler.temperature * np.linalg.inv(precision))


def is_skew_reversible(transition: np.ndarray, covariance: np.ndarray) -> bool:
    """(FS)ᵀ = N F S N with N = diag(I, −I): the time-reversed chain is the chain with −r."""
    half = len(transition) // 2
    flip = np.diag(np.repeat([1.0, -1.0], half))
    lagged = transition @ covariance
    return np.allclose(lagged.T, flip @ lagged @ flip, rtol=0, atol=1e-10)


def judge_minibatch(posterior, sampler, gradient, batches: np.ndarray, exact_noise: float):
    """The law on θ ~ N(mean, 1/h) of a posterior that is quadratic: all batches enumerated.

    Every batch moves the chain by the same slope and by an offset of its own, so mean and variance
    are exact: the mean must be the posterior's, the variance that of V̂ = `exact_noise`.
    """
    with jax.enable_x64(True):
        start = jnp.zeros(1)
        kernel = sampler.prepare(start)
        estimator = gradient.prepare(posterior, start)

        def step(position, batch):
            oracle = estimator.oracle(posterior, batch, estimator.init_anchor(posterior))
            return kernel.step(0, [jnp.zeros(1)], kernel.init([], position), oracle)[0].position

        @jax.jit
        def facts(batches):
            return (
                jax.vmap(lambda batch: step(start, batch))(batches),
                jax.jacfwd(step)(start, batches[0]),
                jax.hessian(posterior.potential)(start),
                posterior.gradient(start),
            )

        offsets, *numbers = jax.tree.map(np.asarray, facts(jnp.asarray(batches)))
        slope, curvature, grad = (number.item() for number in numbers)
    injected = 2 * sampler.step_size * sampler.temperature - sampler.step_size**2 * exact_noise
    assert_close(offsets.mean() / (1 - slope), -grad / curvature)
    variance = (offsets.var() + injected) / (1 - slope**2)
    expected = sgld_covariance(
        np.array([[curvature]]), sampler.step_size, np.eye(1), sampler.temperature
    )
    assert_close(variance, expected[0, 0])


def judge_momentum_descent(sampler, num_steps: int = 40):
    """Temperature 0, float32, operation by operation: SGD with momentum in NumPy, bit for bit."""
    precision = positive(3, 3, 0.5, 2.0).astype(np.float32)
    learning_rate = np.float32(sampler.step_size**2)
    decay = np.float32(sampler.step_size * sampler.friction)
    target = sghmc.Potential(lambda theta: theta @ (precision @ theta) / 2)
    position = np.array([1.0, -2.0, 0.5], np.float32)
    kernel = sampler.prepare(jnp.asarray(position))
    oracle = sghmc.FullBatch().prepare(target, position).oracle(target, [])
    state = kernel.init([jnp.ones(3)], jnp.asarray(position))
    velocity = np.asarray(state.velocity)
    for t in range(num_steps):
        grad = np.asarray(oracle(0, jnp.asarray(position)).grad)
        velocity = velocity - decay * velocity
        velocity = velocity - learning_rate * grad
        position = position + velocity
        state, _ = kernel.step(t, [jnp.full(3, 0.7)], state, oracle)
        np.testing.assert_array_equal(state.velocity, velocity)
        np.testing.assert_array_equal(state.position, position)
