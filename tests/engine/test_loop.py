"""How the compiled loop is cut, and what it looks at, for small and for large models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.engine import chain, loop
from sghmc.engine.chain import RunSpec
from sghmc.engine.driver import OneDevice
from sghmc.engine.layout import InitialPositions, Layout

PRECISION = np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]])).astype(np.float32)


def gaussian(theta):
    return 0.5 * theta @ jnp.asarray(PRECISION) @ theta


def two_dimensional_program():
    """Fig. 3's chain: every draw kept, with info."""
    target, like = sghmc.Potential(gaussian), jax.ShapeDtypeStruct((2,), jnp.float32)
    sampler = sghmc.SGHMC.from_learning_rate(0.05, 0.05, gradient_noise=1.0)
    return RunSpec(
        target=target,
        kernel=sampler.prepare(like),
        estimator=sghmc.NoisyGradient(1.0).prepare(target, like),
        gibbs=None,
        adapt=None,
        keep=None,
        averages={},
        trace=None,
        keys=jnp.zeros((1, 4, 2), jnp.uint32),
        layout=Layout.of(like, 1),
        thinning=1,
        is_stacked=False,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about XLA's compiler for CPUs")
def test_the_loop_of_a_small_model_is_one_kernel():
    """Ten times slower otherwise: XLA:CPU then hands out every operation of every step."""
    program = two_dimensional_program()
    start = InitialPositions(jnp.zeros((1, 2)), 0)
    carry = OneDevice().begin(program, start, evaluates=False).carry
    one = np.int32(1)
    compiled = loop.compiled_draws().lower(program, carry, one, one, one, capacity=100).compile()
    assert "xla_cpu_small_call" in compiled.compiled.as_text()


NUM_PARAMETERS = 20_000


def wide(theta):
    return jnp.sum(theta**2) / 2


def run_wide(step_size=0.1, potential=wide, num_samples=4, **settings):
    return sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(potential),
        sghmc.SGHMC(step_size, friction=1.0),
        jnp.ones(NUM_PARAMETERS),
        num_samples=num_samples,
        progress=False,
        **settings,
    )


@pytest.mark.slow
def test_a_large_model_thinned_is_every_third_draw():
    """Its normals are made step by step, and it is looked at once a draw."""
    thinned, every = run_wide(thinning=3), run_wide(num_samples=12)
    np.testing.assert_allclose(thinned.positions[0], every.positions[0, 2::3], rtol=1e-4, atol=1e-5)
    potentials = [float(wide(position)) for position in thinned.positions[0]]
    np.testing.assert_allclose(thinned.info.potential[0], potentials, rtol=1e-5)


@pytest.mark.parametrize("num_burnin", [0, 100])
def test_a_large_model_that_diverges_is_seen_within_a_draw(num_burnin):
    with pytest.raises(sghmc.DivergenceError, match="became non-finite at step 99"):
        # The energy grows tenfold a step: past single precision after some thirty steps.
        run_wide(1.0, lambda theta: 10 * wide(theta), thinning=100, num_burnin=num_burnin)


@pytest.mark.slow
@pytest.mark.parametrize("thinning", [1, 4])
def test_very_many_chains_move_as_a_few_do(thinning):
    """With 3,000 chains a block has fewer steps than a small model's."""

    def run(num_chains):
        return sghmc.sample(
            jax.random.key(4),
            sghmc.Potential(gaussian),
            sghmc.SGHMC(0.3, friction=1.0),
            jnp.ones(2),
            gradient=sghmc.NoisyGradient(0.5),
            num_samples=7,
            thinning=thinning,
            num_chains=num_chains,
            progress=False,
        )

    few, many = run(2), run(3_000)
    np.testing.assert_allclose(many.positions[:2], few.positions, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_whole_blocks_of_an_accelerator_give_the_same_draws_and_averages(monkeypatch):
    """Seven draws in blocks of four: the last block makes one more, which leaves no trace."""

    def run(potential):
        return sghmc.sample(
            jax.random.key(3),
            sghmc.Potential(potential),
            sghmc.SGHMC(0.3, friction=1.0),
            jnp.ones(2),
            num_samples=7,
            num_burnin=3,
            num_chains=2,
            averages={"mean": lambda theta: theta},
            progress=False,
        )

    usual = run(gaussian)
    monkeypatch.setattr(chain.runtime, "has_accelerator", lambda: True)
    monkeypatch.setattr(chain, "_BLOCK_DRAWS", 4)
    padded = run(functools.partial(gaussian))  # another function: nothing compiled fits it
    for one, other in ((usual.positions, padded.positions), (usual.averages, padded.averages)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), one, other)
    np.testing.assert_allclose(usual.info.potential, padded.info.potential, rtol=1e-5, atol=1e-6)


# Models of many arrays

SHAPES = [(3,), (2, 2), ()] * 7
"""Of more arrays than are compiled one by one."""


def deep(vector):
    leaves, start = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        leaves.append(vector[start : start + size].reshape(shape))
        start += size
    return leaves


def shallow(leaves):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])


CENTERS = np.random.default_rng(3).normal(size=(9, 56)).astype(np.float32)


def distance(theta, row):
    return -0.5 * jnp.sum(jnp.arange(1.0, 57.0) * (theta - row) ** 2)


def nothing_known(theta):
    return 0.0 * theta[0]


DEEP_RUNS = {
    "sghmc": (sghmc.SGHMC(0.02, 2.0, mass=1.7, gradient_noise=0.3), {}),
    "sgld": (sghmc.SGLD(0.001, preconditioner=0.7), {}),
    "estimated noise": (
        sghmc.SGHMC(0.002, 200.0, gradient_noise=sghmc.EmpiricalFisher(every=2)),
        {},
    ),
    "adapted": (
        sghmc.SGHMC(0.02, 2.0),
        {"adapt": sghmc.AdaptMass(until=4, first_window=2), "num_burnin": 4},
    ),
    "hmc": (sghmc.HMC(0.02, 2, mass=1.7), {"gradient": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sghmc", *(pytest.param(n, marks=pytest.mark.slow) for n in DEEP_RUNS if n != "sghmc")]
)
@pytest.mark.parametrize("num_chains", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_many_arrays_move_as_one_with_all_their_numbers(name, num_chains):
    """Their normals are cut from one array, their sums gathered, their settings held once."""
    sampler, settings = DEEP_RUNS[name]
    settings = {
        "num_samples": 5,
        "num_chains": num_chains,
        "gradient": sghmc.Minibatch(4),
    } | settings
    start = jnp.linspace(-1.0, 1.0, 56)

    def run(through, init):
        target = sghmc.Posterior(
            lambda theta, row: distance(through(theta), row),
            lambda theta: nothing_known(through(theta)),
            CENTERS,
        )
        return sghmc.sample(jax.random.key(6), target, sampler, init, progress=False, **settings)

    whole, parts = run(lambda theta: theta, start), run(shallow, deep(start))
    drawn = np.concatenate([leaf.reshape(num_chains, 5, -1) for leaf in parts.positions], axis=-1)
    np.testing.assert_allclose(drawn, whole.positions, rtol=1e-4, atol=1e-5)
    for field in ("potential", "kinetic_temperature"):
        one, other = getattr(whole.info, field), getattr(parts.info, field)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(other, one, rtol=1e-3)
