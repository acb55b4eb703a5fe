"""MCHMC: turns are exact flows, volumes are what w says, and the accept step makes the law exact.

Nothing here is sampled. Invariance is an integral over positions and directions; a fault in the
accept probability leaves a part of it.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from planted_faults import becomes, planted
from sghmc.gradients import Oracle
from sghmc.samplers import microcanonical
from sghmc.samplers.microcanonical import MCHMCKernel, MCHMCNoise, MCHMCState, turn
from sghmc.types import Evaluation


def bent(theta):
    """A potential of two parameters that is no Gaussian: one bends the other."""
    return theta[0] ** 4 / 4 + theta[0] ** 2 / 2 + (theta[1] - theta[0] ** 2 / 2) ** 2


def oracle_of(potential, is_exact=True):
    return Oracle(
        lambda i, theta: Evaluation(*jax.value_and_grad(potential)(theta)), potential, is_exact
    )


def unit(vector):
    return vector / np.linalg.norm(vector)


# A turn.


@pytest.mark.parametrize("time", [1e-3, 0.7, 60.0])
def test_a_turn_is_the_flow_of_the_direction(time):
    """tanh of half the rapidity grows by δ: in double precision, by hand, in its plane."""
    u, grad = unit(np.array([0.6, -0.2, 0.8])), np.array([3.0, 1.0, -0.5])
    turned, energy = jax.jit(turn)(jnp.asarray(u), jnp.asarray(grad), jnp.asarray(time))
    down = -unit(grad)
    delta, along = time * np.linalg.norm(grad) / 2, down @ u
    reached = np.tanh(np.arctanh(along) + delta)
    rest = unit(u - along * down)
    np.testing.assert_allclose(turned, reached * down + np.sqrt(1 - reached**2) * rest, atol=1e-5)
    expected = 2 * (delta + np.log((1 + along + (1 - along) * np.exp(-2 * delta)) / 2))
    np.testing.assert_allclose(energy, expected, rtol=1e-4)


def test_turns_by_one_gradient_add_up_and_go_back():
    turn = jax.jit(microcanonical.turn)
    leaves = {"a": jnp.array([0.6, -0.3]), "b": jnp.asarray(0.7)}
    u = microcanonical._normalized(leaves)
    grad = {"a": jnp.array([2.0, 1.0]), "b": jnp.asarray(-3.0)}
    part, first = turn(u, grad, jnp.asarray(0.2))
    twice, second = turn(part, grad, jnp.asarray(0.5))
    once, whole = turn(u, grad, jnp.asarray(0.7))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), twice, once)
    np.testing.assert_allclose(first + second, whole, atol=1e-6)
    back, taken = turn(jax.tree.map(jnp.negative, once), grad, jnp.asarray(0.7))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, -y, atol=1e-6), back, u)
    np.testing.assert_allclose(taken, -whole, atol=1e-6)


def test_without_a_gradient_nothing_turns():
    u = jnp.array([0.6, 0.8])
    turned, energy = turn(u, jnp.zeros(2), jnp.asarray(0.5))
    np.testing.assert_allclose(turned, u, rtol=1e-6)
    assert float(energy) == 0


# A trajectory.


def cosh_bent(theta):
    return bent(theta) + jnp.cosh(theta[2])


POSITION, ANGLES = np.array([0.5, -1.0, 0.3]), np.array([1.1, 0.4])


def point(angles):
    """Of the sphere, from two angles."""
    a, b = angles
    return jnp.array([jnp.sin(a) * jnp.cos(b), jnp.sin(a) * jnp.sin(b), jnp.cos(a)])


def trajectory_of(sampler, potential, position, direction):
    """Where it ends, Σ w, and its energy error."""
    kernel = sampler.prepare(position)
    state = MCHMCState(position, direction)
    end, start, reached, work, _ = kernel.trajectory(kernel.step_size, state, oracle_of(potential))
    return end, work, reached - start + work


def test_a_trajectory_reversed_returns_with_the_opposite_energy_error():
    @jax.jit
    def both_ways(position, direction):
        move = functools.partial(trajectory_of, sghmc.MCHMC(0.9, 4), cosh_bent)
        end, _, error = move(position, direction)
        return error, move(end.position, -end.direction)

    with jax.enable_x64(True):
        direction = point(ANGLES)
        error, (back, _, undone) = both_ways(jnp.asarray(POSITION), direction)
        assert abs(error) > 0.01
        np.testing.assert_allclose(back.position, POSITION, atol=1e-12)
        np.testing.assert_allclose(back.direction, -direction, atol=1e-12)
        np.testing.assert_allclose(undone, -error, atol=1e-12)


def test_w_is_the_change_of_volume():
    """e^{−Σw} is the determinant of the map on (θ, u), u on its sphere: by autodiff in angles."""

    def mapped(both):
        end, work, _ = trajectory_of(sghmc.MCHMC(0.6, 3), cosh_bent, both[:3], point(both[3:]))
        x, y, z = end.direction
        ends = jnp.concatenate([end.position, jnp.array([jnp.arccos(z), jnp.arctan2(y, x)])])
        return ends, (ends, work)

    with jax.enable_x64(True):
        start = jnp.concatenate([POSITION, ANGLES])
        jacobian, (end, work) = jax.tree.map(
            np.asarray, jax.jit(jax.jacfwd(mapped, has_aux=True))(start)
        )
    # An area on the sphere is sin a times that in angles.
    volume = np.linalg.det(jacobian) * np.sin(end[3]) / np.sin(ANGLES[0])
    np.testing.assert_allclose(abs(volume), np.exp(-work), rtol=1e-9)
    assert abs(work) > 0.05


def test_energy_errors_of_single_steps_are_those_of_trajectories_of_one_step():
    """Three steps in one trajectory, and one after another: the sum of squares is the same."""
    oracle, state = oracle_of(cosh_bent), MCHMCState(jnp.array(POSITION), point(ANGLES))
    whole = sghmc.MCHMC(0.3, 3).prepare(state.position)
    single = sghmc.MCHMC(0.3, 1).prepare(state.position)

    epsilon = jnp.asarray(0.3)

    @jax.jit
    def both(state):
        squares, total, own = whole.trajectory(epsilon, state, oracle)[4], 0.0, 0.0
        for _ in range(3):
            state, start, end, work, square = single.trajectory(epsilon, state, oracle)
            total, own = total + (end - start + work) ** 2, own + square
        return squares, total, own

    squares, total, own = both(state)
    np.testing.assert_allclose(squares, total, rtol=1e-3)
    np.testing.assert_allclose(own, total, rtol=1e-3)


def test_the_energy_error_has_the_order_of_the_scheme():
    """ε³ in a step, ε² over a path of one length."""

    def error(num_steps):
        def of(step_size):
            sampler = sghmc.MCHMC(1.0, num_steps)
            kernel = dataclasses.replace(sampler.prepare(start[:2]), step_size=step_size)
            state = MCHMCState(start[:2], start[2:])
            _, begun, end, work, _ = kernel.trajectory(step_size, state, oracle_of(bent))
            return jnp.abs(end - begun + work)

        return jax.jit(of)

    with jax.enable_x64(True):
        start = jnp.array([0.5, -1.0, 0.6, 0.8])
        one, short, long = error(1), error(25), error(50)
        assert np.log2(one(0.02) / one(0.01)) == pytest.approx(3, abs=0.1)
        assert np.log2(short(0.04) / long(0.02)) == pytest.approx(2, abs=0.1)


# The law.

_EDGE, _NUM_POINTS, _NUM_ANGLES = 4.5, 64, 24


def stationarity_error(sampler, oracle_at=lambda noise: oracle_of(bent), noises=((),)):
    """∫ π(θ) α(θ, u) (f(θ′) − f(θ)) over what f itself is, for several f: 0 where the law is π.

    The uniform 0 takes every proposal; α is the acceptance that the step reports. All gradient
    noises count alike.
    """
    line = np.linspace(-_EDGE, _EDGE, _NUM_POINTS)
    # A share of a point aside, so that no symmetry of the grid hides a fault.
    angles = (np.arange(_NUM_ANGLES) + 0.3) * 2 * np.pi / _NUM_ANGLES
    points = np.stack(np.meshgrid(line, line + 1.0, indexing="ij"), -1).reshape(-1, 2)
    directions = jnp.asarray(np.stack([np.cos(angles), np.sin(angles)], -1), jnp.float32)
    kernel = sampler.prepare(jnp.zeros(2))

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None))
    @functools.partial(jax.vmap, in_axes=(None, 0, None))
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def flow(position, direction, noise):
        raw = MCHMCNoise([direction], jnp.array([0.0, 0.5]))
        state, info = kernel.step(0, raw, MCHMCState(position, direction), oracle_at(noise))
        new, old = (
            jnp.stack([x[0], x[1], x[0] ** 2, x[1] ** 2, x[0] * x[1], jnp.cos(3 * x[1])])
            for x in (state.position, position)
        )
        return info.acceptance * (new - old), jnp.abs(new)

    gained, scale = flow(jnp.asarray(points, jnp.float32), directions, jnp.asarray(noises))
    weight = np.exp(-np.asarray(jax.vmap(bent)(points), np.float64))[:, None]
    gained, scale = (
        np.sum(weight * np.asarray(each, np.float64).mean((1, 2)), axis=0)
        for each in (gained, scale)
    )
    return np.max(np.abs(gained) / scale)


EXACT = sghmc.MCHMC(0.7, 2)
MOST = 2e-3
"""Four times what the grid itself is off by, and a tenth of what the mildest fault leaves."""


class EverythingAccepted(MCHMCKernel):
    def step(self, t, noise, state, oracle):
        state, info = super().step(t, noise, state, oracle)
        assert info.acceptance is not None
        return state, info._replace(acceptance=jnp.where(info.acceptance > 1e-6, 1.0, 0.0))


class VolumeLeftOut(MCHMCKernel):
    def trajectory(self, epsilon, state, oracle):
        proposal, start, end, work, squares = super().trajectory(epsilon, state, oracle)
        return proposal, start, end, 0.9 * work, squares


def test_the_accept_step_leaves_the_law_invariant():
    assert stationarity_error(EXACT) < MOST


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EverythingAccepted, VolumeLeftOut])
def test_the_judge_sees_the_fault(kind):
    assert stationarity_error(planted(EXACT, becomes(kind))) > 5 * MOST


def by_rows(batches):
    """The oracle of two rows, of which a gradient sees one, twice: its number is in `batches`."""

    def rows(theta):
        return jnp.stack([bent(theta) - 0.8 * theta[1], 0.8 * theta[1]])

    def evaluate(i, theta):
        return Evaluation(*jax.value_and_grad(lambda theta: 2 * rows(theta)[batches[i]])(theta))

    return Oracle(evaluate, bent, False)


@pytest.mark.slow
def test_with_batches_the_accept_step_leaves_the_law_invariant():
    """Summed over all orders of batches: a trajectory and its reverse have them alike often."""
    orders = np.array(list(itertools.product((0, 1), repeat=3)))
    assert stationarity_error(sghmc.MCHMC(0.7, 1), by_rows, orders) < MOST
    # A quarter of the orders alone has no reverse.
    assert stationarity_error(sghmc.MCHMC(0.7, 1), by_rows, orders[:2]) > 5 * MOST


def test_without_accept_step_the_direction_is_forgotten_over_a_distance():
    """κ² = (e^{2mε/L} − 1)/d: over a path of L a fresh normal has e² − 1 times the old's square."""
    size = 400
    kernel = sghmc.MCHMC(0.5, 2, metropolis=False, decoherence=1.0).prepare(jnp.zeros(size))
    flat = Oracle(lambda i, x: Evaluation(jnp.zeros(()), jnp.zeros(size)), None, True)
    old = jnp.zeros(size).at[0].set(1.0)
    normals = jnp.zeros(size).at[1].set(20.0)  # √d: as long as a normal vector is
    state, info = kernel.step(
        0, MCHMCNoise([normals], jnp.array([0.5])), MCHMCState(jnp.zeros(size), old), flat
    )
    expected = np.array([1, np.sqrt(np.expm1(2.0))]) / np.exp(1.0)
    np.testing.assert_allclose(state.direction[:2], expected, rtol=1e-5)
    np.testing.assert_allclose(state.position[:2], expected, rtol=1e-5)  # a path of length 1
    assert info.acceptance == 1


