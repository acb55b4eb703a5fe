"""The interface of samplers: settings that prepare a kernel, and the kernel that runs.

Every sampler has a file of its own in this folder. A kernel is a deterministic map of a state and
of raw variates that are drawn outside it. What only some kernels can do is a protocol below
`Kernel`: a run asks by `isinstance` whether a kernel implements it.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar, cast

import equinox as eqx
import jax
import numpy as np

from sghmc import display
from sghmc.core import matrices, random
from sghmc.core.checks import rescale
from sghmc.gradients import Oracle
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.types import Normals, PyTree, Schedule, Step, StepInfo

State = TypeVar("State")
"""State of a chain: a NamedTuple with all that a step needs of the steps before."""
Noise = TypeVar("Noise")
"""Raw variates of a step, which `Kernel.draw` makes; a list of normals unless it is overridden."""
Implemented = TypeVar("Implemented", bound="Kernel")


class Traits(NamedTuple):
    """A sampler's row in the table "which sampler when": what cannot be measured."""

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
        """The sampler's name in messages."""
        return type(self).__name__

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def with_settings(self, **settings: Any) -> Self:
        """Return this sampler with some settings changed."""
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
        noise = self.dynamics.gradient_noise
        if isinstance(noise, EmpiricalFisher):
            return True
        return any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(noise))

    @property
    def is_affine(self) -> bool:
        """Whether a step is affine on a Gaussian target, so that `theory` knows its law."""
        return True

    def is_kept(self, steps: np.ndarray) -> np.ndarray:
        """Return whether draws after these steps are kept: a sampler may search in between."""
        return np.ones(steps.shape, bool)

    def rescaled(self, factor: float) -> Self:
        """Return this sampler with `factor` times the step size, at equal mass and friction."""
        return self.with_settings(step_size=rescale(self.settings["step_size"], factor))

    def for_growth(self, factor: float) -> "Sampler":
        """Return the sampler for `factor` times as many rows: a potential as many times as steep.

        It makes as many steps for an independent draw as before.
        """
        raise TypeError(f"{self.name} has no rule to follow data that grow: use SGHMC or SGLD.")

    @property
    def eager(self) -> "Sampler":
        """The sampler of the same law that moves all parameters in every step."""
        return self

    def with_center(self, center: PyTree) -> Self:
        """Return this sampler around `center`, if it has coordinates of its own."""
        return self

    def pull_back_covariance(self, covariance: matrices.Matrix, like: PyTree) -> matrices.Matrix:
        """Return a gradient's covariance, given in the parameters, in the coordinates that move."""
        return covariance


class Kernel(eqx.Module, Generic[State, Noise]):
    """A sampler made ready for some parameters: a map of a state and of raw variates.

    `step(t, noise, state, oracle)` advances one chain by one step. All randomness comes in by
    `noise`, standard normals and uniforms that `draw` makes as a function of (key, t), and by the
    oracle, whose batches and gradient noise are drawn likewise. So a step is a plain function: it
    can be differentiated in its noise (`sghmc.theory` does), repeated and resumed.

    A subclass implements `init` and `step`; its state has a field `position`, or it implements
    `position` too. It may implement optional protocols, the classes below this one, as well.
    """

    refusal: ClassVar[str]
    """In a protocol: the end of the message about a kernel that does not implement it."""

    @abc.abstractmethod
    def init(self, normals: Normals, position: PyTree) -> State:
        """Return the state before step 0, from a standard normal for every parameter."""

    @abc.abstractmethod
    def step(self, t: Step, noise: Noise, state: State, oracle: Oracle) -> tuple[State, StepInfo]:
        """Return the state after step t, from that step's variates, and the step's report."""

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Any:
        """Return the `Noise` of `num_steps` steps from `first_step` on: 1-D, step after step."""
        return random.normals_like(key, first_step, num_steps, like)

    @property
    def num_gradients(self) -> int:
        """The number of gradients that one step evaluates."""
        return 1

    @property
    def gradient_use(self) -> Literal["start", "slope", "inside"]:
        """Place at which a step evaluates its first gradient, and how.

        At the "start", where the step begins; there, with the "slope" of the gradient; or "inside",
        at a place to which the step moves first.
        """
        return "start"

    def position(self, state: State) -> PyTree:
        """Return the position of the chain, in the user's coordinates."""
        return cast(Any, state).position

    def momentum(self, state: State) -> PyTree | None:
        """Return r, whatever units the state has; None if there is no momentum."""
        return None

    def draw_from(self, t: Step, state: State) -> PyTree:
        """Return the draw that the state after step t gives."""
        return self.position(state)

    def mid_drift(self, t: Step, state: State) -> PyTree:
        """Return the position for Gibbs updates after step t: half a drift back, if it drifts."""
        return self.position(state)

    def kinetic_temperature(self, t: Step, state: State) -> jax.Array | None:
        """Return an estimate of the temperature from the momenta; None if there are none."""
        return None


