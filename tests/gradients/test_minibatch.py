"""Estimators judged exactly: over all batches there are, not over some that were drawn."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from cases import GRADIENTS, Chain, params, posterior
from sghmc.core import random, tree

N = 5
DATA = np.array([[1.0, 0.3], [-2.0, 0.5], [0.4, 4.0], [3.0, -1.0], [0.2, 0.7]], np.float32)
THETA = jnp.array([0.3, -0.7])


def target():
    """Gradients of the rows differ, and the prior must not be scaled."""
    return sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2) - 0.1 * jnp.prod(theta - x),
        lambda theta: -0.5 * 1.7 * jnp.sum(theta**2),
        DATA,
    )


def row_gradients():
    """∇(−log p(xᵢ | θ)) of each row, without the prior."""
    each = jax.vmap(lambda x: jax.grad(target().log_likelihood)(THETA, x))(jnp.asarray(DATA))
    return -np.asarray(each, np.float64)


def batch_gradients(gradient, batches):
    """The oracle's gradient for every batch of row numbers."""
    estimator = gradient.prepare(target(), THETA)
    evaluate = jax.jit(jax.vmap(lambda rows: estimator.oracle(target(), rows)(0, THETA).grad))
    return np.asarray(evaluate(jnp.asarray(batches)), np.float64)


def full_gradient():
    return np.asarray(target().gradient(THETA), np.float64)


@pytest.mark.slow_cases("with")
@pytest.mark.parametrize(
    ("replacement", "shrink"), [(True, 1.0), (False, 1 - 3 / N)], ids=["with", "without"]
)
def test_over_all_batches_the_mean_is_exact_and_the_covariance_as_documented(replacement, shrink):
    gradient = sghmc.Minibatch(3, replacement=replacement)
    batches = (
        itertools.product(range(N), repeat=3)
        if replacement
        else itertools.permutations(range(N), 3)
    )
    estimates = batch_gradients(gradient, list(batches))
    np.testing.assert_allclose(estimates.mean(0), full_gradient(), rtol=1e-5)
    divisor = 0 if replacement else 1  # s² of the population, or with N − 1: sampling theory
    spread = np.cov(row_gradients().T, ddof=divisor)
    covariance = np.cov(estimates.T, ddof=0)
    np.testing.assert_allclose(covariance, N**2 / 3 * shrink * spread, rtol=1e-4, atol=1e-4)


@pytest.mark.slow_cases("1-0", "2-1", "5-0")
@pytest.mark.parametrize(("batch_size", "left_out"), [(1, 0), (5, 0), (2, 1), (3, 2), (4, 1)])
def test_a_pass_of_an_epoch_sees_every_row_once(batch_size, left_out):
    gradient = sghmc.Minibatch(batch_size, replacement="epochs")
    estimator = gradient.prepare(target(), THETA)
    per_epoch = N // batch_size
    draw = jax.jit(lambda key: estimator.draw(key, 0, 2 * per_epoch, 1, THETA))
    epochs = draw(random.words(jax.random.key(0))).reshape(2, per_epoch, batch_size)
    for epoch in np.asarray(epochs):
        rows = epoch.ravel()
        assert len(set(rows)) == N - left_out
        estimates = batch_gradients(gradient, epoch)
        if left_out == 0:
            np.testing.assert_allclose(estimates.mean(0), full_gradient(), rtol=1e-5)
    assert not np.array_equal(epochs[0], epochs[1])


