"""One algorithm, one file.

What every sampler is: a deterministic map of a state and of raw variates drawn outside it.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import numpy as np

from sghmc import display
from sghmc.core import matrices, random
from sghmc.gradients import Oracle
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.samplers.settings import rescale
from sghmc.types import PyTree, Schedule, StepInfo

# What every sampler is: a deterministic map of a state and of raw variates drawn outside it.


class Traits(NamedTuple):
    """What cannot be measured of a sampler, for the table "which sampler when"."""

    bias: str
    tuning: str
    use: str


class Dynamics(NamedTuple):
    """The settings of a sampler in the terms that all samplers share.

    | field | meaning |
    | --- | --- |
    | `step_size` | ε or, for descent, the learning rate; a number or a schedule |
    | `temperature` | τ of the law exp(−U/τ); a number or a schedule |
    | `friction`, `preconditioner` | C of SGHMC, P of SGLD; None where there is none |
    | `gradient_noise` | V̂ that is taken off the injected noise, or its estimator |
    | `metropolis` | True: an accept step, exact; an `Austerity`: one on a subset; False: none |
    | `resample_every` | fresh momenta after so many steps; None: never |
    | `observe` | draws are taken at the "end" of a step, or in the "middle" of its drift |
    """

    step_size: float | Schedule | None = None
    temperature: float | Schedule = 1.0
    friction: PyTree | Schedule | None = None
    preconditioner: PyTree | None = None
    gradient_noise: PyTree | EmpiricalFisher = 0.0
    metropolis: Any = False
    resample_every: int | None = None
    observe: str = "end"


class Sampler(eqx.Module):
    """The settings of a sampler, checked on construction; `prepare` makes the kernel that runs.

    A subclass has its settings as fields and implements `prepare`. All other members have defaults:
    they say what a run, `sghmc.theory` and the verdict on a run need to know.
    """

    traits: ClassVar[Traits]

    def _repr_html_(self) -> str:
        return display.notebook_settings(self)

    @abc.abstractmethod
    def prepare(self, like: PyTree, num_steps: int = 1) -> "Kernel":
        """Check the settings against the parameters `like` and do all one-time work.

        `num_steps` is how far schedules will be followed.
        """

    @property
    def name(self) -> str:
        """How messages call it."""
        return type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def with_settings(self, **settings: Any) -> Self:
        """The same sampler with some settings changed."""
        return dataclasses.replace(self, **settings)

    @property
    def dynamics(self) -> Dynamics:
        """The settings in the terms that all samplers share; settings of these names are these."""
        return Dynamics(**{n: v for n, v in self.settings.items() if n in Dynamics._fields})

    @property
    def schedules(self) -> dict[str, Callable]:
        """The settings that follow a schedule."""
        return {name: value for name, value in self.settings.items() if callable(value)}

    @property
    def subtracts_gradient_noise(self) -> bool:
        """Whether the step injects less noise because the gradient brings some (V̂ ≠ 0)."""
        return False

    @property
    def is_affine(self) -> bool:
        """Whether a step is affine on a Gaussian target, so that `theory` knows its law."""
        return True

    def is_kept(self, steps: np.ndarray) -> np.ndarray:
        """Whether draws after these steps are kept: a sampler may search in between."""
        return np.ones(steps.shape, bool)

    def rescaled(self, factor: float) -> Self:
        """The same sampler with `factor` times the step size, at equal mass and friction."""
        return self.with_settings(step_size=rescale(self.settings["step_size"], factor))

    def for_growth(self, factor: float) -> "Sampler":
        """The same sampler for `factor` times as many rows: a potential as many times as steep.

        It makes as many steps for an independent draw as before.
        """
        raise TypeError(f"{self.name} has no rule to follow data that grow: use SGHMC or SGLD.")

    @property
    def eager(self) -> "Sampler":
        """The sampler of the same law that moves all parameters in every step."""
        return self

    def with_center(self, center: PyTree) -> Self:
        """The same sampler around `center`, where it has coordinates of its own."""
        return self

    def pull_back_covariance(self, covariance: matrices.Matrix, like: PyTree) -> matrices.Matrix:
        """That of a gradient in the parameters, in the coordinates that move."""
        return covariance


class NoiseRoom(NamedTuple):
    """How large V̂ is, along its worst direction, and how large it may be.

    Relative to the friction, or where that was raised, the momentum decay that this leads to.
    """

    needed: jax.Array
    allowed: jax.Array


class Kernel(eqx.Module):
    """A sampler made ready for some parameters: a map of a state and of raw variates.

    `step(t, noise, state, oracle)` advances one chain by one step. All randomness comes in by
    `noise`, standard normals and uniforms that `draw` makes as a function of (key, t), and by the
    oracle, whose batches and gradient noise are drawn likewise. So a step is a plain function: it
    can be differentiated in its noise (`sghmc.theory` does), repeated and resumed.

    A subclass implements `init` and `step`; its state has a field `position`, or it implements
    `position` too.
    """

    @abc.abstractmethod
    def init(self, normals: list[jax.Array], position: PyTree) -> Any:
        """The state before step 0, from a standard normal for every parameter."""

    @abc.abstractmethod
    def step(self, t, noise: PyTree, state: Any, oracle: Oracle) -> tuple[Any, StepInfo]:
        """The state after step t, from that step's variates, and what there is to say of it."""

    def draw(self, key, first_step, num_steps: int, like: PyTree) -> PyTree:
        """The raw variates of `num_steps` steps from `first_step` on: 1-D arrays, step by step."""
        return random.normals_like(key, first_step, num_steps, like)

    @property
    def is_lazy(self) -> bool:
        """Whether a step leaves parts of the state behind, which `flush` brings up to date."""
        return False

    def flush(self, t, noise: PyTree, state: Any, oracle: Oracle) -> Any:
        """The state after step t, all of it, from that step's variates and hyperparameters."""
        return state

    @property
    def num_gradients(self) -> int:
        """How many gradients one step evaluates."""
        return 1

    @property
    def differentiates_gradients(self) -> bool:
        """Whether a step asks how the gradient changes with the position."""
        return False

    @property
    def moves_before_gradients(self) -> bool:
        """Whether a step takes its gradient elsewhere than where it begins."""
        return False

    def with_cached_evaluation(self, state: Any, oracle: Oracle) -> Any:
        """The state with what the sampler remembers of the target where it stands.

        Asked for before step 0 and whenever the target has changed. A state that was never asked
        for it has none, and a step then finds out by itself.
        """
        return state

    # What a state says

    def position(self, state: Any) -> PyTree:
        """Where the chain is, in the user's coordinates."""
        return state.position

    def momentum(self, state: Any) -> PyTree | None:
        """r, whatever units the state has; None where there is no momentum."""
        return None

    def draw_from(self, t, state: Any) -> PyTree:
        """The draw that the state after step t gives."""
        return self.position(state)

    def mid_drift(self, t, state: Any) -> PyTree:
        """Where Gibbs updates look after step t: half a drift back, if the sampler drifts."""
        return self.position(state)

    def kinetic_temperature(self, t, state: Any) -> jax.Array | None:
        """An estimate of the temperature from the momenta; None where there are none."""
        return None

    def rescale_momenta(self, t, state: Any, ratio) -> Any:
        """The state after step t at `ratio` times its temperature: momenta by √ratio."""
        raise TypeError(
            f"The momenta of {self._name} cannot be rescaled: give ReplicaExchange SGHMC, SGLD or "
            f"a splitting of SGHMC."
        )

    # Adaptation

    def map_parameters(self, state: Any, shape: Callable[[PyTree], PyTree]) -> Any:
        """The state with what is like the parameters in their shapes, which `shape` gives it."""
        return type(state)(*(shape(part) for part in state))

    def adaptable(self, state: Any) -> Self:
        """This kernel with every array in the shape that an adaptation will give it."""
        return self.with_mass(state, self.diagonal_mass(state.position))[0]

    def diagonal_mass(self, position: PyTree) -> PyTree:
        """The mass of every parameter, in single precision at least."""
        raise self._nothing_to_adapt("a mass", "SGHMC, SGLD or HMC")

    def with_mass(self, state: Any, mass: PyTree) -> tuple[Self, Any]:
        """This kernel with another diagonal mass, a pytree like the parameters, and its state."""
        raise self._nothing_to_adapt("a mass", "SGHMC, SGLD or HMC")

    def constant_step_size(self) -> jax.Array:
        """The step size that an accept step judges, where it is a number."""
        raise self._nothing_to_adapt("an acceptance", "HMC")

    def with_step_size(self, step_size: jax.Array) -> Self:
        """This kernel with another such step size."""
        raise self._nothing_to_adapt("an acceptance", "HMC")

    def _nothing_to_adapt(self, missing: str, remedy: str) -> TypeError:
        return TypeError(f"{self._name} has nothing to adapt, {missing} is missing: use {remedy}.")

    @property
    def _name(self) -> str:
        return type(self).__name__.removesuffix("Kernel")

    # Gradient noise

    @property
    def fisher(self) -> EmpiricalFisher | None:
        """The estimate of V̂ that the sampler asked for."""
        return None

    def with_gradient_noise(
        self, t, gradient_noise: jax.Array, like: PyTree
    ) -> tuple[Self, NoiseRoom]:
        """This kernel with a new V̂, for steps from t on until the next estimate is due.

        V̂ is a vector or a (d, d) array over the raveled parameters, in the coordinates that move.
        """
        raise TypeError(f"{self._name} does not estimate its gradient noise.")

    def pull_back(self, grad: PyTree) -> PyTree:
        """A gradient in the coordinates that move."""
        return grad
