"""Hamiltonian Monte Carlo; with a stochastic gradient, the naive variant of the paper's §3.1."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sghmc.core import matrices, pencils, random, tree
from sghmc.core.checking import check_count
from sghmc.samplers.austerity import Austerity
from sghmc.samplers.base import Kernel, Sampler, Traits
from sghmc.samplers.settings import array_setting, check_setting, value_at, values_over
from sghmc.types import Evaluation, PyTree, Schedule, StepInfo


class HMC(Sampler):
    """Leapfrog trajectories from fresh momenta, accepted or rejected by Metropolis–Hastings.

        r ~ N(0, M)
        r ← r − ½ε ∇U(θ);  m times: θ ← θ + ε M⁻¹ r,  r ← r − ε ∇U(θ)  (the last one ½ε)
        accept with probability min(1, exp(H(old) − H(new))),  H = U + ½ rᵀM⁻¹r

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | a number or a schedule of the trajectory's number |
    | `num_steps` | m | leapfrog steps a trajectory; one sampler step is one trajectory |
    | `mass` | M | a number, a diagonal pytree, a dense matrix |
    | `metropolis` | | False leaves the accept step out; `Austerity(…)` tests it on a subset |
    | `jitter` | δ | each trajectory's step size is drawn from ε(1 ± δ): no turn of one length |
    | `most_steps` | | given, programs have room for so many, and any `num_steps` shares one |

    With `Minibatch` or `NoisyGradient` every gradient in the trajectory is a fresh estimate: the
    naive sampler. Its accept step uses the exact potential, and the split first and last kicks
    halve one evaluation each, so that the trajectory is reversible given its noise.

    Law: exact with the accept step. Without it, on U = ½hθ², variance 1/(h(1 − ε²h/4M)) for any m.
    Duane et al. 1987; Neal 2011. The paper's Alg. 1 has the sign of the accept ratio reversed and a
    kick too many at the end.

    >>> import sghmc
    >>> sghmc.HMC(0.1, num_steps=20).metropolis
    True
    """

    traits: ClassVar[Traits] = Traits(
        "0 (without accept step ε²)",
        "ε, m",
        "exact gradients: the yardstick",
    )

    step_size: float | Schedule
    num_steps: int
    mass: PyTree = 1.0
    metropolis: bool | Austerity = True
    jitter: float = 0.0
    most_steps: int | None = None

    def __check_init__(self):
        if not isinstance(self.metropolis, bool | Austerity):
            raise TypeError(
                f"metropolis must be True, False or Austerity(…), but is {self.metropolis!r}."
            )
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must be from 0 and below 1, but is {self.jitter!r}.")
        check_setting(self.step_size, "step_size", positive=True)
        matrices.check(self.mass, "mass")
        check_count(self.num_steps, "num_steps")
        if self.most_steps is not None and self.most_steps < self.num_steps:
            raise ValueError(
                f"num_steps is {self.num_steps}, but most_steps only {self.most_steps}: raise it."
            )

    @property
    def is_affine(self) -> bool:
        return self.jitter == 0 and not isinstance(self.metropolis, Austerity)

    def prepare(self, like: PyTree, num_steps: int = 1) -> "HMCKernel":
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        mass = matrices.parse(self.mass, like, "mass", definite=True)
        values_over(self.step_size, num_steps, "step_size")
        nothing = matrices.scaled(mass, 0.0)
        return HMCKernel(
            array_setting(self.step_size, dtype),
            int(self.num_steps) if self.most_steps is None else jnp.int32(self.num_steps),
            int(self.most_steps or self.num_steps),
            matrices.finish(mass.inverse(), dtype),
            matrices.finish(pencils.pencil(mass, nothing, sizes, "mass"), dtype),
            self.metropolis,
            float(self.jitter),
        )


class HMCState(NamedTuple):
    """`velocity` (M⁻¹r) is what the last trajectory ended with: kept to be looked at only.

    `seen` is what an exact oracle says of the position, where the next trajectory begins.
    """

    position: PyTree
    velocity: PyTree
    seen: Evaluation | None = None


class HMCNoise(NamedTuple):
    """`order` is the key of a random order of the data, where the accept step asks for one."""

    normals: list[jax.Array]
    uniforms: jax.Array
    order: jax.Array | None


class HMCKernel(Kernel):
    step_size: jax.Array | Schedule
    num_steps: int | jax.Array
    most_steps: int
    inverse_mass: matrices.Matrix
    mass: pencils.Pencil
    metropolis: bool | Austerity
    jitter: float

    @property
    def num_gradients(self) -> int:
        return self.most_steps + 1

    def init(self, normals, position):
        return HMCState(
            position, self.mass.inverse_sqrt(1, 0, random.copy_of(normals, 0, position))
        )

    def draw(self, key, first_step, num_steps, like):
        normals = random.normals_like(key, first_step, num_steps, like)
        width, slot = 1 if self.jitter == 0 else 2, tree.size(like)
        uniforms = random.uniforms(key, first_step, num_steps, width, slot=slot)
        order = None
        if isinstance(self.metropolis, Austerity):
            order = random.bits(key, first_step, num_steps, 2, slot=slot + width)
        return HMCNoise(normals, uniforms, order)

    def step(self, t, noise, state, oracle):
        epsilon = value_at(self.step_size, t)
        if self.jitter:
            epsilon = epsilon * (1 + self.jitter * (2 * noise.uniforms[1] - 1))
        velocity = self.mass.inverse_sqrt(1, 0, random.copy_of(noise.normals, 0, state.position))
        begun = HMCState(state.position, velocity, state.seen)
        proposal, start, end = self._trajectory(epsilon, begun, oracle)
        if not self.metropolis:
            return proposal, StepInfo(end, jnp.ones(()))
        kinetic_loss = self._kinetic(velocity) - self._kinetic(proposal.velocity)
        data_share = None
        if isinstance(self.metropolis, Austerity) and not oracle.is_exact:
            change = oracle.change(state.position, proposal.position)
            limit = kinetic_loss - jnp.log(noise.uniforms[0])
            is_accepted, data_share = self.metropolis.decide(change, limit, noise.order)
            acceptance = is_accepted.astype(limit.dtype)
        else:
            if not oracle.is_exact:
                start, end = oracle.potential(state.position), oracle.potential(proposal.position)
            energy_loss = start - end + kinetic_loss
            # A trajectory that became non-finite has no energy to compare: it is refused.
            acceptance = jnp.where(jnp.isnan(energy_loss), 0, jnp.exp(jnp.minimum(energy_loss, 0)))
            is_accepted = noise.uniforms[0] < acceptance
        state = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), proposal, begun)
        return state, StepInfo(jnp.where(is_accepted, end, start), acceptance, data_share)

    def _trajectory(self, epsilon, state, oracle):
        """The state after m leapfrog steps, and the potentials seen at both ends."""
        is_known = state.seen is not None

        def leapfrog(i, carry):
            (position, velocity, _), start, _ = carry
            is_first, is_last = i == 0, i == self.num_steps
            position = tree.add_scaled(position, jnp.where(is_first, 0, epsilon), velocity)
            seen = oracle(i, position)
            kick = jnp.where(is_first | is_last, epsilon / 2, epsilon)
            velocity = tree.add_scaled(velocity, -kick, self.inverse_mass @ seen.grad)
            state = HMCState(position, velocity, seen if is_known else None)
            return state, jnp.where(is_first, seen.potential, start), seen.potential

        if state.seen is None:
            unknown = jnp.zeros((), jax.eval_shape(oracle, 0, state.position).potential.dtype)
            return lax.fori_loop(0, self.num_steps + 1, leapfrog, (state, unknown, unknown))
        start, grad = state.seen
        half = tree.add_scaled(state.velocity, -epsilon / 2, self.inverse_mass @ grad)

        def between(i, carry):
            # No potential: only that of the end is asked for, and logarithms of rows are dear.
            position = tree.add_scaled(carry[0], epsilon, carry[1])
            grad = self.inverse_mass @ oracle(i, position).grad
            return position, tree.add_scaled(carry[1], -epsilon, grad)

        position, half = lax.fori_loop(1, self.num_steps, between, (state.position, half))
        reached = HMCState(position, half, state.seen)
        return leapfrog(self.num_steps, (reached, start, start))

    def informed(self, state, oracle):
        return state._replace(seen=oracle(0, state.position)) if oracle.is_exact else state

    def momentum(self, state):
        return self.mass.first @ state.velocity

    def shaped(self, state, shape):
        # What was seen stays as the loop has it: a revision of the kernel does not look at it.
        return state._replace(position=shape(state.position), velocity=shape(state.velocity))

    def adaptable(self, state):
        # The step size adapts beside a mass that stays.
        is_diagonal = isinstance(self.inverse_mass, matrices.Diagonal)
        return super().adaptable(state) if is_diagonal else self

    def diagonal_mass(self, position):
        if not isinstance(self.inverse_mass, matrices.Diagonal):
            raise TypeError("A mass that adapts is diagonal: give it as a number.")
        return matrices.entries(self.inverse_mass.inverse(), position)

    def with_mass(self, state, mass):
        assert isinstance(self.mass, pencils.DiagonalPencil)
        new = matrices.raveled(mass)
        kernel = dataclasses.replace(
            self, inverse_mass=new.inverse(), mass=dataclasses.replace(self.mass, first=new)
        )
        return kernel, state  # whose velocity is drawn anew by the next trajectory

    def constant_step_size(self):
        if callable(self.step_size) or not self.metropolis:
            raise TypeError(
                "The acceptance can choose the step size of HMC where that is a number and there "
                "is an accept step: give no schedule, and metropolis=True."
            )
        return self.step_size

    def with_step_size(self, step_size):
        dtype = self.constant_step_size().dtype
        return dataclasses.replace(self, step_size=step_size.astype(dtype))

    def _kinetic(self, velocity):
        return self.mass.quadratic(1, 0, velocity) / 2

    def kinetic_temperature(self, t, state):
        return 2 * self._kinetic(state.velocity) / tree.size(state.velocity)
