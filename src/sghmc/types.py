"""Shared names: what an oracle returns, what a step reports, what a user may hand in."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

PyTree: TypeAlias = Any
Schedule: TypeAlias = Callable[[jax.Array], jax.typing.ArrayLike]
"""A function of the step number, such as any optax schedule."""


class Evaluation(NamedTuple):
    """One look at the target: an estimate of U(θ) and of ∇U(θ)."""

    potential: jax.Array
    grad: PyTree


class StepInfo(NamedTuple):
    """What one sampler step reports; `acceptance` is absent for samplers that never reject."""

    potential: jax.Array
    acceptance: jax.Array | None = None
