"""The recommender: what it asks of its chain, and what it makes of the chain's draws."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import exact_factorization
from exact_factorization import ExactGibbs, ExactOrdinal, ExactWithFeatures
from handmade_factors import SIZES, handmade_draws
from sghmc import estimators
from sghmc.estimators import MatrixFactorization
from sghmc.recommender import matrix_factorization
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.rating_likelihoods import GaussianRatings, NormalOutcome
from sghmc.recommender.ratings import Ratings, Sizes, from_table, synthetic_ratings

pl = pytest.importorskip("polars")

TABLE = {
    "user": [3, 3, 0, 6, 5, 1, 2, 4],
    "item": [5, 0, 1, 2, 2, 3, 4, 0],
    "rating": [4.0, 1.0, 5.0, 2.5, 3.0, 4.0, 2.0, 1.5],
}
"""The seven users and six items of the draws made by hand."""


class FakeChain:
    """Stands in for `factor_chain.run`: notes what it was asked for, gives draws made by hand."""

    def __init__(self):
        self.calls: list[Any] = []

    def __call__(self, key, ratings, settings, start, likelihood, sides):
        self.calls.append((key, ratings, settings, start))
        self.likelihood, self.sides = likelihood, sides
        return handmade_draws(seed=len(self.calls))


@pytest.fixture
def chain(monkeypatch):
    fake = FakeChain()
    monkeypatch.setattr(matrix_factorization, "run_factor_chain", fake)
    return fake


def test_the_chain_gets_standardized_ratings_and_all_settings(chain):
    options: dict[str, Any] = {
        "rank": 3, "num_draws": 7, "thinning": 4, "num_burnin": 9, "batch_size": 11,
        "step_size": 0.03, "momentum_decay": 0.2, "progress": False,
    }  # fmt: skip
    model = MatrixFactorization(**options, random_state=5).fit(TABLE)
    ((key, ratings, settings, start),) = chain.calls
    assert start is None
    assert vars(settings) == options
    assert np.mean(ratings.rating) == pytest.approx(0, abs=1e-6)
    assert np.std(ratings.rating) == pytest.approx(1, rel=1e-6)
    expected = (np.array(TABLE["rating"]) - np.mean(TABLE["rating"])) / np.std(TABLE["rating"])
    np.testing.assert_allclose(ratings.rating, expected, rtol=1e-6)
    np.testing.assert_allclose(model.scale_, [np.mean(TABLE["rating"]), np.std(TABLE["rating"])])
    assert ratings.users[ratings.user].tolist() == TABLE["user"]
    assert key == jax.random.fold_in(jax.random.key(5), 0)


def test_predictions_are_those_of_the_draws_in_stars(chain):
    model = MatrixFactorization(clip=False).fit(TABLE)
    draws = handmade_draws(seed=1)
    given = np.array(TABLE["rating"])
    center, spread = float(given.mean()), float(given.std())
    outcome = NormalOutcome(center, spread, draws["noise"], (-np.inf, np.inf), given)
    expected = outcome.moments(FactorDraws.of(draws), np.array([3, -1]), np.array([2, 2]))
    rating, std = model.predict([3, 99], [2, 2], return_std=True)
    np.testing.assert_allclose(rating, expected[0], rtol=1e-6)
    np.testing.assert_allclose(std, expected[1], rtol=1e-6)
    np.testing.assert_array_equal(model.predict([3, 99], [2, 2]), rating)
    assert model.predict([], []).shape == (0,)
    everything = [np.repeat(range(7), 6), np.tile(range(6), 7)]
    plain = model.predict(*everything)
    within = model.set_params(clip=True).predict(*everything)
    assert plain.min() < 1
    np.testing.assert_array_equal(within, np.clip(plain, 1, 5))


def test_partial_fit_goes_on_from_the_last_draw(chain):
    model = MatrixFactorization(num_draws=6, num_update_steps=20, random_state=5)
    model.partial_fit(TABLE)  # the first is a fit
    scale = model.scale_
    model.partial_fit(([3, 77], [0, 5], [5.0, 2.0]))
    key, ratings, settings, start = chain.calls[1]
    assert settings.thinning == 4  # ⌈20/6⌉
    assert key == jax.random.fold_in(jax.random.key(5), 1)
    before = handmade_draws(seed=1)
    assert set(start) == set(before)
    for name, part in before.items():
        np.testing.assert_array_equal(start[name], part[-1])
    # The pair (3, 0) has its new rating, in the units of the first fit.
    pairs = list(zip(ratings.users[ratings.user], ratings.items[ratings.item], strict=True))
    assert len(pairs) == 9
    standardized = (5.0 - scale[0]) / scale[1]
    assert ratings.rating[pairs.index((3, 0))] == pytest.approx(standardized, rel=1e-6)
    assert (77, 5) in pairs
    assert model.num_fits_ == 2
    np.testing.assert_array_equal(model.draws_["user"], handmade_draws(seed=2)["user"])


@pytest.mark.slow
def test_fold_in_asks_for_new_users_and_those_with_new_ratings(chain):
    """User 3 rates another known item, 5 only the new item 9; 77 is new."""
    model = MatrixFactorization(random_state=5).fit(TABLE)
    before, scale = model.draws_, model.scale_
    model.fold_in(([3, 77, 5, 77], [1, 5, 9, 9], [5.0, 2.0, 1.0, 3.0]))
    table = model.ratings_
    assert (len(table), table.users[-1], table.items[-1]) == (12, 77, 9)
    standardized = dataclasses.replace(
        table, rating=((table.rating - scale[0]) / scale[1]).astype(np.float32)
    )
    key = jax.random.fold_in(jax.random.key(5), 1)
    new = Newcomers(before, standardized, Sizes(7, 6), np.array([3, 7]), {})
    expected = GaussianRatings(np.array([0.0, 1.0])).fold_in(key, new)
    for name, part in expected.items():
        np.testing.assert_array_equal(model.draws_[name], part)
    assert model.num_fits_ == 2
    assert model.recommend(77).items.tolist() != []
    assert model.predict([77], [9]).shape == (1,)
    assert len(chain.calls) == 1
    with pytest.raises(ValueError, match="not fitted"):
        MatrixFactorization().fold_in(([1], [2], [3.0]))


def test_files_keep_every_bit(chain, tmp_path):
    model = MatrixFactorization(rank=3, num_draws=5).fit(TABLE)
    model.save(tmp_path / "model.sghmc")
    loaded = MatrixFactorization.load(tmp_path / "model.sghmc")
    pairs = np.repeat(range(7), 6), np.tile(range(6), 7)
    for one, other in zip(
        model.predict(*pairs, return_std=True), loaded.predict(*pairs, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert loaded.recommend(3).items.tolist() == model.recommend(3).items.tolist()
    assert loaded.get_params() == model.get_params()
    assert [path.name for path in tmp_path.iterdir()] == ["model.sghmc"]
    for each in (model, loaded):
        each.partial_fit(([3], [1], [2.0]))
    (_, *of_model), (_, *of_loaded) = chain.calls[1:]
    for one, other in zip(jax.tree.leaves(of_model[2]), jax.tree.leaves(of_loaded[2]), strict=True):
        np.testing.assert_array_equal(one, other)
    damaged = bytearray((tmp_path / "model.sghmc").read_bytes())
    damaged[-100] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        MatrixFactorization.load(tmp_path / "damaged")


def test_files_keep_times(chain, tmp_path):
    model = MatrixFactorization(rank=3, num_draws=5).fit(TABLE | {"timestamp": np.arange(8) + 1e9})
    model.save(tmp_path / "model.sghmc")
    loaded = MatrixFactorization.load(tmp_path / "model.sghmc")
    np.testing.assert_array_equal(loaded.ratings_.time, np.arange(8) + 1e9)


def test_tables_and_ids_of_any_type(chain):
    """The same ratings from any table are the same to the chain; ids of text come back as text."""
    names = np.array([f"u{code}" for code in TABLE["user"]])
    columns = {**TABLE, "user": names}
    for table in (pd.DataFrame(columns), pl.DataFrame(columns), tuple(columns.values())):
        fitted = MatrixFactorization().fit(table)
    tables = [ratings for _, ratings, *_ in chain.calls]
    for other in tables[1:]:
        for part in ("user", "item", "rating", "users", "items"):
            np.testing.assert_array_equal(getattr(other, part), getattr(tables[0], part))
    assert fitted.predict(["u3", "stranger"], [5, 5]).shape == (2,)
    assert fitted.recommend("u3").items.dtype.kind == "i"
    with pytest.raises(TypeError, match="Ids are text here"):
        fitted.recommend(3)


def test_an_interrupted_fit_leaves_the_model_as_it_was(chain, monkeypatch):
    model = MatrixFactorization(num_draws=5).fit(TABLE)
    before = dict(vars(model))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", interrupted)
    for learn in (model.partial_fit, model.fit):
        with pytest.raises(KeyboardInterrupt):
            learn(([3], [1], [2.0]))
        assert all(vars(model)[name] is value for name, value in before.items())


PEOPLE = {"user": [*range(7), 50], "kind": ["a", "b"] * 4}


def with_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Draws made by hand, with those of the weights of two kinds of people, 50 among them."""
    rng = np.random.default_rng(seed)
    draws = handmade_draws(seed, sizes={"user": 8, "item": SIZES["item"]})
    return draws | {
        "user.weights": rng.normal(size=(5, 2, 4)),
        "user.weight_scale": rng.gamma(3.0, size=(5, 1, 2)),
        "user.typical": rng.normal(size=(5, 4)),
        "user.varied": rng.gamma(3.0, size=(5, 4)),
    }


