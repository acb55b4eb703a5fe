"""Sums over rows on several devices: `vmap` with a named axis stands for the devices of a mesh."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.posterior import sharded as shards
from sghmc.posterior.sharded import ManuallyShardedPosterior
from sghmc.posterior.sources import Source

NUM_SHARDS, NUM_HERE, NUM_REAL = 3, 4, 11
"""Twelve rows on three devices, of which the last is padding."""
RNG = np.random.default_rng(0)
TABLE = {"x": RNG.normal(size=(12, 2)).astype(np.float32), "y": np.arange(1.0, 13, dtype="f")}
THETA = jnp.array([0.3, -0.7])


def log_likelihood(theta, row):
    return -0.5 * (row["y"] - jnp.dot(row["x"], theta)) ** 2


def log_prior(theta):
    return -0.85 * jnp.sum(theta**2)


def total(theta, numbers):
    """Σ log p(x | θ) over rows of these numbers, and its gradient, in NumPy."""
    x, y, theta = TABLE["x"][numbers], TABLE["y"][numbers], np.asarray(theta)
    rest = y - x @ theta
    return -0.5 * np.sum(rest**2), x.T @ rest


def on_devices(function, num_real: int | None = NUM_REAL):
    """What each of the devices computes of its shard."""

    def of_device(rows):
        own = sghmc.Posterior(log_likelihood, log_prior, rows)
        if num_real is not None:
            own = eqx.tree_at(
                lambda p: p.num_real, own, jnp.int32(num_real), is_leaf=lambda leaf: leaf is None
            )
        return function(ManuallyShardedPosterior(own, "data", NUM_SHARDS))

    own = jax.tree.map(lambda leaf: leaf.reshape(NUM_SHARDS, NUM_HERE, *leaf.shape[1:]), TABLE)
    return jax.jit(jax.vmap(of_device, axis_name="data"))(own)


def test_every_row_comes_from_its_owner_once():
    """The first and the last row of each device among them, in any order, some twice."""
    numbers = np.array([4, 3, 0, 11, 8, 7, 4, 10])
    found = on_devices(lambda shard: shard.rows(jnp.asarray(numbers)))
    for name, column in TABLE.items():
        for device in range(NUM_SHARDS):
            np.testing.assert_array_equal(found[name][device], column[numbers])


def test_a_device_picks_its_own_rows_of_the_second_batch():
    variates = jnp.array([0, 0, 0, 0, 0, 4, 3, 11, 8, 7, 9, 9, 9, 9, 9])

    def of_shard(shard):
        picked = shard.batch(variates, 1, 5)
        assert (picked.size, shard.batch_size(picked)) == (5, 5)
        return picked.numbers, picked.num_picked, shard.examples(variates, 1, 5)["y"]

    numbers, counts, seen = on_devices(of_shard)
    np.testing.assert_array_equal(counts, [1, 2, 2])
    assert [sorted(map(int, n[:c])) for n, c in zip(numbers, counts, strict=True)] == [
        [3],
        [0, 3],
        [0, 3],
    ]
    np.testing.assert_array_equal(seen, np.tile(TABLE["y"][[4, 3, 11, 8, 7]], (3, 1)))


@pytest.mark.parametrize("numbers", [[4, 3, 0, 1, 8, 2, 4], [3, 0, 1, 2, 0, 1, 2]])
def test_the_estimate_of_a_batch_is_that_of_one_device(monkeypatch, numbers):
    """A device looks at three of its rows at once, at the last of them with repeated ones.

    All rows may be those of one device, whose number is no multiple of three either.
    """
    monkeypatch.setattr(shards, "_CPU_CHUNK_ROWS", 3)

    def of_shard(shard):
        batch = shard.batch(jnp.asarray(numbers), 0, len(numbers))
        twice = jax.value_and_grad(lambda theta: 2 * shard.log_likelihood_sum(theta, batch))(THETA)
        return twice, shard.estimate(THETA, batch)

    (value, grad), estimate = on_devices(of_shard)
    expected, slope = total(THETA, numbers)
    np.testing.assert_allclose(value, np.full(3, 2 * expected), rtol=1e-5)
    np.testing.assert_allclose(grad, np.tile(2 * slope, (3, 1)), rtol=1e-4)
    prior = -0.85 * np.sum(np.asarray(THETA) ** 2)
    np.testing.assert_allclose(estimate, np.full(3, -11 / 7 * expected - prior), rtol=1e-5)


def test_rows_that_are_not_in_a_batch_are_not_evaluated():
    """At all others the gradient of the log-likelihood is not finite: none of them fills up."""

    def length(theta, row):
        is_named = (row["y"] == 1) | (row["y"] == 5) | (row["y"] == 10)
        return jnp.sqrt(jnp.sum(theta**2)) / is_named

    def of_shard(shard):
        shard = eqx.tree_at(lambda s: s.log_likelihood, shard, length)
        batch = shard.batch(jnp.array([9, 0, 4]), 0, 3)
        return jax.value_and_grad(shard.log_likelihood_sum)(THETA, batch)

    value, grad = on_devices(of_shard)
    norm = float(np.linalg.norm(THETA))
    np.testing.assert_allclose(value, np.full(3, 3 * norm), rtol=1e-5)
    np.testing.assert_allclose(grad, np.tile(3 * np.asarray(THETA) / norm, (3, 1)), rtol=1e-5)


def test_rows_that_are_given_as_they_are_are_summed_without_devices():
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[[2, 9]]), TABLE)

    def of_shard(shard):
        assert shard.batch_size(rows) == 2
        return shard.log_likelihood_sum(THETA, rows)

    np.testing.assert_allclose(on_devices(of_shard), [total(THETA, [2, 9])[0]] * 3, rtol=1e-5)


def test_a_pass_over_all_rows_leaves_the_padding_out():
    def of_shard(shard):
        value, grad = shard.log_likelihood_total(THETA)
        rows = shard.sum_over_data(lambda rows: (rows["y"], jnp.ones((len(rows["y"]), 2))))
        return value, grad, rows

    value, grad, (ys, ones) = on_devices(of_shard)
    expected, slope = total(THETA, np.arange(11))
    np.testing.assert_allclose(value, np.full(3, expected), rtol=1e-5)
    np.testing.assert_allclose(grad, np.tile(slope, (3, 1)), rtol=1e-4)
    np.testing.assert_array_equal(ys, [66.0] * 3)
    np.testing.assert_array_equal(ones, np.full((3, 2), 11.0))


@pytest.mark.parametrize(("num_real", "count"), [(None, 12), (11, 11)])
def test_all_devices_together_have_n_rows(num_real, count):
    found = on_devices(lambda shard: jnp.asarray(shard.num_examples), num_real)
    np.testing.assert_array_equal(found, [count] * 3)


class Numbers(Source):
    """Rows of `TABLE`, in chunks of two."""

    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), TABLE)

    @property
    def num_rows(self):
        return NUM_REAL

    @property
    def chunk_rows(self):
        return 2

    def read(self, numbers, rows):
        for name, leaf in rows.items():
            leaf[:] = TABLE[name][numbers]


def test_a_source_is_read_by_all_devices_a_part_each():
    """A pass: every third chunk each. A batch: the rows that were read for the device."""
    posterior = sghmc.Posterior(log_likelihood, log_prior, Numbers())
    given = jax.tree.map(lambda leaf: leaf.reshape(3, 4, *leaf.shape[1:]), TABLE)

    def of_device(variates):
        shard = ManuallyShardedPosterior(posterior, "data", 3)
        assert (shard.num_examples, shard.num_rows) == (11, 11)
        batch = shard.batch(variates, 1, 6)
        assert shard.batch_size(batch) == 6
        return (
            shard.estimate(THETA, batch),
            shard.examples(variates, 1, 6)["y"],
            shard.log_likelihood_total(THETA),
            shard.rows(jnp.array([3, 10]))["y"],
        )

    estimate, seen, (value, grad), rows = jax.jit(jax.vmap(of_device, axis_name="data"))(given)
    numbers = [2, 3, 6, 7, 10, 11]  # the second half of each device's rows
    prior = -0.85 * np.sum(np.asarray(THETA) ** 2)
    expected = -11 / 6 * total(THETA, numbers)[0] - prior
    np.testing.assert_allclose(estimate, np.full(3, expected), rtol=1e-5)
    np.testing.assert_array_equal(seen, np.tile(TABLE["y"][numbers], (3, 1)))
    np.testing.assert_allclose(value, np.full(3, total(THETA, np.arange(11))[0]), rtol=1e-5)
    np.testing.assert_allclose(grad, np.tile(total(THETA, np.arange(11))[1], (3, 1)), rtol=1e-4)
    np.testing.assert_array_equal(rows, np.tile(TABLE["y"][[3, 10]], (3, 1)))


@pytest.mark.parametrize("is_accelerator", [False, True])
def test_chosen_numbers_come_first(is_accelerator, monkeypatch):
    monkeypatch.setattr(runtime, "has_accelerator", lambda: is_accelerator)
    numbers = jnp.array([5, -2, 3, 9, 4])
    found = shards._chosen_first(numbers, jnp.array([True, False, True, False, True]))
    assert found.shape == (5,)
    assert sorted(map(int, found[:3])) == [3, 4, 5]


def test_room_for_the_rows_that_chance_gives_a_device(monkeypatch):
    """On an accelerator the expected number and five of its standard deviations."""
    assert (shards._chunk_size(900, 4), shards._chunk_size(5_000, 4)) == (900, 1024)
    monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
    assert shards._chunk_size(400, 4) == 100 + 5 * 10
    assert shards._chunk_size(401, 4) == math.ceil(100.25 + 5 * math.sqrt(100.25))
    assert shards._chunk_size(10, 2) == 10


def test_rows_of_a_device_are_not_taken_for_all():
    shard = ManuallyShardedPosterior(sghmc.Posterior(log_likelihood, log_prior, TABLE), "data", 3)
    for look, word in (
        (lambda data: data.y, "y"),
        (lambda data: data["y"], r"\['y'\]"),
        (list, "iteration"),
    ):
        with pytest.raises(AttributeError, match=rf"posterior.data \({word}\).*sum_over_data"):
            look(shard.data)


def test_hyperparameters_go_with_a_shard():
    posterior = sghmc.Posterior(
        lambda theta, row, hyper: hyper * log_likelihood(theta, row),
        lambda theta, hyper: hyper,
        TABLE,
        hyper=3.0,
    )
    shard = ManuallyShardedPosterior(posterior, "data", 3)
    assert (float(shard.hyper), shard.axis, shard.num_shards) == (3.0, "data", 3)
    assert shard.log_prior is posterior.log_prior
    assert shard.log_likelihood is posterior.log_likelihood
