"""A program whose parts can be told apart by their numbers."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc.engine.chain import RunSpec, chain_keys
from sghmc.engine.layout import Layout
from sghmc.gradients import GradientEstimator, Oracle
from sghmc.samplers import (
    AdaptsMass,
    CachesEvaluation,
    EstimatesNoise,
    LazyRows,
    NoiseRoom,
)
from sghmc.types import Evaluation, StepInfo

LIKE = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(())}
"""Parameters of one chain."""
ROWS = np.array([0.5, -1.0, 2.0, 4.0, -3.0], np.float32)


def start(scale=1.0):
    return {"a": scale * jnp.arange(1.0, 7.0).reshape(2, 3), "b": jnp.asarray(-2.0 * scale)}


class MarkedState(NamedTuple):
    position: Any
    momentum: Any


def shifted(tree, by):
    return jax.tree.map(lambda leaf: leaf + by, tree)


class MarkedKernel(AdaptsMass, CachesEvaluation, EstimatesNoise):
    """θ ← 0.7 θ + n + 0.1 (t + 1) − 0.01 g, scaled; a look at a state adds a mark of its own."""

    scale: Any = 1.0
    estimate: sghmc.EmpiricalFisher | None = None
    accepts: bool = eqx.field(static=True, default=False)
    moves_first: bool = eqx.field(static=True, default=False)
    gradients: int = eqx.field(static=True, default=1)

    def init(self, normals, position):
        momentum = jax.tree.unflatten(jax.tree.structure(position), normals)
        return MarkedState(position, momentum)

    def step(self, t, noise, state, oracle):
        evaluation = oracle(self.gradients - 1, state.position)
        noise = jax.tree.unflatten(jax.tree.structure(state.position), noise)
        position = jax.tree.map(
            lambda x, n, g: self.scale * (0.7 * x + n + 0.1 * (t + 1) - 0.01 * g),
            state.position,
            noise,
            evaluation.grad,
        )
        acceptance = jnp.asarray(0.25) if self.accepts else None
        return MarkedState(position, noise), StepInfo(evaluation.potential, acceptance)

    @property
    def num_gradients(self):
        return self.gradients

    @property
    def gradient_use(self):
        return "inside" if self.moves_first else "start"

    def with_cached_evaluation(self, state, oracle):
        if not oracle.is_exact:
            return state
        return state._replace(momentum=oracle(0, state.position).grad)

    def draw_from(self, t, state):
        return shifted(state.position, 10 + t)

    def mid_drift(self, t, state):
        return shifted(state.position, -10 - t)

    def kinetic_temperature(self, t, state):
        return jnp.asarray(t + 0.5)

    def adaptable(self, state):
        return eqx.tree_at(lambda kernel: kernel.scale, self, jnp.asarray(self.scale))

    @property
    def fisher(self):
        return self.estimate

    def with_gradient_noise(self, t, gradient_noise, like):
        scale = self.scale + jnp.max(gradient_noise) * 0
        room = NoiseRoom(jnp.max(gradient_noise), jnp.asarray(0.001 * (t + 1), jnp.float32))
        return eqx.tree_at(lambda kernel: kernel.scale, self, scale), room

    def pull_back(self, grad):
        return jax.tree.map(lambda leaf: 2 * leaf, grad)

    def diagonal_mass(self, position):
        raise NotImplementedError

    def with_mass(self, state, mass):
        raise NotImplementedError


class LazyMarkedKernel(MarkedKernel, LazyRows):
    def flush(self, t, noise, state, oracle):
        momentum = jax.tree.unflatten(jax.tree.structure(state.position), noise)
        return MarkedState(shifted(state.position, 1000 + t), momentum)


class MarkedEstimator(GradientEstimator):
    """Remembers how often it was asked to, and what it was shown."""

    exact: bool = eqx.field(static=True, default=True)
    every: int | None = eqx.field(static=True, default=None)

    @property
    def renew_every(self):
        return self.every

    def init_anchor(self, target):
        return jnp.asarray(target.hyper, jnp.float32)

    def renew_anchor(self, target, anchor):
        return anchor + 100 * target.hyper

    def move_anchor(self, target, anchor, position):
        return anchor + target.hyper * position["a"][1, 2]

    def oracle(self, target, noise, anchor=()):
        def evaluate(i, position):
            return Evaluation(*jax.value_and_grad(target.potential)(position))

        return Oracle(evaluate, target.potential, self.exact)


def log_likelihood(params, row, hyper):
    return -0.5 * hyper * row * jnp.sum(params["a"] ** 2)


def log_prior(params, hyper):
    return -0.5 * hyper * params["b"] ** 2


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, ROWS, hyper=jnp.asarray(3.0))


def program(num_chains=1, kernel=None, estimator=None, thinning=1, **parts) -> RunSpec:
    usual: dict[str, Any] = {
        "target": POSTERIOR,
        "gibbs": None,
        "adapt": None,
        "keep": None,
        "averages": {},
        "trace": None,
        "keys": chain_keys(jax.random.key(21), num_chains),
        "layout": Layout.of(LIKE, num_chains),
        "is_stacked": False,
    }
    return RunSpec(
        **usual | parts,
        kernel=MarkedKernel() if kernel is None else kernel,
        estimator=MarkedEstimator() if estimator is None else estimator,
        thinning=thinning,
    )


def alone(num_chains=1, **parts) -> RunSpec:
    """The program as its only chain sees it."""
    whole = program(num_chains, **parts)
    return dataclasses.replace(whole, keys=whole.keys[0])


def flat(scale=1.0):
    return jax.tree.map(jnp.ravel, start(scale))
