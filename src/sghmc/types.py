"""Shared names: what an oracle returns, what a step reports, what a user may hand in."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

__all__ = ["Change", "Evaluation", "PyTree", "Schedule", "StepInfo"]

PyTree: TypeAlias = Any
"""Arrays in dictionaries, lists, tuples or modules, nested as one likes; parameters are one."""
Schedule: TypeAlias = Callable[[jax.Array], jax.typing.ArrayLike]
"""A function of the step number, such as any optax schedule."""


class Evaluation(NamedTuple):
    """One look at the target: an estimate of U(θ) and of ∇U(θ)."""

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
    """What one sampler step reports; fields are absent for samplers that have no such thing.

    The potential is absent in runs that keep no information about draws.
    """

    potential: Any
    acceptance: jax.Array | None = None
    data_share: jax.Array | None = None
