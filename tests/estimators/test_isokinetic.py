"""Isokinetic trajectories: the exact flow, energy, and the law with the accept step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators import isokinetic
from sghmc.estimators.isokinetic import Noise, Phase


def phase(is_exact=True, is_adapting=False, error=1.0, num_steps=7):
    values = (is_exact, is_adapting, 0.0, error, num_steps, 0.8, 0.3)
    return Phase(*(jnp.asarray(value) for value in values))


def draw(seed: int, shape: tuple[int, ...], count: int = 1) -> Noise:
    return Noise.draw(np.random.default_rng(seed), count, shape)


def begun(position, gradient, step: float):
    """Walkers that know the potential where they start."""
    potential, grad = gradient(position)
    noise = draw(1, position.shape).normal[0]
    return isokinetic.start(noise, position, step)._replace(potential=potential, grad=grad)


@pytest.mark.slow
def test_a_turn_is_the_flow_of_the_direction():
    """u' = −(I − uuᵀ) ∇U / (d − 1), and the energy is −∫ u·∇U, by small steps."""
    generator = np.random.default_rng(0)
    u = generator.normal(size=(1, 4))
    u /= np.linalg.norm(u)
    grad = 5 * generator.normal(size=(1, 4))
    turned, energy = isokinetic.turn(
        jnp.asarray(u, jnp.float32), jnp.asarray(grad, jnp.float32), jnp.array([0.7])
    )
    taken, count = 0.0, 2000
    for _ in range(count):
        middle = u - 0.5 * 0.7 / count * (grad - (u @ grad.T) * u) / 3
        taken -= 0.7 / count * float(np.vdot(middle, grad))
        u = u - 0.7 / count * (grad - (middle @ grad.T) * middle) / 3
    np.testing.assert_allclose(turned, u, atol=1e-4)
    # What the potential loses on the way, the other part of the energy takes up.
    assert float(energy[0]) == pytest.approx(taken, rel=1e-3)


@pytest.mark.slow
def test_energy_errors_fall_with_the_third_power_of_the_step():
    precision = jnp.array([1.0, 4.0, 0.3, 2.0])[None]

    def gradient(x):
        return 0.5 * jnp.sum(precision * x**2, axis=1), precision * x

    def error(step):
        x = jnp.array([[0.5, -1.0, 2.0, 0.3]])
        walkers = begun(x, gradient, step)
        noise = jax.tree.map(lambda part: part[0], draw(2, x.shape))
        now = phase(is_exact=False, num_steps=1)
        after, _ = isokinetic.trajectory(noise, walkers, gradient, now)
        # The memory holds the squared error over d ε⁶.
        return float(after.error[0])

    assert error(0.4) == pytest.approx(error(0.2), rel=0.5)
    assert 0 < error(0.2) < 1


@pytest.mark.slow_cases("0.8")
@pytest.mark.parametrize("step", [0.8, 3.0])
def test_with_the_accept_step_the_law_is_exact(step):
    """Of a Gaussian in four dimensions, at a small step and at one far too large.

    400 chains of 150 independent trajectories after 50. Second moments have standard errors below
    1.5 %, shown by the chains themselves: five of them, for eight comparisons, fail once in 10⁵
    seeds.
    """
    precision = jnp.array([1.0, 4.0, 0.25, 2.0])[None]

    def gradient(x):
        return 0.5 * jnp.sum(precision * x**2, axis=1), precision * x

    start = jax.random.normal(jax.random.key(0), (400, 4))
    walkers = begun(start, gradient, step)

    def body(walkers, noise):
        return isokinetic.trajectory(noise, walkers, gradient, phase(num_steps=3))

    _, passed = jax.jit(lambda *each: jax.lax.scan(body, *each))(walkers, draw(2, start.shape, 200))
    kept = np.asarray(passed.position[50:], np.float64)
    assert passed.acceptance.mean() < (0.999 if step < 1 else 0.9)
    for values, truth in ((kept, 0.0), (kept**2, 1 / np.asarray(precision))):
        by_chain = values.mean(0)
        error = by_chain.std(0) / np.sqrt(len(by_chain))
        assert np.all(np.abs(by_chain.mean(0) - truth) < 5 * error)
        assert np.all(error < 0.03 / np.asarray(precision) ** 0.5)


