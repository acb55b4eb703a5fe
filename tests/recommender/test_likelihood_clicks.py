"""Implicit feedback: scales, outcomes, tiles for the chain, and newcomers by short chains."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from exact_factorization import predictions
from handmade_factors import handmade_draws
from sghmc.recommender import clicks
from sghmc.recommender.clicks import ClickOutcome, Counts, Implicit
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.ratings import Ratings, Sizes, from_table

DRAWS = handmade_draws()
FACTORS = FactorDraws.of(DRAWS)
USERS, ITEMS = np.array([0, 3, 6]), np.array([1, 1, 5])
MEANS = predictions(DRAWS["user"][:, USERS].astype(float), DRAWS["item"][:, ITEMS].astype(float))


def test_probabilities_and_rates_are_means_over_draws():
    likely, counts = ClickOutcome(-1.0, False), ClickOutcome(-1.0, True)
    p, std = likely.moments(FACTORS, USERS, ITEMS)
    np.testing.assert_allclose(p, special.expit(MEANS - 1).mean(0), rtol=1e-4)
    np.testing.assert_allclose(std, np.sqrt(p * (1 - p)))
    found = likely.probabilities(FACTORS, USERS, ITEMS)
    np.testing.assert_allclose(found, np.stack([1 - p, p], axis=1))
    assert likely.levels is not None
    assert likely.levels.tolist() == [0, 1]
    rate, std = counts.moments(FACTORS, USERS, ITEMS)
    rates = np.exp(MEANS - 1)
    np.testing.assert_allclose(rate, rates.mean(0), rtol=1e-4)
    np.testing.assert_allclose(std, np.sqrt(rates.mean(0) + rates.var(0)), rtol=1e-4)
    assert counts.levels is None


def test_strangers_are_averaged_over_the_prior():
    """With one draw a stranger's mean is normal: its expectations by quadrature."""
    one = FactorDraws.of({name: part[:1] for name, part in DRAWS.items()})
    mean, variance = (part[0] for part in one.moments(np.array([-1]), np.array([2])))
    x = np.linspace(-9, 9, 4001)
    density = stats.norm.pdf(x) * (x[1] - x[0])
    scores = -1 + mean + np.sqrt(variance) * x
    (p,), _ = ClickOutcome(-1.0, False).moments(one, np.array([-1]), np.array([2]))
    assert p == pytest.approx(density @ special.expit(scores), abs=0.02)
    (rate,), (std,) = ClickOutcome(-1.0, True).moments(one, np.array([-1]), np.array([2]))
    expected = density @ np.exp(scores)
    assert rate == pytest.approx(expected, rel=1e-3)
    total = expected + density @ np.exp(2 * scores) - expected**2
    assert std == pytest.approx(np.sqrt(total), rel=1e-3)


def test_scales_are_what_an_average_pair_has():
    table = from_table(([1, 1, 2, 3], [1, 2, 1, 1], [2.0, 0.0, 1.0, 4.0]))
    likely, counts = Implicit.of(table), Counts.of(table)
    assert special.expit(likely.scale[0]) == pytest.approx(3 / 6)
    assert np.exp(counts.scale[0]) == pytest.approx(7 / 6)
    assert likely.in_units(table).rating.tolist() == [1, 1, 1]
    assert counts.in_units(table).rating.tolist() == [2, 1, 4]
    assert counts.in_units(table).users.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match=r"the rating in row 2 is -1: give numbers from 0"):
        Implicit.of(from_table(([1, 1], [1, 2], [1.0, -1.0])))
    with pytest.raises(ValueError, match="no pair came up"):
        Counts.of(from_table(([1], [1], [0.0])))


@pytest.mark.slow
def test_the_chain_sees_all_pairs_of_real_users_and_items():
    """The same potential with and without padding, less the prior."""
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((70, 30)) < 0.2)
    ratings = Ratings(
        user.astype(np.int32), item.astype(np.int32), np.ones(len(user), np.float32),
        np.arange(70), np.arange(30),
    )  # fmt: skip
    likelihood = Implicit.of(ratings)
    values = []
    for sizes in (Sizes(70, 30), Sizes(80, 36)):
        problem = likelihood.problem(ratings, sizes, 2, {})
        rows = np.zeros((sum(sizes), 3), np.float32)
        rows[:70] = np.random.default_rng(1).normal(size=(70, 3))
        rows[sizes.user :][:30] = np.random.default_rng(2).normal(size=(30, 3))
        posterior = problem.posterior
        prior = posterior.log_prior(rows, posterior.hyper)
        values.append(float(posterior.potential(jax.numpy.asarray(rows)) + prior))
        assert int(posterior.num_examples) == 2
        assert problem.pairs_per_example == 64**2
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Implicit, Counts])
def test_newcomers_have_their_law_under_every_draw(kind):
    """A user given items, and an item given users: means and spreads against sums over a grid.

    One draw again and again, 1,500 of them, neighbours alike: means are known as of a fifth of
    them, within five such errors.
    """
    count, offset = 1500, -0.5
    rng = np.random.default_rng(2)
    one = {"user": rng.normal(size=(1, 9, 2)), "item": rng.normal(size=(1, 8, 2))}
    for side in ("user", "item"):
        one |= {f"{side}.mean": rng.normal(size=(1, 2)), f"{side}.precision": np.full((1, 2), 1.5)}
    draws = {name: np.repeat(part, count, axis=0).astype(np.float32) for name, part in one.items()}
    user, item = np.array([9] * 4 + [0, 4, 9]), np.array([0, 2, 5, 7, 8, 8, 8])
    amount = (
        np.array([1, 2, 1, 1, 3, 1, 1], np.float32) if kind is Counts else np.ones(7, np.float32)
    )
    ratings = Ratings(
        user.astype(np.int32), item.astype(np.int32), amount, np.arange(10), np.arange(9)
    )
    new = Newcomers(draws, ratings, Sizes(9, 8), np.array([9]), {})
    after = kind(np.array([offset, 1.0])).fold_in(jax.random.key(0), new)
    np.testing.assert_array_equal(after["user"][:, :9], draws["user"])
    np.testing.assert_array_equal(after["item"][:, :8], draws["item"])
    y = np.zeros(8)
    y[item[:4]] = amount[:4]
    grid = np.linspace(-3.5, 3.5, 141)
    density = np.zeros((141, 141))
    for k, each in enumerate(np.meshgrid(grid, grid, indexing="ij")):
        density += stats.norm.logpdf(each, one["user.mean"][0, k], 1.5**-0.5)
    for (v, b), each in zip(one["item"][0], y, strict=True):
        score = offset + v * grid[:, None] + grid + b
        density += each * score - (np.exp(score) if kind is Counts else np.logaddexp(0, score))
    density = np.exp(density - density.max())
    for k in (0, 1):
        marginal = density.sum(1 - k) / density.sum()
        mean = marginal @ grid
        spread = np.sqrt(marginal @ (grid - mean) ** 2)
        found = after["user"][:, 9, k]
        assert abs(found.mean() - mean) < 5 * spread / np.sqrt(count / 5)
        assert found.std() == pytest.approx(spread, rel=0.2)
    assert np.all(np.std(after["item"][:, 8], axis=0) > 0.1)


