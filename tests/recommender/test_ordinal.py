"""Ratings as levels: probabilities and hidden numbers against scipy, updates against integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from sghmc.core import random
from sghmc.recommender import factor_gibbs
from sghmc.recommender.ordinal import OrdinalModel, draw_inside, log_interval

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


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_intervals_and_numbers_inside_them_by_one_program():
    """Log-probabilities, their slopes at both ends, and quantiles, far out in either tail, too."""
    lower, upper = intervals()
    grid = np.linspace(0.02, 0.98, 9)

    @jax.jit
    def all_of(lower, upper, uniform):
        slopes = jax.grad(lambda a, b: jnp.sum(log_interval(a, b)), (0, 1))(lower, upper)
        inside = jax.vmap(lambda u: draw_inside(jnp.full_like(lower, u), lower, upper))(uniform)
        return log_interval(lower, upper), slopes, inside

    ends = (jnp.asarray(each, jnp.float32) for each in (lower, upper))
    value, slopes, inside = all_of(*ends, jnp.asarray(grid, jnp.float32))
    expected = exact_log_interval(lower, upper)
    np.testing.assert_allclose(value, expected, rtol=2e-4, atol=1e-5)
    of_lower, of_upper = (
        sign * np.exp(stats.norm.logpdf(x) - expected) for sign, x in ((-1, lower), (1, upper))
    )
    np.testing.assert_allclose(slopes[0], of_lower, rtol=5e-3, atol=1e-30)
    np.testing.assert_allclose(slopes[1], of_upper, rtol=5e-3, atol=1e-30)
    for k, (low, high) in enumerate(zip(lower, upper, strict=True)):
        quantiles = np.sort(stats.truncnorm.ppf(grid, low, high))
        scale = min(high - low, 1 / max(abs(np.clip(0, low, high)), 1.0))
        tolerance = 0.02 * scale + 2e-6 * abs(quantiles).max()
        np.testing.assert_allclose(np.sort(inside[:, k]), quantiles, atol=tolerance)


def case_of_four_levels():
    """Ten ratings in four levels, at parameters and precisions none of which is 1."""
    user, item = (axis.ravel() for axis in np.indices((2, 5)))
    level = np.array([3, 0, 1, 2, 2, 1, 0, 1, 3, 2])
    model = OrdinalModel(2, 5, 1)
    posterior = model.posterior(user, item, level, CUTS)
    noise = np.array([2.5, 0.6])
    hyper = {**posterior.hyper, "noise": jnp.asarray(noise, jnp.float32)}
    params = 0.7 * np.random.default_rng(8).normal(size=(7, 2))
    mean = predictions(params[:2][user], params[2:][item])
    given = posterior.with_hyper(hyper), jnp.asarray(params, jnp.float32)
    return model, *given, level, mean, noise[user]


def test_a_level_counts_and_has_its_likelihood():
    model, posterior, params, level, mean, noise = case_of_four_levels()
    assert posterior.hyper["level_counts"].tolist() == [2, 3, 3, 2]
    assert posterior.data["number"].tolist() == list(range(10))
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    low, high = (stats.norm.cdf((edges[level + k] - mean) * np.sqrt(noise)) for k in (0, 1))
    found = jax.jit(lambda params: posterior.log_likelihoods(params, posterior.data))(params)
    np.testing.assert_allclose(found, np.log(high - low), rtol=1e-4, atol=1e-5)
    counts = {"user": jnp.array([5.0, 5.0]), "item": jnp.full(5, 2.0)}
    precisions = model.precisions(posterior.hyper, counts)
    assert precisions["user"] is posterior.hyper["noise"]
    assert float(precisions["item"]) == pytest.approx(1.55)


def test_cuts_move_by_one_metropolis_step_each():
    """Of six cuts four are free; proposals, order and acceptance in NumPy, variate by variate."""
    user, item = (axis.ravel() for axis in np.indices((2, 5)))
    level = np.array([6, 0, 1, 2, 3, 4, 5, 5, 3, 1])
    model, cuts = OrdinalModel(2, 5, 1), np.array([-1.6, -1.2, -0.2, 0.3, 1.5, 2.0])
    posterior = model.posterior(user, item, level, cuts)
    noise, params = np.array([2.5, 0.6]), 0.7 * np.random.default_rng(8).normal(size=(7, 2))
    given = posterior.with_hyper({**posterior.hyper, "noise": jnp.asarray(noise, jnp.float32)})
    step = jax.jit(lambda key: model._fresh_cuts(key, jnp.asarray(params, jnp.float32), given))
    counts = np.bincount(level, minlength=7)
    mean, root = predictions(params[:2][user], params[2:][item]), np.sqrt(noise[user])

    def log_likelihood(cuts):
        edges = np.concatenate([[-np.inf], cuts, [np.inf]])
        low, high = (stats.norm.cdf((edges[level + k] - mean) * root) for k in (0, 1))
        return np.log(high - low).sum()

    reasons = set()
    for seed in range(12):
        of_moves, of_choices = jax.random.split(jax.random.key(seed))
        normal = np.asarray(jax.random.normal(of_moves, (6,)), float)
        log_uniform = np.log1p(-np.asarray(jax.random.uniform(of_choices, (6,)), float))
        expected = cuts.copy()
        for k in (2, 4, 1, 3):
            proposed = expected.copy()
            width = 2.0 / np.sqrt(noise.mean() * (counts[k] + counts[k + 1]) + 1)
            proposed[k] += width * normal[k]
            is_ordered = expected[k - 1] < proposed[k] < expected[k + 1]
            gain = log_likelihood(proposed) - log_likelihood(expected) if is_ordered else -np.inf
            is_taken = log_uniform[k] < gain
            expected = proposed if is_taken else expected
            reasons.add((is_ordered, is_taken))
        np.testing.assert_allclose(step(jax.random.key(seed)), expected, rtol=1e-4, atol=1e-5)
    assert reasons == {(True, True), (True, False), (False, False)}


def test_an_update_gives_hidden_numbers_to_the_gamma_laws(monkeypatch):
    """(z − m)² of numbers between the fresh cuts, by inversion of uniforms of each rating's own."""
    model, posterior, params, level, mean, noise = case_of_four_levels()
    monkeypatch.setattr(OrdinalModel, "_fresh_cuts", lambda *_: jnp.asarray(CUTS) + 0.3)
    monkeypatch.setattr(factor_gibbs, "update", lambda *given: given)
    key, sides, priors, law, squares, of_update = model.update(jax.random.key(6), params, posterior)
    _, of_latents, of_rest = jax.random.split(jax.random.key(6), 3)
    assert jnp.all(jax.random.key_data(key) == jax.random.key_data(of_rest))
    assert sides["user"].shape == (2, 2)
    assert law == factor_gibbs.UserNoise(2)
    assert set(priors) == {"user", "item"}
    edges = np.concatenate([[-np.inf], np.asarray(CUTS) + 0.3, [np.inf]])
    np.testing.assert_allclose(of_update.hyper["cuts"], edges[1:-1])
    rows = {name: jnp.asarray(part) for name, part in posterior.data.items()}
    uniform = np.asarray(random.uniforms_at(random.words(of_latents), rows["number"]), float)
    low, high = ((edges[level + k] - mean) * np.sqrt(noise) for k in (0, 1))
    # A uniform leads away from 0's side of the interval; turned intervals are turned back.
    is_turned = low + high > 0
    share = np.where(is_turned, uniform, 1 - uniform)
    expected = stats.truncnorm.ppf(share, low, high) ** 2 / noise
    np.testing.assert_allclose(jax.jit(squares)(rows), expected, rtol=2e-3, atol=1e-4)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    for cuts in ([], [[0.0, 1.0]], [0.5, 0.5]):
        with pytest.raises(ValueError, match="cuts must be a vector of increasing numbers"):
            model.posterior(USER, ITEM, np.zeros(6, int), cuts)
    assert model.posterior(USER, ITEM, np.zeros(6, int), [0.5]).hyper["cuts"].tolist() == [0.5]
    with pytest.raises(ValueError, match="level must be codes from 0 to 2"):
        model.posterior(USER, ITEM, LEVEL, CUTS[:2])
