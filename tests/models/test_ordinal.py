"""Ratings as levels: probabilities and hidden numbers against scipy, updates against integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from sghmc.models.ordinal import OrdinalModel, draw_inside, log_interval

CUTS = np.array([-1.1, 0.2, 1.3], np.float32)
USER, ITEM = np.array([0, 0, 0, 0, 0, 1]), np.array([0, 1, 2, 3, 4, 0])
LEVEL = np.array([3, 0, 1, 2, 2, 1])
NUM_CHAINS = 4000


def intervals() -> tuple[np.ndarray, np.ndarray]:
    """Wide and narrow ones, near 0 and far out, of either sign, and without end."""
    lower = np.array([-1.0, 0.5, -9.0, 8.0, 20.0, -30.0, -1e4, 2.0, 0.0, -0.01])
    upper = np.array([1.0, 0.51, -8.5, 9.0, 20.1, -20.0, -3.0, 1e4, 1e4, 0.01])
    return lower, upper


def exact_log_interval(lower, upper) -> np.ndarray:
    low = np.where(lower + upper > 0, -upper, lower)
    high = np.where(lower + upper > 0, -lower, upper)
    top = stats.norm.logcdf(high)
    return top + np.log(-np.expm1(stats.norm.logcdf(low) - top))


def test_probabilities_of_intervals_in_either_tail():
    lower, upper = intervals()
    expected = exact_log_interval(lower, upper)
    found = log_interval(jnp.asarray(lower, jnp.float32), jnp.asarray(upper, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)
    # By central differences in double precision.
    slopes = jax.vmap(jax.grad(lambda m, a, b: log_interval(a - m, b - m)), (None, 0, 0))
    finite = slice(0, 6)
    a, b = (jnp.asarray(each[finite], jnp.float32) for each in (lower, upper))
    step = 1e-5
    change = [exact_log_interval(lower - s, upper - s)[finite] for s in (step, -step)]
    np.testing.assert_allclose(slopes(0.0, a, b), (change[0] - change[1]) / (2 * step), rtol=2e-3)
    ends = slopes(0.0, *(jnp.asarray(each[6:], jnp.float32) for each in (lower, upper)))
    assert np.all(np.isfinite(ends))


def test_hidden_numbers_are_normal_between_their_bounds():
    lower, upper = intervals()
    grid = np.linspace(0.02, 0.98, 49)
    for low, high in zip(lower, upper, strict=True):
        found = draw_inside(*(jnp.full(49, x, jnp.float32) for x in (0, low, high)))
        assert np.all((found >= low - 1e-3) & (found <= high + 1e-3))
        uniform = jnp.asarray(grid, jnp.float32)
        bounds = (jnp.full(49, x, jnp.float32) for x in (low, high))
        found = np.sort(np.asarray(draw_inside(uniform, *bounds), float))
        # Which end a uniform of 0 leads to does not matter: the law is symmetric in it.
        expected = np.sort(stats.truncnorm.ppf(grid, low, high))
        scale = min(high - low, 1 / max(abs(np.clip(0, low, high)), 1.0))
        np.testing.assert_allclose(found, expected, atol=0.02 * scale + 2e-6 * abs(expected).max())


def test_the_likelihood_is_that_of_the_level():
    model = OrdinalModel(2, 5, 1)
    posterior = model.posterior(USER, ITEM, LEVEL, CUTS)
    params = jax.random.normal(jax.random.key(0), (7, 2))
    noise = np.array([2.0, 0.5])
    hyper = {**posterior.hyper, "noise": jnp.asarray(noise, jnp.float32)}
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    mean = predictions(sides["user"][USER], sides["item"][ITEM])
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    scale = noise[USER] ** -0.5
    expected = np.log(
        stats.norm.cdf(edges[LEVEL + 1], mean, scale) - stats.norm.cdf(edges[LEVEL], mean, scale)
    )
    found = posterior.with_hyper(hyper).log_likelihoods(params, posterior.data)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def uniform_values(log_density: np.ndarray, grid: np.ndarray, values) -> np.ndarray:
    density = np.exp(log_density - log_density.max())
    total = np.cumsum(np.diff(grid) * (density[1:] + density[:-1]) / 2)
    return np.interp(values, grid, np.append(0, total / total[-1]))


def chains(model, posterior, params, num_sweeps, start=lambda hyper: hyper):
    """Hyperparameters after many updates with the same parameters: independent chains."""

    def sweep(i, state):
        key, hyper = state
        key, own = jax.random.split(key)
        return key, model.update(own, params, posterior.with_hyper(hyper))

    def chain(key):
        return jax.lax.fori_loop(0, num_sweeps, sweep, (key, start(posterior.hyper)))[1]

    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), NUM_CHAINS))


def test_precisions_have_their_law_given_levels():
    """τ of two users, ρ integrated out, on a grid; hidden numbers appear in no formula here.

    Two cuts, and so none that moves. Kolmogorov–Smirnov at 10⁻⁵, for each of two.
    """
    model, cuts = OrdinalModel(2, 5, 1), CUTS[:2]
    level = np.minimum(LEVEL, 2)
    posterior = model.posterior(USER, ITEM, level, cuts)
    params = 0.7 * jax.random.normal(jax.random.key(0), (7, 2))
    found = chains(model, posterior, params, 40)
    assert np.all(np.asarray(found["cuts"]) == cuts)
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    mean = predictions(sides["user"][USER], sides["item"][ITEM])
    edges = np.concatenate([[-np.inf], cuts, [np.inf]])
    grid, rates = np.geomspace(1e-4, 60, 500), np.geomspace(1e-3, 30, 200)
    likelihood = np.zeros((2, len(grid)))
    for user, m, each in zip(USER, mean, level, strict=True):
        ends = (stats.norm.cdf((edges[each + k] - m) * np.sqrt(grid)) for k in (0, 1))
        low, high = ends
        likelihood[user] += np.log(high - low)
    prior = stats.gamma.logpdf(grid[None], 3, scale=1 / rates[:, None])
    joint = [np.exp(prior + likelihood[user][None]) for user in (0, 1)]
    weight = stats.gamma.pdf(rates, 1) * np.gradient(rates)
    evidence = [np.trapezoid(each, grid, axis=1) for each in joint]
    for user in (0, 1):
        density = (weight * evidence[1 - user]) @ joint[user]
        uniform = uniform_values(np.log(density), grid, np.asarray(found["noise"][:, user]))
        assert stats.kstest(uniform, "uniform").pvalue > 1e-5


def test_cuts_have_their_law_given_means_and_precisions():
    """Of three cuts the middle one moves; its density on a grid, at precisions that stay.

    Kolmogorov–Smirnov at 10⁻⁵. Of five cuts, neighbours keep their order.
    """
    rng = np.random.default_rng(0)
    user, item = (axis.ravel() for axis in np.indices((2, 5)))
    level = rng.integers(0, 4, 10)
    model = OrdinalModel(2, 5, 1)
    posterior = model.posterior(user, item, level, CUTS)
    params = 0.7 * jax.random.normal(jax.random.key(0), (7, 2))
    noise = np.array([1.5, 0.6])
    posterior = posterior.with_hyper({**posterior.hyper, "noise": jnp.asarray(noise, jnp.float32)})

    def chain(key):
        def step(i, state):
            key, cuts = state
            key, own = jax.random.split(key)
            given = posterior.with_hyper({**posterior.hyper, "cuts": cuts})
            return key, model._fresh_cuts(own, params, given)

        return jax.lax.fori_loop(0, 60, step, (key, jnp.asarray(CUTS)))[1]

    found = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(2), NUM_CHAINS)))
    assert np.all(found[:, [0, 2]] == CUTS[[0, 2]])
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    mean = predictions(sides["user"][user], sides["item"][item])
    grid = np.linspace(CUTS[0] + 1e-6, CUTS[2] - 1e-6, 400)
    density = np.zeros(len(grid))
    for i, middle in enumerate(grid):
        edges = np.array([-np.inf, CUTS[0], middle, CUTS[2], np.inf])
        scale = noise[user] ** -0.5
        low, high = (stats.norm.cdf(edges[level + k], mean, scale) for k in (0, 1))
        density[i] = np.log(high - low).sum()
    assert stats.kstest(uniform_values(density, grid, found[:, 1]), "uniform").pvalue > 1e-5
    many = np.linspace(-1, 1, 6)
    wide = model.posterior(user, item, rng.integers(0, 7, 10), many)
    moved = jax.vmap(lambda key: model._fresh_cuts(key, params, wide))(
        jax.random.split(jax.random.key(3), 200)
    )
    assert np.all(np.diff(moved, axis=1) > 0)
    assert np.all(np.std(np.asarray(moved)[:, 1:-1], axis=0) > 0)


def test_wrong_data_are_refused():
    model = OrdinalModel(2, 5, 1)
    with pytest.raises(ValueError, match="cuts must be a vector of increasing numbers"):
        model.posterior(USER, ITEM, LEVEL, CUTS[::-1])
    with pytest.raises(ValueError, match="level must be codes from 0 to 2"):
        model.posterior(USER, ITEM, LEVEL, CUTS[:2])
