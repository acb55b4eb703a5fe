"""Hamiltonian Monte Carlo, with an exact accept step or one that uses a subset of the data.

With a stochastic gradient `HMC` is the naive variant of the paper's §3.1.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from sghmc.core import checks, matrices, random, tree
from sghmc.gradients import Oracle
from sghmc.samplers import AdaptsMass, AdaptsStepSize, CachesEvaluation, Sampler, Traits
from sghmc.types import Change, Evaluation, Normals, PyTree, Schedule, Step, StepInfo


class Estimate(NamedTuple):
    """A change of the potential, estimated from `num_rows` rows without replacement.

    Its variance is N²(1 − n/N) s²/n, s² centered and with divisor n − 1: unbiased, and 0 once all
    rows are used.
    """

    value: jax.Array
    variance: jax.Array
    num_rows: jax.Array


class _RunningMoments(NamedTuple):
    """Number of terms so far, their mean, and the sum of their squares around it."""

    num_terms: jax.Array
    mean: jax.Array
    squares: jax.Array


def estimate(
    change: Change,
    order: jax.Array,
    batch_size: int,
    is_enough: Callable[[Estimate], jax.Array],
) -> Estimate:
    """Estimate a change of the potential from random rows, added until `is_enough`.

    Each turn of the loop adds `batch_size` rows, until `is_enough` or all rows are used. `order` is
    two random words, the key of a permutation of the rows. Among chains the loop goes on until the
    last has enough. (It is a real loop: under vmap both sides of a branch would be computed.)
    """
    total = change.num_terms
    zero = jnp.zeros((), change.known.dtype)
    if isinstance(total, int) and total == 0:
        return Estimate(change.known, zero, jnp.zeros((), jnp.int32))

    def to_estimate(moments: _RunningMoments) -> Estimate:
        number, count = jnp.asarray(total, zero.dtype), moments.num_terms.astype(zero.dtype)
        scatter = moments.squares / jnp.maximum((count - 1) * count, 1)
        variance = number * scatter * (number - count)
        return Estimate(change.known + number * moments.mean, variance, moments.num_terms)

    def needs_more(moments: _RunningMoments) -> jax.Array:
        is_short = (moments.num_terms < 2) | ~is_enough(to_estimate(moments))
        return (moments.num_terms < total) & is_short

    def add_rows(moments: _RunningMoments) -> _RunningMoments:
        index = moments.num_terms + lax.iota(jnp.int32, batch_size)
        rows = random.permuted(order, jnp.zeros(1), jnp.minimum(index, total - 1)[None], total)[0]
        return _with_terms(moments, change.terms(rows).astype(zero.dtype), index < total)

    nothing = _RunningMoments(jnp.zeros((), jnp.int32), zero, zero)
    return to_estimate(lax.while_loop(needs_more, add_rows, nothing))


def _with_terms(moments: _RunningMoments, terms: jax.Array, is_new: jax.Array) -> _RunningMoments:
    """Add terms to the moments by the update of Chan, Golub & LeVeque.

    It subtracts no large sums from each other, so single precision is enough.
    """
    fresh = jnp.sum(is_new, dtype=jnp.int32)
    mean = jnp.sum(jnp.where(is_new, terms, 0)) / fresh.astype(terms.dtype)
    squares = jnp.sum(jnp.where(is_new, (terms - mean) ** 2, 0))
    count, gap = moments.num_terms + fresh, mean - moments.mean
    share = fresh.astype(mean.dtype) / count.astype(mean.dtype)
    between = moments.num_terms.astype(mean.dtype) * share * gap**2
    return _RunningMoments(count, moments.mean + share * gap, moments.squares + squares + between)


class Austerity(eqx.Module):
    """The sequential test that accepts or rejects on a subset: `HMC(…, metropolis=Austerity())`.

        accept iff Σᵢ Δᵢ < c,  Δᵢ what row i adds to U(new) − U(old), c all the rest, log u included
        n ← n + batch_size rows without replacement,  Δ̂ = N mean(Δ),  s² with divisor n − 1
        δ = P(T > |Δ̂ − c| / sd),  T Student's t with n − 1 degrees of freedom,
                                  sd² = N² (s²/n) (1 − n/N)
        until δ < error or n = N: accept iff Δ̂ < c

    | field | symbol | meaning |
    | --- | --- | --- |
    | `error` | ϵ | the chance that a look decides wrongly, at most; 0 uses all data |
    | `batch_size` | m | rows that each look at the data adds |

    Law: at each look the chance of deciding wrongly is at most `error`, up to the normal law of
    means of m rows, and reached where the sum is all but equal to c; the look at all data is never
    wrong. So a decision that takes J looks at less than all data is wrong with probability at most
    J·error, and a chain's bias goes to 0 with it. `info.data_share` is the share of the data that a
    draw's decision looked at, `info.acceptance` whether it was accepted. With `FullBatch` the
    potentials are known already, and the test is exact.

    On a regression of 10,000 rows (`benchmarks/samplers.py austerity`) error=0.05 looks at 45 % of
    them, and variances are right within the 2 % of Monte Carlo error; error=0.2 looks at 16 %, and
    they are 18 % too large; without accept step, 45 %. Terms with heavy tails, a rare row that
    decides, are what breaks it: the first looks miss them.

    Korattikara, Chen & Welling, ICML 2014, Alg. 1 and 2.

    >>> import sghmc
    >>> sghmc.HMC(0.1, num_steps=5, metropolis=sghmc.Austerity(error=0.01)).metropolis.batch_size
    500
    """

    error: float = 0.05
    batch_size: int = 500

    def __check_init__(self):
        if not 0 <= self.error < 0.5:
            raise ValueError(
                f"error must be from 0, which uses all data, and below 0.5, the error of a coin "
                f"toss, but is {self.error!r}."
            )
        checks.check_count(self.batch_size, "batch_size", 10, reason="for a test of normal means")

    def decide(
        self, change: Change, limit: jax.Array, order: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Return whether the change is below the limit, and the share of the data that was used."""

        def is_decided(now):
            distance = jnp.abs(now.value - limit) / jnp.sqrt(now.variance)
            return tail(distance, now.num_rows - 1) < self.error

        final = estimate(change, order, self.batch_size, is_decided)
        share = final.num_rows.astype(limit.dtype) / jnp.maximum(change.num_terms, 1)
        return final.value < limit, share.astype(limit.dtype)


