"""Any sampler in other coordinates."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import matrices, tree
from sghmc.gradients.base import Oracle
from sghmc.samplers.base import Kernel, Sampler, Traits
from sghmc.samplers.wrapper import KernelWrapper, SamplerWrapper
from sghmc.types import PyTree


class Whitened(SamplerWrapper):
    """A sampler that moves z instead of θ = θ̂ + L z.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `sampler` | | what moves z; its mass, friction and gradient noise are those of z |
    | `center` | θ̂ | a pytree like the parameters: the mode, or the mean of a pilot run |
    | `factor` | L | a number, a diagonal pytree, or any invertible (d, d) matrix |

    With L Lᵀ the posterior's covariance, every direction of z has spread and frequency 1, whatever
    the scales and correlations of θ: one step size fits all. In single precision the state keeps
    its digits where θ̂ is many standard deviations away from 0.

    Law: that of `sampler` on U(θ̂ + L z), whose gradient is Lᵀ∇U and whose gradient noise is LᵀVL.

    >>> import numpy as np, sghmc
    >>> sampler = sghmc.Whitened(sghmc.SGHMC(0.25, friction=1.5), center=0.0, factor=0.01)
    >>> sampler.rescaled(0.5).sampler.step_size
    0.125
    """

    traits: ClassVar[Traits] = Traits(
        "that of its sampler",
        "θ̂, L (`tune` finds them)",
        "correlated parameters",
    )

    sampler: Sampler
    center: PyTree
    factor: PyTree

    def __check_init__(self):
        if not isinstance(self.sampler, Sampler):
            raise TypeError(f"Whitened needs a sampler such as SGHMC(…), not {self.sampler!r}.")
        for name in ("center", "factor"):
            for leaf in jax.tree.leaves(getattr(self, name)):
                if not np.all(np.isfinite(np.asarray(leaf, np.float64))):
                    raise ValueError(f"{name} must be finite.")

    def prepare(self, like: PyTree, num_steps: int = 1) -> "WhitenedKernel":
        if jax.tree.structure(self.center) != jax.tree.structure(like) or any(
            np.shape(mine) != theirs.shape
            for mine, theirs in zip(*map(jax.tree.leaves, (self.center, like)), strict=True)
        ):
            raise ValueError(
                f"center must be a pytree like the parameters, {jax.tree.map(np.shape, like)}, but "
                f"is {jax.tree.map(np.shape, self.center)}."
            )
        factor, dtype = self.matrix(like), tree.float_type(like)
        flat = tree.flatten_leaves(self.center)
        return WhitenedKernel(
            inner=self.sampler.prepare(like, num_steps),
            center=jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), flat, like),
            factor=matrices.finish(factor, dtype),
            transposed=matrices.finish(matrices.transpose(factor), dtype),
            inverse=matrices.finish(factor.inverse(), dtype),
        )

    def matrix(self, like: PyTree) -> matrices.Matrix:
        """L in double precision."""
        return matrices.parse_factor(self.factor, like, "factor")

    def with_center(self, center: PyTree) -> "Whitened":
        return dataclasses.replace(super().with_center(center), center=center)

    def pull_back_covariance(self, covariance: matrices.Matrix, like: PyTree) -> matrices.Matrix:
        """LᵀVL, and on by the sampler inside."""
        own = matrices.congruent(self.matrix(like), covariance, tree.sizes(like))
        return self.sampler.pull_back_covariance(own, like)


class WhitenedKernel(KernelWrapper):
    """The kernel of z; its state is that of z."""

    inner: Kernel
    center: PyTree
    factor: matrices.Matrix
    transposed: matrices.Matrix
    inverse: matrices.Matrix

    def init(self, normals, position):
        return self.inner.init(normals, self._to_z(position))

    def step(self, t, noise, state, oracle):
        return self.inner.step(t, noise, state, self._in_z(oracle))

    def informed(self, state, oracle):
        return self.inner.informed(state, self._in_z(oracle))

    def _in_z(self, oracle: Oracle) -> Oracle:
        return oracle.through(self._to_position, lambda grad: self.transposed @ grad)

    def position(self, state):
        return self._to_position(self.inner.position(state))

    def momentum(self, state):
        """L⁻ᵀ times the momentum of z."""
        of_z = self.inner.momentum(state)
        return None if of_z is None else matrices.transpose(self.inverse) @ of_z

    def observed(self, t, state):
        return self._to_position(self.inner.observed(t, state))

    def middle(self, t, state):
        return self._to_position(self.inner.middle(t, state))

    def pull_back(self, grad):
        return self.inner.pull_back(self.transposed @ grad)

    def _to_position(self, z: PyTree) -> PyTree:
        return jax.tree.map(
            lambda mean, leaf: mean.reshape(leaf.shape) + leaf.astype(mean.dtype),
            self.center,
            self.factor @ z,
        )

    def _to_z(self, position: PyTree) -> PyTree:
        away = jax.tree.map(jnp.subtract, tree.flatten_leaves(position), self.center)
        return tree.shape_leaves(self.inverse @ away, position)
