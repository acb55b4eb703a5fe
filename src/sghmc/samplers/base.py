"""What every sampler is: a deterministic map of a state and of raw variates drawn outside it."""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import matrices, random, tree
from sghmc.display import notebook
from sghmc.gradients.base import Oracle
from sghmc.gradients.fisher import EmpiricalFisher
from sghmc.types import PyTree, Schedule, StepInfo

_SCHEDULE_POINTS = 1 << 20


class Traits(NamedTuple):
    """What cannot be measured of a sampler, for the table "which sampler when"."""

    bias: str
    tuning: str
    use: str


class Sampler(eqx.Module):
    """The settings of a sampler, checked on construction; `prepare` makes the kernel that runs."""

    traits: ClassVar[Traits]

    def _repr_html_(self) -> str:
        return notebook.settings(self)

    @property
    def subtracts_gradient_noise(self) -> bool:
        """Whether the step injects less noise because the gradient brings some (V̂ ≠ 0)."""
        return False

    @property
    def is_affine(self) -> bool:
        """Whether a step is affine on a Gaussian target, so that `theory` knows its law."""
        return True

    @property
    def schedules(self) -> dict[str, Callable]:
        """The settings that follow a schedule."""
        settings = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in settings if callable(value)}

    def is_kept(self, steps: np.ndarray) -> np.ndarray:
        """Whether draws after these steps are kept: a sampler may search in between."""
        return np.ones(steps.shape, bool)

    @abc.abstractmethod
    def prepare(self, like: PyTree, num_steps: int = 1) -> "Kernel":
        """Check the settings against the parameters `like` and do all one-time work.

        `num_steps` is how far schedules will be followed.
        """

    def rescaled(self, factor: float) -> Self:
        """The same sampler with `factor` times the step size, at equal mass and friction."""
        return dataclasses.replace(self, step_size=rescale(self.step_size, factor))  # pyright: ignore[reportAttributeAccessIssue]

    def for_growth(self, factor: float) -> "Sampler":
        """The same sampler for `factor` times as many rows: a potential as many times as steep.

        It makes as many steps for an independent draw as before.
        """
        raise TypeError(
            f"{type(self).__name__} has no rule to follow data that grow: use SGHMC or SGLD."
        )


class NoiseRoom(NamedTuple):
    """How large V̂ is, along its worst direction, and how large it may be.

    Relative to the friction, or where that was raised, the momentum decay that this leads to.
    """

    needed: jax.Array
    allowed: jax.Array


class NoiseEstimate(eqx.Module):
    """What an estimate of V̂ starts from: a kernel's matrices without gradient noise."""

    fisher: EmpiricalFisher
    noise: matrices.Pencil
    drag: matrices.Pencil | None = None


class Kernel(eqx.Module):
    """A sampler made ready for some parameters: a map of a state and of raw variates.

    `step(t, noise, state, oracle)` advances one chain by one step. All randomness comes in by
    `noise`, standard normals and uniforms that `draw` makes as a function of (key, t), and by the
    oracle, whose batches and gradient noise are drawn likewise. So a step is a plain function: it
    can be differentiated in its noise (`sghmc.theory` does), repeated and resumed.
    """

    @property
    def num_gradients(self) -> int:
        """How many gradients one step evaluates."""
        return 1

    @property
    def differentiates_gradients(self) -> bool:
        """Whether a step asks how the gradient changes with the position."""
        return False

    @abc.abstractmethod
    def init(self, normals: list[jax.Array], position: PyTree) -> Any:
        """The state before step 0, from a standard normal for every parameter."""

    def draw(self, key, start, num_steps: int, like: PyTree) -> PyTree:
        """The raw variates of steps start, …, start + num_steps − 1: 1-D arrays, step by step."""
        return random.normals_like(key, start, num_steps, like)

    @abc.abstractmethod
    def step(self, t, noise: PyTree, state: Any, oracle: Oracle) -> tuple[Any, StepInfo]: ...

    def position(self, state: Any) -> PyTree:
        """Where the chain is, in the user's coordinates."""
        return state.position

    def observed(self, t, state: Any) -> PyTree:
        """The draw that the state after step t gives."""
        return self.position(state)

    def adaptable(self, state: Any) -> "Kernel":
        """This kernel with every array in the shape that an `Adapt` will give it."""
        raise self._nothing("a mass", "SGHMC, SGLD or HMC")

    def diagonal_mass(self, position: PyTree) -> PyTree:
        """The mass of every parameter, in single precision at least."""
        raise self._nothing("a mass", "SGHMC, SGLD or HMC")

    def with_mass(self, state: Any, mass: PyTree) -> tuple["Kernel", Any]:
        """This kernel with another diagonal mass, a pytree like the parameters, and its state."""
        raise self._nothing("a mass", "SGHMC, SGLD or HMC")

    def constant_step_size(self) -> jax.Array:
        """The step size that an accept step judges, where it is a number."""
        raise self._nothing("an acceptance", "HMC")

    def _nothing(self, what: str, remedy: str) -> TypeError:
        name = type(self).__name__.removesuffix("Kernel")
        return TypeError(f"{name} has nothing to adapt, {what} is missing: use {remedy}.")

    @property
    def fisher(self) -> EmpiricalFisher | None:
        """The estimate of V̂ that the sampler asked for."""
        return None

    def with_gradient_noise(
        self, t, gradient_noise: jax.Array, like: PyTree
    ) -> tuple["Kernel", NoiseRoom]:
        """This kernel with a new V̂, for steps from t on until the next estimate is due.

        V̂ is a vector or a (d, d) array over the raveled parameters, in the coordinates that move.
        """
        raise TypeError(f"{type(self).__name__} does not estimate its gradient noise.")

    def pull_back(self, grad: PyTree) -> PyTree:
        """A gradient in the coordinates that move."""
        return grad

    def middle(self, t, state: Any) -> PyTree:
        """Where Gibbs updates look after step t: half a drift back, if the sampler drifts."""
        return self.position(state)

    def reheated(self, t, state: Any, ratio) -> Any:
        """The state after step t at `ratio` times its temperature: momenta by √ratio."""
        raise TypeError(
            f"The momenta of {type(self).__name__} cannot be rescaled: give ReplicaExchange SGHMC, "
            f"SGLD or a splitting of SGHMC."
        )

    def kinetic_temperature(self, t, state: Any) -> jax.Array | None:
        """An estimate of the temperature from the momenta; None where there are none."""
        return None


