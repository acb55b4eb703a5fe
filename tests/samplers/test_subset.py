"""Sums estimated from rows that are added until they are enough."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import random
from sghmc.gradients import Oracle
from sghmc.posterior.sources import Source
from sghmc.samplers.hmc import estimate
from sghmc.types import Change, Evaluation

TERMS = jnp.asarray(np.random.default_rng(0).normal(0.3, 2.0, size=30), jnp.float32)


def orders(count):
    return random.words(jax.random.split(jax.random.key(1), count))


def change(num_terms=30):
    return Change(jnp.asarray(0.7), lambda rows: TERMS[rows], num_terms)


@pytest.mark.parametrize("num_looks", [1, 2])
def test_the_estimate_and_its_variance_are_unbiased(num_looks):
    """Over 20,000 orders of the rows; a check fails by chance for 1 key in 10,000."""
    total = float(jnp.sum(TERMS))

    @jax.jit
    @jax.vmap
    def some(order):
        return estimate(change(), order, 7, lambda seen: seen.num_rows >= 7 * num_looks)

    seen = jax.tree.map(np.asarray, some(orders(20_000)))
    np.testing.assert_array_equal(seen.num_rows, 7 * num_looks)
    exact = 30**2 / (7 * num_looks) * (1 - 7 * num_looks / 30) * np.var(TERMS, ddof=1)
    errors = seen.value - 0.7 - total
    for numbers, expected in [(errors, 0.0), (errors**2, exact), (seen.variance, exact)]:
        standard_error = numbers.std() / np.sqrt(len(numbers))
        assert abs(numbers.mean() - expected) < 3.9 * standard_error


@pytest.mark.slow
def test_looking_at_everything_is_exact_and_the_same_among_chains():
    """13 does not divide 30: the last look is a short one. Chains stop where each has enough."""

    def some(order, wanted):
        return estimate(change(), order, 13, lambda seen: seen.num_rows >= wanted)

    words, wanted = orders(3), jnp.array([1, 20, 1000])
    together = jax.jit(jax.vmap(some))(words, wanted)
    np.testing.assert_array_equal(together.num_rows, [13, 26, 30])
    assert together.variance[2] == 0
    np.testing.assert_allclose(together.value[2], 0.7 + jnp.sum(TERMS), rtol=1e-5)
    for c in range(2):
        alone = jax.jit(some)(words[c], wanted[c])
        np.testing.assert_allclose(alone.value, together.value[c], rtol=1e-5)


@pytest.mark.slow
def test_a_change_of_potential_is_the_sum_of_its_terms():
    data = jnp.arange(5.0)
    posterior = sghmc.Posterior(
        lambda theta, x, scale: -scale * (x - theta) ** 2,
        lambda theta, scale: -(theta**2),
        data,
        0.3,
    )
    target = sghmc.Potential(posterior.potential)
    old, new = jnp.array(0.2), jnp.array(1.1)
    expected = posterior.potential(new) - posterior.potential(old)
    for gradient, source in [(sghmc.Minibatch(2), posterior), (sghmc.FullBatch(), target)]:
        estimator = gradient.prepare(source, old)
        noise = estimator.draw(orders(1)[0], 0, 1, 1, old)
        oracle = estimator.oracle(source, noise).through(lambda z: 2 * z, lambda grad: 2 * grad)
        known, terms, num_terms = oracle.change(old / 2, new / 2)
        assert num_terms == (5 if source is posterior else 0)
        total = known + jnp.sum(terms(jnp.arange(num_terms)))
        np.testing.assert_allclose(total, expected, rtol=1e-6)


class Stream(Source):
    example = jax.ShapeDtypeStruct((), jnp.float32)
    is_sequential = True

    @property
    def num_rows(self):
        return 5

    def read(self, numbers, rows):
        rows[:] = 0


def test_data_that_only_stream_by_have_no_rows_to_ask_for():
    posterior = sghmc.Posterior(lambda theta, x: theta * x, lambda theta: theta, Stream())
    with pytest.raises(ValueError, match="its own order: use a source with random access"):
        posterior.change(jnp.zeros(()), jnp.zeros(()))
    oracle = Oracle(lambda i, position: Evaluation(position, position), None, is_exact=False)
    with pytest.raises(ValueError, match="needs single rows"):
        oracle.change(jnp.zeros(()), jnp.zeros(()))
