"""The stationary law of one step, whatever the target, without sampling.

A chain's invariant density, relative to a density π that is near it, is expanded in polynomials
orthonormal under π. One step maps them by a matrix, the expectation of p_m(z) p_n(z') over z ~ π
and over the step's normals, by Gauss quadrature; the vector that this matrix leaves alone is the
law. For states of few numbers, one parameter's position, momentum and the like.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sghmc


class Axis(NamedTuple):
    """Orthonormal polynomials of a density of one variable, by their recurrence."""

    diagonal: np.ndarray
    beside: np.ndarray

    @classmethod
    def of(cls, log_density: Callable, span: float, degree: int) -> "Axis":
        """By the Stieltjes procedure on a fine grid."""
        x = np.linspace(-span, span, 4001)
        weights = np.exp(log_density(x))
        weights /= weights.sum()
        before, now = np.zeros_like(x), np.ones_like(x)
        diagonal, beside = [], [0.0]
        for _ in range(degree):
            diagonal.append(weights @ (x * now**2))
            after = (x - diagonal[-1]) * now - beside[-1] * before
            beside.append(np.sqrt(weights @ after**2))
            before, now = now, after / beside[-1]
        return cls(np.array(diagonal), np.array(beside[1:]))

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Gauss nodes and weights (Golub & Welsch)."""
        beside = self.beside[:-1]
        nodes, vectors = np.linalg.eigh(
            np.diag(self.diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        )
        return nodes, vectors[0] ** 2

    def polynomials(self, x: np.ndarray, count: int) -> np.ndarray:
        """p_0, …, p_{count−1} at the points x, in columns."""
        columns = [np.zeros_like(x), np.ones_like(x)]
        for k in range(count - 1):
            below = self.beside[k - 1] if k else 0.0
            after = (x - self.diagonal[k]) * columns[-1] - below * columns[-2]
            columns.append(after / self.beside[k])
        return np.stack(columns[1:], axis=-1)


def gaussian(degree: int, mean: float = 0.0, deviation: float = 1.0) -> Axis:
    span = abs(mean) + 12 * deviation
    return Axis.of(lambda x: -(((x - mean) / deviation) ** 2) / 2, span, degree)


def stationary_mean(run: Callable, axes: Sequence[Axis], counts: Sequence[int]) -> float:
    """The stationary mean of f(z) for z' = step(z, n), with n one normal.

    `run(points, normals)` returns z' and f(z) for many z and n at once; `axes` are those of the
    coordinates of z, `counts` how many polynomials each has.
    """
    rules = [axis.quadrature() for axis in (*axes, gaussian(12))]
    points = np.stack([x.ravel() for x in np.meshgrid(*(r[0] for r in rules), indexing="ij")], -1)
    weights = np.prod(list(itertools.product(*(r[1] for r in rules))), axis=-1)
    ends, seen = jax.tree.map(np.asarray, run(points[:, :-1], points[:, -1:]))
    before, after = (_products(axes, counts, z) for z in (points[:, :-1], ends))
    # The density's coefficients c have c = Aᵀc. Mass is kept, so the first of these equations says
    # nothing: in its place, the mass is 1.
    system = (before.T @ (weights[:, None] * after)).T - np.eye(before.shape[1])
    system[0] = np.eye(len(system))[0]
    density = np.linalg.solve(system, system[0])
    return float(weights @ (seen * (before @ density)))


def _products(axes, counts, z: np.ndarray) -> np.ndarray:
    values = np.ones((len(z), 1))
    for i, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        mine = axis.polynomials(z[:, i], count)
        values = (values[:, :, None] * mine[:, None, :]).reshape(len(z), -1)
    return values


QUARTIC = sghmc.Potential(lambda x: jnp.sum(x**4) / 4)
"""Not Gaussian, one well: under exp(−U), E[θ²] = 2Γ(¾)/Γ(¼) = 0.6759782…"""
QUARTIC_SQUARE = 0.6759782400671


def quartic_bias(sampler, counts: Sequence[int] = (12, 10), *others: Axis) -> float:
    """E[θ²] of the draws minus the exact value, for a sampler with momentum, of mass and τ 1.

    `others` are the axes of what a state has beyond position and velocity.
    """
    with jax.enable_x64(True):
        like = jnp.zeros(1)
        kernel = sampler.prepare(like)
        axes = [Axis.of(lambda x: -(x**4) / 4, 5.0, counts[0] + 4), gaussian(counts[1] + 4)]
        mean = stationary_mean(lambda z, n: _run(kernel, z, n), [*axes, *others], counts)
    return mean - QUARTIC_SQUARE


@eqx.filter_jit
def _run(kernel, points, normals):
    like = jnp.zeros(1)
    template = kernel.init([jnp.zeros(1)], like)
    oracle = sghmc.FullBatch().prepare(QUARTIC, like).oracle(QUARTIC, [])
    unit = getattr(kernel, "unit", 1.0)

    def both(z, n):
        rest = (z[2:].reshape(x.shape) for x in template[2:])
        state = type(template)(z[:1], unit * z[1:2], *rest)
        end, _ = kernel.step(0, [n], state, oracle)
        after = jnp.concatenate([end[0], end[1] / unit, *map(jnp.ravel, end[2:])])
        return after, jnp.sum(kernel.draw_from(0, state) ** 2)

    return jax.vmap(both)(points, normals)