def test_features_come_to_the_chain_and_stay_with_the_model(monkeypatch, tmp_path):
    """Also through a file; new ones replace and join them, and nobody else's change."""
    seen: list[Any] = []

    def run(key, ratings, settings, start, likelihood, sides):
        seen.append((ratings, start, sides))
        return with_weights()

    monkeypatch.setattr(matrix_factorization, "run_factor_chain", run)
    model = MatrixFactorization(rank=3).fit(TABLE, users=pd.DataFrame(PEOPLE).set_index("user"))
    (ratings, _, sides) = seen[0]
    assert ratings.users.tolist() == [*range(7), 50]
    assert sides["user"].encoding.names == ["kind=a", "kind=b"]
    assert model.predict([50], [2]) != model.predict([51], [2])
    model.save(tmp_path / "m")
    loaded = estimators.load(tmp_path / "m")
    loaded.partial_fit(([60], [2], [3.0]), users={"user": [3, 60], "kind": ["a", "b"]})
    (ratings, start, sides) = seen[1]
    assert ratings.users.tolist() == [*range(7), 50, 60]
    entries = sides["user"].entries
    kinds = dict(zip(entries.row.tolist(), entries.column.tolist(), strict=True))
    assert kinds == {0: 0, 1: 1, 2: 0, 3: 0, 4: 0, 5: 1, 6: 0, 7: 1, 8: 1}
    np.testing.assert_array_equal(start["user.weights"], with_weights()["user.weights"][-1])
    with pytest.raises(ValueError, match="fitted without features of items"):
        model.partial_fit(TABLE, items={"item": [1, 2], "year": [1, 2]})


