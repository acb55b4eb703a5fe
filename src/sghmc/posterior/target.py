"""What a target is: U(θ) and ∇U(θ). The only home of the sign and of N/n is below it."""

import abc
from typing import Self

import equinox as eqx
import jax

from sghmc.display import notebook
from sghmc.posterior.source import Source
from sghmc.types import Change, Evaluation, PyTree


class Target(eqx.Module):
    """A potential U(θ) = −log p(θ), up to a constant, to draw from."""

    def _repr_html_(self) -> str:
        return notebook.settings(self)

    @abc.abstractmethod
    def potential(self, params: PyTree) -> jax.Array:
        """U(θ), exact."""

    @abc.abstractmethod
    def evaluate(self, params: PyTree) -> Evaluation:
        """U and ∇U, exact."""

    @abc.abstractmethod
    def change(self, old: PyTree, new: PyTree) -> Change:
        """U(new) − U(old), of which terms may be asked for one by one."""

    def gradient(self, params: PyTree) -> PyTree:
        """∇U(θ), exact."""
        return self.evaluate(params).grad

    @property
    def is_stochastic(self) -> bool:
        """Whether U is known by estimates alone, each with a key of its own."""
        return False

    @property
    def source(self) -> Source | None:
        """The data, where they are not arrays."""
        return None

    @property
    def hyper(self) -> PyTree:
        """The hyperparameters; None where there are none."""
        return None

    def with_hyper(self, hyper: PyTree) -> Self:
        """The same target under other hyperparameters, where it has such."""
        return self