def check_setting(value, name: str, *, positive: bool = False):
    """Refuse a number that cannot be; schedules can only be checked once steps are known."""
    if callable(value):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number or a schedule (a function of the step number), not {value!r}."
        ) from None
    wanted = "positive" if positive else "zero or more"
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name} must be {wanted} and finite, but is {number:g}.")
    return value


def value_at(setting: float | jax.Array | Schedule, t) -> jax.Array:
    return jnp.asarray(setting(t) if callable(setting) else setting)


def values_over(setting: float | Schedule, num_steps: int, name: str) -> np.ndarray:
    """The setting's values at (a grid of) the steps 0, …, num_steps − 1, checked.

    A constant has one value: it broadcasts against the others.
    """
    if not callable(setting):
        return np.array([float(setting)])
    points = np.unique(np.linspace(0, num_steps - 1, min(num_steps, _SCHEDULE_POINTS)).astype(int))
    values = np.asarray(jax.vmap(lambda t: jnp.asarray(setting(t), float))(jnp.asarray(points)))
    if values.ndim != 1:
        raise ValueError(f"The schedule of {name} must return a number, not {values.shape[1:]}.")
    bad = ~(np.isfinite(values) & (values >= 0))
    if np.any(bad):
        raise ValueError(
            f"The schedule of {name} must stay finite and not negative, but is "
            f"{values[bad][0]:g} at step {points[bad][0]}."
        )
    return values


def scaled(setting: Any, factor: float) -> Any:
    """A setting times a factor: a number, a schedule, or a matrix in any of its forms."""
    if callable(setting):
        return rescale(cast(Schedule, setting), factor)
    return jax.tree.map(lambda leaf: factor * leaf, setting)


def rescale(setting: float | Schedule, factor: float) -> float | Schedule:
    if callable(setting):
        return lambda t: factor * setting(t)
    return factor * setting


def array_setting(setting: float | Schedule, dtype) -> jax.Array | Schedule:
    """A setting ready for the loop: numbers become arrays, so that a new one does not retrace."""
    return setting if callable(setting) else jnp.asarray(setting, dtype)


def check_gradient_noise(value: PyTree | EmpiricalFisher) -> None:
    if not isinstance(value, EmpiricalFisher):
        matrices.check(value, "gradient_noise")


def parse_gradient_noise(value: PyTree | EmpiricalFisher, like: PyTree) -> matrices.Matrix:
    """V̂, or nothing yet where it will be estimated."""
    if not isinstance(value, EmpiricalFisher):
        return matrices.parse(value, like, "gradient_noise", definite=False)
    if value.diagonal:
        return matrices.parse(0.0, like, "gradient_noise", definite=False)
    return matrices.Dense(np.zeros((tree.size(like), tree.size(like))))


def given_fisher(value: PyTree | EmpiricalFisher) -> EmpiricalFisher | None:
    return value if isinstance(value, EmpiricalFisher) else None


def is_nonzero(matrix: PyTree | EmpiricalFisher) -> bool:
    if isinstance(matrix, EmpiricalFisher):
        return True
    return any(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(matrix))