@pytest.mark.slow
def test_steps_follow_the_energy_error_and_the_accept_rate():
    """Exploration finds the step whose error is wanted; adaptation the wanted accept rate."""
    size = 50

    def gradient(x):
        return 0.5 * jnp.sum(x**2, axis=1), x

    start = jax.random.normal(jax.random.key(0), (4, size))
    walkers = begun(start, gradient, 0.01)

    def run(walkers, seed, count, **settings):
        def body(walkers, each):
            number, noise = each
            now = phase(**settings)._replace(number=number)
            return isokinetic.trajectory(noise, walkers, gradient, now)

        numbers = jnp.arange(count, dtype=jnp.float32)
        return jax.lax.scan(body, walkers, (numbers, draw(seed, start.shape, count)))

    walkers, _ = run(walkers, 2, 60, is_exact=False, error=0.01)
    found = walkers.error / walkers.error_weight * jnp.exp(6 * walkers.log_step)
    np.testing.assert_allclose(found, 0.01, rtol=0.5)
    walkers, _ = run(walkers, 3, 200, is_adapting=True)
    _, passed = run(walkers, 4, 200)
    np.testing.assert_allclose(passed.acceptance.mean(0), 0.8, atol=0.1)


@pytest.mark.slow
def test_what_is_not_finite_is_not_taken():
    def gradient(x):
        potential = jnp.where(jnp.abs(x[:, 0]) < 1, 0.0, jnp.nan)
        return potential, jnp.zeros_like(x)

    walkers = begun(jnp.zeros((2, 3)), gradient, 5.0)
    noise = jax.tree.map(lambda part: part[0], draw(2, (2, 3)))
    for is_exact in (True, False):
        now = phase(is_exact=is_exact, num_steps=9)
        after, passed = isokinetic.trajectory(noise, walkers, gradient, now)
        np.testing.assert_array_equal(after.position, 0)
        np.testing.assert_array_equal(passed.acceptance, 0)


def test_a_turn_has_the_closed_form_of_its_angle():
    """tanh of half the angle's rapidity grows by δ = t‖∇U‖/(d − 1), in double precision by hand."""
    u, grad = np.array([[0.6, 0.0, 0.8], [0.0, 1.0, 0.0]]), np.array([[3.0, 0, 0], [0, 2.0, 1.0]])
    times = np.array([0.7, 0.3])
    turned, energy = jax.jit(isokinetic.turn)(*map(jnp.asarray, (u, grad, times)))
    turned, energy = np.asarray(turned), np.asarray(energy)
    for k in range(2):
        size = np.linalg.norm(grad[k])
        along = -u[k] @ grad[k] / size
        delta = times[k] * size / 2
        reached = np.tanh(np.arctanh(along) + delta)
        assert float(-turned[k] @ grad[k] / size) == pytest.approx(reached, rel=1e-4)
        assert float(np.linalg.norm(turned[k])) == pytest.approx(1, rel=1e-5)
        # d − 1 times log(cosh δ + along · sinh δ).
        wanted = 2 * np.log(np.cosh(delta) + along * np.sinh(delta))
        assert float(energy[k]) == pytest.approx(wanted, rel=1e-4)


def test_steps_follow_errors_and_accept_rates_by_hand():
    """One update of the step's logarithm, its mean and the memory of errors."""
    ones = jnp.ones(2)
    walkers = isokinetic.start(np.ones((2, 3)), np.zeros((2, 3)), 0.5)._replace(
        log_step_mean=-0.4 * ones, error=3 * ones, error_weight=2 * ones
    )
    error, acceptance = jnp.array([0.5, 40.0]), jnp.array([0.9, 0.2])
    old = np.log(0.5)
    free = isokinetic._steps(
        walkers, phase(False, error=0.02)._replace(number=3.0), error, acceptance
    )
    errors = 0.8 * 3 + np.array([0.5, 40.0])
    wanted = np.clip(np.log(0.02 * (0.8 * 2 + 1) / errors) / 6, old - 0.5, old + 0.5)
    np.testing.assert_allclose(free[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(free[1], wanted, rtol=1e-5)
    np.testing.assert_allclose(free[2], errors, rtol=1e-5)
    np.testing.assert_allclose(free[3], 2.6, rtol=1e-5)
    now = phase(True, is_adapting=True)._replace(number=6.0)
    adapted = isokinetic._steps(walkers, now, error, acceptance)
    step = old + (np.array([0.9, 0.2]) - 0.8) * 2 / (6 + 2) ** 0.6
    np.testing.assert_allclose(adapted[0], step, rtol=1e-5)
    np.testing.assert_allclose(adapted[1], -0.4 + 4 / 7 * (step + 0.4), rtol=1e-5)
    kept = isokinetic._steps(walkers, phase(True), error, acceptance)
    np.testing.assert_allclose(kept[0], old, rtol=1e-5)
    np.testing.assert_allclose(kept[1], -0.4, rtol=1e-5)
