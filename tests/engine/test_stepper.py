"""A loop of one's own makes the steps that `sample` makes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import random
from sghmc.engine.chain import GRADIENT, MOTION, chain_keys

DATA = np.random.default_rng(0).normal(1.0, 1.0, 40).astype(np.float32)


def log_likelihood(theta, x):
    return -0.5 * jnp.sum((x - theta["a"]) ** 2)


def log_prior(theta):
    return -0.5 * jnp.sum(theta["a"] ** 2) - 0.5 * jnp.sum(theta["b"] ** 2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, DATA)
INIT = {"a": jnp.zeros(()), "b": jnp.ones((2, 1))}
RUNS = {
    "sghmc, batches": (sghmc.SGHMC(0.02, 1.0), sghmc.Minibatch(5)),
    "hmc": (sghmc.HMC(0.05, 4), sghmc.FullBatch()),
    "sgld, a moving center": (sghmc.SGLD(0.001), sghmc.ControlVariate(5, renew_every=3)),
    "estimated noise": (
        sghmc.SGHMC(0.01, 5.0, gradient_noise=sghmc.EmpiricalFisher(every=4)),
        sghmc.Minibatch(5),
    ),
    "a schedule": (sghmc.SGHMC(lambda t: 0.02 / (1 + t), 1.0), sghmc.Minibatch(5)),
}


def stepped(stepper, key, num_steps):
    def one(state, _):
        return stepper.step(state)

    return jax.lax.scan(one, stepper.init(key, INIT), length=num_steps)[1]


def test_steps_are_those_of_the_kernel_with_the_variates_of_the_first_chain():
    """θ ← θ − εg + √(2ε) n: normals and rows by the streams of `sample`, steps from 0 on."""
    sampler, start = sghmc.SGLD(lambda t: 0.01 / (1 + t)), jnp.array([2.0, -1.0])
    rows = jnp.arange(12.0).reshape(6, 2)
    posterior = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: 0.0, rows
    )
    stepper = sghmc.Stepper(posterior, sampler, start, gradient=sghmc.Minibatch(2), num_steps=3)
    keys, theta = chain_keys(jax.random.key(7), 1)[0], np.asarray(start)

    @eqx.filter_jit
    def both(stepper):
        state, seen = stepper.init(jax.random.key(7), start), []
        for t in range(2):
            (normals,) = random.normals_like(keys[MOTION], t, 1, start)
            state, draw = stepper.step(state)
            seen.append((draw, normals, random.integers(keys[GRADIENT], t, 1, 2, 6)))
        return state, seen

    state, seen = both(stepper)
    for t, (draw, normals, chosen) in enumerate(seen):
        away = theta - np.asarray(rows)[np.asarray(chosen)]
        np.testing.assert_allclose(draw.potential, 1.5 * np.sum(away**2), rtol=1e-5)
        step = 0.01 / (1 + t)
        theta = theta - step * 3 * away.sum(0) + np.sqrt(2 * step) * np.asarray(normals)
        np.testing.assert_allclose(draw.position, theta, rtol=1e-5)
        assert draw.acceptance is None
    assert int(state.t) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_same_key_gives_the_steps_of_sample(name):
    sampler, gradient = RUNS[name]
    key = jax.random.key(7)
    stepper = sghmc.Stepper(POSTERIOR, sampler, INIT, gradient=gradient, num_steps=12)
    draws = eqx.filter_jit(stepped)(stepper, key, 12)
    run = sghmc.sample(
        key, POSTERIOR, sampler, INIT, gradient=gradient, num_samples=12, progress=False
    )
    # One step after the other, not one program for all: they may round differently.
    for leaf in INIT:
        found, wanted = draws.position[leaf], run.positions[leaf][0]
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert (draws.acceptance is None) is (run.info.acceptance is None)


def test_gibbs_updates_are_made_when_they_are_due():
    def update(key, params, posterior):
        return posterior.hyper + 1.0

    posterior = sghmc.Posterior(
        lambda theta, hyper, x: -0.5 * (x - theta) ** 2,
        lambda theta, hyper: -0.5 * hyper * theta**2,
        DATA,
        hyper=jnp.zeros(()),
    )
    stepper = sghmc.Stepper(
        posterior, sghmc.SGLD(0.001), jnp.zeros(()), gibbs=sghmc.Gibbs(update, every=3)
    )
    step = eqx.filter_jit(stepper.step)
    state, seen = stepper.init(jax.random.key(0), jnp.zeros(())), []
    for _ in range(7):
        state, draw = step(state)
        seen.append(float(draw.hyper))
    assert seen == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.slow
def test_chains_are_mapped_over_keys():
    stepper = sghmc.Stepper(POSTERIOR, sghmc.SGHMC(0.02, 1.0), INIT, gradient=sghmc.Minibatch(5))
    several = jax.random.split(jax.random.key(1), 3)
    init, step = eqx.filter_jit(stepper.init), eqx.filter_jit(stepper.step)
    _, draws = jax.vmap(step)(jax.vmap(init, in_axes=(0, None))(several, INIT))
    for i in range(3):
        _, one = step(init(several[i], INIT))
        np.testing.assert_allclose(draws.position["a"][i], one.position["a"], rtol=1e-5, atol=1e-6)
    assert len(np.unique(draws.position["a"])) == 3


def test_a_chain_that_diverged_says_so():
    stepper = sghmc.Stepper(sghmc.Potential(lambda x: jnp.sum(x**4)), sghmc.SGLD(1.0), jnp.ones(1))
    state = stepper.init(jax.random.key(0), 10 * jnp.ones(1))
    step = eqx.filter_jit(stepper.step)
    for _ in range(7):
        state, _ = step(state)
    _, draw = step(state)
    assert not stepper.is_finite(draw)
    _, fine = step(stepper.init(jax.random.key(0), 0.1 * jnp.ones(1)))
    assert stepper.is_finite(fine)


def test_what_cannot_be_stepped_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"Stepper needs a sampler such as sghmc\.SGHMC"):
        sghmc.Stepper(POSTERIOR, "auto", INIT)  # pyright: ignore[reportArgumentType]
    np.save(tmp_path / "x.npy", DATA)
    source = sghmc.data.MemoryMapped(tmp_path / "x.npy")
    mapped = sghmc.Posterior(log_likelihood, log_prior, source)
    with pytest.raises(TypeError, match="A Stepper takes data that are arrays"):
        sghmc.Stepper(mapped, sghmc.SGHMC(0.02, 1.0), INIT, gradient=sghmc.Minibatch(5))
