"""Types that all folders share: pytrees, schedules, and what oracles and steps return."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

__all__ = ["Change", "Evaluation", "Normals", "PyTree", "Schedule", "Step", "StepInfo"]

PyTree: TypeAlias = Any
"""Arrays in dictionaries, lists, tuples or modules, nested in any way; parameters are one."""
Step: TypeAlias = jax.Array | np.ndarray | np.integer | int
"""The number of a step, counted from 0."""
Normals: TypeAlias = list[jax.Array]
"""Standard normals of one step, a vector for each leaf of the parameters."""
Schedule: TypeAlias = Callable[[jax.Array], jax.typing.ArrayLike]
"""A function of the step number, such as any optax schedule."""


class Evaluation(NamedTuple):
    """An estimate of U(θ) and of ∇U(θ)."""

    potential: jax.Array
    grad: PyTree


class Change(NamedTuple):
    """U(new) − U(old) as a sum: `known`, and a term for each of `num_terms` rows of data.

    `terms` takes row numbers. A target without data has no terms: all of the change is known.
    """

    known: jax.Array
    terms: Callable[[jax.Array], jax.Array]
    num_terms: int | jax.Array


class StepInfo(NamedTuple):
    """A step's report: its potential, its acceptance, and the share of data that decided it.

    Fields that a sampler does not have are None; the potential also in runs that keep no
    information about draws.
    """

    potential: Any
    acceptance: jax.Array | None = None
    data_share: jax.Array | None = None
