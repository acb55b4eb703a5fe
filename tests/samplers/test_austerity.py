"""The accept step on a subset: its test, its decisions, its draws."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sghmc
from cases import Chain
from sghmc.core import random
from sghmc.samplers import hmc as hmc_file
from sghmc.samplers.hmc import estimate, tail
from sghmc.types import Change

DATA = jnp.asarray(np.random.default_rng(0).normal(0.5, 1.0, size=2000), jnp.float32)
POSTERIOR = sghmc.Posterior(
    lambda theta, x: -((x - theta) ** 2) / 2, lambda theta: -(theta**2) / 2, DATA
)
BATCHES = sghmc.Minibatch(500, replacement=False)


def hmc(metropolis):
    """Noisy trajectories, of which four in ten are refused."""
    return sghmc.HMC(0.01, 3, metropolis=metropolis)


def keys(count):
    return random.words(jax.random.split(jax.random.key(1), count))


@pytest.mark.parametrize("degrees", [9, 49, 4_999, 1_000_000])
def test_the_tail_is_that_of_students_t(degrees):
    for chance in (0.2, 0.05, 0.001):
        t = stats.t.isf(chance, degrees)
        np.testing.assert_allclose(tail(jnp.float32(t), jnp.int32(degrees)), chance, rtol=0.025)


@pytest.mark.slow
def test_a_look_decides_wrongly_as_often_as_it_may():
    """Sums that all but equal the limit, 20 rows in two looks: the first errs for `error`.

    Exact for normal terms. Beyond 3.9 standard errors for 1 key in 10,000.
    """
    austerity, number = sghmc.Austerity(error=0.05, batch_size=10), 40_000

    @jax.jit
    @jax.vmap
    def decided(key):
        terms = random.normals(key, 0, 1, 20)
        change = Change(jnp.float32(0.3), lambda rows: terms[rows], 20)
        limit = 0.3 + jnp.sum(terms) + 1e-3
        return austerity.decide(change, limit, random.bits(key, 1, 1, 2))

    is_below, share = map(np.asarray, decided(keys(number)))
    assert set(np.unique(share)) == {0.5, 1.0}
    assert np.all(is_below[share == 1])
    wrong = np.mean(~is_below)
    assert abs(wrong - 0.05) < 3.9 * np.sqrt(0.05 * 0.95 / number)


@pytest.mark.slow
def test_error_zero_decides_as_the_full_accept_step():
    """400 proposals from all over the posterior, the same for each accept step.

    In double precision: in single one, U(old) − U(new) of all data is itself off by some 10⁻⁴.
    """

    def after(metropolis):
        posterior = sghmc.Posterior(
            POSTERIOR.log_likelihood, POSTERIOR.log_prior, DATA.astype(jnp.float64)
        )
        start = jnp.zeros((), jnp.float64)
        chain = Chain(jax.random.key(0), posterior, hmc(metropolis), BATCHES, start)

        @jax.jit
        @jax.vmap
        def step(t):
            offset = random.normals(keys(1)[0], t, 1, 1, dtype=jnp.float64)[0]
            start = chain.state._replace(position=0.5 + offset / jnp.sqrt(2000))
            state, info = chain.step(t, chain.noise(t), start)
            return state.position, state.position != start.position, info.data_share

        return jax.tree.map(np.asarray, step(jnp.arange(400)))

    with jax.enable_x64(True):
        exact, is_accepted, _ = after(True)
        position, _, share = after(sghmc.Austerity(error=0.0, batch_size=150))
    np.testing.assert_allclose(position, exact, atol=1e-12)
    np.testing.assert_array_equal(share, 1)
    assert 0.4 < np.mean(is_accepted) < 0.8


@pytest.mark.slow
def test_draws_are_those_of_the_posterior():
    """Without accept step the variance is 1.75 times as large, with error=0.05 1.1 times.

    Student's t with 31 degrees of freedom is beyond 4.3 for 2 keys in 10,000; 0.02 is what the
    error may leave.
    """
    samples = sghmc.sample(
        jax.random.key(2),
        POSTERIOR,
        hmc(sghmc.Austerity(error=0.01, batch_size=100)),
        jnp.mean(DATA),
        gradient=BATCHES,
        num_samples=1000,
        num_chains=32,
        progress=False,
    )
    center = jnp.sum(DATA) / 2001
    ratios = np.mean((samples.positions - center) ** 2 * 2001, axis=1)
    error = ratios.std(ddof=1) / np.sqrt(32)
    assert error < 0.02
    assert abs(ratios.mean() - 1) < 4.3 * error + 0.02, (ratios.mean(), error)
    assert samples.info.data_share is not None
    assert 0.05 <= samples.info.data_share.min() < samples.info.data_share.max() == 1
    assert samples.info.acceptance is not None
    assert set(np.unique(samples.info.acceptance)) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc.Austerity(error=0.5), "below 0.5, .* but is 0.5"),
        (lambda: sghmc.Austerity(error=-0.1), "but is -0.1"),
        (lambda: sghmc.Austerity(batch_size=5), "from 10, .* but is 5"),
        (lambda: sghmc.HMC(0.1, 2, metropolis=cast(bool, 0.05)), r"or Austerity\(…\), but is 0.05"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(("batch_size", "num_rows"), [(1, 2), (5, 5)])
def test_two_rows_are_looked_at_before_anything_is_judged(batch_size, num_rows):
    """One term has no spread. What is seen is N times a mean, with N²(1 − n/N) s²/n."""
    terms = jnp.array([0.3, -1.0, 2.5, 0.1, 0.4, -0.7, 1.9])
    seen_rows = []

    def of_rows(rows):
        jax.debug.callback(lambda x: seen_rows.extend(x.tolist()), rows)
        return terms[rows]

    change = Change(jnp.float32(0.3), of_rows, 7)
    order = random.bits(keys(1)[0], 0, 1, 2)
    found = estimate(change, order, batch_size, lambda seen: jnp.array(True))
    jax.effects_barrier()
    assert found.num_rows == num_rows
    mine = np.asarray(terms)[seen_rows[:num_rows]]
    assert len(set(seen_rows[:num_rows])) == num_rows
    assert found.value == pytest.approx(0.3 + 7 * mine.mean(), rel=1e-5)
    variance = 49 * (1 - num_rows / 7) * mine.var(ddof=1) / num_rows
    assert found.variance == pytest.approx(variance, rel=1e-4, abs=1e-5)


def test_a_look_is_enough_where_the_tail_beyond_its_distance_is_small(monkeypatch):
    """P(T > |Δ̂ − c|/sd) < error with n − 1 degrees of freedom; the share is n/N."""

    def told(change, order, batch_size, is_enough):
        seen = [hmc_file.Estimate(change.known, jnp.float32(4.0), jnp.int32(n)) for n in (12, 10)]
        assert [bool(is_enough(each)) for each in seen] == [True, False]
        return seen[1]

    monkeypatch.setattr(hmc_file, "estimate", told)
    # Between the quantiles of 11 and 9 degrees of freedom, two standard deviations a unit.
    distance = 2 * (stats.t.isf(0.05, 11) + stats.t.isf(0.05, 9)) / 2
    for sign in (1, -1):
        change = Change(jnp.float32(0.3), lambda rows: rows, 40)
        limit = jnp.float32(0.3 + sign * distance)
        is_below, share = sghmc.Austerity(0.05).decide(change, limit, jnp.zeros(2, jnp.uint32))
        assert bool(is_below) == (sign > 0)
        assert float(share) == 0.25


def test_rows_are_added_to_the_moments_of_those_before():
    """Two of three looks: each takes the next rows of the order, and ends with the last row."""
    terms = np.array([0.3, -1.0, 2.5, 0.1, 0.4, -0.7, 1.9])
    change = Change(jnp.float32(0.3), lambda rows: jnp.asarray(terms, jnp.float32)[rows], 7)
    order = jnp.array([3, 4], jnp.uint32)

    @jax.jit
    def looked_at(enough):
        rows = random.permuted(order, jnp.zeros(1), jnp.arange(7)[None], 7)[0]
        return rows, estimate(change, order, 3, lambda seen: seen.num_rows >= enough)

    for enough, count in [(4, 6), (7, 7)]:
        rows, found = looked_at(enough)
        mine = terms[np.asarray(rows)[:count]]
        assert found.num_rows == count
        assert found.value == pytest.approx(0.3 + 7 * mine.mean(), rel=1e-5)
        variance = 49 * (1 - count / 7) * mine.var(ddof=1) / count
        assert found.variance == pytest.approx(variance, rel=1e-4, abs=1e-5)


def test_a_change_without_rows_is_known():
    change = Change(jnp.float32(0.3), lambda rows: rows, 0)
    found = estimate(change, jnp.zeros(2, jnp.uint32), 3, lambda seen: jnp.array(False))
    assert (found.value, found.variance, found.num_rows) == (jnp.float32(0.3), 0, 0)