def tail(t: jax.Array, degrees: jax.Array) -> jax.Array:
    """Return P(T > t) for t ≥ 0 and Student's T, by Wallace's normal approximation (1959).

    From 9 degrees of freedom on it is within 2 % for probabilities down to 0.001. The incomplete
    beta function, which would be exact, loses its digits in single precision at thousands of
    degrees of freedom.
    """
    degrees = degrees.astype(t.dtype)
    deviate = (8 * degrees + 1) / (8 * degrees + 3) * jnp.sqrt(degrees * jnp.log1p(t**2 / degrees))
    return jax.scipy.stats.norm.sf(deviate)


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
    | `metropolis` | | False: no accept step; `Austerity(…)`: one that uses a subset of the data |
    | `jitter` | δ | draw each trajectory's step size from ε(1 ± δ), which avoids resonances |
    | `most_steps` | | upper bound on `num_steps`; if set, a new `num_steps` does not recompile |

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
        "exact gradients: the reference for the others",
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
        checks.check_setting(self.step_size, "step_size", positive=True)
        checks.check_matrix(self.mass, "mass")
        checks.check_count(self.num_steps, "num_steps")
        if self.most_steps is not None and self.most_steps < self.num_steps:
            raise ValueError(
                f"num_steps is {self.num_steps}, but most_steps only {self.most_steps}: raise it."
            )

    @property
    def is_affine(self) -> bool:
        return self.jitter == 0 and not isinstance(self.metropolis, Austerity)

    def prepare(self, like: PyTree, num_steps: int = 1) -> "HMCKernel":
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        mass = checks.parse_matrix(self.mass, like, "mass", definite=True)
        checks.values_over(self.step_size, num_steps, "step_size")
        nothing = matrices.scaled(mass, 0.0)
        return HMCKernel(
            checks.array_setting(self.step_size, dtype),
            int(self.num_steps) if self.most_steps is None else jnp.int32(self.num_steps),
            int(self.most_steps or self.num_steps),
            matrices.finish(mass.inverse(), dtype),
            matrices.finish(matrices.pencil(mass, nothing, sizes, "mass"), dtype),
            self.metropolis,
            float(self.jitter),
        )


