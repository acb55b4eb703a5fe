"""pSGLD: its step against NumPy, its law on a grid, with and without the correction."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.samplers.langevin import PSGLDState

PRECISION = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, -0.2], [0.3, -0.2, 3.0]])


def quadratic(theta):
    return theta @ (jnp.asarray(PRECISION, theta.dtype) @ theta) / 2


def oracle_of(function, like):
    target = sghmc.Potential(function)
    return sghmc.FullBatch().prepare(target, like).oracle(target, [])


@pytest.mark.parametrize("correction", [True, False])
def test_a_step_is_that_of_the_docstring(correction):
    """The first step, which takes its own squares, and another one, which must not."""
    with jax.enable_x64(True):
        sampler = sghmc.PSGLD(0.1, 0.7, 0.6, correction=correction, temperature=1.7)
        theta = jnp.array([0.5, -1.0, 2.0])
        kernel, oracle = sampler.prepare(theta), oracle_of(quadratic, theta)
        state = kernel.init([jnp.zeros(3)], theta)
        step = jax.jit(lambda t, noise, state: kernel.step(t, noise, state, oracle)[0])
        x, s, d = np.asarray(theta), np.zeros(3), np.zeros(3)
        for t in range(3):
            normal = np.array([0.3, -1.2, 0.7]) + t
            sign = np.array([1.0, -1.0, 1.0])
            g = PRECISION @ x
            square, slope = g**2, 2 * g * sign * (PRECISION @ sign)
            if t == 0:
                s, d = square, slope
            root = (0.36 + s) ** -0.5
            gamma = -0.5 * root**3 * d if correction else 0
            x = x - 0.1 * root * g + 0.17 * gamma + np.sqrt(0.34 * root) * normal
            s, d = 0.7 * s + 0.3 * square, 0.7 * d + 0.3 * slope
            raw = np.concatenate([normal, 0.8 * sign]) if correction else normal
            state = step(t, [jnp.asarray(raw)], state)
            np.testing.assert_allclose(state.position, x, rtol=1e-10)
            np.testing.assert_allclose(state.squares, s, rtol=1e-10)


def test_the_slope_is_right_on_average_over_all_signs():
    """For the whole of a pytree at once: ∂(∂U/∂θᵢ)²/∂θᵢ, no other derivative."""
    theta = jnp.array([0.5, -1.0, 2.0])
    kernel = sghmc.PSGLD(0.1, decay=0.0).prepare(theta)
    oracle, state = oracle_of(quadratic, theta), kernel.init([jnp.zeros(3)], theta)
    signs = np.stack(np.meshgrid(*[[-1.0, 1.0]] * 3), -1).reshape(-1, 3)
    raw = jnp.asarray(np.concatenate([np.zeros_like(signs), signs], -1), jnp.float32)
    step = jax.jit(jax.vmap(lambda n: kernel.step(0, [n], state, oracle)[0].slopes))
    slopes = step(raw)
    expected = 2 * (PRECISION @ theta) * np.diag(PRECISION)
    np.testing.assert_allclose(slopes.mean(0), expected, rtol=1e-5)
    assert np.all(slopes.std(0) > 0.1)  # one pair of signs is an estimate


GRID = np.linspace(-6.0, 6.0, 121)


def law_on_grid(sampler, function) -> np.ndarray:
    """The stationary probabilities of θ on a grid, for decay 0: the pair (last θ, θ) is Markov."""
    with jax.enable_x64(True):
        kernel = sampler.prepare(jnp.zeros(1))
        oracle = oracle_of(lambda x: jnp.sum(function(x)), jnp.zeros(1))
        slope, curve = jax.vmap(jax.grad(function)), jax.vmap(jax.grad(jax.grad(function)))
        g, h = slope(GRID), curve(GRID)
        slopes = (2 * g * h)[:, None] if sampler.correction else None

        def end(squares, slopes, x, normal):
            state = PSGLDState(x, squares, slopes)
            return kernel.step(1, [jnp.array([normal, 1.0])], state, oracle)[0].position[0]

        axis = None if slopes is None else 0
        over_now = jax.vmap(end, (None, None, 0, None))
        over_last = jax.jit(jax.vmap(over_now, (0, axis, None, None)), static_argnums=3)
        mean, moved = (
            np.asarray(over_last((g**2)[:, None], slopes, GRID[:, None], n)) for n in (0.0, 1.0)
        )
    spread = (moved - mean)[..., None]
    density = np.exp(-0.5 * ((GRID - mean[..., None]) / spread) ** 2) / spread
    density /= density.sum(-1, keepdims=True)
    weights = np.exp(-np.asarray(function(GRID)))
    pair = np.diag(weights / weights.sum())
    for _ in range(1000):
        new = np.einsum("ij,ijk->jk", pair, density)
        change, pair = np.abs(new - pair).sum(), new
        if change < 1e-8:
            break
    return pair.sum(0)


def target(theta):
    """Not Gaussian, with a mean that is not 0."""
    return theta**2 / 2 + jnp.cos(theta + 0.5)


def error(law, log_density) -> float:
    """The total variation between the law of a sampler and a density."""
    with jax.enable_x64(True):
        expected = np.exp(np.asarray(log_density(GRID)))
    return np.abs(law - expected / expected.sum()).sum() / 2


@pytest.mark.slow
def test_the_correction_makes_the_law_right_to_order_one():
    laws = (law_on_grid(sghmc.PSGLD(e, decay=0.0), target) for e in (0.1, 0.05))
    whole, half = (error(law, lambda x: -target(x)) for law in laws)
    assert half < 0.02
    assert 0.8 < np.log2(whole / half) < 1.3, (whole, half)


@pytest.mark.slow
def test_without_correction_the_law_has_too_much_mass_where_gradients_are_large():
    """exp(−U)/G: what Fokker and Planck say when Γ is left out, and as far off as that."""
    law = law_on_grid(sghmc.PSGLD(0.05, decay=0.0, correction=False), target)

    def biased(x):
        return 0.5 * jnp.log(1 + jax.vmap(jax.grad(target))(x) ** 2) - target(x)

    assert error(law, biased) < 0.02
    assert error(law, lambda x: -target(x)) > 0.08


@pytest.mark.slow
@pytest.mark.parametrize("gradient_noise", [0.0, 1.0])
def test_running_squares_are_right_as_the_step_shrinks(gradient_noise):
    """E θ² = 1 on θ²/2, extrapolated to ε = 0 from two step sizes; decay 0.5, 2,000 chains.

    The extrapolation has a standard error near 0.015: more than 5 of them once in a million keys.
    Without correction, or with (1 − β)Γ for Γ, it misses by 0.2 or more.
    """

    def mean_square(step_size):
        samples = sghmc.sample(
            jax.random.key(3),
            sghmc.Potential(lambda x: jnp.sum(x**2) / 2),
            sghmc.PSGLD(step_size, decay=0.5),
            jnp.zeros(1),
            gradient=sghmc.NoisyGradient(gradient_noise),
            num_samples=200,
            num_burnin=40,
            thinning=round(0.5 / step_size),
            num_chains=2000,
            progress=False,
        )
        return np.mean(samples.positions.astype(float) ** 2)

    assert abs(2 * mean_square(0.05) - mean_square(0.1) - 1) < 0.08


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.0}, "decay must be from 0 and below 1, but is 1.0"),
        ({"damping": 0.0}, "damping must be positive and finite, but is 0"),
        ({"step_size": -1.0}, "step_size must be positive and finite, but is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(sghmc.PSGLD(0.1), **settings)
