"""The recommender: calibrated, honest about strangers, able to learn on, the same after a file."""

import json
from typing import Any

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

from sghmc import cli
from sghmc.data.ratings import Ratings, from_table, synthetic_ratings
from sghmc.estimators import MatrixFactorization

NOISE = 0.5
SETTINGS: dict[str, Any] = {
    "rank": 3,
    "num_draws": 40,
    "thinning": 15,
    "num_burnin": 300,
    "num_update_steps": 600,
}


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    return synthetic_ratings(0, 90, 60, rank=3, density=0.5, noise=NOISE)


@pytest.fixture(scope="module")
def parts(ratings):
    """Training rows and held-out ones."""
    order = np.random.default_rng(1).permutation(len(ratings))
    return ratings.take(order[500:]), ratings.take(order[:500])


@pytest.fixture(scope="module")
def model(parts):
    return MatrixFactorization(**SETTINGS).fit(parts[0])


def test_predicts_held_out_ratings_to_their_noise(model, parts):
    test = parts[1]
    report = model.evaluate(test)
    # An exact Gibbs sampler of the same model, run long, has 0.611 here.
    assert report["rmse"] < 0.64
    assert report["num_ratings"] == 500
    for name, level in (("50%", 0.5), ("80%", 0.8), ("95%", 0.95)):
        # Four standard errors of 500 rows. (A chain ten times as long covers 76 % of them at 80 %.)
        assert abs(report["coverage"][name] - level) < 4 * np.sqrt(level * (1 - level) / 500)


def test_strangers_have_the_prior_as_their_law(model, ratings):
    _, std = model.predict([5], [7], return_std=True)
    cases = {"user": ([-1], [7]), "item": ([5], [-1]), "both": ([-1], [-1])}
    means, stds = {}, {}
    for name, (users, items) in cases.items():
        (means[name],), (stds[name],) = model.predict(users, items, return_std=True)
    assert stds["both"] > max(stds["user"], stds["item"])
    assert min(stds["user"], stds["item"]) > std[0]
    # Known biases still count, and what is known of nobody is near the overall mean.
    assert abs(means["both"] - ratings.rating.mean()) < 0.3
    average_of_item = np.mean(ratings.rating[ratings.item == 7])
    assert abs(means["user"] - average_of_item) < 0.3
    # The spread of ratings by people unknown is that of the item's ratings.
    assert 0.7 < stds["user"] / np.std(ratings.rating[ratings.item == 7]) < 1.4


def test_variance_of_strangers_is_that_of_their_draws(model):
    """The closed form against draws from the prior, for a pair of strangers: 2 % is 3 errors."""
    draws, generator = model._factors, np.random.default_rng(0)
    total = []
    for _ in range(400):
        user, item = (
            side.mean + generator.normal(size=side.spread.shape) * side.spread**0.5
            for side in (draws.user, draws.item)
        )
        somebody = generator.integers(draws.noise.shape[1])
        noise = generator.normal(size=len(draws.noise)) / np.sqrt(draws.noise[:, somebody])
        product = np.sum(user[:, :-1] * item[:, :-1], axis=1)
        total.append(product + user[:, -1] + item[:, -1] + noise)
    minus = np.array([-1])
    _, variance = draws.moments(minus, minus)
    assert np.var(total) == pytest.approx(variance[0], rel=0.05)


def test_recommends_unseen_items_in_order(model, parts):
    train = parts[0]
    seen = set(train.item[train.user == 3].tolist())
    answer = model.recommend(3, k=5)
    assert len(answer.items) == 5
    assert not seen & set(answer.items.tolist())
    mean, std = model.predict([3] * 5, answer.items, return_std=True)
    np.testing.assert_array_equal(answer.ratings, mean)
    np.testing.assert_allclose(answer.stds, std)
    assert np.all(np.diff(answer.ratings) <= 0)
    everything = model.recommend(3, k=1000, exclude_seen=False)
    assert len(everything.items) == train.num_items
    assert len(model.recommend(3, k=1000).items) == train.num_items - len(seen)


def test_exploring_is_thompson_sampling(model):
    """How often an item comes first is how often it is best under the posterior."""
    for user in range(90):
        candidates = model.recommend(user, k=1000).items
        users = np.full(len(candidates), user)
        of_draws = [model._factors.ratings(draw, users, candidates) for draw in range(40)]
        share = np.mean(np.argmax(of_draws, axis=1) == 0)
        if 0.3 < share < 0.7:
            break
    assert 0.3 < share < 0.7
    first = [
        model.recommend(user, k=1, explore=1.0, random_state=seed).items[0] for seed in range(200)
    ]
    # Three standard errors of 200 tries.
    assert abs(np.mean(np.array(first) == candidates[0]) - share) < 3 * np.sqrt(0.25 / 200)
    same = [model.recommend(3, explore=2.0, random_state=5).items.tolist() for _ in range(2)]
    assert same[0] == same[1]


