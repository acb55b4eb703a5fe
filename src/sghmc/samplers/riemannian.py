"""Stochastic gradient Riemannian HMC, whose metric depends on the position."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.core import matrices, random, tree
from sghmc.core.checks import array_setting, check_setting, value_at, values_over
from sghmc.gradients import Oracle
from sghmc.samplers import Kernel, Sampler, Traits
from sghmc.types import Normals, PyTree, Schedule, Step, StepInfo


class SGRHMC(Sampler):
    """SGHMC that takes long steps where the target is wide and short ones where it is narrow.

        r ← r − ε Lᵀ∇Ũ(θ) + ετ Γ(θ),  L(θ)Lᵀ(θ) = G(θ)⁻¹,  Γ_i = Σ_j ∂L_ji/∂θ_j
        θ by half a step of dθ = L(θ) r dt
        r ← e^{−εC} r + N(0, τ(1 − e^{−2εC}))
        θ by half a step of dθ = L(θ) r dt

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | a number or a schedule |
    | `metric` | G | a function of the position: a pytree like it of positive numbers, a diagonal, \
or a positive definite (d, d) matrix over the raveled parameters |
    | `friction` | C | a number or a schedule; the mass in these coordinates is 1 |
    | `temperature` | τ | samples exp(−U/τ): a number or a schedule |
    | `is_separable` | | promises that each entry of a diagonal metric depends on its own \
parameter only: Γ then costs one derivative instead of d |

    Where G is constant this is `BAOAB` with mass G and friction CG. Γ, by autodiff, is what keeps
    the law where G is not. A drift solves its equation by the midpoint rule: a step evaluates the
    metric five times, its derivative once, the gradient once. A metric that is not positive gives
    NaN, which a run reports.

    Law: exp(−(U + ½rᵀr)/τ) with a bias of order ε². Nothing is taken off for gradient noise V: it
    adds ½εLᵀVL/C to the temperature.

    Ma, Chen & Fox, NeurIPS 2015, with C for their G⁻¹ as friction, and a splitting in place of
    Euler steps.

    >>> import sghmc
    >>> sampler = sghmc.SGRHMC(0.1, metric=lambda theta: 1 + theta**2, friction=1.0)
    >>> sampler.temperature
    1.0
    """

    traits: ClassVar[Traits] = Traits(
        "ε²",
        "ε, C, G(θ)",
        "scales that depend on the position",
    )

    step_size: float | Schedule
    metric: Callable
    friction: float | Schedule = 1.0
    temperature: float | Schedule = 1.0
    is_separable: bool = False

    def __check_init__(self):
        check_setting(self.step_size, "step_size", positive=True)
        check_setting(self.friction, "friction")
        check_setting(self.temperature, "temperature")
        if not callable(self.metric):
            raise TypeError(
                f"metric must be a function of the position, not {self.metric!r}: a metric that is "
                f"the same everywhere is the mass of BAOAB."
            )

    @property
    def is_affine(self) -> bool:
        return False

    @property
    def schedules(self) -> dict[str, Callable]:
        return {name: value for name, value in super().schedules.items() if name != "metric"}

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGRHMCKernel":
        dtype = tree.float_type(like)
        for name in ("step_size", "friction", "temperature"):
            values_over(self.settings[name], num_steps, name)
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
        return SGRHMCKernel(
            step_size=array_setting(self.step_size, dtype),
            friction=array_setting(self.friction, dtype),
            temperature=array_setting(self.temperature, dtype),
            metric=Metric(self.metric, shapes, _is_dense(self.metric, shapes)),
            is_separable=self.is_separable,
        )


def _is_dense(metric: Callable, like: PyTree) -> bool:
    given = jax.eval_shape(metric, like)
    shapes = [jax.tree.map(jnp.shape, each) for each in (given, like)]
    if shapes[0] == shapes[1]:
        return False
    if shapes[0] == (tree.size(like),) * 2:
        return True
    raise ValueError(
        f"metric returns {shapes[0]}, but the parameters are {shapes[1]}: return a pytree like the "
        f"parameters, or a dense ({tree.size(like)}, {tree.size(like)}) matrix."
    )


class Metric(eqx.Module):
    """A user's metric G, with its root L and correction Γ for raveled parameters."""

    function: Callable
    like: Any
    is_dense: bool

    def root(self, position: PyTree) -> matrices.Matrix:
        """Return L with LLᵀ = G⁻¹."""
        return matrices.from_entries(self._entries(position), tree.sizes(position))

    def correction(self, position: PyTree, is_separable: bool) -> PyTree:
        """Return the correction Γ_i = Σ_j ∂L_ji/∂θ_j."""
        vector = tree.ravel(position)

        def entries(vector):
            return self._entries(tree.unravel(vector, position))

        if is_separable and not self.is_dense:
            slopes = jax.jvp(entries, (vector,), (jnp.ones_like(vector),))[1]
        elif self.is_dense:
            slopes = jnp.einsum("jij->i", jax.jacfwd(entries)(vector))
        else:
            slopes = jnp.diagonal(jax.jacfwd(entries)(vector))
        return tree.unravel(slopes, position)

    def _entries(self, position: PyTree) -> jax.Array:
        shaped = jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), position, self.like)
        metric = self.function(shaped)
        if not self.is_dense:
            return tree.ravel(metric) ** -0.5
        lower = jnp.linalg.cholesky(metric)
        identity = jnp.eye(len(lower), dtype=lower.dtype)
        return jax.scipy.linalg.solve_triangular(lower, identity, lower=True).T


