"""Implicit feedback: the posterior of all pairs, by tiles and written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from exact_factorization import predictions
from sghmc.recommender.clicks import ClickModel

NUM_USERS, NUM_ITEMS, RANK = 70, 90, 2
REAL = (66, 80)
OFFSET = -1.5

rng = np.random.default_rng(0)
COUNTS = rng.poisson(0.2, REAL)
USER, ITEM = np.nonzero(COUNTS)


@pytest.fixture(scope="module", params=[False, True])
def case(request):
    model = ClickModel(NUM_USERS, NUM_ITEMS, RANK, request.param)
    count = COUNTS[USER, ITEM] if request.param else None
    posterior = model.posterior(USER, ITEM, count, offset=OFFSET, num_real=REAL)
    params = 0.5 * jax.random.normal(jax.random.key(0), (NUM_USERS + NUM_ITEMS, RANK + 1))
    return model, posterior, params


@pytest.mark.slow_cases("False")
def test_the_potential_is_that_of_all_pairs(case):
    """Those of padded rows, which are nobody's, left out."""
    model, posterior, params = case
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    score = OFFSET + predictions(sides["user"][: REAL[0], None], sides["item"][None, : REAL[1]])
    if model.is_count:
        expected = stats.poisson.logpmf(COUNTS, np.exp(score)) + special.gammaln(COUNTS + 1)
    else:
        expected = stats.bernoulli.logpmf(COUNTS > 0, special.expit(score))
    prior = float(model.log_prior(params, posterior.hyper))
    assert -float(posterior.potential(params)) == pytest.approx(expected.sum() + prior, rel=1e-5)


@pytest.mark.slow_cases("False")
def test_batches_of_tiles_say_the_same_on_average(case):
    """The estimates from each tile alone have the potential and the gradient as their mean."""
    _, posterior, params = case
    count = posterior.num_rows
    assert count == 4
    estimates = [posterior.estimate(params, posterior.rows(jnp.array([i]))) for i in range(count)]
    assert np.mean(estimates) == pytest.approx(float(posterior.potential(params)), rel=1e-5)
    slope = jax.grad(lambda p, i: posterior.estimate(p, posterior.rows(i[None])))
    gradients = np.mean([slope(params, jnp.array(i)) for i in range(count)], axis=0)
    np.testing.assert_allclose(gradients, posterior.gradient(params), rtol=1e-3, atol=1e-3)


@pytest.mark.slow_cases("False")
def test_updates_leave_what_is_constant(case):
    model, posterior, params = case
    fresh = model.update(jax.random.key(3), params, posterior)
    assert jax.tree.structure(fresh) == jax.tree.structure(posterior.hyper)
    for name in ("offset", "num_real", "order"):
        for one, other in zip(
            jax.tree.leaves(fresh[name]), jax.tree.leaves(posterior.hyper[name]), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert np.all(fresh["user"]["precision"] != posterior.hyper["user"]["precision"])


def test_masses_are_near_the_curvature(case):
    """At the truth and on the whole: the variance of a pair is about its rate where that is low."""
    model, _, _ = case
    generator = np.random.default_rng(1)
    params = jnp.asarray(
        generator.normal(size=(NUM_USERS + NUM_ITEMS, RANK + 1)) * 0.3, jnp.float32
    )
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    offset = -4.0
    score = offset + predictions(sides["user"][:, None], sides["item"][None])
    rate = np.exp(score) if model.is_count else special.expit(score)
    variance = rate if model.is_count else rate * (1 - rate)
    counts = {"user": jnp.asarray(rate.sum(1)), "item": jnp.asarray(rate.sum(0))}
    user, item = np.nonzero(rate > 0)
    posterior = model.posterior(user[:1], item[:1], offset=offset)
    mass = np.asarray(model.mass(params, posterior.hyper, counts))[:NUM_USERS] - 1
    features = sides["item"].copy()
    features[:, -1] = 1
    curvature = variance @ features**2
    assert np.median(mass / curvature) == pytest.approx(1, abs=0.15)


def test_wrong_data_are_refused():
    model = ClickModel(3, 4, 1)
    with pytest.raises(ValueError, match="count must be positive"):
        model.posterior([0], [0], [0.0], offset=0.0)
    with pytest.raises(ValueError, match="item must be codes from 0 to 3"):
        model.posterior([0], [4], offset=0.0)
