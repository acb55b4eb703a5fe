"""Potentials that make their own random numbers: the law, the keys, the noise, what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from cases import RANDOM_SAMPLERS, Chain
from sghmc.core import random, tree

PRECISION = np.array([[2.0, 0.6], [0.6, 0.7]])
ROOT = np.array([[1.2, 0.0], [-0.5, 0.8]])
INIT = {"a": jnp.array([0.3]), "b": jnp.array(-0.7)}


def quadratic(params, key):
    """½θᵀAθ with the gradient noise N(0, V), V = ROOT ROOTᵀ."""
    theta = tree.ravel(params)
    force = ROOT.astype(theta.dtype) @ jax.random.normal(key, (2,), theta.dtype)
    return theta @ PRECISION.astype(theta.dtype) @ theta / 2 + force @ theta


def exact(params):
    theta = tree.ravel(params)
    return theta @ PRECISION.astype(theta.dtype) @ theta / 2


NO_BOOL: Any = 1
TARGET = sghmc.Potential(quadratic, stochastic=True)


def run(sampler, **options):
    options = {"num_samples": 6, "num_chains": 3, "progress": False} | options
    return sghmc.sample(jax.random.key(1), TARGET, sampler, INIT, **options)


def key_of(words, i):
    return jax.random.wrap_key_data(words[2 * i : 2 * i + 2], impl="threefry2x32")


@pytest.mark.slow_cases("hmc", "sghmc", "ubu")
@pytest.mark.parametrize(
    "sampler",
    [
        sghmc.SGHMC(0.2, 1.3, 0.8),
        sghmc.UBU(0.2, 1.3, 0.8),
        sghmc.SGLD(0.1),
        sghmc.HMC(0.2, 2, metropolis=False),
    ],
    ids=["sghmc", "ubu", "sgld", "hmc"],
)
def test_a_step_is_that_of_a_noisy_gradient_with_the_normals_of_the_keys(sampler):
    """So its law is NoisyGradient's, which `theory` knows: V of the keys' normals is that of U."""
    with jax.enable_x64(True):
        init = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), INIT)
        keyed = Chain(jax.random.key(2), TARGET, sampler, sghmc.FullBatch(), init)
        noisy = Chain(
            jax.random.key(2), sghmc.Potential(exact), sampler, sghmc.NoisyGradient(np.eye(2)), init
        )
        own, words = keyed.noise(3)
        count = keyed.kernel.num_gradients
        forces = jnp.stack([ROOT @ jax.random.normal(key_of(words, i), (2,)) for i in range(count)])
        seen, _ = jax.jit(keyed.step)(3, (own, words), keyed.state)
        normals = [forces[:, 0], forces[:, 1]]  # NoisyGradient adds its normals to each leaf
        expected, _ = jax.jit(noisy.step)(3, (own, normals), keyed.state)
    for a, b in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.slow
def test_every_chain_step_and_evaluation_has_its_own_key():
    """What a step draws depends on the key and the step alone: a run resumes anywhere."""
    estimator = sghmc.FullBatch().prepare(TARGET, INIT)
    chains = random.words(jax.random.split(jax.random.key(3), 4))
    drawn = [np.asarray(estimator.draw(key, 0, 50, 3, INIT)).reshape(-1, 2) for key in chains]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == 4 * 50 * 3
    later = np.asarray(estimator.draw(chains[0], 20, 5, 3, INIT)).reshape(-1, 2)
    np.testing.assert_array_equal(later, drawn[0][60:75])


@pytest.mark.slow
def test_its_noise_is_estimated_from_repeated_keys():
    """200 estimates of 16 keys: V to √(2/3000) = 2.6 %, five of which are 13 %."""
    chain = Chain(jax.random.key(4), TARGET, sghmc.SGLD(0.1), sghmc.FullBatch(), INIT)

    @jax.jit
    @jax.vmap
    def estimates(t):
        keys = chain.estimator.examples(TARGET, chain.estimator.draw(chain.keys[2], t, 1, 1, INIT))
        grads = chain.estimator.example_gradients(TARGET, INIT, keys, ())
        return chain.estimator.noise_scale * jnp.cov(jax.vmap(tree.ravel)(grads).T)

    mean = np.mean(estimates(jnp.arange(200)), 0)
    np.testing.assert_allclose(mean, ROOT @ ROOT.T, atol=0.13 * 1.44)


@pytest.mark.slow
def test_subtracting_the_estimate_takes_the_bias_away():
    """SGLD with V = V̂ against V̂ = 0: variances within five standard errors of the exact laws.

    64 chains of 600 draws, each about 10 steps from the next independent one: some 4,000 of them,
    errors √(2/4000) = 2.2 %; the uncorrected law is off by 20 % and more.
    """
    fisher = sghmc.EmpiricalFisher(diagonal=False, every=20, window=1000)
    laws = {}
    for name, sampler in {
        "subtracted": sghmc.SGLD(0.15, gradient_noise=fisher),
        "left in": sghmc.SGLD(0.15),
    }.items():
        samples = run(sampler, num_samples=600, num_burnin=100, num_chains=64)
        draws = np.concatenate([samples.positions["a"], samples.positions["b"][..., None]], -1)
        laws[name] = draws.var((0, 1))
    noise = ROOT @ ROOT.T
    clean, heated = (
        sghmc.theory.stationary_law(
            sghmc.SGLD(0.15, gradient_noise=subtracted), PRECISION, noise
        ).covariance.diagonal()
        for subtracted in (noise, 0.0)
    )
    np.testing.assert_allclose(laws["subtracted"], clean, rtol=0.11)
    np.testing.assert_allclose(laws["left in"], heated, rtol=0.11)
    assert np.all(heated[0] > 1.1 * clean[0])


TAKEN = {
    name: sampler
    for name, sampler in RANDOM_SAMPLERS.items()
    if not sampler.dynamics.metropolis and not name.startswith("replicas")
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [n if n in ("sgnht", "psgld") else pytest.param(n, marks=pytest.mark.slow) for n in TAKEN],
)
def test_samplers_without_an_accept_step_take_it(name):
    samples = run(TAKEN[name], num_samples=3)
    assert np.all(np.isfinite(samples.positions["b"]))
    assert len({float(x) for x in samples.info.potential[:, -1]}) == 3


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit_and_knows_its_potential(tmp_path):
    fisher = sghmc.EmpiricalFisher(every=3)
    sampler = sghmc.SGHMC(0.05, 3.0, gradient_noise=fisher)
    whole = run(sampler, num_samples=20)
    checkpoint = sghmc.Checkpoint(tmp_path / "run", every=5)
    assert np.array_equal(run(sampler, num_samples=20, checkpoint=checkpoint).positions["a"],
                          whole.positions["a"])  # fmt: skip
    other = sghmc.Potential(lambda params, key: 2 * quadratic(params, key), stochastic=True)
    with pytest.raises(sghmc.CheckpointError, match="target"):
        sghmc.sample(
            jax.random.key(1), other, sampler, INIT, num_samples=20, num_chains=3, progress=False,
            checkpoint=checkpoint,
        )  # fmt: skip


@pytest.mark.slow
def test_its_verdict_says_what_it_did_not_look_at():
    samples = run(sghmc.SGHMC(0.1, 1.0), num_samples=200)
    assert "the potential is stochastic" in str(samples.health())
    with pytest.warns(sghmc.HealthWarning, match="chains disagree"):  # so few draws do not agree
        assert list(samples.summary().index) == ["a[0]", "b"]


NO_EXACT = r"Potential is stochastic.*no exact values.*metropolis=False"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run(sghmc.HMC(0.1, 3)), NO_EXACT),
        (lambda: run(sghmc.ReplicaExchange(sghmc.SGHMC(0.1, 1.0), [1, 2], every=2)), NO_EXACT),
        (lambda: run(sghmc.SGHMC(0.1, 1.0), gradient=sghmc.NoisyGradient(1.0)), NO_EXACT),
        (lambda: run(sghmc.SGHMC(0.1, 1.0), gradient=sghmc.Minibatch(3)), "needs data to draw"),
        (lambda: run("auto"), '"auto" searches the mode by exact values'),
        (lambda: sghmc.tune(jax.random.key(0), TARGET, INIT), NO_EXACT),
        (lambda: TARGET.gradient(INIT), NO_EXACT),
        (lambda: sghmc.Potential(quadratic, stochastic=NO_BOOL), "must be True or False"),
    ],
    ids=["hmc", "replicas", "noisy", "minibatch", "auto", "tune", "gradient", "flag"],
)
def test_what_needs_exact_values_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_potential_of_the_wrong_kind():
    with pytest.raises(ValueError, match=r"U\(params, key\) must return one real number"):
        sghmc.sample(
            jax.random.key(0),
            sghmc.Potential(lambda params, key: jax.random.normal(key, (2,)), stochastic=True),
            sghmc.SGLD(0.1),
            jnp.zeros(2),
        )


def test_a_gradient_takes_the_key_of_its_two_words_and_noise_sixteen_others():
    """The third evaluation of a step: its words are the fifth and the sixth."""
    words = jnp.arange(11, 17, dtype=jnp.uint32)
    estimator = sghmc.FullBatch().prepare(TARGET, INIT)

    @jax.jit
    def seen(words):
        keys = estimator.examples(TARGET, words)
        grads = estimator.example_gradients(TARGET, INIT, keys, ())
        return estimator.oracle(TARGET, words)(2, INIT), jax.vmap(tree.ravel)(grads)

    @jax.jit
    def expected(words):
        own = jax.random.wrap_key_data(words[4:6], impl="threefry2x32")
        first = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
        others = jax.random.split(jax.random.fold_in(first, 0x7FFFFFFF), 16)
        return (
            jax.random.normal(own, (2,)),
            jax.vmap(lambda k: jax.random.normal(k, (2,)))(others),
        )

    (value, grad), grads = seen(words)
    normal, normals = map(np.asarray, expected(words))
    theta, force = np.array([0.3, -0.7]), ROOT @ normal
    np.testing.assert_allclose(value, theta @ PRECISION @ theta / 2 + force @ theta, rtol=1e-5)
    np.testing.assert_allclose([*grad["a"], grad["b"]], PRECISION @ theta + force, rtol=1e-4)
    np.testing.assert_allclose(grads, PRECISION @ theta + normals @ ROOT.T, rtol=1e-4, atol=1e-5)
    assert not estimator.oracle(TARGET, words).is_exact
    assert estimator.noise_scale == 1
    drawn = jax.eval_shape(lambda: estimator.draw(jnp.zeros(2, jnp.uint32), 3, 5, 4, INIT))
    assert drawn.shape == (2 * 4 * 5,)
