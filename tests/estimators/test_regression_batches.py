"""Chains with batches: masses, the measured step, interruption, and the law."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators import regression_batches
from sghmc.estimators.regression_batches import RegressionBatches
from sghmc.estimators.regression_chains import ChainPlan, RegressionChains, Run
from sghmc.estimators.regression_network import Kind, RegressionNetwork, Table

NETWORK = RegressionNetwork(2, (), "silu")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 512)).astype(np.float32)
TABLE = Table(X, (X[0] + RNG.normal(size=512)).astype(np.float32), np.ones(512, np.float32))


@pytest.fixture
def batches():
    return RegressionBatches(NETWORK, TABLE, Kind.of("constant"), 64, 2)


@pytest.mark.slow
def test_masses_and_noise_are_those_of_the_rows(batches, monkeypatch):
    """M = 1 + Σ g², and V = N²/n times the variance of a row's gradient."""
    seen: dict[str, Any] = {}

    def sample(key, posterior, sampler, init, num_samples, **options):
        seen.update(sampler=sampler, posterior=posterior)
        draws = np.zeros((2, num_samples, NETWORK.num_parameters))
        info = types.SimpleNamespace(
            kinetic_temperature=np.ones((2, num_samples)), potential=np.ones((2, num_samples))
        )
        return types.SimpleNamespace(positions=draws, info=info)

    monkeypatch.setattr(regression_batches, "sample", sample)
    z = np.asarray(NETWORK.start(jax.random.key(0), 2))
    squares = batches._fisher(z)
    kind = batches.kind

    def of_row(z, i):
        row = Table(X[:, i][:, None], TABLE.y[i][None], np.ones(1, np.float32))
        return NETWORK.log_likelihood(z, row, kind)

    by_hand = np.mean(
        [
            np.asarray(jax.grad(of_row)(jnp.asarray(each), i)) ** 2
            for each in z
            for i in range(0, 8)
        ],
        axis=0,
    )
    some = regression_batches._squares(
        NETWORK, z, Table(X[:, :8], TABLE.y[:8], TABLE.weight[:8]), Kind.of("constant")
    )
    np.testing.assert_allclose(some, by_hand, rtol=1e-4, atol=1e-6)
    batches._round(jax.random.key(0), z, 0.02, squares, 3, 5)
    sampler = seen["sampler"]
    np.testing.assert_allclose(sampler.mass, 1 + 512 * squares, rtol=1e-5)
    np.testing.assert_allclose(sampler.gradient_noise, 512**2 / 64 * squares, rtol=1e-5)
    np.testing.assert_allclose(sampler.friction, sampler.mass * 0.05 / 0.02, rtol=1e-5)
    table = Table(*map(jnp.asarray, TABLE))
    expected = NETWORK.potential(jnp.asarray(z[0]), table, kind)
    assert float(seen["posterior"].potential(jnp.asarray(z[0]))) == pytest.approx(
        float(expected), rel=1e-4
    )


def test_the_step_is_a_part_of_the_shortest_period(batches):
    """Frequencies are those of an eigendecomposition, and less noise makes them higher."""
    z = np.asarray(NETWORK.start(jax.random.key(0), 2))
    table, kind = Table(*map(jnp.asarray, batches._part())), batches.kind
    squares = batches._fisher(z)
    mass = 1 + 512 * squares

    def of_row(z, i):
        row = Table(table.x[:, i][:, None], table.y[i][None], np.ones(1, np.float32))
        return NETWORK.log_likelihood(z, row, kind)

    found = regression_batches._frequencies(NETWORK, z, table, batches.kind, mass, 512)
    grads = jax.jit(jax.vmap(jax.grad(of_row), in_axes=(None, 0)))
    for each, frequency in zip(z, np.asarray(found), strict=True):
        rows = np.asarray(grads(jnp.asarray(each), np.arange(512)), np.float64)
        curvature = np.eye(len(each)) + rows.T @ rows
        expected = np.linalg.eigvalsh(curvature / np.sqrt(np.outer(mass, mass))).max() ** 0.5
        assert frequency == pytest.approx(expected, rel=1e-2)
    wanted = min(0.1, 0.6 / float(found.max()), (0.05 / 8) ** 0.5)
    assert batches._step(z, squares) == pytest.approx(wanted)
    # A tenth of the noise, since log σ = 2 z − 2.
    quieter = z - np.eye(len(z[0]))[-2] * np.log(10) / 2
    assert batches._step(quieter, squares) < 0.2 * batches._step(z, squares)