class HMCState(NamedTuple):
    """The position, the velocity M⁻¹r at the end of the last trajectory, and U and ∇U there.

    `velocity` serves diagnostics only. `cached` holds U and ∇U at the position, where the next
    trajectory begins; None unless the oracle is exact.
    """

    position: PyTree
    velocity: PyTree
    cached: Evaluation | None = None


class HMCNoise(NamedTuple):
    """The variates of a trajectory; `order` is the key of an order of rows for `Austerity`."""

    normals: Normals
    uniforms: jax.Array
    order: jax.Array | None


class HMCKernel(
    AdaptsMass[HMCState, HMCNoise],
    AdaptsStepSize[HMCState, HMCNoise],
    CachesEvaluation[HMCState, HMCNoise],
):
    step_size: jax.Array | Schedule
    num_steps: int | jax.Array
    most_steps: int
    inverse_mass: matrices.Matrix
    mass: matrices.Pencil
    metropolis: bool | Austerity
    jitter: float

    @property
    def num_gradients(self) -> int:
        return self.most_steps + 1

    def init(self, normals: Normals, position: PyTree) -> HMCState:
        return HMCState(
            position, self.mass.inverse_sqrt(1, 0, random.copy_of(normals, 0, position))
        )

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> HMCNoise:
        normals = random.normals_like(key, first_step, num_steps, like)
        width, slot = 1 if self.jitter == 0 else 2, tree.size(like)
        uniforms = random.uniforms(key, first_step, num_steps, width, slot=slot)
        order = None
        if isinstance(self.metropolis, Austerity):
            order = random.bits(key, first_step, num_steps, 2, slot=slot + width)
        return HMCNoise(normals, uniforms, order)

    def step(
        self, t: Step, noise: HMCNoise, state: HMCState, oracle: Oracle
    ) -> tuple[HMCState, StepInfo]:
        epsilon = checks.value_at(self.step_size, t)
        if self.jitter:
            epsilon = epsilon * (1 + self.jitter * (2 * noise.uniforms[1] - 1))
        velocity = self.mass.inverse_sqrt(1, 0, random.copy_of(noise.normals, 0, state.position))
        begun = HMCState(state.position, velocity, state.cached)
        proposal, start, end = self._trajectory(epsilon, begun, oracle)
        if not self.metropolis:
            return proposal, StepInfo(end, jnp.ones(()))
        kinetic_loss = self._kinetic(velocity) - self._kinetic(proposal.velocity)
        data_share = None
        if isinstance(self.metropolis, Austerity) and not oracle.is_exact:
            change = oracle.change(state.position, proposal.position)
            assert noise.order is not None
            limit = kinetic_loss - jnp.log(noise.uniforms[0])
            is_accepted, data_share = self.metropolis.decide(change, limit, noise.order)
            acceptance = is_accepted.astype(limit.dtype)
        else:
            if not oracle.is_exact:
                start, end = oracle.potential(state.position), oracle.potential(proposal.position)
            energy_loss = start - end + kinetic_loss
            # A trajectory that became non-finite has no energy to compare: it is rejected.
            acceptance = jnp.where(jnp.isnan(energy_loss), 0, jnp.exp(jnp.minimum(energy_loss, 0)))
            is_accepted = noise.uniforms[0] < acceptance
        state = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), proposal, begun)
        return state, StepInfo(jnp.where(is_accepted, end, start), acceptance, data_share)

    def _trajectory(
        self, epsilon: jax.Array, state: HMCState, oracle: Oracle
    ) -> tuple[HMCState, jax.Array, jax.Array]:
        """Return the state after m leapfrog steps, and the potentials at both ends."""
        is_cached = state.cached is not None

        def leapfrog(i, carry):
            (position, velocity, _), start, _ = carry
            is_first, is_last = i == 0, i == self.num_steps
            position = tree.add_scaled(position, jnp.where(is_first, 0, epsilon), velocity)
            here = oracle(i, position)
            kick = jnp.where(is_first | is_last, epsilon / 2, epsilon)
            velocity = tree.add_scaled(velocity, -kick, self.inverse_mass @ here.grad)
            state = HMCState(position, velocity, here if is_cached else None)
            return state, jnp.where(is_first, here.potential, start), here.potential

        if state.cached is None:
            unknown = jnp.zeros((), jax.eval_shape(oracle, 0, state.position).potential.dtype)
            return lax.fori_loop(0, self.num_steps + 1, leapfrog, (state, unknown, unknown))
        start, grad = state.cached
        half = tree.add_scaled(state.velocity, -epsilon / 2, self.inverse_mass @ grad)

        def between(i, carry):
            # The potential is not used, so XLA drops it, and with it a logarithm of every row.
            position = tree.add_scaled(carry[0], epsilon, carry[1])
            grad = self.inverse_mass @ oracle(i, position).grad
            return position, tree.add_scaled(carry[1], -epsilon, grad)

        position, half = lax.fori_loop(1, self.num_steps, between, (state.position, half))
        reached = HMCState(position, half, state.cached)
        return leapfrog(self.num_steps, (reached, start, start))

    def with_cached_evaluation(self, state: HMCState, oracle: Oracle) -> HMCState:
        return state._replace(cached=oracle(0, state.position)) if oracle.is_exact else state

    def momentum(self, state: HMCState) -> PyTree:
        return self.mass.first @ state.velocity

    def map_parameters(self, state: HMCState, shape: Callable[[PyTree], PyTree]) -> HMCState:
        # The cached evaluation keeps the loop's shapes: an adaptation does not read it.
        return state._replace(position=shape(state.position), velocity=shape(state.velocity))

    def adaptable(self, state: HMCState) -> Self:
        # A dense mass stays as it is; the step size may still adapt.
        is_diagonal = isinstance(self.inverse_mass, matrices.Diagonal)
        return super().adaptable(state) if is_diagonal else self

    def diagonal_mass(self, position: PyTree) -> PyTree:
        if not isinstance(self.inverse_mass, matrices.Diagonal):
            raise TypeError("A mass that adapts is diagonal: give it as a number.")
        return matrices.entries(self.inverse_mass.inverse(), position)

    def with_mass(self, state: HMCState, mass: PyTree) -> tuple[Self, HMCState]:
        assert isinstance(self.mass, matrices.DiagonalPencil)
        new = matrices.raveled(mass)
        kernel = dataclasses.replace(
            self, inverse_mass=new.inverse(), mass=dataclasses.replace(self.mass, first=new)
        )
        return kernel, state  # the next trajectory draws a new velocity anyway

    def constant_step_size(self) -> jax.Array:
        if callable(self.step_size) or not self.metropolis:
            raise TypeError(
                "The acceptance can choose the step size of HMC where that is a number and there "
                "is an accept step: give no schedule, and metropolis=True."
            )
        return self.step_size

    def with_step_size(self, step_size: jax.Array) -> Self:
        dtype = self.constant_step_size().dtype
        return dataclasses.replace(self, step_size=step_size.astype(dtype))

    def _kinetic(self, velocity: PyTree) -> jax.Array:
        return self.mass.quadratic(1, 0, velocity) / 2

    def kinetic_temperature(self, t: Step, state: HMCState) -> jax.Array:
        return 2 * self._kinetic(state.velocity) / tree.size(state.velocity)
