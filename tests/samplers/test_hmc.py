"""HMC remembers the gradient where it stands: no gradient is taken twice, and none goes stale.

Its law is tested in test_laws.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.gradients import Oracle
from sghmc.samplers.hmc import HMCNoise, HMCState
from sghmc.types import Change, Evaluation

SCALES = jnp.array([1.0, 3.0])
SAMPLERS = {
    "HMC": sghmc.HMC(0.3, 4, mass=0.7, jitter=0.2),
    "no accept step": sghmc.HMC(0.3, 4, metropolis=False),
    "whitened": sghmc.Whitened(sghmc.HMC(0.9, 3), center=jnp.array([0.1, 0.2]), factor=0.5),
}


def potential(theta):
    return jnp.sum(SCALES * theta**4) + jnp.sum(theta**2)


def exact_oracle():
    calls = []

    def evaluate(i, theta):
        calls.append(i)
        return Evaluation(*jax.value_and_grad(potential)(theta))

    return Oracle(evaluate, potential, True), calls


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_state_that_was_informed_moves_as_one_that_was_not(name):
    """To rounding, and it stays informed of where it is, after a refusal too."""
    like = jnp.array([0.4, -0.3])
    kernel = SAMPLERS[name].prepare(like)
    oracle, _ = exact_oracle()
    plain = kernel.init([jnp.ones(2)], like)
    informed = kernel.with_cached_evaluation(plain, oracle)
    key = sghmc.core.random.words(jax.random.key(3))
    step = jax.jit(lambda t, noise, state: kernel.step(t, noise, state, oracle))
    accepted = []
    for t in range(30):
        noise = kernel.draw(key, t, 1, like)
        plain, _ = step(t, noise, plain)
        before = informed.position
        informed, info = step(t, noise, informed)
        assert plain.cached is None
        np.testing.assert_allclose(informed.position, plain.position, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(info.potential, informed.cached.potential)
        np.testing.assert_allclose(
            informed.cached.potential, potential(kernel.position(informed)), rtol=1e-4
        )
        fresh = kernel.with_cached_evaluation(informed, oracle).cached.grad
        np.testing.assert_allclose(informed.cached.grad, fresh, rtol=1e-4, atol=1e-5)
        accepted.append(bool(np.any(informed.position != before)))
    assert name == "no accept step" or {*accepted} == {True, False}


def count_evaluations(num_draws):
    """How often a run with trajectories of three steps asks for U and its gradient."""
    asked = []

    def counted(theta):
        jax.debug.callback(lambda: asked.append(1))
        return jnp.sum(theta**2) / 2

    sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(counted),
        sghmc.HMC(0.3, 3),
        jnp.ones(2),
        num_samples=num_draws,
        progress=False,
    )
    jax.effects_barrier()
    return len(asked)


@pytest.mark.slow
def test_a_run_takes_one_gradient_a_step():
    """The difference of two runs, so that what happens once does not count."""
    assert count_evaluations(16) - count_evaluations(8) == 8 * 3


def test_noisy_gradients_are_taken_anew():
    kernel = sghmc.HMC(0.3, 4).prepare(jnp.zeros(2))
    state = kernel.init([jnp.ones(2)], jnp.zeros(2))
    oracle = Oracle(lambda i, theta: Evaluation(potential(theta), theta), potential, False)
    assert kernel.with_cached_evaluation(state, oracle).cached is None


START, NORMALS, MASS, STEPS = np.array([0.1, -0.4]), np.array([1.3, 0.8]), 1.7, 3


def slope(i, theta):
    """A noisy gradient, another one at every evaluation."""
    return (1 + 0.1 * i) * theta


def trajectory():
    """The end of three leapfrog steps in NumPy, and its momentum."""
    r = np.sqrt(MASS) * NORMALS
    theta, r = START, r - 0.15 * slope(0, START)
    for i in range(1, STEPS + 1):
        theta = theta + 0.3 * r / MASS
        r = r - (0.15 if i == STEPS else 0.3) * slope(i, theta)
    return theta, r


@pytest.mark.parametrize("rule", [True, sghmc.Austerity(error=0.0, batch_size=10)])
@pytest.mark.parametrize("is_below", [True, False])
def test_a_noisy_trajectory_is_accepted_by_the_exact_potential(rule, is_below):
    """A uniform just below the probability min(1, exp(H(old) − H(new))) accepts, one above not.

    With `Austerity` the change of the potential comes from its rows, here all of them.
    """
    kernel = sghmc.HMC(0.3, STEPS, mass=MASS, metropolis=rule).prepare(jnp.zeros(2))

    def change(old, new):
        rows = jnp.arange(1.0, 12.0)
        whole = potential(new) - potential(old)
        return Change(0.25 * whole, lambda i: 0.75 * whole * rows[i] / jnp.sum(rows), 11)

    oracle = Oracle(
        lambda i, theta: Evaluation(7.0 + 0 * jnp.sum(theta), slope(i, theta)),
        potential,
        False,
        change,
    )
    theta, r = trajectory()
    old, new = (
        float(potential(jnp.asarray(at))) + np.sum(p**2) / MASS / 2
        for at, p in [(START, np.sqrt(MASS) * NORMALS), (theta, r)]
    )
    chance = min(1.0, np.exp(old - new))
    assert 0.05 < chance < 0.95
    uniform = chance * (0.999 if is_below else 1.001)
    noise = HMCNoise([jnp.asarray(NORMALS)], jnp.array([uniform]), jnp.array([3, 4], jnp.uint32))
    state = HMCState(jnp.asarray(START), jnp.zeros(2))
    end, info = jax.jit(lambda noise: kernel.step(0, noise, state, oracle))(noise)
    np.testing.assert_allclose(end.position, theta if is_below else START, rtol=1e-5)
    np.testing.assert_allclose(
        end.velocity, r / MASS if is_below else NORMALS / np.sqrt(MASS), rtol=1e-5
    )
    momentum = r if is_below else np.sqrt(MASS) * NORMALS
    heat = np.sum(momentum**2) / MASS / 2
    np.testing.assert_allclose(kernel.kinetic_temperature(0, end), heat, rtol=1e-5)
    if rule is True:
        np.testing.assert_allclose(info.acceptance, chance, rtol=1e-4)
        at = theta if is_below else START
        np.testing.assert_allclose(info.potential, potential(jnp.asarray(at)), rtol=1e-5)
    else:
        assert (float(info.acceptance), float(info.data_share)) == (float(is_below), 1.0)


def test_what_was_seen_does_not_outlive_a_change_of_hyperparameters():
    """A precision that jumps at every step: with a stale gradient the trajectories would differ."""

    def log_prior(theta, hyper):
        return -hyper["precision"] * jnp.sum(theta**2) / 2

    posterior = sghmc.Posterior(
        lambda theta, row, hyper: -0.5 * jnp.sum((theta - row) ** 2),
        log_prior,
        jnp.ones((1, 2)),
        hyper={"precision": jnp.array(1.0)},
    )
    update = sghmc.Gibbs(
        lambda key, params, target: {"precision": 41.0 - target.hyper["precision"]}, every=1
    )
    sampler, key = sghmc.HMC(0.1, 3), jax.random.key(5)
    samples = sghmc.sample(
        key, posterior, sampler, jnp.ones(2), gibbs=update, num_samples=12, progress=False
    )
    kernel = sampler.prepare(jnp.ones(2))
    words = sghmc.engine.chain.chain_keys(key, 1)[0]
    state = kernel.init(
        sghmc.core.random.normals_like(words[sghmc.engine.chain.INIT], 0, 1, jnp.ones(2)),
        jnp.ones(2),
    )

    @jax.jit
    def step(t, noise, state, precision):
        target = posterior.with_hyper({"precision": precision})
        oracle = Oracle(lambda i, theta: target.evaluate(theta), None, True)
        return kernel.step(t, noise, state, oracle)[0]

    precision = 1.0
    for t in range(12):
        noise = kernel.draw(words[sghmc.engine.chain.MOTION], t, 1, jnp.ones(2))
        state = step(t, noise, state, precision)
        np.testing.assert_allclose(samples.positions[0, t], state.position, rtol=1e-4, atol=1e-5)
        precision = 41.0 - precision