@pytest.mark.parametrize(("kind", "side"), [(Counts, "user"), (Implicit, "item")])
def test_newcomers_are_drawn_from_all_their_pairs_with_those_of_the_other_side(
    monkeypatch, kind, side
):
    """What the chains of one user and then of one item are given, under the second draw."""
    asked = []

    def told(key, posterior, sampler, start, **options):
        asked.append((posterior, sampler, start, options))
        found = np.full((1, 2, *start.shape), float(len(asked)))
        return types.SimpleNamespace(positions=found * np.array([1.0, -1.0])[None, :, None, None])

    monkeypatch.setattr(clicks, "sample", told)
    rng = np.random.default_rng(2)
    draws = {"user": rng.normal(size=(2, 9, 2)), "item": rng.normal(size=(2, 8, 2))}
    for each in ("user", "item"):
        draws |= {
            f"{each}.mean": rng.normal(size=(2, 2)),
            f"{each}.precision": np.full((2, 2), 1.5),
        }
    draws = {name: part.astype(np.float32) for name, part in draws.items()}
    user, item = np.array([9] * 4 + [0, 4, 9]), np.array([0, 2, 5, 7, 8, 8, 8])
    amount = np.array([1, 2, 1, 1, 3, 1, 1] if kind is Counts else np.ones(7), np.float32)
    codes = user.astype(np.int32), item.astype(np.int32)
    ratings = Ratings(*codes, amount, np.arange(10), np.arange(9))
    new = Newcomers(draws, ratings, Sizes(9, 8), np.array([9]), {})
    after = kind(np.array([-0.5, 1.0])).fold_in(jax.random.key(0), new)
    np.testing.assert_array_equal(after["user"][:, :9], draws["user"])
    np.testing.assert_array_equal(after["item"][:, :8], draws["item"])
    np.testing.assert_array_equal(after["user"][:, 9], [[1, 1], [-1, -1]])
    np.testing.assert_array_equal(after["item"][:, 8], [[2, 2], [-2, -2]])
    posterior, sampler, start, options = asked[0 if side == "user" else 1]
    others = draws["item"] if side == "user" else after["user"]
    counts = np.zeros(others.shape[1])
    mine = slice(0, 4) if side == "user" else slice(4, 7)
    counts[(item if side == "user" else user)[mine]] = amount[mine]
    often = np.bincount(item if side == "user" else user, amount)[: others.shape[1]] + 1e-6
    squares = np.average(others[0] ** 2, axis=0, weights=often)
    np.testing.assert_allclose(sampler.mass[0], counts.sum() * np.append(squares[:1], 1) + 1.5)
    np.testing.assert_allclose(sampler.friction, sampler.mass)
    np.testing.assert_allclose(start[0], draws[f"{side}.mean"][0])
    assert (options["num_samples"], options["num_burnin"], options["thinning"]) == (2, 10, 12)
    assert (options["gibbs"].every, options["gibbs"].start) == (12, 120)
    row = np.array([0.3, -0.8])
    rows = np.asarray(start).copy()
    rows[0] = row
    hyper = options["gibbs"].update(jax.random.key(0), rows, posterior)
    assert options["gibbs"].update(None, rows, posterior.with_hyper(hyper))["draw"] == 1
    found = posterior.with_hyper(hyper).potential(jnp.asarray(rows))
    score = -0.5 + others[1][:, 0] * row[0] + others[1][:, 1] + row[1]
    total = np.exp(score) if kind is Counts else np.logaddexp(0, score)
    prior = 0.75 * np.sum((rows - draws[f"{side}.mean"][1]) ** 2)
    np.testing.assert_allclose(found, prior - counts @ score + total.sum(), rtol=1e-5)


@pytest.mark.slow
def test_nobody_new_changes_nothing():
    table = Ratings(np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(1, np.float32),
                    np.arange(7), np.arange(6))  # fmt: skip
    new = Newcomers(dict(DRAWS), table, Sizes(7, 6), np.zeros(0, np.int64), {})
    after = Implicit(np.array([0.0, 1.0])).fold_in(jax.random.key(0), new)
    np.testing.assert_array_equal(after["user"], DRAWS["user"])
    assert dataclasses.is_dataclass(Implicit)
