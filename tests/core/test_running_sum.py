import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import tree


def test_a_million_single_precision_terms_lose_nothing():
    terms = jnp.asarray(np.random.default_rng(0).uniform(0, 1, 1_000_000), jnp.float32)

    @jax.jit
    def means(terms):
        def one(i, loop):
            running, naive = loop
            return running.add(terms[i], jnp.asarray(True)), naive + terms[i]

        running, naive = lax.fori_loop(
            0, len(terms), one, (tree.RunningSum.zeros(terms[0]), jnp.zeros(()))
        )
        return running.mean(), naive / len(terms)

    compensated, naive = means(terms)
    exact = np.mean(np.asarray(terms, np.float64))
    assert abs(compensated / exact - 1) < 1.2e-7
    assert abs(naive / exact - 1) > 1e-6, "the test is too easy: plain summation passes too"


def test_terms_that_are_not_counted_leave_no_trace():
    running = tree.RunningSum.zeros({"x": jnp.zeros(2)})
    terms = [([1.0, 2.0], True), ([np.nan, np.inf], False), ([3.0, 6.0], True), ([9.0, 9.0], False)]
    for value, is_counted in terms:
        running = running.add({"x": jnp.array(value)}, jnp.asarray(is_counted))
    assert running.num_terms == 2
    np.testing.assert_array_equal(running.mean()["x"], [2, 4])


def test_integers_booleans_and_low_precision_are_summed_as_floats():
    values = {
        "integer": jnp.asarray(2**30),
        "boolean": jnp.asarray(True),
        "low": jnp.asarray(1 / 3, jnp.bfloat16),
    }
    running = tree.RunningSum.zeros(values)
    for _ in range(5):
        running = running.add(values, jnp.asarray(True))
    mean = running.mean()
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(mean))
    assert mean["integer"] == 2**30
    assert mean["boolean"] == 1
    assert mean["low"] == values["low"].astype(jnp.float32)


def test_the_mean_of_nothing_is_not_a_number():
    assert np.isnan(tree.RunningSum.zeros(jnp.zeros(())).mean())


def test_means_of_several_are_those_of_each_without_a_compiler():
    one = tree.RunningSum(
        {"x": jnp.array([3.0, 1.0])}, {"x": jnp.zeros(2)}, jnp.asarray(3, jnp.int32)
    )
    none = tree.RunningSum.zeros({"x": jnp.zeros(2)})
    both = jax.tree.map(lambda *leaves: np.stack(leaves), one, none)
    found = both.means()["x"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found[0], np.asarray(one.mean()["x"]))
    assert found.dtype == np.float32
    assert np.isnan(found[1]).all()
