"""New users and items of draws made by hand: who gets which law, and that nobody else's changes."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

import exact_factorization
from exact_factorization import conditional
from handmade_factors import SIZES, handmade_draws
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.rating_likelihoods import GaussianRatings
from sghmc.recommender.ratings import Ratings, Sizes

NUM_DRAWS = 4000
KNOWN = Sizes(SIZES["user"], SIZES["item"])
USERS, ITEMS = KNOWN.user + 3, KNOWN.item + 1
NEW_ITEM, NEW_USER, SILENT, LAST = KNOWN.item, KNOWN.user, KNOWN.user + 1, USERS - 1
rng = np.random.default_rng(5)
PAIRS = np.array(
    [(2, 1), (2, 4), (3, 0), (2, NEW_ITEM), (3, NEW_ITEM), (NEW_USER, NEW_ITEM)]
    + [(NEW_USER, item) for item in range(5)]
    + [(LAST, item) for item in (3, 4)]
)


def fold_in(key, draws, ratings, known, users):
    return GaussianRatings(np.array([0.0, 1.0])).fold_in(
        key, Newcomers(draws, ratings, known, users, {})
    )


RATINGS = Ratings(
    PAIRS[:, 0].astype(np.int32),
    PAIRS[:, 1].astype(np.int32),
    rng.normal(size=len(PAIRS)).astype(np.float32),
    np.arange(USERS),
    np.arange(ITEMS),
)
ASKED = np.array([2, NEW_USER, SILENT, LAST])


@pytest.fixture(scope="module")
def before() -> dict[str, np.ndarray]:
    """One draw, again and again: what is drawn given it is a sample of one law."""
    return {name: np.repeat(part[:1], NUM_DRAWS, axis=0) for name, part in handmade_draws().items()}


@pytest.fixture(scope="module")
def after(before):
    return fold_in(jax.random.key(0), before, RATINGS, KNOWN, ASKED)


@pytest.mark.slow
def test_only_those_asked_for_and_new_items_change(before, after):
    assert (after["user"].shape[1], after["item"].shape[1]) == (USERS, ITEMS)
    others = np.setdiff1d(np.arange(KNOWN.user), ASKED)
    for name in ("user", "noise"):
        np.testing.assert_array_equal(after[name][:, others], before[name][:, others])
        assert np.all(after[name][:, ASKED].std(axis=0) > 0)
    np.testing.assert_array_equal(after["item"][:, :NEW_ITEM], before["item"])
    for name in ("user.mean", "item.precision", "noise_rate"):
        assert after[name] is before[name]


def standardized(rows, matrix, mean):
    """Standard normals, where rows have that law; `matrix` is a precision for each draw."""
    root = np.linalg.cholesky(matrix)
    return np.einsum("dji,dj->di", root, rows - mean)


def check_normal(z):
    """Means, variances and correlations within five standard errors, a false alarm in 10⁵ keys."""
    size, width = z.shape
    assert np.abs(z.mean(0)).max() < 5 / np.sqrt(size)
    assert np.abs(np.cov(z.T) - np.eye(width)).max() < 5 * np.sqrt(2 / size)


def law(side: str, i: int, rows: np.ndarray, after, noise):
    """Precision and mean of a row given some of the ratings and the draws after folding in."""
    data = exact_factorization.Ratings(
        RATINGS.user[rows], RATINGS.item[rows], RATINGS.rating[rows].astype(float), USERS, ITEMS
    )
    others = after["item" if side == "user" else "user"].astype(float)
    prior = after[f"{side}.mean"], after[f"{side}.precision"]
    return conditional(data, side, i, others, noise.astype(float), *prior)


@pytest.mark.parametrize("user", ASKED)
def test_users_have_their_law_given_the_known_items(after, user):
    rows = np.flatnonzero(RATINGS.item < KNOWN.item)
    matrix, mean = law("user", user, rows, after, after["noise"])
    check_normal(standardized(after["user"][:, user], matrix, mean))


def test_new_items_have_their_law_given_all_users(after):
    rows = np.arange(len(RATINGS))
    matrix, mean = law("item", NEW_ITEM, rows, after, after["noise"])
    check_normal(standardized(after["item"][:, NEW_ITEM], matrix, mean))


def test_the_noise_and_the_row_are_drawn_together(after):
    """τ given the row is Gamma(3 + n/2, ρ + ½Σe²): true only where they have their joint law.

    Uniform by its own distribution function; a false alarm in 10⁵ keys for each of four.
    """
    for user in ASKED:
        mine = np.flatnonzero((RATINGS.user == user) & (RATINGS.item < KNOWN.item))
        rows, items = after["user"][:, user], after["item"][:, RATINGS.item[mine]]
        predicted = np.einsum("dk,dnk->dn", rows[:, :-1], items[..., :-1])
        error = predicted + rows[:, -1:] + items[..., -1] - RATINGS.rating[mine]
        squares = (error**2).sum(1) + len(mine) * 0.01**2
        shape, rate = 3 + len(mine) / 2, after["noise_rate"] + squares / 2
        uniform = stats.gamma.cdf(after["noise"][:, user], shape, scale=1 / rate)
        assert stats.kstest(uniform, "uniform").pvalue > 1e-5


def test_somebody_without_ratings_has_the_prior(after):
    z = (after["user"][:, SILENT] - after["user.mean"]) * np.sqrt(after["user.precision"])
    check_normal(z)
    prior = stats.gamma(3.0, scale=1 / after["noise_rate"][0])
    assert stats.kstest(after["noise"][:, SILENT], prior.cdf).pvalue > 1e-5


@pytest.mark.slow
def test_many_ratings_fill_many_blocks():
    """150 ratings, in any order among others: the same law as from all of them at once."""
    generator = np.random.default_rng(0)
    num_items = 200
    draws = handmade_draws()
    draws["item"] = generator.normal(size=(5, num_items, 4)).astype(np.float32)
    draws = {name: np.repeat(part, 400, axis=0) for name, part in draws.items()}
    users = np.repeat([SIZES["user"], SIZES["user"] + 1], [150, 70])
    items = np.concatenate([generator.permutation(num_items)[:count] for count in (150, 70)])
    order = generator.permutation(220)
    rating = generator.normal(size=220).astype(np.float32)
    table = Ratings(users[order], items[order], rating, np.arange(9), np.arange(num_items))
    known = Sizes(SIZES["user"], num_items)
    after = fold_in(jax.random.key(1), draws, table, known, np.array([7, 8]))
    data = exact_factorization.Ratings(table.user, table.item, rating.astype(float), 9, num_items)
    prior = draws["user.mean"], draws["user.precision"]
    others, noise = draws["item"].astype(float), after["noise"].astype(float)
    for user in (7, 8):
        matrix, mean = conditional(data, "user", user, others, noise, *prior)
        check_normal(standardized(after["user"][:, user], matrix, mean))


@pytest.mark.slow
def test_a_new_item_of_known_users_asks_for_no_user(before):
    """All ratings but those of the new item are known already: users stay as they are."""
    table = RATINGS.take(np.flatnonzero(RATINGS.user < KNOWN.user))
    table = dataclasses.replace(table, users=table.users[: KNOWN.user])
    few = {name: part[:3] for name, part in before.items()}
    after = fold_in(jax.random.key(0), few, table, KNOWN, np.zeros(0, np.int64))
    for name in ("user", "noise"):
        np.testing.assert_array_equal(after[name], few[name])
    assert after["item"].shape[1] == ITEMS
    assert np.all(np.isfinite(after["item"]))