@pytest.mark.slow
def test_those_who_only_have_features_are_folded_in(monkeypatch):
    monkeypatch.setattr(matrix_factorization, "run_factor_chain", lambda *_: with_weights())
    model = MatrixFactorization(rank=3, clip=False).fit(TABLE, users=PEOPLE)
    before = model.draws_
    model.fold_in(users={"user": [70, 71], "kind": ["b", None]})
    assert model.ratings_.users.tolist()[-2:] == [70, 71]
    assert len(model.ratings_) == len(TABLE["user"])
    np.testing.assert_array_equal(model.draws_["user"][:, :8], before["user"])
    assert np.all(np.isfinite(model.predict([70, 71], [2, 2], return_std=True)))
    assert len(model.recommend(70).items) == SIZES["item"]


def test_clicks_need_no_ratings_and_counts_add_up(chain):
    """A pair may come again and again; a log of them is enough."""
    log = {"user": [3, 3, 0, 3, 6], "item": [5, 0, 1, 5, 2]}
    model = MatrixFactorization(likelihood="implicit").fit(log)
    (_, ratings, settings, _) = chain.calls[0]
    assert (len(ratings), set(ratings.rating.tolist())) == (4, {1.0})
    assert (settings.step_size, settings.thinning) == (0.15, 20)
    assert model.likelihood_ == "implicit"
    model = MatrixFactorization(likelihood="counts", thinning=7).fit(log)
    (_, ratings, settings, _) = chain.calls[1]
    assert sorted(ratings.rating.tolist()) == [1, 1, 1, 2]
    assert settings.thinning == 7
    model.partial_fit(([3], [5]))
    (_, ratings, *_) = chain.calls[2]
    assert sorted(ratings.rating.tolist()) == [1, 1, 1, 3]
    with pytest.raises(ValueError, match="no column of ratings"):
        MatrixFactorization().fit(log)