# What it takes and gives.


@pytest.mark.slow
def test_a_state_that_was_informed_moves_as_one_that_was_not():
    kernel, oracle = sghmc.MCHMC(1.0, 3).prepare(jnp.zeros(2)), oracle_of(bent)
    plain = kernel.init([jnp.ones(2)], jnp.array([0.4, -0.3]))
    informed = kernel.with_cached_evaluation(plain, oracle)
    key, accepted = sghmc.core.random.words(jax.random.key(3)), set()

    @jax.jit
    def step(t, plain, informed):
        noise = kernel.draw(key, t, 1, plain.position)
        return (
            *(kernel.step(t, noise, state, oracle)[0] for state in (plain, informed)),
            kernel.with_cached_evaluation(plain, oracle).cached,
        )

    for t in range(20):
        before = informed.position
        plain, informed, _ = step(t, plain, informed)
        np.testing.assert_allclose(informed.position, plain.position, rtol=1e-4, atol=1e-5)
        fresh = step(0, plain, informed)[2]
        np.testing.assert_allclose(informed.cached.grad, fresh.grad, rtol=1e-3, atol=1e-4)
        accepted.add(bool(np.any(informed.position != before)))
    assert plain.cached is None
    assert accepted == {True, False}


HALF: Any = 0.5


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: sghmc.MCHMC(0.0, 2), ValueError, "step_size must be positive"),
        (lambda: sghmc.MCHMC(0.1, 0), ValueError, "num_steps"),
        (lambda: sghmc.MCHMC(0.1, 2, jitter=1.0), ValueError, "jitter must be"),
        (lambda: sghmc.MCHMC(0.1, 2, metropolis=HALF), TypeError, "metropolis must be True"),
        (lambda: sghmc.MCHMC(0.1, 2, decoherence=1.0), ValueError, "give metropolis=False"),
        (
            lambda: sghmc.MCHMC(0.1, 2, metropolis=False, decoherence=-1.0),
            ValueError,
            "decoherence must be positive",
        ),
        (lambda: sghmc.MCHMC(0.1, 2).prepare(jnp.zeros(1)), ValueError, "take HMC"),
    ],
)
def test_what_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_the_accept_rate_finds_the_step_size():
    samples = sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2),
        sghmc.MCHMC(0.1, 4, jitter=0.3),
        jnp.ones(20),
        num_samples=200,
        num_burnin=300,
        num_chains=4,
        adapt=sghmc.AdaptHMC(until=300, mass=False),
        progress=False,
    )
    np.testing.assert_allclose(np.mean(np.asarray(samples.info.acceptance)), 0.8, atol=0.1)
    np.testing.assert_allclose(samples.positions.std((0, 1)), 1.0, atol=0.2)
