"""Microcanonical Hamiltonian Monte Carlo: constant speed, a direction turned by the gradient."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from sghmc.core import random, tree
from sghmc.core.checks import array_setting, check_count, check_setting, value_at, values_over
from sghmc.gradients import Oracle
from sghmc.samplers import AdaptsStepSize, CachesEvaluation, Sampler, Traits
from sghmc.types import Evaluation, Normals, PyTree, Schedule, Step, StepInfo

# Share of a step before its first and after its last half drift: among schemes of two gradients,
# the one with the smallest energy error (Omelyan, Mryglod & Folk 2003).
_OUTER_SHARE = 0.1931833275037836
_TINY = 1e-30
# Of 2mε/L: beyond it nothing of the old direction is left, and its exponential would overflow.
_FORGOTTEN = 60.0


class MCHMC(Sampler):
    """Microcanonical Hamiltonian Monte Carlo: a direction of length 1 that the gradient turns.

        u ~ uniform on the sphere in d dimensions
        m times:  u ← B_{bε}(u),  θ ← θ + ½ε u,  u ← B_{(1−2b)ε}(u),  θ ← θ + ½ε u,  u ← B_{bε}(u)
        accept with probability min(1, e^{−W}),  W = U(new) − U(old) + Σ w

    B_h turns u towards e = −∇U/‖∇U‖ exactly, as if the gradient were constant for a time h: with
    δ = h‖∇U‖/(d − 1) and c = e·u,

        B_h(u) = (u + e (sinh δ + c (cosh δ − 1))) / (cosh δ + c sinh δ)
        w      = (d − 1) log(cosh δ + c sinh δ)

    e^{−w} is the factor by which B_h changes volumes on the sphere, so that e^{−W} is the accept
    probability of a map and its reverse. b = 0.1932 makes the energy error W smallest. Turns by
    one gradient that follow each other are one.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | a distance, as the speed is 1; a number or a schedule of the trajectory |
    | `num_steps` | m | steps of two gradients in a trajectory, which is one sampler step |
    | `metropolis` | | False leaves the accept step out |
    | `jitter` | | each trajectory's step size is drawn from ε(1 ± jitter) |
    | `decoherence` | L | without accept step: the distance in which a direction is forgotten; √d |

    In d directions of spread 1 a step of `HMC` moves by ε√d: multiply its step size by √d. Where
    spreads differ, put it into `Whitened`. Since the speed does not depend on the potential, chains
    come from far away without the small steps that HMC needs there.

    Without the accept step u is kept from one trajectory to the next and turned a little,
    u ← (u + κn)/‖u + κn‖ with κ² = (e^{2mε/L} − 1)/d: the first trajectories of a run, or where a
    bias of order ε² does no harm. Noise of minibatches then turns u at random, without friction
    to balance it: for those take `SGHMC`, or keep the accept step, which uses the exact potential.

    Law: exact with the accept step. Without it a bias of order ε². Needs two parameters or more.
    `AdaptHMC(until=…, mass=False)` finds the step size in burn-in.

    Robnik, De Luca, Silverstein & Seljak, JMLR 2023; with the accept step Robnik, Cohn-Gordon &
    Seljak 2025. The exact turn: Ver Steeg & Galstyan, NeurIPS 2021.

    >>> import sghmc
    >>> sghmc.MCHMC(0.5, num_steps=10).metropolis
    True
    """

    traits: ClassVar[Traits] = Traits(
        "0 (without accept step ε²)",
        "ε, m",
        "exact gradients: chains that begin far away, networks of a few hundred weights",
    )

    step_size: float | Schedule
    num_steps: int
    metropolis: bool = True
    jitter: float = 0.0
    decoherence: float | None = None

    def __check_init__(self):
        if not isinstance(self.metropolis, bool):
            raise TypeError(f"metropolis must be True or False, but is {self.metropolis!r}.")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must be from 0 and below 1, but is {self.jitter!r}.")
        if self.decoherence is not None:
            check_setting(self.decoherence, "decoherence", positive=True)
            if self.metropolis:
                raise ValueError(
                    "decoherence is for chains without accept step: with it every trajectory has a "
                    "fresh direction. Leave it out, or give metropolis=False."
                )
        check_setting(self.step_size, "step_size", positive=True)
        check_count(self.num_steps, "num_steps")

    @property
    def is_affine(self) -> bool:
        return False

    def prepare(self, like: PyTree, num_steps: int = 1) -> "MCHMCKernel":
        size, dtype = tree.size(like), tree.float_type(like)
        if size < 2:
            raise ValueError(
                f"MCHMC turns a direction, but there is {size} parameter and nothing to turn: "
                f"take HMC."
            )
        values_over(self.step_size, num_steps, "step_size")
        return MCHMCKernel(
            array_setting(self.step_size, dtype),
            jnp.asarray(size**0.5 if self.decoherence is None else self.decoherence, dtype),
            int(self.num_steps),
            self.metropolis,
            float(self.jitter),
        )


class MCHMCState(NamedTuple):
    """`direction` has length 1; `cached` is what an exact oracle says of the position."""

    position: PyTree
    direction: PyTree
    cached: Evaluation | None = None


class MCHMCNoise(NamedTuple):
    """A normal for every parameter, and uniforms for the accept step and the jitter."""

    normals: Normals
    uniforms: jax.Array


class MCHMCKernel(AdaptsStepSize[MCHMCState, MCHMCNoise], CachesEvaluation[MCHMCState, MCHMCNoise]):
    step_size: jax.Array | Schedule
    decoherence: jax.Array
    num_steps: int
    metropolis: bool
    jitter: float

    @property
    def num_gradients(self) -> int:
        return 2 * self.num_steps + 1

    def init(self, normals: Normals, position: PyTree) -> MCHMCState:
        return MCHMCState(position, _normalized(random.copy_of(normals, 0, position)))

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> MCHMCNoise:
        normals = random.normals_like(key, first_step, num_steps, like)
        width = 1 if self.jitter == 0 else 2
        slot = tree.size(like)
        return MCHMCNoise(normals, random.uniforms(key, first_step, num_steps, width, slot=slot))

    def step(
        self, t: Step, noise: MCHMCNoise, state: MCHMCState, oracle: Oracle
    ) -> tuple[MCHMCState, StepInfo]:
        epsilon = value_at(self.step_size, t)
        fresh = random.copy_of(noise.normals, 0, state.position)
        if not self.metropolis:
            path = 2 * self.num_steps * epsilon / self.decoherence
            kick = jnp.sqrt(jnp.expm1(jnp.minimum(path, _FORGOTTEN)) / tree.size(fresh))
            fresh = tree.add_scaled(state.direction, kick, fresh)
        if self.jitter:
            epsilon = epsilon * (1 + self.jitter * (2 * noise.uniforms[1] - 1))
        begun = MCHMCState(state.position, _normalized(fresh), state.cached)
        proposal, start, end, work, _ = self.trajectory(epsilon, begun, oracle)
        if not self.metropolis:
            return proposal, StepInfo(end, jnp.ones(()))
        if not oracle.is_exact:
            start, end = oracle.potential(state.position), oracle.potential(proposal.position)
        energy_loss = start - end - work
        # A trajectory that became non-finite has no energy to compare: it is refused.
        acceptance = jnp.where(jnp.isnan(energy_loss), 0, jnp.exp(jnp.minimum(energy_loss, 0)))
        is_accepted = noise.uniforms[0] < acceptance
        state = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), proposal, begun)
        return state, StepInfo(jnp.where(is_accepted, end, start), acceptance)

    def trajectory(
        self, epsilon: jax.Array, state: MCHMCState, oracle: Oracle
    ) -> tuple[MCHMCState, jax.Array, jax.Array, jax.Array, jax.Array]:
        """Return the state after m steps, the potentials seen at both ends, Σ w, and Σ of squares.

        The squares are those of each step's energy error.
        """
        start, grad = oracle(0, state.position) if state.cached is None else state.cached
        direction, work = turn(state.direction, grad, _OUTER_SHARE * epsilon)
        last = 2 * self.num_steps - 1

        def half_step(i, carry):
            # One gradient in the loop's body, though a step has two: it compiles once.
            position, direction, _, work, (before, squares) = carry
            position = tree.add_scaled(position, epsilon / 2, direction)
            seen = oracle(i + 1, position)
            # Turns at the end of a step and the beginning of the next have the same gradient.
            at_end = jnp.where(i == last, _OUTER_SHARE, 2 * _OUTER_SHARE)
            share = jnp.where(i % 2 == 0, 1 - 2 * _OUTER_SHARE, at_end)
            # A step ends in the middle of the turn that it shares with the next.
            energy = seen.potential + work + turn(direction, seen.grad, _OUTER_SHARE * epsilon)[1]
            error = jnp.where(i % 2 == 0, 0, energy - before)
            direction, more = turn(direction, seen.grad, share.astype(epsilon.dtype) * epsilon)
            return position, direction, seen, work + more, (before + error, squares + error**2)

        errors = start, jnp.zeros_like(start)
        carry = (state.position, direction, Evaluation(start, grad), work, errors)
        carry = lax.fori_loop(0, last + 1, half_step, carry)
        position, direction, seen, work, (_, squares) = carry
        end = MCHMCState(position, direction, None if state.cached is None else seen)
        return end, start, seen.potential, work, squares

    def with_cached_evaluation(self, state: MCHMCState, oracle: Oracle) -> MCHMCState:
        return state._replace(cached=oracle(0, state.position)) if oracle.is_exact else state

    def map_parameters(self, state: MCHMCState, shape: Callable[[PyTree], PyTree]) -> MCHMCState:
        # What is cached stays as the loop has it: a revision of the kernel does not look at it.
        return state._replace(position=shape(state.position), direction=shape(state.direction))

    def constant_step_size(self) -> jax.Array:
        if callable(self.step_size) or not self.metropolis:
            raise TypeError(
                "The acceptance can choose the step size of MCHMC where that is a number and there "
                "is an accept step: give no schedule, and metropolis=True."
            )
        return self.step_size

    def with_step_size(self, step_size: jax.Array) -> Self:
        dtype = self.constant_step_size().dtype
        return dataclasses.replace(self, step_size=step_size.astype(dtype))


def turn(direction: PyTree, grad: PyTree, time: jax.Array) -> tuple[PyTree, jax.Array]:
    """Return B_h(u) and w: the direction after `time` under a constant gradient, its energy."""
    num_angles = tree.size(direction) - 1
    length = jnp.sqrt(_dot(grad, grad))
    along = -_dot(direction, grad) / (length + _TINY)
    delta = time * length / num_angles
    # Numerator and denominator times 2 e^{−δ}: no exponential grows.
    zeta = jnp.exp(-delta)
    towards = (1 - zeta) * (1 + zeta + along * (1 - zeta)) / (length + _TINY)
    turned = jax.tree.map(lambda u, g: 2 * zeta * u - towards * g, direction, grad)
    energy = delta + jnp.log1p((1 - along) * jnp.expm1(-2 * delta) / 2)
    return _normalized(turned, direction), num_angles * energy


def _normalized(vector: PyTree, like: PyTree | None = None) -> PyTree:
    """Return the vector divided by its length, which rounding would let drift away from 1."""
    length = jnp.sqrt(_dot(vector, vector))
    models = vector if like is None else like
    return jax.tree.map(lambda leaf, model: (leaf / length).astype(model.dtype), vector, models)


def _dot(one: PyTree, other: PyTree) -> jax.Array:
    dtype = tree.float_type(one)
    products = jax.tree.map(lambda x, y: x.astype(dtype) * y.astype(dtype), one, other)
    return tree.total(jax.tree.leaves(products)).astype(dtype)