def test_strangers_are_recommended_what_people_like(model, ratings):
    averages = np.bincount(ratings.item, ratings.rating) / np.bincount(ratings.item)
    liked = model.recommend(10**6, k=3).items
    assert averages[liked].mean() > np.quantile(averages, 0.9)
    explored = model.recommend(10**6, k=3, explore=1.0, random_state=0).items
    assert len(explored) == 3


def test_similar_items_have_similar_tastes(model, ratings):
    items, similarity = model.similar_items(7, k=59)
    assert 7 not in items
    assert len(items) == 59
    assert np.all(np.abs(similarity) <= 1 + 1e-6)
    # Residuals after biases of users who rated both: alike for the first, unlike for the last.
    table = np.full((ratings.num_users, ratings.num_items), np.nan)
    table[ratings.user, ratings.item] = ratings.rating
    table -= np.nanmean(table, axis=1, keepdims=True)
    agreement = [
        np.corrcoef(table[both][:, [7, item]].T)[0, 1]
        for item in items
        for both in [~np.isnan(table[:, 7] + table[:, item])]
    ]
    assert np.corrcoef(agreement, similarity)[0, 1] > 0.4


@pytest.mark.slow
def test_learns_on_from_new_ratings(model, ratings, parts, tmp_path):
    train = parts[0]
    model.save(tmp_path / "model")
    again = MatrixFactorization.load(tmp_path / "model")
    # A new user rates as user 3 does; a new item is loved by all.
    is_three = train.user == 3
    rows = train.item[is_three]
    again.partial_fit(
        {
            "user": [1000] * len(rows) + list(range(30)),
            "item": [*rows, *[777] * 30],
            "rating": [*train.rating[is_three], *[6.0] * 30],
        }
    )
    assert again.ratings_.num_users == ratings.num_users + 1
    assert again.ratings_.num_items == ratings.num_items + 1
    unseen = np.setdiff1d(np.arange(ratings.num_items), rows)
    pairs = [np.full(len(unseen), user) for user in (3, 1000)]
    of_model, of_copy = (again.predict(users, unseen) for users in pairs)
    assert np.corrcoef(of_model, of_copy)[0, 1] > 0.9
    assert np.mean(np.abs(of_model - of_copy)) < 0.2
    assert 777 in again.recommend(50, k=3).items
    test = parts[1]
    rmse = np.sqrt(np.mean((again.predict(test.user, test.item) - test.rating) ** 2))
    assert rmse < 0.65


def test_partial_fit_compiles_once(model, tmp_path, caplog):
    model.save(tmp_path / "model")
    again = MatrixFactorization.load(tmp_path / "model")
    again.partial_fit(([2000], [7], [3.0]))
    with jax.log_compiles():
        again.partial_fit(([2001, 3], [8, 7], [3.0, 1.0]))
    assert not [each for each in caplog.messages if "advance" in each and "Compiling" in each]
    code = np.flatnonzero((again.ratings_.user == 3) & (again.ratings_.item == 7))
    assert again.ratings_.rating[code].tolist() == [1.0]


