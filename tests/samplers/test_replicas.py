"""Replicas: a swap is a Metropolis step, with noise or without, and modes get their weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import random
from sghmc.samplers.replicas import ReplicaNoise, swap_probability

SGHMC = sghmc.SGHMC(0.3, 1.2, mass=1.7)
ORDER = jnp.array([3, 4], jnp.uint32)


def random_state(kernel, key, size=2):
    """Replicas anywhere, with momenta that differ from their positions."""
    count = kernel.num_replicas
    start = kernel.init([jnp.zeros(size)], jnp.zeros(size))
    position, velocity = random.normals(key, 0, 2 * count, size).reshape(2, count, size)
    return start._replace(replicas=type(start.replicas)(position, 0.4 * velocity))


@pytest.mark.slow
@pytest.mark.parametrize("t", [0, 1], ids=["odd pairs", "even pairs"])
def test_a_swap_is_a_metropolis_step(t):
    """π(z) A(z) = π(z') A(z') for the joint law of all replicas, and a swap undoes itself.

    π is that of half a drift before the end of a step: exp(−(U + K)/τ) for each replica.
    """
    target = sghmc.Potential(lambda theta: jnp.sum(theta**4) / 4 + jnp.prod(theta))
    kernel = sghmc.ReplicaExchange(SGHMC, [0.7, 1.5, 4.0], every=1).prepare(jnp.zeros(2))
    oracle = sghmc.FullBatch().prepare(target, jnp.zeros(2)).oracle(target, [])
    noise = ReplicaNoise([], jnp.zeros(3), ORDER)  # a uniform of 0: all swaps are made

    def log_density(state):
        def of_replica(replica):
            kinetic = kernel.inner.kinetic_temperature(t, replica)  # 2K/d, d = 2
            return target.potential(kernel.inner.mid_drift(t, replica)) + kinetic

        return -jnp.sum(jax.vmap(of_replica)(state.replicas) / kernel.temperatures)

    @jax.jit
    @jax.vmap
    def there_and_back(key):
        state = random_state(kernel, key)
        there = kernel.swapped(t, noise, state, oracle)
        back = kernel.swapped(t, noise, there, oracle)
        pair = 1 - t
        flows = [
            log_density(z) + jnp.log(acceptance[pair])
            for z, acceptance in [(state, there.acceptance), (there, back.acceptance)]
        ]
        return state, there, back, jnp.stack(flows)

    state, there, back, flows = there_and_back(
        random.words(jax.random.split(jax.random.key(1), 50))
    )
    np.testing.assert_allclose(flows[:, 0], flows[:, 1], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(back.replicas.position, state.replicas.position, atol=1e-5)
    np.testing.assert_allclose(back.replicas.velocity, state.replicas.velocity, atol=1e-5)
    alone = 2 * t  # the replica whose turn it is not
    np.testing.assert_array_equal(
        there.replicas.position[:, alone], state.replicas.position[:, alone]
    )
    assert np.all(there.replicas.position[:, 1] != state.replicas.position[:, 1])


@pytest.mark.parametrize("deviation", [0.0, 0.5, 2.8])
def test_the_penalty_corrects_normal_noise_exactly(deviation):
    """Averaged over D̃ ~ N(D, σ²), acceptance there over acceptance back is exp(D)."""
    with jax.enable_x64(True):
        gain = np.array([-2.0, -0.3, 0.1, 1.7])[:, None]
        noise = np.linspace(-12, 12, 200_001)
        weights = np.exp(-(noise**2) / 2)
        weights /= weights.sum()
        there, back = (
            swap_probability(sign * gain + deviation * noise, deviation**2) @ weights
            for sign in (1, -1)
        )
    np.testing.assert_allclose(there / back, np.exp(gain[:, 0]), rtol=1e-6)


@pytest.mark.slow
def test_a_swap_looks_at_rows_until_its_noise_is_small():
    """Same rows for both, D̃ and σ² as on paper; all data where σ² stays above 8."""
    data = jnp.asarray(np.random.default_rng(0).normal(size=40), jnp.float32)
    posterior = sghmc.Posterior(
        lambda theta, x: -((x - theta) ** 2) / 2, lambda theta: -(theta**2), data
    )
    exchange = sghmc.ReplicaExchange(sghmc.SGLD(0.01), [1.0, 2.0, 5.0], 1, batch_size=10)
    kernel = exchange.prepare(jnp.zeros(()))
    oracle = sghmc.Minibatch(5).prepare(posterior, jnp.zeros(())).oracle(posterior, jnp.arange(5))

    @jax.jit
    def accepted(positions):
        start = kernel.init([jnp.zeros(1)], jnp.zeros(()))
        state = start._replace(replicas=start.replicas._replace(position=positions))
        noise = ReplicaNoise([], jnp.zeros(3), ORDER)
        return kernel.swapped(0, noise, state, oracle).acceptance[1]

    def on_paper(cold, hot, rows):
        terms = (data[rows] - cold) ** 2 / 2 - (data[rows] - hot) ** 2 / 2
        coldness = 1 / 2 - 1 / 5
        gain = coldness * (40 * np.mean(terms) + cold**2 - hot**2)
        variance = (coldness * 40) ** 2 * np.var(terms, ddof=1) / len(rows) * (1 - len(rows) / 40)
        return gain, variance

    @jax.jit
    def in_order(pair):
        key = random.fold(ORDER, pair)
        return random.permuted(key, jnp.zeros(1), jnp.arange(40)[None], 40)[0]

    rows = np.asarray(in_order(1))
    assert sorted(rows) == list(range(40))
    for cold, hot, num_rows in [(-0.7, 0.5, 10), (0.7, -1.0, 20), (2.0, -2.2, 40)]:
        for n in range(10, num_rows, 10):
            assert on_paper(cold, hot, rows[:n])[1] > 8
        gain, variance = on_paper(cold, hot, rows[:num_rows])
        assert variance < 8
        expected = min(1.0, np.exp(gain - variance / 2))
        assert 0.01 < expected < 1
        np.testing.assert_allclose(
            accepted(jnp.array([0.0, cold, hot])), expected, rtol=1e-4, atol=1e-6
        )


def right_of_zero(target, sampler, start, gradient):
    """The share of draws to the right, over 32 chains, with its standard error; the acceptance."""
    samples = sghmc.sample(
        jax.random.key(1),
        target,
        sampler,
        start,
        gradient=gradient,
        num_samples=400,
        thinning=20,
        num_chains=32,
        progress=False,
    )
    shares = np.mean(np.asarray(samples.positions)[:, 100:] > 0, axis=1)
    acceptance = samples.info.acceptance
    mean_acceptance = 0.0 if acceptance is None else float(acceptance.mean())
    return shares.mean(), shares.std(ddof=1) / np.sqrt(32), mean_acceptance


@pytest.mark.slow
def test_modes_get_their_weights_where_sghmc_stays_in_one():
    """Two normals ten standard deviations apart, weights 0.3 and 0.7; chains start in the lighter.

    Student's t with 31 degrees of freedom is beyond 4.3 for 2 keys in 10,000.
    """
    centers, weights = jnp.array([-2.5, 2.5]), jnp.array([0.3, 0.7])
    target = sghmc.Potential(
        lambda theta: -jax.nn.logsumexp(jnp.log(weights) - ((theta - centers) / 0.5) ** 2 / 2)
    )
    plain, gradient = sghmc.SGHMC(0.1, 1.0, gradient_noise=2.0), sghmc.NoisyGradient(2.0)
    replicas = sghmc.ReplicaExchange(plain, [1.0, 3.0, 9.0])
    share, error, acceptance = right_of_zero(target, replicas, jnp.array(-2.5), gradient)
    assert error < 0.02
    assert abs(share - 0.7) < 4.3 * error
    assert 0.3 < acceptance < 0.9
    assert right_of_zero(target, plain, jnp.array(-2.5), gradient) == (0, 0, 0)


@pytest.mark.slow
def test_modes_of_a_posterior_get_their_weights_by_swaps_on_some_rows():
    """x ~ N(θ², s²) and a tilted prior: two modes, weighed by quadrature. Whitened goes around.

    The same false-alarm rate.
    """
    data = jnp.asarray(np.random.default_rng(0).normal(1.0, 6.0, size=1000), jnp.float32)
    posterior = sghmc.Posterior(
        lambda theta, x: -((x - theta**2) ** 2) / 50, lambda theta: 0.4 * theta - theta**2, data
    )
    grid = jnp.linspace(-3, 3, 6001)
    potential = np.asarray(jax.vmap(posterior.potential)(grid), np.float64)
    density = np.exp(potential.min() - potential)
    expected = density[3001:].sum() / density.sum()
    plain, gradient = sghmc.BAOAB(0.2, 1.0, gradient_noise=0.3), sghmc.NoisyGradient(5.0)
    exchange = sghmc.ReplicaExchange(plain, [1.0, 2.5, 6.0, 15.0], batch_size=100)
    around = sghmc.Whitened(exchange, center=0.1, factor=0.25)
    share, error, acceptance = right_of_zero(posterior, around, jnp.array(-1.0), gradient)
    assert error < 0.03
    assert abs(share - expected) < 4.3 * error, (share, expected, error)
    assert 0.2 < acceptance < 0.9
    alone = sghmc.Whitened(plain, center=0.1, factor=0.25)
    assert right_of_zero(posterior, alone, jnp.array(-1.0), gradient)[0] < expected / 4


SGLD = sghmc.SGLD(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc.ReplicaExchange(sghmc.HMC(0.1, 3), [1, 2]), "with a temperature"),
        (lambda: sghmc.ReplicaExchange(0.1, [1, 2]), "with a temperature, .* not 0.1"),
        (lambda: sghmc.ReplicaExchange(sghmc.Cyclical(SGLD, 10), [1, 2]), "with a temperature"),
        (lambda: sghmc.ReplicaExchange(sghmc.SGLD(0.1, temperature=0.5), [1, 2]), "is 0.5, but"),
        (lambda: sghmc.ReplicaExchange(SGLD, [1.0]), r"two or more, .* not \(1.0,\)"),
        (lambda: sghmc.ReplicaExchange(SGLD, [1, 2, 2]), r"each above the last, not \(1.0, 2.0"),
        (lambda: sghmc.ReplicaExchange(SGLD, [0, 2]), "temperatures must be positive"),
        (lambda: sghmc.ReplicaExchange(SGLD, [1, 2], every=0), "every must be .* but is 0"),
        (lambda: sghmc.ReplicaExchange(SGLD, [1, 2], batch_size=5), "from 10, .* but is 5"),
        (
            lambda: sghmc.ReplicaExchange(
                sghmc.SGLD(0.1, gradient_noise=sghmc.EmpiricalFisher()), [1, 2]
            ).prepare(jnp.zeros(2)),
            "cannot share an EmpiricalFisher",
        ),
        (
            lambda: sghmc.ReplicaExchange(sghmc.SGLD(0.1, gradient_noise=30.0), [1, 2]).prepare(
                jnp.zeros(2)
            ),
            "is 3, but must be at most 2τ = 2",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.slow
def test_each_replica_has_batches_of_its_own():
    """Without noise, from one start, replicas differ by their batches alone."""
    data = jnp.asarray(np.random.default_rng(0).normal(size=40), jnp.float32)
    posterior = sghmc.Posterior(
        lambda theta, x: -((x - theta) ** 2) / 2, lambda theta: -(theta**2), data
    )
    gradient, like = sghmc.Minibatch(2), jnp.zeros(())
    kernel = sghmc.ReplicaExchange(sghmc.SGLD(0.01), [1.0, 1.5, 2.0], every=2).prepare(like)
    estimator = gradient.prepare(posterior, like)
    words = random.words(jax.random.key(0))
    rows = estimator.draw(words, 0, 1, kernel.num_gradients, like)
    oracle = estimator.oracle(posterior, rows)
    noise = jax.tree.map(jnp.zeros_like, kernel.draw(words, 0, 1, like))
    state, _ = kernel.step(0, noise, kernel.init([jnp.zeros(1)], like), oracle)
    assert len(np.unique(state.replicas.position)) == 3
