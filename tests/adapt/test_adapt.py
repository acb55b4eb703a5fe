"""Adaptation in burn-in: each rule against NumPy, and that what freezes is a plain sampler."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sghmc
from cases import params
from sghmc.adapt import Moment
from sghmc.adapt import mass as masses
from sghmc.adapt.hmc import begin_search
from sghmc.core import matrices
from sghmc.results.prediction import Origin

START = {"a": jnp.array([0.5, -1.0, 2.0]), "b": jnp.asarray(0.3)}
MASS = {"a": jnp.array([0.5, 1.7, 20.0]), "b": jnp.asarray(3.0)}
NOISE = {"a": np.array([0.2, 0.7, 0.1]), "b": np.float64(0.4)}
RNG = np.random.default_rng(1)


def scaled(factor):
    return jax.tree.map(lambda leaf: factor * np.asarray(leaf, float), MASS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            sghmc.SGHMC(0.1, 2.0, mass=1.0, gradient_noise=NOISE),
            sghmc.SGHMC(0.1, scaled(2.0), mass=scaled(1.0), gradient_noise=NOISE),
        ),
        (sghmc.HMC(0.1, 3, jitter=0.2), sghmc.HMC(0.1, 3, mass=scaled(1.0), jitter=0.2)),
        (
            sghmc.SGLD(0.1, 2.0, gradient_noise=NOISE),
            sghmc.SGLD(0.1, jax.tree.map(lambda m: 1 / m, scaled(1.0)), gradient_noise=NOISE),
        ),
        (
            sghmc.SGHMC(0.1, 2.0, mass=1.0, gradient_noise=sghmc.EmpiricalFisher()),
            sghmc.SGHMC(0.1, scaled(2.0), scaled(1.0), gradient_noise=sghmc.EmpiricalFisher()),
        ),
        (
            sghmc.SGLD(0.1, 2.0, gradient_noise=sghmc.EmpiricalFisher()),
            sghmc.SGLD(
                0.1,
                jax.tree.map(lambda m: 1 / m, scaled(1.0)),
                gradient_noise=sghmc.EmpiricalFisher(),
            ),
        ),
    ],
    ids=["sghmc", "hmc", "sgld", "sghmc, estimated", "sgld, estimated"],
)
def test_another_mass_makes_the_kernel_of_a_sampler_with_that_mass(one, other):
    kernel = one.prepare(START)
    state = kernel.init([jnp.ones(3), jnp.ones(1)], START)
    got = kernel.adaptable(state).with_mass(state, MASS)[0]
    expected = other.prepare(START)
    for a, b in zip(
        *(jax.tree.leaves(eqx.filter(k, eqx.is_array)) for k in (got, expected)), strict=True
    ):
        np.testing.assert_allclose(*np.broadcast_arrays(a, b), rtol=1e-6)
    masses = matrices.raveled(got.diagonal_mass(START)).values
    for a, b in zip(masses, matrices.raveled(MASS).values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def visits(adaptation, positions, gradients, every=1):
    """The masses after each visit of a chain that goes through given positions."""
    kernel = sghmc.SGHMC(0.1, 2.0, mass=4.0).prepare(START)
    state = kernel.init([jnp.ones(3), jnp.ones(1)], START)

    @jax.jit
    def revise(t, arrays, position, gradient, memory):
        moment = Moment(
            t,
            eqx.combine(arrays, kernel),
            state._replace(position=position),
            None,
            None,
            lambda: gradient,
        )
        new, _, memory = adaptation.revise(moment, memory)
        return eqx.filter(new, eqx.is_array), memory, new.diagonal_mass(START)

    arrays = eqx.filter(kernel.adaptable(state), eqx.is_array)
    memory, masses = adaptation.begin(kernel, START), []
    for i in range(len(positions)):
        shaped = ({"a": x[:3], "b": x[3]} for x in (positions[i], gradients[i]))
        arrays, memory, mass = revise((i + 1) * every - 1, arrays, *shaped, memory)
        masses.append(np.append(mass["a"], mass["b"]))
    return np.array(masses)


@pytest.mark.parametrize("gradients", [False, True])
def test_masses_come_from_the_variances_of_windows(gradients):
    """Visits every 2 steps; windows end after 7, 20 and 46 steps: after visits 3, 10 and 23."""
    scale = np.array([0.01, 1.0, 30.0, 2.0])
    x = (scale * RNG.normal(size=(25, 4))).astype(np.float32)
    g = (RNG.normal(size=(25, 4)) / scale).astype(np.float32)
    x[:10, 3] = 1.5  # never moved in the first two windows
    adaptation = sghmc.AdaptMass(until=46, gradients=gradients, first_window=6, every=2, start=1)
    assert adaptation.ends == (7, 19, 46)
    masses = visits(adaptation, x, g, every=2)
    expected, start = np.full(4, 4.0), 0
    for end in (3, 9, 23):
        np.testing.assert_allclose(
            masses[start : end - 1],
            expected[None] + np.zeros_like(masses[start : end - 1]),
            rtol=1e-5,
        )
        variance = np.var(x[start:end].astype(float), axis=0, ddof=1)
        slope = np.var(g[start:end].astype(float), axis=0, ddof=1)
        with np.errstate(divide="ignore"):
            m = np.sqrt(slope / variance) if gradients else 1 / variance
        n = end - start
        new = np.exp((n * np.log(m) + 5 * np.log(expected)) / (n + 5))
        expected, start = np.where(variance > 0, new, expected), end
        np.testing.assert_allclose(masses[end - 1], expected, rtol=1e-4)
    np.testing.assert_allclose(masses[-1], expected, rtol=1e-4)


def test_scales_come_from_squares_of_gradients_in_a_window_that_grows():
    g = (RNG.normal(size=(40, 4)) * [0.1, 1.0, 3.0, 0.0] + [0, 0, 20.0, 0]).astype(np.float32)
    masses = visits(sghmc.AdaptScale(until=40, damping=0.7), np.zeros_like(g), g)
    mean, square, window = np.zeros((3, 4))
    for i, gradient in enumerate(g.astype(float)):
        rate = 1 / (window + 1)
        mean, square = mean + rate * (gradient - mean), square + rate * (gradient**2 - square)
        share = np.divide(mean**2, square, out=np.zeros(4), where=square > 0)
        window = window + 1 - share * window
        np.testing.assert_allclose(masses[i], np.sqrt(0.49 + square), rtol=1e-4)
    assert window[0] > 3  # noise alone: long
    assert window[2] < 3  # a force that persists: short


def test_dual_averaging_is_that_of_its_authors():
    acceptances = RNG.uniform(size=30)
    search = begin_search(jnp.asarray(0.3))
    mu, h, log_mean = np.log(3.0), 0.0, np.log(0.3)
    for k, a in enumerate(acceptances, 1):
        search = search.with_acceptance(jnp.asarray(a, jnp.float32), 0.8)
        h = (1 - 1 / (k + 10)) * h + (0.8 - a) / (k + 10)
        log_step = mu - np.sqrt(k) / 0.05 * h
        log_mean = k**-0.75 * log_step + (1 - k**-0.75) * log_mean
        np.testing.assert_allclose(search.log_step_size, log_step, rtol=1e-4)
        np.testing.assert_allclose(search.log_mean, log_mean, rtol=1e-4)


def test_masses_of_hmc_change_between_a_sixth_and_five_sixths_of_the_way():
    """Windows double from half a sixth on, 20 at least, and the last one fills the rest."""
    assert sghmc.AdaptHMC(until=600).ends == (150, 250, 500)
    assert sghmc.AdaptHMC(until=700, start=100).ends == (250, 350, 600)
    assert sghmc.AdaptHMC(until=90).ends == (35, 75)
    assert sghmc.AdaptHMC(until=600, mass=False).ends == ()
    for until, ends in ((250, (250,)), (299, (299,)), (300, (100, 300)), (99, ())):
        assert masses.windows(0, until, 100) == ends


@pytest.mark.parametrize(
    ("sampler", "adaptation"),
    [
        (sghmc.SGHMC(0.1, 2.0), sghmc.AdaptMass(until=100, gradients=True)),
        (sghmc.BAOAB(0.1, 2.0), sghmc.AdaptScale(until=100)),
        (sghmc.SGLD(0.1), sghmc.AdaptScale(until=100)),
        (sghmc.HMC(0.1, 3), sghmc.AdaptMass(until=100)),
        (sghmc.HMC(0.1, 3), sghmc.AdaptHMC(until=100)),
        (sghmc.HMC(0.1, 3, mass=np.eye(9)), sghmc.AdaptHMC(until=100, mass=False)),
    ],
)
def test_any_pytree_keeps_its_shapes_and_dtypes(sampler, adaptation):
    """One leaf has low precision; kernel, state and memory must fit into a compiled loop."""
    position = params()
    kernel = sampler.prepare(position)

    def loop(position):
        normals = [jnp.ones(leaf.size, leaf.dtype) for leaf in jax.tree.leaves(position)]
        state = kernel.init(normals, position)
        ready = kernel.adaptable(state)
        before = (ready, state, adaptation.begin(kernel, position))
        moment = Moment(3, ready, state, None, jnp.ones(()), lambda: position)  # pyright: ignore
        after = adaptation.revise(moment, before[-1])
        return tuple(eqx.filter(each, eqx.is_array) for each in (before, after))

    before, after = jax.eval_shape(loop, position)
    assert eqx.tree_equal(before, after)


def test_nothing_changes_after_until():
    adapt = sghmc.AdaptMass(until=100, every=10, start=20, first_window=40)
    due = [t for t in range(130) if adapt.is_due(t)]
    assert due == [29, 39, 49, 59, 69, 79, 89, 99]
    adapt = sghmc.AdaptScale(until=5, start=2)
    assert [t for t in range(9) if adapt.is_due(t)] == [2, 3, 4]


SPREADS = np.geomspace(0.01, 10.0, 4).astype(np.float32)
STRETCHED = sghmc.Potential(lambda theta: 0.5 * jnp.sum((theta / SPREADS) ** 2))


def adapted(sampler, adapt, **options):
    return sghmc.sample(
        jax.random.key(2),
        STRETCHED,
        sampler,
        jnp.asarray(SPREADS),
        num_chains=16,
        adapt=adapt,
        progress=False,
        **options,
    )


def assert_right(samples):
    """E θ² by chains: |t| > 6 with 15 degrees of freedom has probability 2.4e-5, four times."""
    squares = np.mean((samples.positions / SPREADS) ** 2, axis=1)
    t = (squares.mean(0) - 1) / (squares.std(0, ddof=1) / 4)
    assert np.all(np.abs(t) < 6), t
    assert np.all(np.abs(squares.mean(0) - 1) < 0.15), squares.mean(0)


@pytest.mark.slow
def test_hmc_finds_its_step_size_and_mass():
    samples = adapted(
        sghmc.HMC(1.0, 5, jitter=0.3), sghmc.AdaptHMC(until=300), num_samples=300, num_burnin=300
    )
    assert_right(samples)
    rates = samples.info.acceptance.mean(1)  # pyright: ignore[reportOptionalMemberAccess]
    assert np.all((rates > 0.75) & (rates < 0.98)), rates


@pytest.mark.slow
def test_sghmc_finds_its_mass():
    """The first window has steps fit for the mass 1; then all frequencies are 1."""
    steps = optax.join_schedules([lambda t: 0.01, lambda t: 0.3], [100])
    samples = adapted(
        sghmc.SGHMC(steps, 1.0, observe="middle"),
        sghmc.AdaptMass(until=1000, gradients=True),
        num_samples=300,
        num_burnin=110,
        thinning=10,
    )
    assert_right(samples)
    assert isinstance(samples.origin, Origin)
    assert samples.origin.is_adapted  # so that health does not judge by the mass it began with


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc.AdaptScale(until=0), "until must be .* from 1, but is 0"),
        (lambda: sghmc.AdaptMass(until=99), "100 steps from step 0 on .* by step 99"),
        (
            lambda: sghmc.AdaptMass(until=500, first_window=5, every=10),
            "first_window .* from 20, but is 5",
        ),
        (lambda: sghmc.AdaptScale(until=10, damping=0.0), "damping must be positive .* but is 0"),
        (lambda: sghmc.AdaptHMC(until=50), "60 trajectories .* from 0 to 50 there are 50"),
        (lambda: sghmc.AdaptHMC(until=500, target_acceptance=1.0), "below 1, but is 1.0"),
        (lambda: sghmc.HMC(0.1, 3, jitter=1.0), "jitter must be .* below 1, but is 1.0"),
        (
            lambda: adapted(sghmc.SGD(0.1), sghmc.AdaptScale(until=2), num_samples=2, num_burnin=2),
            "SGD has nothing to adapt",
        ),
        (
            lambda: adapted(
                sghmc.SGLD(0.1, gradient_noise=0.2),
                sghmc.AdaptScale(until=2),
                num_samples=2,
                num_burnin=2,
            ),
            "gradient_noise is fixed at 0.2",
        ),
        (
            lambda: adapted(
                sghmc.HMC(0.1, 3, metropolis=False),
                sghmc.AdaptHMC(until=60),
                num_samples=2,
                num_burnin=60,
            ),
            "there is an accept step",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.slow
@pytest.mark.parametrize(
    "adapt",
    [sghmc.AdaptMass(until=60, first_window=20, gradients=True), sghmc.AdaptScale(until=60)],
)
def test_a_whitened_sampler_adapts_in_its_own_coordinates(adapt):
    """z of θ = 1 + z/2 moves as it would on U(1 + z/2): powers of two are exact."""

    def potential(theta):
        return jnp.sum(jnp.array([9.0, 0.5]) * (theta - 1) ** 2) / 2

    sampler, options = sghmc.SGHMC(0.1, 1.0), {"num_chains": 2, "num_burnin": 60, "adapt": adapt}
    options |= {"num_samples": 30, "progress": False}
    key = jax.random.key(3)
    plain = sghmc.sample(
        key, sghmc.Potential(lambda z: potential(1 + z / 2)), sampler, jnp.ones(2), **options
    )
    whitened = sghmc.sample(
        key,
        sghmc.Potential(potential),
        sghmc.Whitened(sampler, jnp.ones(2), 0.5),
        jnp.full(2, 1.5),
        **options,
    )
    np.testing.assert_allclose(whitened.positions, 1 + plain.positions / 2, rtol=1e-4, atol=1e-5)
