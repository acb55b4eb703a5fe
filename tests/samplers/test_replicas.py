"""Replicas: a swap is a Metropolis step, with noise or without, and modes get their weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import random
from sghmc.gradients import Oracle
from sghmc.samplers import replicas
from sghmc.samplers.hmc import Estimate
from sghmc.samplers.replicas import ReplicaNoise, swap_probability
from sghmc.types import Change, Evaluation

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


LADDER = [0.7, 1.5, 4.0, 9.0]


def bowl(theta):
    return jnp.sum(theta**4) / 4 + theta[0] * theta[1]


def by_batch(i, theta):
    """A potential and a gradient that tell which batch they come from."""
    return Evaluation(1.0 + i + 0 * jnp.sum(theta), (1.0 + i) * theta)


@pytest.mark.parametrize(("t", "pairs"), [(3, [(0, 1), (2, 3)]), (1, [(1, 2)])])
def test_neighbours_swap_by_turns_as_the_formulas_say(t, pairs):
    """Half a drift back, at v·√(τ_new/τ_old); a uniform above the probability leaves a pair."""
    kernel = sghmc.ReplicaExchange(SGHMC, LADDER, every=2).prepare(jnp.zeros(2))
    temperatures = np.array(LADDER)
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(4, 2)), 0.4 * rng.normal(size=(4, 2))
    potentials = [float(bowl(each)) for each in x - v / 2]
    expected_x, expected_v, chances = x.copy(), v.copy(), np.full(3, -1.0)
    uniforms = np.full(4, 0.5)
    for number, (a, b) in enumerate(pairs):
        gain = (1 / temperatures[a] - 1 / temperatures[b]) * (potentials[a] - potentials[b])
        chances[a] = min(1.0, np.exp(gain))
        uniforms[a] = chances[a] * (0.99 if number == 0 else 1.01)
        if uniforms[a] < chances[a]:
            for new, old in [(a, b), (b, a)]:
                factor = np.sqrt(temperatures[new] / temperatures[old])
                expected_v[new] = factor * v[old]
                expected_x[new] = x[old] - v[old] / 2 + expected_v[new] / 2
    start = kernel.init([jnp.zeros(2)], jnp.zeros(2))
    moved = start.replicas._replace(position=jnp.asarray(x), velocity=jnp.asarray(v))
    state = start._replace(replicas=moved, acceptance=jnp.full(3, -1.0))
    noise = ReplicaNoise([], jnp.asarray(uniforms), ORDER)
    oracle = Oracle(lambda i, theta: Evaluation(bowl(theta), theta), bowl, True)
    end = jax.jit(lambda state: kernel.swapped(t, noise, state, oracle))(state)
    np.testing.assert_allclose(end.replicas.position, expected_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end.replicas.velocity, expected_v, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end.acceptance, chances, rtol=1e-5)


def test_of_two_replicas_the_one_pair_has_every_turn():
    """After every second step, 1 and 3 and so on; at a uniform of 0 it always swaps."""
    kernel = sghmc.ReplicaExchange(sghmc.SGLD(0.1), [1.0, 2.0], every=2).prepare(jnp.zeros(2))
    start = kernel.init([jnp.zeros(2)], jnp.zeros(2))
    positions = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    state = start._replace(replicas=start.replicas._replace(position=positions))
    noise = ReplicaNoise([jnp.zeros(4)], jnp.zeros(2), ORDER)
    still = Oracle(lambda i, theta: Evaluation(jnp.zeros(()), 0 * theta), bowl, True)
    step = jax.jit(lambda t: kernel.step(t, noise, state, still)[0].replicas.position)
    for t in range(5):
        wanted = positions[::-1] if t % 2 else positions
        np.testing.assert_array_equal(step(t), wanted)


def test_replicas_step_by_their_own_temperatures_noise_and_batches():
    """SGLD by hand; the potential told is that of the first, the acceptance the mean over pairs."""
    kernel = sghmc.ReplicaExchange(sghmc.SGLD(0.1), LADDER, every=5).prepare(jnp.zeros(2))
    start = kernel.init([jnp.zeros(2)], jnp.zeros(2))
    positions = np.arange(8.0).reshape(4, 2) / 4
    state = start._replace(
        replicas=start.replicas._replace(position=jnp.asarray(positions)),
        acceptance=jnp.array([0.2, 0.4, 0.9]),
    )
    normals = np.random.default_rng(1).normal(size=(4, 2))
    noise = ReplicaNoise([jnp.asarray(normals).reshape(-1)], jnp.zeros(4), ORDER)
    oracle = Oracle(by_batch, bowl, False)
    step = jax.jit(lambda state: kernel.step(0, noise, state, oracle))
    end, info = step(state)
    slopes = (1 + np.arange(4))[:, None] * positions
    spread = np.sqrt(0.2 * np.array(LADDER))[:, None]
    np.testing.assert_allclose(
        end.replicas.position, positions - 0.1 * slopes + spread * normals, rtol=1e-5
    )
    assert (float(info.potential), float(info.acceptance)) == (1.0, 0.5)
    np.testing.assert_array_equal(end.acceptance, state.acceptance)
    lost = state._replace(
        replicas=state.replicas._replace(position=jnp.asarray(positions).at[2, 0].set(jnp.nan))
    )
    assert np.isnan(step(lost)[1].potential)


def test_replicas_begin_and_show_themselves_at_their_temperatures():
    sampler = sghmc.ReplicaExchange(SGHMC, LADDER)
    assert sampler.dynamics.temperature == 0.7
    kernel = sampler.prepare(jnp.zeros(2))
    assert kernel.num_gradients == 4
    normals = jnp.array([0.3, -1.1])
    state = kernel.init([normals], jnp.array([1.0, 2.0]))
    wanted = 0.3 * np.sqrt(np.array(LADDER) / 1.7)[:, None] * np.asarray(normals)
    np.testing.assert_allclose(state.replicas.velocity, wanted, rtol=1e-6)
    np.testing.assert_allclose(kernel.momentum(state), 1.7 / 0.3 * wanted[0], rtol=1e-6)
    np.testing.assert_allclose(kernel.mid_drift(0, state), [1, 2] - wanted[0] / 2, rtol=1e-6)
    heat = kernel.inner.kinetic_temperature(0, jax.tree.map(lambda leaf: leaf[0], state.replicas))
    assert kernel.kinetic_temperature(0, state) == heat


def test_replicas_draw_by_keys_of_their_own():
    kernel = sghmc.ReplicaExchange(sghmc.SGLD(0.1), [1.0, 2.0, 3.0]).prepare(jnp.zeros(2))
    key = random.words(jax.random.key(5))
    drawn = jax.jit(lambda key: kernel.draw(key, 4, 2, jnp.zeros(2)))(key)
    own = [random.normals_like(random.fold(key, k), 4, 2, jnp.zeros(2))[0] for k in range(3)]
    by_step = np.stack(own).reshape(3, 2, 2).swapaxes(0, 1)
    np.testing.assert_array_equal(drawn.motion[0], by_step.reshape(-1))
    swaps = random.fold(key, 3)
    np.testing.assert_array_equal(drawn.uniforms, random.uniforms(swaps, 4, 2, 3))
    np.testing.assert_array_equal(drawn.order, random.bits(swaps, 4, 2, 2, slot=3))


def test_a_swap_on_some_rows_scales_their_estimate_and_its_variance(monkeypatch):
    """D̃ = (1/τ_a − 1/τ_b)(Ũ_a − Ũ_b), until its variance is at most 8, from rows of the pair."""

    def told(change, order, batch_size, is_enough):
        assert batch_size == 12
        few, many = (
            is_enough(Estimate(change.known, jnp.float32(v), jnp.int32(10))) for v in (31.9, 32.1)
        )
        own = jnp.all(order == random.fold(ORDER, 0))
        seen = jnp.stack([few, ~many, own]).all()
        return Estimate(change.known, jnp.where(seen, 3.0, jnp.nan), jnp.int32(10))

    monkeypatch.setattr(replicas, "estimate", told)
    kernel = sghmc.ReplicaExchange(sghmc.SGLD(0.1), [1.0, 2.0], batch_size=12).prepare(jnp.zeros(1))
    oracle = Oracle(
        by_batch, None, False, lambda old, new: Change(jnp.sum(new - old), lambda rows: rows, 99)
    )
    cold, hot = jnp.array([0]), jnp.array([1])
    gain, variance = kernel._gains(cold, hot, ORDER, jnp.array([[5.0], [3.0]]), oracle)
    assert gain == pytest.approx(0.5 * (5 - 3))
    assert variance == pytest.approx(0.25 * 3)


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
