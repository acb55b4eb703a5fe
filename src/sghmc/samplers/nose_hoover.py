"""Stochastic gradient Nosé–Hoover thermostats, whose friction adapts to unknown gradient noise."""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from sghmc.core import matrices, random, tree
from sghmc.core.checks import (
    array_setting,
    check_choice,
    check_matrix,
    check_setting,
    parse_matrix,
    value_at,
    values_over,
)
from sghmc.gradients import Oracle
from sghmc.samplers import Kernel, Sampler, Traits
from sghmc.types import Normals, PyTree, Schedule, Step, StepInfo


class SGNHT(Sampler):
    """Dynamics whose friction ξ rises while momenta are too hot and falls while they are too cold.

        r ← r − ε ∇Ũ(θ)
        θ ← θ + ½ε M⁻¹ r
        ξ ← ξ + ½ε (rᵀM⁻¹r/d − τ)/μ
        r ← e^{−εξ} r + N(0, τA(1 − e^{−2εξ})/ξ M)
        ξ ← ξ + ½ε (rᵀM⁻¹r/d − τ)/μ
        θ ← θ + ½ε M⁻¹ r

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | a number or a schedule |
    | `friction` | A | the rate that balances the injected noise, M⁻¹C of SGHMC; ξ starts \
here: a number or a schedule |
    | `mass` | M | a number, a diagonal pytree, a dense matrix |
    | `temperature` | τ | samples exp(−U/τ): a number or a schedule |
    | `thermostat` | ξ | "scalar": one for all; "diagonal": one for each parameter, by r_i²/M_i \
in place of rᵀM⁻¹r/d |
    | `thermostat_mass` | μ | how slowly ξ follows |

    Law: gradient noise V need not be known. In the limit ε → 0 at fixed εV the density is
    exp(−(U + ½rᵀM⁻¹r + ½dμ(ξ − ξ̄)²)/τ) with ξ̄ = A + ½εV/(τM), for noise in proportion to M
    ("scalar") or diagonal ("diagonal", without the d); other noise leaves what ξ cannot see.
    Bias of order ε² (proven by test with exact gradients); as printed, without the splitting, it
    is of order ε: `sghmc.paper.literal.LiteralSGNHT`.

    Ding, Fang, Babbush, Chen, Skeel & Neven, NeurIPS 2014; the splitting is that of Leimkuhler &
    Shang, SIAM Journal on Scientific Computing 2016.

    >>> import sghmc
    >>> sghmc.SGNHT(0.1, friction=1.0, thermostat="diagonal").thermostat_mass
    1.0
    """

    traits: ClassVar[Traits] = Traits(
        "ε²",
        "ε, A",
        "unknown gradient noise",
    )

    step_size: float | Schedule
    friction: float | Schedule = 1.0
    mass: PyTree = 1.0
    temperature: float | Schedule = 1.0
    thermostat: Literal["scalar", "diagonal"] = "scalar"
    thermostat_mass: float = 1.0

    def __check_init__(self):
        check_setting(self.step_size, "step_size", positive=True)
        check_setting(self.friction, "friction")
        check_setting(self.temperature, "temperature")
        check_setting(self.thermostat_mass, "thermostat_mass", positive=True)
        check_matrix(self.mass, "mass")
        check_choice(self.thermostat, "thermostat", ("scalar", "diagonal"))

    @property
    def is_affine(self) -> bool:
        return False

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGNHTKernel":
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        mass = parse_matrix(self.mass, like, "mass", definite=True)
        if self.thermostat == "diagonal" and isinstance(mass, matrices.Dense):
            raise ValueError(
                'A dense mass has no friction for each parameter: take thermostat="scalar", or a '
                "diagonal mass."
            )
        for name in ("step_size", "friction", "temperature"):
            values_over(self.settings[name], num_steps, name)
        nothing = matrices.scaled(mass, 0.0)
        return SGNHTKernel(
            step_size=array_setting(self.step_size, dtype),
            friction=array_setting(self.friction, dtype),
            temperature=array_setting(self.temperature, dtype),
            mass=matrices.finish(mass, dtype),
            inverse_mass=matrices.finish(mass.inverse(), dtype),
            spread=matrices.finish(matrices.pencil(mass, nothing, sizes, "mass"), dtype),
            thermostat_mass=jnp.asarray(self.thermostat_mass, dtype),
            thermostat=self.thermostat,
        )


class SGNHTState(NamedTuple):
    """Position, velocity M⁻¹r, and the thermostat ξ, a number or a pytree like the parameters."""

    position: PyTree
    velocity: PyTree
    thermostat: PyTree