def rounds(temperatures, steps, scale=1e-3):
    """Rounds that tell their step, and are as hot as said; None: not finite."""

    def of(key, position, step, squares, thinning, count):
        steps.append(step)
        heat = temperatures[len(steps) - 1] if len(steps) <= len(temperatures) else 1.0
        if heat is None:
            return None
        draws = np.full((2, count, NETWORK.num_parameters), scale * len(steps))
        return Run(draws, draws[..., 0], np.empty(0), temperature=heat)

    return of


def test_rounds_that_are_too_hot_are_done_again_with_half_the_step(batches, monkeypatch):
    steps: list[float] = []
    monkeypatch.setattr(batches, "_step", lambda position, squares: 0.1)
    monkeypatch.setattr(batches, "_round", rounds([None, 1.5, 1.1, 1.0, 1.0, 1.0, 1.3], steps))
    z = np.zeros((2, NETWORK.num_parameters))
    run = batches.sample(jax.random.key(0), z, 100, 10)
    ratio = np.array(steps) / steps[0]
    np.testing.assert_allclose(ratio, [1, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25] + 4 * [0.125])
    assert run.draws.shape == (2, 10, NETWORK.num_parameters)
    # Draws of the four last rounds.
    np.testing.assert_allclose(np.unique(run.draws), [0.008, 0.009, 0.01, 0.011])
    assert run.temperature == pytest.approx(1.0)
    monkeypatch.setattr(batches, "_round", rounds(99 * [9.0], []))
    with pytest.raises(FloatingPointError, match="larger batch_size"):
        batches.sample(jax.random.key(0), z, 100, 10)


def test_rounds_that_lose_what_was_learned_are_done_again(batches, monkeypatch):
    """Calm momenta, but weights that are far off."""
    monkeypatch.setattr(batches, "_step", lambda position, squares: 0.1)
    monkeypatch.setattr(batches, "_round", rounds([], [], scale=5.0))
    with pytest.raises(FloatingPointError, match="larger batch_size"):
        batches.sample(jax.random.key(0), np.zeros((2, NETWORK.num_parameters)), 100, 10)


def test_a_round_is_held_against_the_best_that_each_chain_had(batches, monkeypatch):
    """Small losses add up; a chain alone is enough; what was gained since counts."""
    steps: list[float] = []
    allowed = NETWORK.num_parameters / TABLE.x.shape[1] + 0.1
    levels = [(-0.6, -0.6), (-1.05, 0.0), (0.5, 0.0), (0.0, -1.05), (-0.45, -0.9), (-0.55, 0.0)]
    told = iter(levels + 9 * [(0.5, 0.0)])
    monkeypatch.setattr(regression_batches, "_levels", lambda *given: np.zeros(2))
    monkeypatch.setattr(batches, "_step", lambda position, squares: 0.1)
    monkeypatch.setattr(batches, "_fisher", lambda position: None)
    monkeypatch.setattr(batches, "_round", rounds([], steps))
    monkeypatch.setattr(batches, "_reached", lambda run, part: allowed * np.array(next(told)))
    batches.sample(jax.random.key(0), np.zeros((2, NETWORK.num_parameters)), 100, 10)
    halvings = [0, 0, 1, 1, 2, 2] + 6 * [3]
    assert len(steps) == 11
    np.testing.assert_allclose(steps, 0.1 / 2.0 ** np.array(halvings)[:11])


def test_ctrl_c_ends_the_fit(batches, monkeypatch):
    short = types.SimpleNamespace(positions=np.zeros((2, 3, NETWORK.num_parameters)))
    monkeypatch.setattr(regression_batches, "sample", lambda *arguments, **options: short)
    with pytest.raises(KeyboardInterrupt):
        batches._round(jax.random.key(0), np.zeros((2, 8)), 0.05, np.ones(8), 3, 5)


@pytest.mark.slow
def test_the_law_is_that_of_exact_chains():
    """Means within 5 standard errors, of eight chains each, and sds within 15 %."""
    kind = Kind.of("constant")
    exact = RegressionChains(NETWORK, TABLE, kind)
    truth = exact.sample(jax.random.key(0), 8, ChainPlan.of(9000, 100)).draws
    batches = RegressionBatches(NETWORK, TABLE, kind, 64, 8)
    start = batches.train(jax.random.key(2), 1000)
    found = batches.sample(jax.random.key(3), start, 16_000, 400).draws
    # The mean's weights and bias, and the noise; the other output has no part in the likelihood.
    for place in (0, 1, 2, -2):
        one, other = found[..., place], truth[..., place]
        error = np.hypot(one.mean(1).std() / 8**0.5, other.mean(1).std() / 8**0.5)
        assert abs(one.mean() - other.mean()) < 5 * error + 0.1 * other.std()
        assert one.std() / other.std() == pytest.approx(1, abs=0.15)