class SGRHMCState(NamedTuple):
    position: PyTree
    momentum: PyTree


class SGRHMCKernel(Kernel[SGRHMCState, Normals]):
    step_size: jax.Array | Schedule
    friction: jax.Array | Schedule
    temperature: jax.Array | Schedule
    metric: Metric
    is_separable: bool

    def init(self, normals: Normals, position: PyTree) -> SGRHMCState:
        still = jax.tree.map(jnp.zeros_like, position)
        deviation = jnp.sqrt(value_at(self.temperature, 0))
        momentum = tree.add_scaled(still, deviation, random.copy_of(normals, 0, position))
        return SGRHMCState(position, momentum)

    def step(
        self, t: Step, noise: Normals, state: SGRHMCState, oracle: Oracle
    ) -> tuple[SGRHMCState, StepInfo]:
        half = value_at(self.step_size, t) / 2
        potential, grad = oracle(0, state.position)
        momentum = self._kicked(t, state, grad)
        position = self._drift(state.position, momentum, half)
        momentum = self._damped(t, random.copy_of(noise, 0, position), momentum)
        return SGRHMCState(self._drift(position, momentum, half), momentum), StepInfo(potential)

    def _kicked(self, t: Step, state: SGRHMCState, grad: PyTree) -> PyTree:
        epsilon, tau = value_at(self.step_size, t), value_at(self.temperature, t)
        force = matrices.transpose(self.metric.root(state.position)) @ grad
        momentum = tree.add_scaled(state.momentum, -epsilon, force)
        correction = self.metric.correction(state.position, self.is_separable)
        return tree.add_scaled(momentum, epsilon * tau, correction)

    def _drift(self, position: PyTree, momentum: PyTree, time: jax.Array) -> PyTree:
        """Solve dθ = L(θ) r dt over `time` by the midpoint rule."""
        middle = tree.add_scaled(position, time / 2, self.metric.root(position) @ momentum)
        return tree.add_scaled(position, time, self.metric.root(middle) @ momentum)

    def _damped(self, t: Step, normals: PyTree, momentum: PyTree) -> PyTree:
        decay = value_at(self.step_size, t) * value_at(self.friction, t)
        heat = jnp.sqrt(-value_at(self.temperature, t) * jnp.expm1(-2 * decay))
        slowed = tree.add_scaled(momentum, jnp.expm1(-decay), momentum)
        return tree.add_scaled(slowed, heat, normals)

    def momentum(self, state: SGRHMCState) -> PyTree:
        return state.momentum

    def mid_drift(self, t: Step, state: SGRHMCState) -> PyTree:
        return self._drift(state.position, state.momentum, -value_at(self.step_size, t) / 2)

    def kinetic_temperature(self, t: Step, state: SGRHMCState) -> jax.Array:
        momentum = tree.ravel(state.momentum)
        return jnp.mean(momentum**2)