def test_the_rows_an_epoch_leaves_out_differ_from_pass_to_pass():
    estimator = sghmc.Minibatch(2, replacement="epochs").prepare(target(), THETA)
    rows = jax.jit(lambda key: estimator.draw(key, 0, 200, 1, THETA))(
        random.words(jax.random.key(1))
    )
    missing = [N * (N - 1) // 2 - int(epoch.sum()) for epoch in np.asarray(rows).reshape(100, 4)]
    counts = np.bincount(missing, minlength=N)
    assert counts.min() >= 5, counts  # each expects 20: a false alarm has a chance below 2e-5


@pytest.mark.parametrize(("batch_size", "left_out"), [(1, 0), (5, 0), (2, 1)])
@pytest.mark.parametrize("num_gradients", [1, 3])
def test_a_palindrome_is_a_pass_forth_and_back(batch_size, left_out, num_gradients):
    """The order of the batches is turned around; a batch that would be short is left out."""
    estimator = sghmc.Minibatch(batch_size, replacement="palindrome").prepare(target(), THETA)
    per_epoch = N // batch_size
    draw = jax.jit(
        lambda key, first: estimator.draw(key, first, 4 * per_epoch, num_gradients, THETA)
    )
    key = random.words(jax.random.key(0))
    rows = np.asarray(draw(key, 0)).reshape(2 * num_gradients, 2, per_epoch, batch_size)
    for forth, back in rows:
        np.testing.assert_array_equal(back, forth[::-1])
        assert len(set(forth.ravel())) == N - left_out
    assert len({tuple(forth.ravel()) for forth, _ in rows}) > 1
    later = np.asarray(draw(key, 3)).ravel()  # any step on its own: a run resumes anywhere
    skipped, compared = 3 * num_gradients * batch_size, rows.size // 4
    np.testing.assert_array_equal(later[:compared], rows.ravel()[skipped : skipped + compared])


@pytest.mark.parametrize("replacement", [True, False, "epochs", "palindrome"])
def test_batches_are_rows_of_the_data_with_and_without_repeats(replacement):
    estimator = sghmc.Minibatch(4, replacement=replacement).prepare(target(), THETA)
    drawn = jax.jit(lambda key: estimator.draw(key, 0, 50, 2, THETA))(
        random.words(jax.random.key(2))
    )
    batches = np.asarray(drawn).reshape(100, 4)
    assert batches.min() == 0
    assert batches.max() == N - 1
    repeats = sum(len(set(batch)) < 4 for batch in batches)
    assert (repeats > 50) if replacement is True else (repeats == 0)
    counts = np.bincount(batches.ravel(), minlength=N)
    assert np.all(np.abs(counts - 80) < 48)  # six standard deviations


@pytest.mark.slow
def test_every_evaluation_of_a_trajectory_has_its_own_batch():
    like = params()
    chain = Chain(jax.random.key(3), posterior(), sghmc.HMC(0.1, 4), GRADIENTS["minibatch"], like)
    assert chain.kernel.num_gradients == 5
    noise = jax.jit(chain.noise)(0)[1]
    batches = noise.reshape(5, 3)
    assert len({tuple(map(int, batch)) for batch in batches}) == 5

    @jax.jit
    def compare(noise):
        oracle = chain.estimator.oracle(chain.target, noise)
        seen = jax.vmap(lambda i: oracle(i, like).potential)(jnp.arange(5))
        rows = jax.vmap(chain.target.rows)(batches)
        return seen, jax.vmap(lambda examples: chain.target.estimate(like, examples))(rows)

    np.testing.assert_allclose(*compare(noise), rtol=1e-5)


@pytest.mark.slow
def test_a_trajectory_asks_for_each_of_its_gradients_once():
    asked = []

    class Recorder(sghmc.FullBatch):
        def prepare(self, target, position):
            estimator = super().prepare(target, position)
            exact = estimator.oracle(target, ())
            kind: Any = type(estimator)

            class Recording(kind):
                def oracle(self, target, noise, anchor=()):
                    def evaluate(i, position):
                        jax.debug.callback(lambda i: asked.append(int(i)), i)
                        return exact(i, position)

                    return type(exact)(evaluate, target.potential, True)

            return Recording()

    chain = Chain(jax.random.key(4), posterior(), sghmc.HMC(0.1, 4), Recorder(), params())
    jax.block_until_ready(jax.jit(chain.step)(0, chain.noise(0), chain.state))
    jax.effects_barrier()
    assert sorted(asked) == [0, 1, 2, 3, 4]


DENSE = np.array([[2.0, 0.7, 0.1], [0.7, 1.0, -0.3], [0.1, -0.3, 0.5]])


@pytest.mark.slow_cases(
    "0-diagonal", "0-scalar", "0-singular", "0-zero", "1-diagonal", "1-scalar", "1-zero"
)
@pytest.mark.parametrize(
    ("variance", "covariance"),
    [
        (1.7, 1.7 * np.eye(3)),
        (0.0, np.zeros((3, 3))),
        ({"a": np.array([0.5, 2.0]), "b": 3.0}, np.diag([0.5, 2.0, 3.0])),
        (DENSE, DENSE),
        (np.ones((3, 3)), np.ones((3, 3))),
    ],
    ids=["scalar", "zero", "diagonal", "dense", "singular"],
)
@pytest.mark.parametrize("i", [0, 1])
def test_noise_has_the_covariance_asked_for(variance, covariance, i):
    like = {"a": jnp.array([0.3, -0.2]), "b": jnp.asarray(0.5)}
    potential = sghmc.Potential(lambda p: jnp.sum(p["a"] ** 2) * p["b"])
    estimator = sghmc.NoisyGradient(variance).prepare(potential, like)
    noise = estimator.draw(random.words(jax.random.key(5)), 0, 1, 2, like)
    assert [leaf.size for leaf in noise] == [4, 2]
    quiet = jax.tree.map(jnp.zeros_like, noise)

    def gradient(noise):
        return tree.ravel(estimator.oracle(potential, noise)(i, like).grad)

    parts = jax.jacobian(gradient)(noise)
    root = np.concatenate([np.asarray(part) for part in parts], axis=1)
    np.testing.assert_allclose(root @ root.T, covariance, atol=1e-5)
    np.testing.assert_allclose(gradient(quiet), tree.ravel(potential.gradient(like)), rtol=1e-6)
    used = [np.any(part != 0, axis=0) for part in parts]
    if variance is not DENSE and np.any(covariance):
        own = np.concatenate([np.arange(4) // 2 == i, np.arange(2) == i])
        assert not np.any(np.concatenate(used) & ~own), "another evaluation's noise was used"


@pytest.mark.slow
def test_the_exact_potential_is_always_there():
    like = params()
    exact = posterior().potential(like)
    for name, gradient in GRADIENTS.items():
        estimator = gradient.prepare(posterior(), like)
        noise = jax.jit(lambda key, e=estimator: e.draw(key, 0, 1, 1, like))(
            random.words(jax.random.key(6))
        )
        anchor = estimator.init_anchor(posterior())
        oracle = estimator.oracle(posterior(), noise, anchor)
        np.testing.assert_allclose(oracle.potential(like), exact, rtol=1e-6)
        assert oracle.is_exact == (name == "full")


@pytest.mark.slow
def test_only_shuffled_epochs_have_errors_that_depend_on_each_other():
    dependent = [name for name, gradient in GRADIENTS.items() if not gradient.is_independent]
    assert dependent == ["epochs", "palindrome"]


def estimator_of(gradient):
    return gradient.prepare(target(), THETA)


def test_a_gradient_is_that_of_the_rows_of_its_batch():
    """The second batch of a step, N/n times its rows, and the prior once."""
    estimator = estimator_of(sghmc.Minibatch(3))
    rows = np.array([0, 0, 0, 4, 2, 4])
    value, grad = jax.jit(lambda rows: estimator.oracle(target(), rows)(1, THETA))(rows)
    expected = N / 3 * row_gradients()[[4, 2, 4]].sum(0) + 1.7 * np.asarray(THETA)
    np.testing.assert_allclose(grad, expected, rtol=1e-5)
    x, theta = DATA[[4, 2, 4]], np.asarray(THETA)
    each = 0.5 * np.sum((x - theta) ** 2, 1) + 0.1 * np.prod(theta - x, 1)
    np.testing.assert_allclose(value, N / 3 * each.sum() + 0.85 * theta @ theta, rtol=1e-5)
    oracle = estimator.oracle(target(), rows)
    assert not oracle.is_exact
    np.testing.assert_array_equal(estimator.examples(target(), rows), DATA[[0, 0, 0]])


def test_gradients_of_single_examples_have_no_prior_and_no_scale():
    estimator = estimator_of(sghmc.Minibatch(3))
    found = jax.jit(lambda rows: estimator.example_gradients(target(), THETA, rows, ()))(DATA[1:4])
    np.testing.assert_allclose(found, row_gradients()[1:4], rtol=1e-5)


@pytest.mark.parametrize(
    ("replacement", "scale"),
    [(True, 25 / 3), (False, 25 / 3 * 2 / 5), ("epochs", 25 / 3 * 2 / 5)],
)
def test_the_scale_of_the_noise_of_a_batch(replacement, scale):
    assert estimator_of(sghmc.Minibatch(3, replacement)).noise_scale == pytest.approx(scale)


def test_batches_are_drawn_as_many_as_there_are_gradients():
    """By numbers of permutations: that of an evaluation, of a pass, of a palindrome."""
    key = random.words(jax.random.key(0))
    for replacement in (False, "epochs", "palindrome"):
        estimator = estimator_of(sghmc.Minibatch(2, replacement))
        rows = jax.jit(lambda key, e=estimator: e.draw(key, 3, 2, 3, THETA))(key)
        evaluations = np.arange(9, 15)  # three steps of three came before
        if replacement is False:
            permutation, batch = evaluations, 0 * evaluations
        elif replacement == "epochs":
            permutation, batch = evaluations // 2, evaluations % 2
        else:
            permutation = evaluations // 4
            batch = np.array([0, 1, 1, 0])[evaluations % 4]
        place = 2 * batch[:, None] + np.arange(2)
        permuted = jax.jit(random.permuted, static_argnums=3)
        expected = permuted(key, permutation.astype(np.uint32), place.astype(np.int32), N)
        np.testing.assert_array_equal(rows.reshape(6, 2), np.asarray(expected).reshape(6, 2))
    plain = estimator_of(sghmc.Minibatch(2))
    drawn, expected = jax.jit(
        lambda key: (plain.draw(key, 3, 2, 3, THETA), random.integers(key, 3, 2, 6, N))
    )(key)
    np.testing.assert_array_equal(drawn, expected)


def test_batches_of_more_rows_than_there_are_need_replacement():
    assert estimator_of(sghmc.Minibatch(6)).batch_size == 6
    assert estimator_of(sghmc.Minibatch(5, False)).batch_size == 5
    for replacement in (False, "epochs", "palindrome"):
        with pytest.raises(ValueError, match="batch_size is 6, but the data have 5 rows"):
            estimator_of(sghmc.Minibatch(6, replacement))


def test_rows_are_taken_and_shared_as_the_settings_say():
    for shared in (True, False):
        estimator = estimator_of(sghmc.Minibatch(3, shared=shared))
        assert (estimator.is_shared, estimator.takes_rows) == (shared, True)
    assert not sghmc.Minibatch(3).shared
    assert sghmc.Minibatch(3).replacement is True
