"""Theorem 3.2 and Corollary 3.1: π stays with friction and does not without.

By the Fokker–Planck equation of dz = g dt + N(0, 2D dt), ∂_t π = ∇·(−gπ + D∇π), on a potential
with two wells in each of two coupled directions.
"""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.paper.theorems.statement import (
    FRICTION,
    MASS,
    ROUNDING,
    ZERO,
    Checked,
    Statement,
    block_diagonal,
)

_NUM_POINTS = 200
_NOISE = FRICTION
"""D, the covariance of the gradient's noise, which friction is to take out again."""


def check(key: jax.Array) -> Checked:
    inverse_mass = np.linalg.inv(MASS)
    with jax.enable_x64(True):
        points = jax.random.normal(key, (_NUM_POINTS, 4), jnp.float64)

        def energy(z):
            theta, r = z[:2], z[2:]
            wells = jnp.sum(-2 * theta**2 + theta**4) + theta[0] * theta[1] / 2
            return wells + r @ inverse_mass @ r / 2

        with_friction, without = (
            np.asarray(jax.jit(jax.vmap(lambda z, c=c: _density_change(energy, c, z)))(points))
            for c in (FRICTION, ZERO)
        )
        speed = np.asarray(points)[:, 2:] @ inverse_mass
    # What is left without friction: (∂_t π)/π = vᵀDv − tr(DM⁻¹), v the velocity.
    heating = np.einsum("ni,ij,nj->n", speed, FRICTION, speed) - np.trace(FRICTION @ inverse_mass)
    largest = np.abs(with_friction).max()
    statements = [
        Statement("Thm 3.2: ∂π/∂t with friction, largest", largest, 0, ROUNDING),
        Statement("Cor 3.1: ∂π/∂t without friction, rms", _rms(without), _rms(heating), ROUNDING),
    ]
    return Checked(statements, {"with_friction": _rms(with_friction), "without": _rms(without)})


def _density_change(energy, friction, z):
    """(∂_t π)/π at a point of phase space, π ∝ exp(−energy)."""
    turn = np.block([[ZERO, np.eye(2)], [-np.eye(2), -friction]])
    diffusion = block_diagonal(ZERO, _NOISE)

    def drift(z):
        return turn @ jax.grad(energy)(z)

    slope, bend = -jax.grad(energy)(z), -jax.hessian(energy)(z)
    spreading = jnp.sum(diffusion * (bend + jnp.outer(slope, slope)))
    return spreading - jnp.trace(jax.jacfwd(drift)(z)) - drift(z) @ slope


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
