"""One posterior for each chain, and samplers that change during burn-in."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.samplers.sghmc import SGHMCState

RNG = np.random.default_rng(0)
SIZES = (11, 7, 10)
DATA = [RNG.normal(size=(n, 2)).astype(np.float32) + i for i, n in enumerate(SIZES)]


def log_likelihood(theta, x, hyper):
    return -0.5 * hyper["precision"] * jnp.sum((x - theta) ** 2)


def log_prior(theta, hyper):
    return -0.5 * jnp.sum(theta**2)


def posteriors():
    return [
        sghmc.Posterior(log_likelihood, log_prior, x, {"precision": 1.0 + i})
        for i, x in enumerate(DATA)
    ]


def run(target, gradient, **settings):
    return sghmc.sample(
        jax.random.key(0),
        target,
        sghmc.SGHMC(0.05, friction=2.0),
        jnp.zeros(2),
        gradient=gradient,
        num_samples=20,
        num_burnin=3,
        thinning=2,
        progress=False,
        **settings,
    )


@pytest.mark.slow_cases("gradient0")
@pytest.mark.parametrize(
    "gradient",
    [
        sghmc.Minibatch(3),
        pytest.param(sghmc.FullBatch(), marks=pytest.mark.slow),
        pytest.param(sghmc.Minibatch(3, replacement=False), marks=pytest.mark.slow),
        pytest.param(sghmc.Minibatch(3, replacement="epochs"), marks=pytest.mark.slow),
    ],
)
def test_a_stacked_chain_is_the_chain_of_its_own_posterior(gradient):
    together = run(
        sghmc.Posterior.stack(posteriors()), gradient, num_chains=3, posterior_axis=0
    ).positions
    for chain, posterior in enumerate(posteriors()):
        alone = run(posterior, gradient, num_chains=3).positions[chain]
        np.testing.assert_allclose(together[chain], alone, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_padding_does_not_count():
    stack = sghmc.Posterior.stack(posteriors())
    for chain, posterior in enumerate(posteriors()):
        theta = jnp.array([0.3, -1.0])
        np.testing.assert_allclose(stack[chain].potential(theta), posterior.potential(theta), 1e-5)
        np.testing.assert_allclose(stack[chain].gradient(theta), posterior.gradient(theta), 1e-5)
        ones = stack[chain].sum_over_data(lambda rows: jnp.ones(len(rows)))
        assert ones == SIZES[chain]


@pytest.mark.slow
def test_a_stack_of_one():
    stack = sghmc.Posterior.stack(posteriors()[:1])
    together = run(stack, sghmc.Minibatch(3), posterior_axis=0).positions
    np.testing.assert_allclose(
        together, run(posteriors()[0], sghmc.Minibatch(3)).positions, rtol=2e-4, atol=2e-5
    )


def test_what_cannot_be_stacked_is_refused():
    first = posteriors()[0]
    with pytest.raises(TypeError, match="at least one"):
        sghmc.Posterior.stack([])
    other = sghmc.Posterior(lambda *args: 0.0, log_prior, DATA[0], {"precision": 1.0})
    with pytest.raises(ValueError, match="Posterior 1 of the stack has other functions"):
        sghmc.Posterior.stack([first, other])
    wide = sghmc.Posterior(log_likelihood, log_prior, np.zeros((4, 3)), {"precision": 1.0})
    with pytest.raises(ValueError, match=r"Posterior 1 of the stack has data .* of other shapes"):
        sghmc.Posterior.stack([first, wide])
    stack = sghmc.Posterior.stack([first, first])
    with pytest.raises(ValueError, match=r"stacks 2 posteriors.*num_chains is 3"):
        run(stack, sghmc.FullBatch(), num_chains=3, posterior_axis=0)
    with pytest.raises(ValueError, match="posterior_axis is None and the target a Stacked"):
        run(stack, sghmc.FullBatch(), num_chains=2)
    with pytest.raises(ValueError, match="posterior_axis is 0 and the target a Posterior"):
        run(first, sghmc.FullBatch(), posterior_axis=0)
    stack = sghmc.Posterior.stack(posteriors())
    with pytest.raises(ValueError, match="batch_size is 8, but the data have 7 rows"):
        run(stack, sghmc.Minibatch(8, replacement=False), num_chains=3, posterior_axis=0)


def gaussian(params):
    return jnp.sum(params["a"] ** 2) / 2 + 50 * jnp.sum(params["b"] ** 2)


START = {"a": jnp.zeros(3), "b": jnp.ones(())}
MASS = {"a": jnp.array([0.5, 1.0, 2.0]), "b": jnp.array(100.0)}


def adapted(until=40, num_burnin=20, chains=1, sampler=None):
    return sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(gaussian),
        sampler or sghmc.SGHMC(0.1, friction=1.0),
        START,
        num_samples=2000,
        num_burnin=num_burnin,
        thinning=2,
        num_chains=chains,
        adapt=sghmc.Adapt(lambda kernel, state, hyper: kernel.with_mass(state, MASS), 10, until),
        progress=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 16])
def test_an_adapted_mass_is_the_mass_that_runs(chains):
    """With mass M and friction M: the law of SGHMC(…, mass=M, friction=M), by its moments."""
    samples = adapted(chains=chains)
    drawn = np.concatenate(
        [samples.positions["a"], samples.positions["b"][..., None]], axis=-1
    ).astype(float)
    mass = np.array([0.5, 1.0, 2.0, 100.0])
    precision = np.array([1.0, 1.0, 1.0, 100.0])
    epsilon = 0.1
    exact = 1 / precision + epsilon**2 / 4 / (mass * (1 - epsilon / 2) - epsilon**2 / 4 * precision)
    # 32,000 draws in 16 chains, of which about one in ten counts: 2.5 % each; 5 errors allowed.
    tolerance = 0.6 if chains == 1 else 0.13
    np.testing.assert_allclose(drawn.var(axis=(0, 1)), exact, rtol=tolerance)
    assert abs(np.mean(samples.info.kinetic_temperature) - 1) < 0.1  # pyright: ignore


@pytest.mark.slow
def test_velocities_keep_their_law_when_the_mass_changes():
    kernel = sghmc.SGHMC(0.1, friction=1.0).prepare(START)
    velocity = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.array(4.0)}
    state = SGHMCState(START, velocity)
    new, moved = kernel.with_mass(state, MASS)
    before, after = kernel.kinetic_temperature(0, state), new.kinetic_temperature(0, moved)
    np.testing.assert_allclose(before, after, rtol=1e-6)
    back, returned = new.with_mass(moved, {"a": jnp.ones(3), "b": jnp.ones(())})
    np.testing.assert_allclose(returned.velocity["a"], velocity["a"], rtol=1e-6)
    same = eqx.tree_equal(back.learning_rate, kernel.adaptable(state).learning_rate, rtol=1e-6)
    assert same


def test_adaptation_beyond_burnin_is_refused():
    with pytest.raises(ValueError, match="until step 41, but burn-in ends after 40 steps"):
        adapted(until=41)
    with pytest.raises(TypeError, match="nothing to adapt"):
        adapted(sampler=sghmc.SGD(0.01))
    with pytest.raises(TypeError, match="mass that adapts is diagonal"):
        adapted(sampler=sghmc.SGHMC(0.1, friction=np.eye(4)))