def test_probabilities_are_of_levels_that_there_are(chain):
    model = MatrixFactorization().fit(TABLE)
    assert model.levels_ is not None
    assert model.levels_.tolist() == [1, 1.5, 2, 2.5, 3, 4, 5]
    found = model.predict_proba([3, 99], [2, 2])
    assert found.shape == (2, 7)
    np.testing.assert_allclose(found.sum(1), 1)
    logs = model.log_probabilities(([3], [2], [2.0]))
    assert logs[0] == pytest.approx(np.log(found[0, 2]))
    pairs = np.arange(60)
    numbers = MatrixFactorization(duplicates="last").fit(
        (pairs // 6 % 7, pairs % 6 + 10 * (pairs // 42), np.linspace(0, 1, 60))
    )
    assert numbers.levels_ is None
    with pytest.raises(ValueError, match="predict_proba needs ratings with a few levels"):
        numbers.predict_proba([3], [2])
    with pytest.raises(ValueError, match="log_probabilities needs ratings with a few levels"):
        numbers.log_probabilities(([3], [2], [0.5]))


SMALL: dict[str, Any] = {"rank": 2, "num_draws": 600, "thinning": 20, "num_burnin": 1000}
SMALL["num_update_steps"] = SMALL["num_draws"] * SMALL["thinning"]
USERS, ITEMS = (axis.ravel() for axis in np.indices((17, 9)))


def exact_moments(gibbs: ExactGibbs, outcome, num_sweeps: int) -> np.ndarray:
    """Mean and mean square of a new rating of every pair, by chain, from exact conditionals.

    `outcome(gibbs)` gives both, draw by draw.
    """
    total = np.zeros((len(gibbs.noise), 2 * len(USERS)))
    for sweep in range(50 + num_sweeps):
        gibbs.sweep()
        if sweep >= 50:
            total += np.concatenate(outcome(gibbs), axis=1)
    return total / num_sweeps


def in_stars(scale):
    """Of normal ratings."""
    center, spread = scale[:2]

    def outcome(gibbs):
        rating = center + spread * gibbs.predictions(USERS, ITEMS)
        return rating, rating**2 + spread**2 / gibbs.noise[:, USERS]

    return outcome


def errors(fits: list[MatrixFactorization], exact: np.ndarray) -> np.ndarray:
    """Of all means and variances, in standard errors."""
    answers = [fit.predict(USERS, ITEMS, return_std=True) for fit in fits]
    sampled = np.stack([np.concatenate([mean, mean**2 + std**2]) for mean, std in answers])
    # Squares around the exact mean tell more of a spread than those around 0.
    middle = exact.mean(0)[: len(USERS)]
    for moments in (sampled, exact):
        mean, square = np.split(moments, 2, axis=1)
        square += middle**2 - 2 * middle * mean
    error = np.sqrt(exact.var(0, ddof=1) / len(exact) + sampled.var(0, ddof=1) / len(sampled))
    return (sampled.mean(0) - exact.mean(0)) / error


def small_ratings() -> Ratings:
    """Of 17 users and 9 items; the last user has rated nothing."""
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(USERS != 16)
    factors = rng.normal(size=(17, 2)) @ rng.normal(size=(9, 2)).T
    rating = 3 + factors[USERS, ITEMS] + 0.5 * rng.normal(size=len(USERS))
    return from_table((USERS, ITEMS, rating)).take(rows)


def exact_data(ratings: Ratings, in_units: np.ndarray) -> exact_factorization.Ratings:
    return exact_factorization.Ratings(ratings.user, ratings.item, in_units, 17, 9)


@pytest.mark.slow
def test_predictions_are_those_of_an_exact_sampler():
    """Means and standard deviations of all pairs, those of a user without ratings among them.

    306 moments within 7 standard errors, over 16 fits and 48 exact chains: a false alarm in less
    than one of 800 keys (t with 15 degrees of freedom or more). A tenth more in all standard
    deviations is 5 to 18 errors, a tenth of one in a mean 5 to 20.
    """
    ratings = small_ratings()
    fits = [
        MatrixFactorization(**SMALL, clip=False, random_state=seed).fit(ratings)
        for seed in range(16)
    ]
    scale = fits[0].scale_
    data = exact_data(ratings, (ratings.rating - scale[0]) / scale[1])
    gibbs = ExactGibbs(data, 2, has_means=True, has_user_noise=True, num_chains=48, seed=1)
    exact = exact_moments(gibbs, in_stars(scale), num_sweeps=200)
    assert np.abs(errors(fits, exact)).max() < 7


@pytest.mark.slow
def test_predictions_with_features_are_those_of_an_exact_sampler():
    """As above, where users are of two kinds; of the last nothing is known but this."""
    ratings = small_ratings()
    kind = np.where(np.arange(17) % 3 == 1, "a", "b")
    ratings = dataclasses.replace(
        ratings, rating=ratings.rating + 2 * (kind[ratings.user] == "a") * (ratings.item % 2)
    )
    people = {"user": np.arange(17), "kind": kind}
    fits = [
        MatrixFactorization(**SMALL, clip=False, random_state=seed).fit(ratings, users=people)
        for seed in range(16)
    ]
    scale = fits[0].scale_
    data = exact_data(ratings, (ratings.rating - scale[0]) / scale[1])
    features = (kind[:, None] == np.array(["a", "b"])).astype(float)
    gibbs = ExactWithFeatures(data, features, 2, num_chains=48, seed=1)
    exact = exact_moments(gibbs, in_stars(scale), num_sweeps=300)
    assert np.abs(errors(fits, exact)).max() < 7
    # A stranger of no kind is less sure, and between both.
    assert fits[0].predict([16], [1]) != pytest.approx(fits[0].predict([99], [1]), abs=0.05)


@pytest.mark.slow
def test_predictions_of_levels_are_those_of_an_exact_sampler():
    """As above, of ratings 1, 2 and 4: two cuts, which stay, and hidden numbers in between."""
    ratings = small_ratings()
    level = np.digitize(ratings.rating, [2.5, 3.5])
    levels = np.array([1.0, 2.0, 4.0])
    ratings = dataclasses.replace(ratings, rating=levels[level].astype(np.float32))
    fits = [
        MatrixFactorization(**SMALL, likelihood="ordinal", random_state=seed).fit(ratings)
        for seed in range(16)
    ]
    cuts = fits[0].draws_["cuts"][0].astype(float)

    def outcome(gibbs):
        mean = gibbs.predictions(USERS, ITEMS)[..., None]
        root = np.sqrt(gibbs.noise[:, USERS])[..., None]
        below = stats.norm.cdf((cuts - mean) * root)
        probability = np.diff(below, axis=-1, prepend=0.0, append=1.0)
        return probability @ levels, probability @ levels**2

    gibbs = ExactOrdinal(exact_data(ratings, level), cuts, 2, num_chains=48, seed=1)
    exact = exact_moments(gibbs, outcome, num_sweeps=300)
    assert np.abs(errors(fits, exact)).max() < 7


def degenerate_ratings() -> dict[str, np.ndarray]:
    """153 ratings without noise, or without anything."""
    rng = np.random.default_rng(0)
    products = np.outer(rng.normal(size=17), rng.normal(size=9)).ravel()
    return {
        "equal": np.full(len(USERS), 3.0),
        "a product": products,
        "by user": (USERS % 5).astype(float),
        "by user and item": (USERS % 3 + ITEMS % 2).astype(float),
        "one differs": np.where(np.arange(len(USERS)) == 7, 4.0, 3.0),
    }


@pytest.mark.slow_cases("a product", "equal")
@pytest.mark.parametrize("kind", degenerate_ratings())
def test_ratings_without_noise_have_a_posterior(kind):
    """It is met to the resolution, a hundredth of the ratings' spread, and says so."""
    rating = degenerate_ratings()[kind]
    model = MatrixFactorization(**SMALL, clip=False).fit((USERS, ITEMS, rating))
    mean, std = model.predict(USERS, ITEMS, return_std=True)
    spread = rating.std() or 1.0
    # √2 resolutions where the noise is drawn as wide as the errors it counts; few draws, so twice.
    typical = np.median(np.abs(mean - rating)) / spread
    assert typical < 0.03
    assert 0.005 < np.median(std) / spread < 0.1
    assert np.all(model.draws_["noise"] < 1e5)
    if kind != "one differs":
        assert np.abs(mean - rating).max() < 0.2 * spread


def test_partial_fit_compiles_once(caplog):
    rating = np.random.default_rng(0).normal(size=len(USERS))
    model = MatrixFactorization(**SMALL).fit((USERS, ITEMS, rating))
    with jax.log_compiles():
        model.partial_fit(([20, 3], [8, 7], [3.0, 1.0]))
    assert not [each for each in caplog.messages if "advance" in each and "Compiling" in each]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be a whole number from 1, but is 0"),
        ({"num_draws": 2.5}, "num_draws must be a whole number"),
        ({"batch_size": True}, "batch_size must be None, for the usual, or a whole"),
        ({"step_size": -1.0}, "step_size must be between 0 and 2"),
        ({"momentum_decay": 2.0}, "momentum_decay must be between 0 and 2"),
        ({"duplicates": "first"}, 'duplicates must be "error", "last"'),
        ({"likelihood": "student"}, 'likelihood must be "gaussian"'),
        ({"random_state": -1}, "random_state must be a whole number from 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MatrixFactorization(**settings).fit(([1], [2], [3.0]))


def test_wrong_questions_are_refused(chain):
    model = MatrixFactorization().fit(TABLE)
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


def test_every_call_explores_with_another_draw(chain):
    model = MatrixFactorization().fit(TABLE)
    same = [model.recommend(3, explore=2.0, random_state=5).items.tolist() for _ in range(2)]
    assert same[0] == same[1]
    orders = {tuple(model.recommend(3, explore=2.0).items) for _ in range(60)}
    assert len(orders) > 1
    assert len(model.recommend(3, k=2).items) == 2
    assert len(model.similar_items(3, k=SIZES["item"])[0]) == SIZES["item"] - 1


LARGE: dict[str, Any] = {
    "rank": 3,
    "num_draws": 40,
    "thinning": 15,
    "num_burnin": 300,
    "num_update_steps": 600,
}
NOISE = 0.5


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
    return MatrixFactorization(**LARGE).fit(parts[0])


@pytest.mark.slow
def test_predicts_held_out_ratings_to_their_noise(model, parts):
    report = model.evaluate(parts[1])
    # An exact Gibbs sampler of the same model, run long, has 0.611 here.
    assert report["rmse"] < 0.64
    for name, level in (("50%", 0.5), ("80%", 0.8), ("95%", 0.95)):
        # Four standard errors of 500 rows. (A chain ten times as long covers 76 % of them at 80 %.)
        assert abs(report["coverage"][name] - level) < 4 * np.sqrt(level * (1 - level) / 500)


@pytest.mark.slow
def test_a_step_that_diverges_is_shortened(parts):
    fitted = MatrixFactorization(**LARGE).set_params(step_size=1.9).fit(parts[0])
    assert fitted.evaluate(parts[1])["rmse"] < 0.8


@pytest.mark.slow
def test_strangers_are_recommended_what_people_like(model, ratings):
    averages = np.bincount(ratings.item, ratings.rating) / np.bincount(ratings.item)
    liked = model.recommend(10**6, k=3).items
    assert averages[liked].mean() > np.quantile(averages, 0.9)


@pytest.mark.slow
def test_similar_items_have_similar_tastes(model, ratings):
    items, similarity = model.similar_items(7, k=59)
    # Residuals after biases of users who rated both: alike for the first, unlike for the last.
    table = np.full((ratings.num_users, ratings.num_items), np.nan)
    table[ratings.user, ratings.item] = ratings.rating
    table -= np.nanmean(table, axis=1, keepdims=True)
    agreement = [
        np.corrcoef(table[:, [7, item]][np.isfinite(table[:, [7, item]]).all(1)].T)[0, 1]
        for item in items
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
    unseen = np.setdiff1d(np.arange(ratings.num_items), rows)
    pairs = [np.full(len(unseen), user) for user in (3, 1000)]
    of_model, of_copy = (again.predict(users, unseen) for users in pairs)
    assert np.corrcoef(of_model, of_copy)[0, 1] > 0.9
    assert np.mean(np.abs(of_model - of_copy)) < 0.2
    assert 777 in again.recommend(50, k=3).items
    test = parts[1]
    rmse = np.sqrt(np.mean((again.predict(test.user, test.item) - test.rating) ** 2))
    assert rmse < 0.65
