"""The samplers of `sghmc.torch` beside their JAX twins: the same noise, the same trajectory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import torch

import sghmc
from sghmc.torch import BAOAB, PSGLD, SGHMC, SGLD, SGNHT, GaussianPrior
from sghmc.torch.sghmc import MomentumOptimizer
from torch_steps import NUM_DATA, scripted

X = np.array([[0.5, -1.0, 2.0, 0.3, 1.1], [1.5, 0.2, -0.7, 1.0, -0.4], [-0.3, 0.8, 0.1, -1.2, 0.6]])
NUM_STEPS = 6


def _sgnht(thermostat, params, **required):
    return SGNHT(params, 0.2, 1.3, 0.8, thermostat, 0.9, temperature=1.7, **required)


TWINS = {
    "sghmc": (
        lambda params, **required: SGHMC(params, 0.2, 1.3, 0.8, 1.1, temperature=1.7, **required),
        lambda: sghmc.SGHMC(0.2, 1.3, 0.8, 1.1, 1.7),
    ),
    "sghmc learning rate": (
        lambda params, **required: SGHMC.from_learning_rate(
            params, 0.04, 0.3, 1.1, temperature=1.7, **required
        ),
        lambda: sghmc.SGHMC.from_learning_rate(0.04, 0.3, 1.1, 1.7),
    ),
    "sgld": (
        lambda params, **required: SGLD(params, 0.1, 1.3, 1.1, temperature=1.7, **required),
        lambda: sghmc.SGLD(0.1, 1.3, 1.1, 1.7),
    ),
    "baoab": (
        lambda params, **required: BAOAB(params, 0.2, 1.3, 0.8, 0.0, temperature=1.7, **required),
        lambda: sghmc.BAOAB(0.2, 1.3, 0.8, 0.0, 1.7),
    ),
    "psgld": (
        lambda params, **required: PSGLD(params, 0.1, 0.7, 0.6, True, temperature=1.7, **required),
        lambda: sghmc.PSGLD(0.1, 0.7, 0.6, True, 1.7),
    ),
    "psgld uncorrected": (
        lambda params, **required: PSGLD(params, 0.1, 0.7, 0.6, False, temperature=1.7, **required),
        lambda: sghmc.PSGLD(0.1, 0.7, 0.6, False, 1.7),
    ),
} | {
    f"sgnht {thermostat}": (
        functools.partial(_sgnht, thermostat),
        functools.partial(sghmc.SGNHT, 0.2, 1.3, 0.8, 1.7, thermostat, 0.9),
    )
    for thermostat in ("scalar", "diagonal")
}


def judge_path(name):
    """On a target that is not Gaussian, in double precision."""
    make, twin = TWINS[name]
    generator = np.random.default_rng(1)
    copies = 1 + (name == "psgld")
    starts = generator.normal(size=5)
    drawn = generator.normal(size=(NUM_STEPS, copies, 5))
    expected = jax_path(twin(), starts, drawn)
    np.testing.assert_allclose(torch_path(make, starts, drawn), expected, rtol=1e-9, atol=1e-11)


def jax_path(sampler, starts, drawn) -> np.ndarray:
    def potential(theta):
        loss = jnp.mean(jax.nn.softplus(X @ theta)) + jnp.mean(theta**4) / 4
        return NUM_DATA * loss + 0.3 * jnp.sum(theta**2) / 2

    with jax.enable_x64(True):
        theta = jnp.linspace(-1.0, 1.0, 5)
        kernel, target = sampler.prepare(theta, NUM_STEPS), sghmc.Potential(potential)
        oracle = sghmc.FullBatch().prepare(target, theta).oracle(target, [])
        state, path = kernel.init([jnp.asarray(starts)], theta), []
        for t, noise in enumerate(drawn):
            state, _ = kernel.step(t, [jnp.asarray(noise.reshape(-1))], state, oracle)
            path.append(np.asarray(kernel.position(state)))
    return np.stack(path)


def torch_path(make, starts, drawn) -> np.ndarray:
    theta = torch.linspace(-1, 1, 5, dtype=torch.float64)
    params = [part.clone().requires_grad_() for part in theta.split([2, 3])]
    sampler = make(params, num_data=NUM_DATA, prior=GaussianPrior(0.3), seed=0)
    x, path = torch.as_tensor(X), []

    def loss():
        theta = torch.cat(params)
        return torch.nn.functional.softplus(x @ theta).mean() + (theta**4).mean() / 4

    def closure():
        sampler.zero_grad()
        value = loss()
        if not getattr(sampler, "correction", False):
            value.backward()
        return value

    for t, noise in enumerate(drawn):
        first = [starts] if t == 0 and isinstance(sampler, MomentumOptimizer) else []
        with scripted(*first, *noise[::-1]):  # signs before noise
            sampler.step(closure)
        path.append(torch.cat(params).detach().numpy().copy())
    return np.stack(path)