# Optional protocols


def as_protocol(kernel: Kernel, protocol: type[Implemented]) -> Implemented:
    """Return the kernel if it implements an optional protocol; raise TypeError if it does not."""
    if isinstance(kernel, protocol):
        return kernel
    raise TypeError(f"{type(kernel).__name__.removesuffix('Kernel')} {protocol.refusal}")


class CachesEvaluation(Kernel[State, Noise]):
    """A kernel that remembers U and ∇U at its position, which an accept step then need not repeat.

    A state that was never given them has none, and a step then evaluates them itself.
    """

    @abc.abstractmethod
    def with_cached_evaluation(self, state: State, oracle: Oracle) -> State:
        """Return the state with U and ∇U, before step 0 and whenever the target has changed."""


class LazyRows(Kernel[State, Noise]):
    """A kernel whose step leaves parts of the state behind, those that its batch does not use."""

    @abc.abstractmethod
    def flush(self, t: Step, noise: Noise, state: State, oracle: Oracle) -> State:
        """Return the state with all parts after step t, from that step's variates."""


class RescalesMomenta(Kernel[State, Noise]):
    """A kernel whose chain can change its temperature: what `ReplicaExchange` swaps."""

    refusal: ClassVar[str] = (
        "cannot rescale momenta: give ReplicaExchange SGHMC, SGLD or a splitting of SGHMC."
    )

    @abc.abstractmethod
    def rescale_momenta(self, t: Step, state: State, ratio: jax.Array) -> State:
        """Return the state after step t at `ratio` times its temperature: momenta by √ratio."""


class Revisable(Kernel[State, Noise]):
    """A kernel that a run replaces between two steps, by what it has seen of the gradients."""

    def pull_back(self, grad: PyTree) -> PyTree:
        """Return a gradient in the coordinates that move."""
        return grad


class Adaptable(Revisable[State, Noise]):
    """A kernel with a setting that adapts in burn-in: see `AdaptsMass` and `AdaptsStepSize`."""

    refusal: ClassVar[str] = "has nothing to adapt, a mass is missing: use SGHMC, SGLD or HMC."

    def map_parameters(self, state: State, shape: Callable[[PyTree], PyTree]) -> State:
        """Return the state with `shape` applied to each part that is like the parameters."""
        return type(state)(*(shape(part) for part in cast(tuple, state)))

    def adaptable(self, state: State) -> Self:
        """Return this kernel with every array in the shape that an adaptation will give it."""
        return self


class AdaptsMass(Adaptable[State, Noise]):
    """A kernel with a diagonal mass that adapts."""

    def adaptable(self, state: State) -> Self:
        return self.with_mass(state, self.diagonal_mass(self.position(state)))[0]

    @abc.abstractmethod
    def diagonal_mass(self, position: PyTree) -> PyTree:
        """Return the mass of every parameter, in single precision at least."""

    @abc.abstractmethod
    def with_mass(self, state: State, mass: PyTree) -> tuple[Self, State]:
        """Return this kernel with another diagonal mass, like the parameters, and its state."""


class AdaptsStepSize(Adaptable[State, Noise]):
    """A kernel whose acceptance can choose its step size."""

    refusal: ClassVar[str] = "has nothing to adapt, an acceptance is missing: use HMC."

    @abc.abstractmethod
    def constant_step_size(self) -> jax.Array:
        """Return the step size, a number, that an accept step judges; raise if there is none."""

    @abc.abstractmethod
    def with_step_size(self, step_size: jax.Array) -> Self:
        """Return this kernel with another such step size."""


class NoiseRoom(NamedTuple):
    """How large V̂ is, along its worst direction, and how large it may be.

    Relative to the friction, or where that was raised, the momentum decay that this leads to.
    """

    needed: jax.Array
    allowed: jax.Array


class EstimatesNoise(Revisable[State, Noise]):
    """A kernel whose gradient noise V̂ can be estimated while a chain runs."""

    refusal: ClassVar[str] = "does not estimate its gradient noise."

    @property
    @abc.abstractmethod
    def fisher(self) -> EmpiricalFisher | None:
        """The estimator of V̂ that the sampler asked for; None if V̂ was given as numbers."""

    @abc.abstractmethod
    def with_gradient_noise(
        self, t: Step, gradient_noise: jax.Array, like: PyTree
    ) -> tuple[Self, NoiseRoom]:
        """Return this kernel with a new V̂, for steps from t on until the next estimate is due.

        V̂ is a vector or a (d, d) array over the raveled parameters, in the coordinates that move.
        """


def fisher_of(kernel: Kernel) -> EmpiricalFisher | None:
    """Return the estimator of V̂ that a kernel asked for; None for all other kernels."""
    return kernel.fisher if isinstance(kernel, EstimatesNoise) else None
