"""Any sampler in other coordinates."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import matrices, tree
from sghmc.samplers.base import Kernel, Sampler, Traits
from sghmc.types import PyTree


class Whitened(Sampler):
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

    @property
    def subtracts_gradient_noise(self) -> bool:
        return self.sampler.subtracts_gradient_noise

    def is_kept(self, steps: np.ndarray) -> np.ndarray:
        return self.sampler.is_kept(steps)

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

    def rescaled(self, factor: float) -> "Whitened":
        return dataclasses.replace(self, sampler=self.sampler.rescaled(factor))


class WhitenedKernel(Kernel):
    inner: Kernel
    center: PyTree
    factor: matrices.Matrix
    transposed: matrices.Matrix
    inverse: matrices.Matrix

    @property
    def num_gradients(self) -> int:
        return self.inner.num_gradients

    def init(self, normals, position):
        flat = jax.tree.map(jnp.subtract, tree.flatten_leaves(position), self.center)
        return self.inner.init(normals, tree.shape_leaves(self.inverse @ flat, position))

    def draw(self, key, start, num_steps, like):
        return self.inner.draw(key, start, num_steps, like)

    def step(self, t, noise, state, oracle):
        return self.inner.step(t, noise, state, oracle.through(self._outward, self._pull_back))

    def position(self, state):
        return self._outward(self.inner.position(state))

    def observed(self, t, state):
        return self._outward(self.inner.observed(t, state))

    def middle(self, t, state: Any):
        return self._outward(self.inner.middle(t, state))

    @property
    def fisher(self):
        return self.inner.fisher

    def with_gradient_noise(self, t, gradient_noise, like):
        inner, room = self.inner.with_gradient_noise(t, gradient_noise, like)
        return dataclasses.replace(self, inner=inner), room

    def pull_back(self, grad):
        return self.inner.pull_back(self._pull_back(grad))

    def kinetic_temperature(self, t, state):
        return self.inner.kinetic_temperature(t, state)

    def _outward(self, z: PyTree) -> PyTree:
        moved = self.factor @ z
        return jax.tree.map(
            lambda mean, leaf: mean.reshape(leaf.shape) + leaf.astype(mean.dtype),
            self.center,
            moved,
        )

    def _pull_back(self, grad: PyTree) -> PyTree:
        return self.transposed @ grad