class Line:
    """log p = Σ weight · y · (x·z) · level: its gradients are known."""

    num_parameters = 2

    def log_likelihood(self, z, table, kind):
        return jnp.sum(table.weight * table.y * (z @ table.x)) * kind


FEW = Table(
    jnp.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]]),
    jnp.array([2.0, -3.0, 0.4]),
    jnp.array([0.6, 1.7, 2.2]),
)
LEVEL = jnp.array(0.7)
ENDS = jnp.array([[0.2, -0.4], [1.1, 0.9]])


def test_squares_frequencies_and_levels_of_a_line():
    x, y, weight = (np.asarray(part, np.float64) for part in FEW)
    grads = [level * (weight * y * x).T for level in (0.7, 0.7)]
    squares = np.mean([(each**2).mean(0) for each in grads], axis=0)
    arguments: Any = (Line(), ENDS, FEW, LEVEL)
    np.testing.assert_allclose(regression_batches._squares(*arguments), squares, rtol=1e-5)
    levels = [g.sum(0) @ z / weight.sum() for g, z in zip(grads, np.asarray(ENDS), strict=True)]
    np.testing.assert_allclose(regression_batches._levels(*arguments), levels, rtol=1e-5)
    mass = np.array([1.7, 0.6], np.float32)
    found = regression_batches._frequencies(*arguments, mass, 12)
    for each, frequency in zip(grads, np.asarray(found), strict=True):
        # Three rows of twelve: each counts for four.
        curvature = np.eye(2) + 4 * each.T @ each
        wanted = np.linalg.eigvalsh(curvature / np.sqrt(np.outer(mass, mass)))[-1] ** 0.5
        assert frequency == pytest.approx(wanted, rel=1e-4)


def test_a_round_has_the_masses_and_the_noise_of_its_rows(monkeypatch):
    """M = 1 + Σ g², V = N²/n E[g²], and a momentum that loses a twentieth a step."""
    seen: dict[str, Any] = {}

    def sample(key, posterior, sampler, init, **options):
        seen.update(options, sampler=sampler)
        info = types.SimpleNamespace(
            kinetic_temperature=np.array([[1.0, 1.5], [0.5, 2.0]]), potential=np.ones((2, 2))
        )
        return types.SimpleNamespace(positions=np.zeros((2, 2, 2)), info=info)

    monkeypatch.setattr(regression_batches, "sample", sample)
    monkeypatch.setattr(RegressionBatches, "_posterior", None)
    table = Table(np.ones((2, 12)), np.ones(12), np.ones(12))
    batches = RegressionBatches(NETWORK, table, Kind.of("constant"), 4, 2)
    squares = np.array([0.5, 0.25])
    run = batches._round(jax.random.key(0), np.zeros((2, 2)), 0.02, squares, 3, 2)
    sampler = seen["sampler"]
    np.testing.assert_allclose(sampler.mass, [7.0, 4.0])
    np.testing.assert_allclose(sampler.gradient_noise, [18.0, 9.0])
    np.testing.assert_allclose(sampler.friction, np.array([7.0, 4.0]) * 0.05 / 0.02)
    assert sampler.step_size == 0.02
    assert (seen["thinning"], seen["num_samples"], seen["num_chains"]) == (3, 2, 2)
    assert seen["gradient"].batch_size == 4
    assert run.temperature == pytest.approx(1.25)


def test_training_takes_small_batches_with_one_noise_first(monkeypatch):
    seen = []

    def train(network, key, position, table, kind, num_steps, batch_size):
        seen.append((float(kind.is_input), num_steps, batch_size))
        return position + 1

    monkeypatch.setattr(regression_batches, "train", train)
    batches = RegressionBatches(NETWORK, TABLE, Kind.of("student"), 65, 2)
    start = batches.train(jax.random.key(0), 50)
    assert seen == [(0, 100, 33), (1, 100, 33)]
    assert start.shape == (2, NETWORK.num_parameters)