class SGNHTKernel(Kernel[SGNHTState, Normals]):
    step_size: jax.Array | Schedule
    friction: jax.Array | Schedule
    temperature: jax.Array | Schedule
    mass: matrices.Matrix
    inverse_mass: matrices.Matrix
    spread: matrices.Pencil
    thermostat_mass: jax.Array
    thermostat: str

    def init(self, normals: Normals, position: PyTree) -> SGNHTState:
        normals = random.copy_of(normals, 0, position)
        deviation = jnp.sqrt(value_at(self.temperature, 0))
        still = jax.tree.map(jnp.zeros_like, position)
        velocity = tree.add_scaled(still, deviation, self.spread.inverse_sqrt(1, 0, normals))
        xi = jnp.asarray(value_at(self.friction, 0), tree.float_type(position))
        if self.thermostat == "diagonal":
            xi = jax.tree.map(lambda leaf: jnp.broadcast_to(xi, leaf.shape), position)
        return SGNHTState(position, velocity, xi)

    def step(
        self, t: Step, noise: Normals, state: SGNHTState, oracle: Oracle
    ) -> tuple[SGNHTState, StepInfo]:
        epsilon = value_at(self.step_size, t)
        position, velocity, thermostat = state
        potential, grad = oracle(0, position)
        velocity = tree.add_scaled(velocity, -epsilon, self.inverse_mass @ grad)
        position = tree.add_scaled(position, epsilon / 2, velocity)
        thermostat = self._moved(t, thermostat, velocity, 0.5)
        velocity = self._exact_friction(t, noise, velocity, thermostat)
        thermostat = self._moved(t, thermostat, velocity, 0.5)
        position = tree.add_scaled(position, epsilon / 2, velocity)
        return SGNHTState(position, velocity, thermostat), StepInfo(potential)

    def _exact_friction(
        self, t: Step, noise: Normals, velocity: PyTree, thermostat: PyTree
    ) -> PyTree:
        """Apply the friction by its exact solution, which holds for negative ξ, too."""
        epsilon = value_at(self.step_size, t)

        def share(xi):
            x = 2 * epsilon * xi
            return jnp.where(x == 0, 1, -jnp.expm1(-x) / jnp.where(x == 0, 1, x))

        return self._slowed(
            t, noise, velocity, thermostat, lambda xi: jnp.exp(-epsilon * xi), share
        )

    def _slowed(
        self,
        t: Step,
        noise: Normals,
        velocity: PyTree,
        thermostat: PyTree,
        kept: Callable[[jax.Array], jax.Array],
        share: Callable[[jax.Array], jax.Array | float],
    ) -> PyTree:
        """Return kept(ξ) v + N(0, 2ετA share(ξ) M⁻¹)."""
        heat = 2 * value_at(self.step_size, t) * value_at(self.temperature, t)
        heat = heat * value_at(self.friction, t)
        fresh = self.spread.inverse_sqrt(1, 0, random.copy_of(noise, 0, velocity))
        return jax.tree.map(
            lambda v, n, xi: (kept(xi) * v + jnp.sqrt(heat * share(xi)) * n).astype(v.dtype),
            velocity,
            fresh,
            self._each(thermostat, velocity),
        )

    def _each(self, thermostat: PyTree, like: PyTree) -> PyTree:
        """Return ξ for every parameter."""
        if self.thermostat == "diagonal":
            return thermostat
        return jax.tree.map(lambda leaf: thermostat, like)

    def _moved(
        self, t: Step, thermostat: PyTree, velocity: PyTree, fraction: float = 1.0
    ) -> PyTree:
        rate = fraction * value_at(self.step_size, t) / self.thermostat_mass
        heat = self._temperatures(velocity)
        if self.thermostat == "scalar":
            heat = _mean(heat)
        excess = jax.tree.map(lambda leaf: leaf - value_at(self.temperature, t), heat)
        return tree.add_scaled(thermostat, rate, excess)

    def _temperatures(self, velocity: PyTree) -> PyTree:
        """Return r_i v_i, whose sum is rᵀM⁻¹r, in single precision at least, like thermostats."""
        wide = tree.float_type(velocity)
        return jax.tree.map(
            lambda v, r: v.astype(wide) * r.astype(wide), velocity, self.mass @ velocity
        )

    def momentum(self, state: SGNHTState) -> PyTree:
        return self.mass @ state.velocity

    def mid_drift(self, t: Step, state: SGNHTState) -> PyTree:
        return tree.add_scaled(state.position, -value_at(self.step_size, t) / 2, state.velocity)

    def kinetic_temperature(self, t: Step, state: SGNHTState) -> jax.Array:
        return _mean(self._temperatures(state.velocity))


def _mean(values: PyTree) -> jax.Array:
    total = sum((jnp.sum(leaf) for leaf in jax.tree.leaves(values)), start=jnp.zeros(()))
    return total / tree.size(values)
