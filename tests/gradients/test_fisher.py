"""The noise of an estimator from single examples: unbiased, over all batches there are."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import laws
import sghmc
from sghmc.gradients import BatchEstimator
from sghmc.gradients import noise as fisher

N, BATCH = 5, 3
ROWS = np.array([[1.0, 0.3], [-2.0, 0.5], [0.4, 4.0], [3.0, -1.0], [0.2, 0.7]])
POSITION = {"slope": np.array([0.3, -0.7]), "offset": np.array(0.4)}
CENTER = {"slope": np.array([-0.2, 0.5]), "offset": np.array(0.1)}
GRADIENTS = {
    "plain": lambda replacement: sghmc.Minibatch(BATCH, replacement),
    "control variate": lambda replacement: sghmc.ControlVariate(BATCH, CENTER, replacement),
}


def target():
    return sghmc.Posterior(
        lambda p, x: -jnp.logaddexp(0.0, x @ p["slope"] + p["offset"]) - jnp.sum(x * p["slope"]),
        lambda p: -jnp.sum(p["slope"] ** 2),
        ROWS,
    )


def all_batches(replacement):
    if replacement:
        return np.array(list(itertools.product(range(N), repeat=BATCH)))
    return np.array(list(itertools.combinations(range(N), BATCH)))


def judge(kind, replacement, diagonal):
    """The mean of V̂ over all batches against the covariance of ∇Ũ over all batches."""
    with jax.enable_x64(True):
        model, position = target(), jax.tree.map(jnp.asarray, POSITION)
        estimator = GRADIENTS[kind](replacement).prepare(model, position)
        anchor = estimator.init_anchor(model)

        def of_batch(rows):
            examples = model.rows(rows)
            estimate = fisher.gradient_noise(
                estimator, model, anchor, position, examples, diagonal=diagonal
            )
            grad = estimator.oracle(model, rows, anchor)(0, position).grad
            return estimate, jnp.concatenate([grad["offset"][None], grad["slope"]])

        estimates, grads = map(np.asarray, jax.jit(jax.vmap(of_batch))(all_batches(replacement)))
    covariance = np.cov(grads.T, ddof=0)
    laws.assert_close(estimates.mean(0), covariance.diagonal() if diagonal else covariance)
    assert estimates.std(0).max() > 0.1 * np.abs(covariance).max()


@pytest.mark.slow_cases("control variate-with-dense", "control variate-with-diagonal")
@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "dense"])
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("kind", GRADIENTS)
def test_unbiased(kind, replacement, diagonal):
    judge(kind, replacement, diagonal)


def scatter_of(center: bool, divisor: int):
    def scatter(terms, *, diagonal):
        rows = jax.vmap(fisher.tree.ravel)(terms)
        rows = rows - jnp.mean(rows, 0, keepdims=True) if center else rows
        return rows.T @ rows / divisor

    return scatter


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("fault", ["N/n for N²/n", "not centered", "divisor n"])
def test_faults_are_seen(kind, fault, monkeypatch):
    if fault == "N/n for N²/n":
        scale = property(lambda self: self.num_examples / self.batch_size)
        monkeypatch.setattr(BatchEstimator, "noise_scale", scale)
    else:
        wrong = scatter_of(True, BATCH) if fault == "divisor n" else scatter_of(False, BATCH - 1)
        monkeypatch.setattr(fisher, "scatter", wrong)
    with pytest.raises(AssertionError):
        judge(kind, True, False)


def test_batches_without_replacement_that_are_all_rows_have_no_noise():
    estimator = sghmc.Minibatch(N, replacement=False).prepare(target(), POSITION)
    assert estimator.noise_scale == 0


def test_scatter_is_the_sample_covariance():
    rng = np.random.default_rng(0)
    terms = {"a": rng.normal(size=(7, 2, 2)), "b": 3 + rng.normal(size=7)}
    rows = np.concatenate([terms["a"].reshape(7, 4), terms["b"][:, None]], axis=1)
    with jax.enable_x64(True):
        dense, diagonal = (fisher.scatter(terms, diagonal=d) for d in (False, True))
        laws.assert_close(dense, np.cov(rows.T))
        laws.assert_close(diagonal, np.var(rows, axis=0, ddof=1))


@pytest.mark.slow
def test_mean_over_positions_each_with_its_rows():
    with jax.enable_x64(True):
        model = target()
        positions = jax.tree.map(lambda x, y: jnp.stack([x, y]), POSITION, CENTER)
        estimator = GRADIENTS["plain"](True).prepare(model, POSITION)
        rows = jnp.array([[0, 1, 4], [2, 3, 2]])
        seen = fisher.mean_gradient_noise(estimator, model, positions, rows, diagonal=False)
        parts = [
            fisher.gradient_noise(
                estimator,
                model,
                (),
                jax.tree.map(jnp.asarray, position),
                model.rows(indices),
                diagonal=False,
            )
            for position, indices in zip((POSITION, CENTER), rows, strict=True)
        ]
        laws.assert_close(seen, np.mean(parts, axis=0))


@pytest.mark.parametrize("gradient", [sghmc.FullBatch(), sghmc.NoisyGradient(1.0)])
def test_without_batches_there_is_nothing_to_estimate_from(gradient):
    position = jax.tree.map(jnp.asarray, POSITION)
    estimator = gradient.prepare(target(), position)
    with pytest.raises(TypeError, match="takes no batches: its noise has no such estimate"):
        fisher.gradient_noise(estimator, target(), (), position, target().data, diagonal=True)


def running(**fields):
    zero = jnp.zeros(())
    usual = fisher.RunningNoise(zero, jnp.int32(0), jnp.int32(99), zero, zero)
    return usual._replace(**fields)


def test_the_average_is_a_mean_of_the_first_estimates_then_forgets():
    """A window of 3: weights 1, ½, ⅓, and then ⅓ for ever."""
    noise, seen = running(mean=jnp.asarray(7.0)), []
    for estimate in (3.0, 6.0, 12.0, 1.0, 4.0):
        noise = noise.with_estimate(jnp.asarray(estimate), 3)
        seen.append(float(noise.mean))
    assert seen == pytest.approx([3.0, 4.5, 7.0, 5.0, 14 / 3])
    assert int(noise.num_estimates) == 5
    assert int(noise.failed_at) == 99


def test_too_large_a_noise_is_remembered_once_with_both_numbers():
    """Rounding may pass: a hundred-thousandth of what is allowed."""
    noise = running()
    same = noise.judged(4, jnp.asarray(2.0), jnp.asarray(2.0))
    within = noise.judged(4, jnp.asarray(2.0 * (1 + 0.5e-5)), jnp.asarray(2.0))
    assert int(same.failed_at) == int(within.failed_at) == 99
    assert float(same.needed) == float(within.allowed) == 0
    failed = noise.judged(4, jnp.asarray(2.0 * (1 + 2e-5)), jnp.asarray(2.0))
    assert int(failed.failed_at) == 4
    assert float(failed.needed) > 2.0 == float(failed.allowed)
    later = failed.judged(5, jnp.asarray(8.0), jnp.asarray(3.0))
    assert (int(later.failed_at), float(later.allowed)) == (4, 2.0)
    assert float(later.needed) == float(failed.needed)


@pytest.mark.parametrize(("diagonal", "shape"), [(True, (3,)), (False, (3, 3))])
def test_before_the_first_estimate_there_is_no_noise(diagonal, shape):
    found = fisher.no_noise(3, sghmc.EmpiricalFisher(diagonal=diagonal), jnp.float32, 1_000)
    np.testing.assert_array_equal(found.mean, np.zeros(shape))
    assert found.mean.dtype == jnp.float32
    assert (int(found.num_estimates), int(found.failed_at)) == (0, 1_000)
    assert (float(found.needed), float(found.allowed)) == (0, 0)


@pytest.mark.parametrize("diagonal", [True, False])
def test_noise_in_other_coordinates_and_over_positions(diagonal):
    """z = θ/2, and the mean over two positions, each with rows of its own; by NumPy."""
    scales = np.array([[1.0, 2.0], [-1.5, 0.5], [3.0, -1.0], [0.5, 4.0], [2.0, -3.0]], np.float32)
    model = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum(x * theta**2), lambda theta: jnp.sum(theta) * 5, scales
    )
    estimator = sghmc.Minibatch(BATCH).prepare(model, jnp.zeros(2))
    positions = np.array([[0.5, -1.5], [2.0, 0.7]], np.float32)
    rows = np.array([[0, 1, 3, 4], [2, 2, 4, 0]])
    found = fisher.mean_gradient_noise(
        estimator, model, jnp.asarray(positions), jnp.asarray(rows), diagonal=diagonal
    )
    parts = [np.cov((scales[r] * p).T) for p, r in zip(positions, rows, strict=True)]
    expected = N**2 / BATCH * np.mean(parts, axis=0)
    expected = np.diag(expected) if diagonal else expected
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    single = jax.jit(
        lambda theta, examples: fisher.gradient_noise(
            estimator, model, (), theta, examples, diagonal=diagonal, pull_back=lambda g: 2 * g
        )
    )(jnp.asarray(positions[0]), jnp.asarray(scales[rows[0]]))
    expected = 4 * N**2 / BATCH * parts[0]
    np.testing.assert_allclose(single, np.diag(expected) if diagonal else expected, rtol=1e-4)


def wrong(name, value) -> dict[str, Any]:
    return {name: value}


def test_by_default_variances_alone_are_estimated_every_hundred_steps():
    usual = sghmc.EmpiricalFisher()
    assert (usual.diagonal, usual.every, usual.window) == (True, 100, 20)
    assert not usual.raise_friction
    for name in ("diagonal", "raise_friction"):
        with pytest.raises(ValueError, match=f"{name} must be True or False"):
            sghmc.EmpiricalFisher(**wrong(name, "no"))
    for name in ("every", "window"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number from 1"):
            sghmc.EmpiricalFisher(**wrong(name, 0))
