"""The noise of an estimator from single examples: unbiased, over all batches there are."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import laws
import sghmc
from sghmc.gradients import fisher
from sghmc.gradients.minibatch import BatchEstimator

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
        memory = estimator.remember(model)

        def of_batch(rows):
            examples = model.rows(rows)
            estimate = fisher.gradient_noise(
                estimator, model, memory, position, examples, diagonal=diagonal
            )
            grad = estimator.oracle(model, rows, memory)(0, position).grad
            return estimate, jnp.concatenate([grad["offset"][None], grad["slope"]])

        estimates, grads = map(np.asarray, jax.jit(jax.vmap(of_batch))(all_batches(replacement)))
    covariance = np.cov(grads.T, ddof=0)
    laws.assert_close(estimates.mean(0), covariance.diagonal() if diagonal else covariance)
    assert estimates.std(0).max() > 0.1 * np.abs(covariance).max()


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
