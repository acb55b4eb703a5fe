"""The baselines of the paper's experiments: gradient descent, with and without momentum."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sghmc.core import random, tree
from sghmc.core.checks import array_setting, check_setting, rescale, value_at, values_over
from sghmc.gradients import Oracle
from sghmc.samplers import Dynamics, Kernel, Sampler, Traits
from sghmc.types import Normals, PyTree, Schedule, Step, StepInfo


class SGD(Sampler):
    """Stochastic gradient descent, θ ← θ − η ∇Ũ(θ): finds a mode, samples nothing.

    `learning_rate` (η) is a number or a schedule; the gradient is that of the whole potential, so
    η is the usual learning rate divided by the number of examples.

    >>> import sghmc
    >>> sghmc.SGD(1e-5)
    SGD(learning_rate=1e-05)
    """

    traits: ClassVar[Traits] = Traits("no law", "η", "a mode, nothing more")

    learning_rate: float | Schedule

    def __check_init__(self):
        check_setting(self.learning_rate, "learning_rate", positive=True)

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGDKernel":
        values_over(self.learning_rate, num_steps, "learning_rate")
        return SGDKernel(array_setting(self.learning_rate, tree.float_type(like)))

    @property
    def dynamics(self) -> Dynamics:
        return Dynamics(step_size=self.learning_rate)

    def rescaled(self, factor: float) -> "SGD":
        return SGD(rescale(self.learning_rate, factor))


class SGDState(NamedTuple):
    position: PyTree


class SGDKernel(Kernel[SGDState, Normals]):
    learning_rate: jax.Array | Schedule

    def init(self, normals: Normals, position: PyTree) -> SGDState:
        return SGDState(position)

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Normals:
        return []

    def step(
        self, t: Step, noise: Normals, state: SGDState, oracle: Oracle
    ) -> tuple[SGDState, StepInfo]:
        potential, grad = oracle(0, state.position)
        eta = value_at(self.learning_rate, t)
        return SGDState(tree.add_scaled(state.position, -eta, grad)), StepInfo(potential)


class Momentum(Sampler):
    """Gradient descent with momentum 1 − α: v ← v − α v − η ∇Ũ(θ), θ ← θ + v.

    `learning_rate` (η) and `momentum_decay` (α) are numbers or schedules. This is
    `SGHMC.from_learning_rate(η, α)` at temperature 0.

    >>> import sghmc
    >>> sghmc.Momentum(1e-5, 0.01)
    Momentum(learning_rate=1e-05, momentum_decay=0.01)
    """

    traits: ClassVar[Traits] = Traits("no law", "η, α", "a mode, nothing more")

    learning_rate: float | Schedule
    momentum_decay: float | Schedule

    def __check_init__(self):
        check_setting(self.learning_rate, "learning_rate", positive=True)
        check_setting(self.momentum_decay, "momentum_decay")

    def prepare(self, like: PyTree, num_steps: int = 1) -> "MomentumKernel":
        values_over(self.learning_rate, num_steps, "learning_rate")
        values_over(self.momentum_decay, num_steps, "momentum_decay")
        dtype = tree.float_type(like)
        return MomentumKernel(
            array_setting(self.learning_rate, dtype), array_setting(self.momentum_decay, dtype)
        )

    @property
    def dynamics(self) -> Dynamics:
        return Dynamics(step_size=self.learning_rate)

    def rescaled(self, factor: float) -> "Momentum":
        return Momentum(
            rescale(self.learning_rate, factor**2), rescale(self.momentum_decay, factor)
        )


class MomentumState(NamedTuple):
    position: PyTree
    velocity: PyTree


class MomentumKernel(Kernel[MomentumState, Normals]):
    learning_rate: jax.Array | Schedule
    momentum_decay: jax.Array | Schedule

    def init(self, normals: Normals, position: PyTree) -> MomentumState:
        return MomentumState(position, jax.tree.map(jnp.zeros_like, position))

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Normals:
        return []

    def momentum(self, state: MomentumState) -> PyTree:
        return state.velocity

    def step(
        self, t: Step, noise: Normals, state: MomentumState, oracle: Oracle
    ) -> tuple[MomentumState, StepInfo]:
        eta, alpha = value_at(self.learning_rate, t), value_at(self.momentum_decay, t)
        potential, grad = oracle(0, state.position)
        slowed = tree.add_scaled(state.velocity, -alpha, state.velocity)
        velocity = tree.add_scaled(slowed, -eta, grad)
        position = tree.add_scaled(state.position, 1, velocity)
        return MomentumState(position, velocity), StepInfo(potential)
