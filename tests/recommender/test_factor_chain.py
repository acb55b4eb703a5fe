"""The recommender's chain: its start, its shapes, and when it goes wrong.

That it samples the posterior is tested where it is used, in test_matrix_factorization.py.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sghmc
from exact_factorization import make_ratings, predictions
from handmade_factors import SIZES, WIDTH, handmade_draws
from sghmc.models import MatrixFactorization as Model
from sghmc.recommender import factor_chain
from sghmc.recommender.factor_chain import ChainSettings
from sghmc.recommender.rating_likelihoods import RESOLUTION, GaussianRatings
from sghmc.recommender.ratings import Ratings, Sizes

RANK = 2
GAUSSIAN = GaussianRatings(np.array([0.0, 1.0]))
SETTINGS = ChainSettings(
    rank=RANK,
    num_draws=1000,
    thinning=15,
    num_burnin=600,
    batch_size=None,
    step_size=0.05,
    momentum_decay=0.0125,
    progress=False,
)


def small_ratings() -> Ratings:
    """Standardized; the last of the six users has rated nothing."""
    made = make_ratings(5, 5, RANK)
    rating = (made.rating - made.rating.mean()) / made.rating.std()
    return Ratings(made.user, made.item, rating, np.arange(6), np.arange(5))


RATINGS = small_ratings()


def test_draws_have_names_and_no_padding():
    """Of the centers of rows that have features, mean and variance are kept."""
    rng = np.random.default_rng(0)
    model = GAUSSIAN.problem(RATINGS, Sizes(9, 8), RANK, {}).model
    rows = rng.normal(size=(1, 3, 17, RANK + 1))
    prior = {"mean": rng.normal(size=(1, 3, 3)), "precision": rng.gamma(3.0, size=(1, 3, 3))}
    center = rng.normal(size=(1, 3, 9, 3))
    noise = rng.gamma(3.0, size=(1, 3, 9))
    hyper = {
        "user": {**prior, "center": center}, "item": prior, "noise": noise,
        "noise_rate": np.ones((1, 3)), "counts": np.ones(3),
    }  # fmt: skip
    samples: Any = SimpleNamespace(positions=rows, hyper=hyper)
    found = factor_chain._draws_by_name(samples, model, RATINGS, GAUSSIAN)
    expected = {
        "user": rows[0][:, :6], "item": rows[0][:, 9:14], "noise": noise[0][:, :6],
        "noise_rate": np.ones(3), "user.typical": center[0][:, :6].mean(1),
        "user.varied": center[0][:, :6].var(1),
    }  # fmt: skip
    for side in ("user", "item"):
        expected |= {f"{side}.{name}": part[0] for name, part in prior.items()}
    assert set(found) == set(expected)
    for name, part in expected.items():
        np.testing.assert_array_equal(found[name], part)


def test_a_chain_goes_on_where_it_stands_and_strangers_come_from_the_prior():
    """New rows are normals of the prior's mean and precision: moments of 20,000, 5 errors.

    24 of them: a false alarm once in 70,000 keys.
    """
    last = {name: part[-1] for name, part in handmade_draws().items()}
    sizes = {side: size + 20_000 for side, size in SIZES.items()}
    problem = GAUSSIAN.problem(RATINGS, Sizes(**sizes), WIDTH - 1, {})
    model = problem.model
    position, hyper = factor_chain._initial_state(jax.random.key(0), problem, GAUSSIAN, last)
    for side, rows in model.sides(position).items():
        np.testing.assert_array_equal(rows[: SIZES[side]], last[side])
        prior = {name: last[f"{side}.{name}"] for name in ("mean", "precision")}
        new = np.asarray(rows[SIZES[side] :], float) - prior["mean"]
        normal = new * prior["precision"] ** 0.5
        assert np.abs(normal.mean(0)).max() < 5 / np.sqrt(20_000)
        assert np.abs((normal**2).mean(0) - 1).max() < 5 * np.sqrt(2 / 20_000)
        assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-6
        assert set(hyper[side]) == set(prior)
        assert all(hyper[side][name] is part for name, part in prior.items())
    noise = last["noise"]
    np.testing.assert_array_equal(hyper["noise"][: len(noise)], noise)
    np.testing.assert_allclose(hyper["noise"][len(noise) :], noise.mean())
    users, items = (np.asarray(rows) for rows in model.sides(position).values())
    assert not np.array_equal(users[SIZES["user"] :], items[SIZES["item"] :])


def test_a_first_start_has_the_spread_of_standardized_ratings():
    """¼ of products, ⅕ of each bias and ½ of noise, as the priors it starts from have them, too."""
    problem = GAUSSIAN.problem(RATINGS, Sizes(4000, 3000), 3, {})
    model = problem.model
    position, hyper = factor_chain._initial_state(jax.random.key(0), problem, GAUSSIAN, None)
    user, item = (np.asarray(rows, float) for rows in model.sides(position).values())
    # 3,000 products, whose variance has a standard error of 4 %: within five.
    assert np.var(predictions(user[:3000], item)) == pytest.approx(0.25, rel=0.2)
    for side in ("user", "item"):
        precision = hyper[side]["precision"]
        np.testing.assert_allclose(1 / precision[:-1], np.sqrt(0.25 / 3), rtol=1e-5)
        assert 1 / precision[-1] == pytest.approx(0.2)
    assert np.all(hyper["noise"] == 2)
    # The mean of Gamma(3, ρ).
    assert 3 / hyper["noise_rate"] == pytest.approx(2)


@pytest.mark.slow
def test_padding_does_not_count():
    """The posterior over padded rows, users and items, less its prior, is that of the ratings."""
    plain = Model(6, 5, RANK, "dimension", "user", RESOLUTION)
    ratings = dataclasses.replace(RATINGS, rating=RATINGS.rating + 1)
    large, posterior, *_ = GAUSSIAN.problem(ratings, Sizes(9, 8), RANK, {})
    assert posterior.num_rows > len(ratings) == int(posterior.num_examples)
    params = large.init(jax.random.key(0), scale=1.0)
    sides = large.sides(params)
    small = jnp.concatenate([sides["user"][:6], sides["item"][:5]])
    expected = plain.posterior(ratings.user, ratings.item, ratings.rating)
    likelihoods = [
        float(each.potential(values) + each.log_prior(values, each.hyper))
        for each, values in ((posterior, params), (expected, small))
    ]
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-5)
    counts = factor_chain._counts(Sizes(9, 8), ratings, GAUSSIAN)
    assert counts["user"].tolist() == [*np.bincount(ratings.user, minlength=6), 0, 0, 0]
    assert counts["item"].tolist() == [*np.bincount(ratings.item, minlength=5), 0, 0, 0]


@pytest.mark.parametrize(
    ("num_ratings", "batch_size", "expected"),
    [(30_000, None, None), (100_000, None, 40_000), (1_000_000, None, 100_000), (900, 7, 7),
     (900, 900, None), (900, 1000, None)],
)  # fmt: skip
def test_a_batch_is_a_tenth_or_40_000_or_what_is_asked_for(num_ratings, batch_size, expected):
    codes, one = np.zeros(num_ratings, np.int32), np.arange(1)
    ratings = Ratings(codes, codes, codes.astype(np.float32), one, one)
    problem = GAUSSIAN.problem(ratings, Sizes(1, 1), 1, {})
    settings = dataclasses.replace(SETTINGS, batch_size=batch_size)
    found = factor_chain._batch_size(settings, problem)
    # With padding a little more.
    assert found == expected or expected < found <= 1.15 * expected


class Recorded:
    """Stands in for `sample`: fails some times, then gives what it is told to."""

    def __init__(self, num_failures, samples: Any = None):
        self.num_failures, self.samples, self.calls = num_failures, samples, []

    def __call__(self, key, posterior, sampler, init, **options):
        self.calls.append((key, sampler))
        if len(self.calls) <= self.num_failures:
            raise sghmc.DivergenceError("Chain 0 became non-finite.", self.samples)
        return self.samples


def test_a_chain_that_diverges_is_tried_with_shorter_steps(monkeypatch):
    recorded = Recorded(100)
    monkeypatch.setattr(factor_chain, "sample", recorded)
    with pytest.raises(sghmc.DivergenceError, match=r"diverged 8 times.*0.05 down to 0.00412") as e:
        factor_chain.run_factor_chain(jax.random.key(0), RATINGS, SETTINGS, None, GAUSSIAN, {})
    assert all(word in str(e.value) for word in ("step_size", "num_burnin", "rank"))
    steps = [float(sampler.step_size) for _, sampler in recorded.calls]
    np.testing.assert_allclose(steps, 0.05 * 0.7 ** np.arange(8), rtol=1e-6)
    keys = {tuple(jax.random.key_data(key).tolist()) for key, _ in recorded.calls}
    assert len(keys) == 8
    for _, sampler in recorded.calls:
        # α = εC/M, the decay that was asked for.
        decay = sampler.step_size * sampler.friction / sampler.mass
        assert float(decay) == pytest.approx(0.0125, rel=1e-5)


def test_the_first_mass_is_that_of_the_stiffest_row():
    """The largest τ · n · E[v²] + λ, with at least 1 for E[v²]: that of a bias."""
    sides = {"user": jnp.array([[1.0, 3.0], [2.0, 1.0]]), "item": jnp.array([[0.5, -4.0]])}
    model: Any = SimpleNamespace(
        sides=lambda position: sides,
        precisions=lambda hyper, counts: {"user": jnp.array([0.7, 0.2]), "item": jnp.array(0.9)},
    )
    hyper = {
        "counts": {"user": jnp.array([3.0, 5.0]), "item": jnp.array([8.0])},
        "user": {"precision": np.array([0.3, 2.5])},
        "item": {"precision": np.array([1.5])},
    }
    posterior: Any = SimpleNamespace(hyper=hyper)
    found = factor_chain._safe_mass(posterior, model, jnp.zeros(1))
    assert found == pytest.approx(0.9 * 8 * 16 + 2.5)
    sides["item"] = sides["user"] = jnp.array([[0.1, 0.2]])
    found = factor_chain._safe_mass(posterior, model, jnp.zeros(1))
    assert found == pytest.approx(0.9 * 8 + 2.5)


def test_an_interrupted_run_is_an_interrupted_fit(monkeypatch):
    """Nobody gets a model of half the draws: `sample` returns those so far, a fit must not."""

    class Part:
        is_interrupted = True

    monkeypatch.setattr(factor_chain, "sample", Recorded(0, Part()))
    with pytest.raises(KeyboardInterrupt):
        factor_chain.run_factor_chain(jax.random.key(0), RATINGS, SETTINGS, None, GAUSSIAN, {})