def test_files_keep_every_bit(model, parts, tmp_path):
    test = parts[1]
    model.save(tmp_path / "model.sghmc")
    loaded = MatrixFactorization.load(tmp_path / "model.sghmc")
    for one, other in zip(
        model.predict(test.user, test.item, return_std=True),
        loaded.predict(test.user, test.item, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert loaded.recommend(3).items.tolist() == model.recommend(3).items.tolist()
    assert loaded.get_params() == model.get_params()
    assert [path.name for path in tmp_path.iterdir()] == ["model.sghmc"]
    damaged = bytearray((tmp_path / "model.sghmc").read_bytes())
    damaged[-100] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        MatrixFactorization.load(tmp_path / "damaged")


def test_tables_and_ids_of_any_type(parts):
    """The same ratings from any table are the same model; ids of text come back as text."""
    train = parts[0]
    names = np.array([f"u{code:03d}" for code in range(train.num_users)])
    columns = {"user": names[train.user], "item": train.item, "rating": train.rating}
    expected = None
    for table in (pd.DataFrame(columns), pl.DataFrame(columns), tuple(columns.values())):
        fitted = MatrixFactorization(**SETTINGS).fit(table)
        predicted = fitted.predict(["u003", "stranger"], [7, 7])
        assert expected is None or np.array_equal(predicted, expected)
        expected = predicted
    assert fitted.recommend("u003").items.dtype.kind == "i"
    with pytest.raises(TypeError, match="Ids are text here"):
        fitted.recommend(3)


def test_users_without_training_ratings_and_clipping(parts):
    train = parts[0]
    without = train.take(np.flatnonzero(train.user != 3))
    fitted = MatrixFactorization(**SETTINGS).fit(without)
    (mean,), (std,) = fitted.predict([3], [7], return_std=True)
    (prior_mean,), (prior_std,) = fitted.predict([-1], [7], return_std=True)
    # One is 40 draws of the prior, the other their law: as far apart as 40 draws make it.
    assert abs(mean - prior_mean) < 4 * prior_std / np.sqrt(40)
    assert 0.5 < std / prior_std < 1.5
    everything = np.arange(train.num_items)
    clipped = fitted.predict(np.zeros_like(everything), everything)
    assert clipped.max() <= train.rating.max()


def test_a_step_that_diverges_is_shortened(parts):
    fitted = MatrixFactorization(**SETTINGS).set_params(step_size=1.9).fit(parts[0])
    assert fitted.evaluate(parts[1])["rmse"] < 0.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be a whole number from 1, but is 0"),
        ({"num_draws": 2.5}, "num_draws must be a whole number"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"step_size": -1.0}, "step_size must be between 0 and 2"),
        ({"duplicates": "first"}, "duplicates must be one of"),
        ({"random_state": -1}, "random_state must be a whole number from 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MatrixFactorization(**settings).fit(([1], [2], [3.0]))


def test_bad_questions_are_refused(model):
    with pytest.raises(ValueError, match="there are 2 and 1"):
        model.predict([1, 2], [1])
    with pytest.raises(ValueError, match="k must be"):
        model.recommend(3, k=0)
    with pytest.raises(ValueError, match="explore must be zero or more"):
        model.recommend(3, explore=-1)
    with pytest.raises(ValueError, match="no item 999"):
        model.similar_items(999)
    with pytest.raises(ValueError, match="not fitted"):
        MatrixFactorization().predict([1], [2])
    with pytest.raises(ValueError, match="twice"):
        model.partial_fit(([1, 1], [2, 2], [3.0, 4.0]))
    with pytest.raises(ValueError, match="0 rows"):
        MatrixFactorization().fit(from_table(([1], [2], [3.0])).take(np.arange(0)))
    assert model.predict([], []).shape == (0,)


def call(*args) -> Any:
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Ratings in a file, with ids of text."""
    ratings = synthetic_ratings(1, 24, 16, rank=2, density=0.6)
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    names = [f"user{code}" for code in ratings.user]
    frame = pd.DataFrame({"userId": names, "movieId": ratings.item, "rating": ratings.rating})
    frame.to_csv(path, index=False)
    return path


@pytest.mark.slow
def test_commands_fit_and_recommend(table, tmp_path):
    fitted = call("fit-ratings", table, "--out", tmp_path / "m", "--rank", 2, "--json")
    assert fitted.exit_code == 0, fitted.output
    result = json.loads(fitted.stdout)
    assert result["held_out"]["rmse"] < 1
    assert result == json.loads((tmp_path / "m" / "result.json").read_text())
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.sghmc",
        "report.html",
        "result.json",
    ]
    answer = call("recommend", tmp_path / "m", "--user", "user3", "-k", 3, "--json")
    best = json.loads(answer.stdout)
    assert (best["user"], best["is_known"], len(best["items"])) == ("user3", True, 3)
    shown = call("recommend", tmp_path / "m" / "model.sghmc", "--user", "eve", "-k", 2)
    assert shown.stdout.startswith("User eve has rated nothing here")
    assert len(shown.stdout.splitlines()) == 3


def test_commands_refuse_what_cannot_be(table, tmp_path):
    (tmp_path / "numbers.csv").write_text("user,item,rating\n1,2,3\n1,2,4\n")
    cases = [
        (("recommend", tmp_path / "nowhere.csv", "--user", 1), 1, "There is no file"),
        (("recommend", tmp_path / "numbers.csv", "--user", 1), 1, "rates the same item twice"),
        (("recommend", table, "--user", 1, "--rank", 0), 2, "rank"),
        (("fit-ratings", table, "--out", tmp_path / "m", "--holdout", 0.001), 1, "too few"),
    ]
    for args, code, message in cases:
        answer = call(*args)
        assert answer.exit_code == code
        assert message in answer.stderr
    assert not (tmp_path / "m").exists()
