"""Replica exchange: hotter copies of a chain carry it over barriers."""

import dataclasses
import itertools
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import random, tree
from sghmc.core.checks import check_count, check_setting
from sghmc.gradients import Oracle
from sghmc.samplers import (
    Dynamics,
    Kernel,
    RescalesMomenta,
    Sampler,
    Traits,
    as_protocol,
    fisher_of,
)
from sghmc.samplers.hmc import estimate
from sghmc.samplers.wrappers import SamplerWrapper
from sghmc.types import Normals, PyTree, Step, StepInfo

_MAX_SWAP_VARIANCE = 8.0
"""Largest variance σ² of a swap's D̃: above it, noise rejects so many swaps that more rows pay."""


class ReplicaExchange(SamplerWrapper):
    """Replicas of a chain at rising temperatures; neighbours swap places now and then.

        each replica k: one step of `sampler` at temperature τ_k, batches of its own
        after every `every`-th step, for neighbours a, b, even and odd pairs taking turns:
            D̃ = (1/τ_a − 1/τ_b)(Ũ_a − Ũ_b),  σ² its variance, both from the same rows
            with probability min(1, exp(D̃ − ½σ²)): a and b swap positions and momenta,
            momenta times √(τ_new/τ_old)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `sampler` | | what moves a replica: `SGHMC`, `SGLD` and the like, with temperature 1 |
    | `temperatures` | τ_k | rising; draws are those of the first |
    | `every` | | steps from one swap to the next |
    | `batch_size` | n | rows of a swap; more are added while σ² > 8. None: all data, σ² = 0 |

    Law: exp(−U/τ_1), with the bias of `sampler`. A swap with exact potentials is a Metropolis step
    of the product of all replicas' laws, taken half a drift before the end of a step, where a
    position and its momentum are independent. A normal error of D̃ with variance σ² is corrected
    exactly by −½σ²; an estimated σ² leaves an error of order σ⁴/n in the acceptance. Rows are drawn
    without replacement, new for each pair, and σ² is 0 once all are used.

    `info.acceptance` is the mean over pairs of the last probability of a swap: 0.2 to 0.6 is a good
    ladder. The hottest replica must cross all barriers by itself. A step costs as many gradients
    as there are temperatures.

    Swendsen & Wang, 1986; Ceperley & Dewing, 1999 (the penalty ½σ²); Deng et al., ICML 2020.

    >>> import sghmc
    >>> sghmc.ReplicaExchange(sghmc.SGHMC(0.1, friction=1.0), [1.0, 3.0, 9.0]).temperatures
    (1.0, 3.0, 9.0)
    """

    traits: ClassVar[Traits] = Traits(
        "that of its sampler",
        "that of its sampler, τ_k",
        "several modes, with their weights",
    )

    sampler: Sampler
    temperatures: tuple[float, ...]
    every: int = 10
    batch_size: int | None = None

    def __init__(self, sampler, temperatures, every: int = 10, batch_size: int | None = None):
        self.sampler = sampler
        self.temperatures = tuple(float(temperature) for temperature in temperatures)
        self.every = every
        self.batch_size = batch_size

    def __check_init__(self):
        is_sampler = isinstance(self.sampler, Sampler)
        is_wrapper = isinstance(self.sampler, SamplerWrapper)
        if not is_sampler or is_wrapper or "temperature" not in self.sampler.settings:
            raise TypeError(
                f"ReplicaExchange needs a sampler with a temperature, such as SGHMC(…) or SGLD(…), "
                f"not {self.sampler!r}; Whitened and the like go around it."
            )
        own = self.sampler.dynamics.temperature
        if callable(own) or float(own) != 1:
            raise ValueError(
                f"The sampler's own temperature is {own}, but replicas have theirs from "
                f"temperatures: leave it at 1."
            )
        ladder = self.temperatures
        for temperature in ladder:
            check_setting(temperature, "temperatures", positive=True)
        if len(ladder) < 2 or any(b <= a for a, b in itertools.pairwise(ladder)):
            raise ValueError(
                f"temperatures must be two or more, each above the last, not {ladder}."
            )
        check_count(self.every, "every")
        check_count(
            self.batch_size,
            "batch_size",
            10,
            or_none="for all data",
            reason="for means that are nearly normal",
        )

    @property
    def settings(self):
        """The settings of the sampler inside, without its temperature, which is replaced."""
        return {n: value for n, value in self.sampler.settings.items() if n != "temperature"}

    @property
    def dynamics(self) -> Dynamics:
        """The dynamics of the first replica, whose draws are kept."""
        return self.sampler.dynamics._replace(temperature=self.temperatures[0])

    @property
    def is_affine(self) -> bool:
        return False

    def prepare(self, like: PyTree, num_steps: int = 1) -> "ReplicaKernel":
        # The limit of V̂ is proportional to the temperature, so the coldest replica is checked.
        coldest = self.sampler.with_settings(temperature=self.temperatures[0])
        kernel = coldest.prepare(like, num_steps)
        if fisher_of(kernel) is not None:
            raise ValueError(
                "Replicas at different temperatures cannot share an EmpiricalFisher: give "
                "gradient_noise as numbers, or 0."
            )
        temperatures = jnp.asarray(self.temperatures, tree.float_type(like))
        return ReplicaKernel(kernel, temperatures, int(self.every), self.batch_size)


class ReplicaState(NamedTuple):
    """The replicas' states on a leading axis, and the last probability of a swap of each pair."""

    replicas: Any
    acceptance: jax.Array


class ReplicaNoise(NamedTuple):
    """The replicas' own variates, a uniform for each pair's swap, and the key of its rows."""

    motion: PyTree
    uniforms: jax.Array
    order: jax.Array


class ReplicaKernel(Kernel[ReplicaState, ReplicaNoise]):
    """Step all replicas, swap neighbours, and show the coldest replica as the chain."""

    inner: Any
    temperatures: jax.Array
    every: int
    batch_size: int | None

    @property
    def num_replicas(self) -> int:
        return len(self.temperatures)

    @property
    def num_gradients(self) -> int:
        return self.num_replicas * self.inner.num_gradients

    @property
    def gradient_use(self) -> Literal["start", "slope", "inside"]:
        return self.inner.gradient_use

    def init(self, normals: Normals, position: PyTree) -> ReplicaState:
        # All replicas start with the same normals; their noise differs from the first step on.
        replicas = jax.vmap(lambda tau: self._at(tau).init(normals, position))(self.temperatures)
        return ReplicaState(replicas, jnp.zeros_like(self.temperatures[1:]))

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> ReplicaNoise:
        count, swaps = self.num_replicas, random.fold(key, self.num_replicas)
        own = jax.vmap(lambda k: random.fold(key, k))(jnp.arange(count))
        motion = jax.vmap(lambda key: self.inner.draw(key, first_step, num_steps, like))(own)

        def by_step(leaf):
            steps = leaf.reshape(count, num_steps, -1, *leaf.shape[2:])
            return jnp.swapaxes(steps, 0, 1).reshape(-1, *leaf.shape[2:])

        return ReplicaNoise(
            jax.tree.map(by_step, motion),
            random.uniforms(swaps, first_step, num_steps, count),
            random.bits(swaps, first_step, num_steps, 2, slot=count),
        )

    def step(
        self, t: Step, noise: ReplicaNoise, state: ReplicaState, oracle: Oracle
    ) -> tuple[ReplicaState, StepInfo]:
        def of_replica(k, tau, motion, replica):
            batches = oracle.from_batch(k * self.inner.num_gradients)
            return self._at(tau).step(t, motion, replica, batches)

        count = self.num_replicas
        motion = jax.tree.map(lambda leaf: leaf.reshape(count, -1), noise.motion)
        replicas, info = jax.vmap(of_replica)(
            jnp.arange(count), self.temperatures, motion, state.replicas
        )
        state = lax.cond(
            (t + 1) % self.every == 0,
            lambda state: self.swapped(t, noise, state, oracle),
            lambda state: state,
            ReplicaState(replicas, state.acceptance),
        )
        # A replica that became non-finite is a failure of the chain, whichever it is.
        potential = info.potential[0] + 0 * jnp.sum(info.potential)
        return state, StepInfo(potential, jnp.mean(state.acceptance))

    def swapped(
        self, t: Step, noise: ReplicaNoise, state: ReplicaState, oracle: Oracle
    ) -> ReplicaState:
        """Propose a swap to every second pair of neighbours, and return the new state."""
        inner = as_protocol(self.inner, RescalesMomenta)
        parity = 0 if self.num_replicas == 2 else (t + 1) // self.every % 2
        cold = parity + 2 * jnp.arange(self.num_replicas // 2)
        hot = jnp.minimum(cold + 1, self.num_replicas - 1)  # an unpaired replica swaps with itself
        middles = jax.vmap(lambda replica: self.inner.mid_drift(t, replica))(state.replicas)
        gain, variance = self._gains(cold, hot, noise.order, middles, oracle)
        acceptance = swap_probability(gain, variance)
        is_swapped = noise.uniforms[cold] < acceptance
        source = jnp.arange(self.num_replicas)
        source = source.at[cold].set(jnp.where(is_swapped, hot, cold))
        source = source.at[hot].set(jnp.where(is_swapped, cold, hot))
        moved = jax.tree.map(lambda leaf: leaf[source], state.replicas)
        ratio = self.temperatures / self.temperatures[source]
        return ReplicaState(
            jax.vmap(lambda replica, ratio: inner.rescale_momenta(t, replica, ratio))(moved, ratio),
            state.acceptance.at[cold].set(acceptance.astype(ratio.dtype), mode="drop"),
        )

    def _gains(self, cold, hot, order, middles, oracle: Oracle) -> tuple[jax.Array, jax.Array]:
        """Return D̃ and its variance for the pairs (cold, hot)."""
        coldness = 1 / self.temperatures[cold] - 1 / self.temperatures[hot]
        batch_size = self.batch_size
        if batch_size is None or oracle.is_exact:
            potentials = jax.vmap(oracle.potential)(middles)
            gain = coldness * (potentials[cold] - potentials[hot])
            return gain, jnp.zeros_like(gain)

        def of_pair(pair, coldness, here, there):
            change = estimate(
                oracle.change(there, here),
                random.fold(order, pair),  # own rows, so that errors of pairs are independent
                batch_size,
                lambda change: coldness**2 * change.variance <= _MAX_SWAP_VARIANCE,
            )
            return coldness * change.value, coldness**2 * change.variance

        here, there = (jax.tree.map(lambda leaf, i=i: leaf[i], middles) for i in (cold, hot))
        return jax.vmap(of_pair)(cold, coldness, here, there)

    def _at(self, temperature: jax.Array) -> Kernel:
        return dataclasses.replace(self.inner, temperature=temperature)

    def _coldest(self, state: ReplicaState) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], state.replicas)

    def position(self, state: ReplicaState) -> PyTree:
        return self.inner.position(self._coldest(state))

    def momentum(self, state: ReplicaState) -> PyTree:
        return self.inner.momentum(self._coldest(state))

    def draw_from(self, t: Step, state: ReplicaState) -> PyTree:
        return self.inner.draw_from(t, self._coldest(state))

    def mid_drift(self, t: Step, state: ReplicaState) -> PyTree:
        return self.inner.mid_drift(t, self._coldest(state))

    def kinetic_temperature(self, t: Step, state: ReplicaState) -> jax.Array:
        return self.inner.kinetic_temperature(t, self._coldest(state))


def swap_probability(
    gain: jax.Array | np.ndarray, variance: jax.Array | np.ndarray | float
) -> jax.Array:
    """Return min(1, exp(D̃ − ½σ²)), which averaged over D̃ ~ N(D, σ²) keeps detailed balance."""
    exponent = gain - variance / 2
    # Potentials that are not finite cannot be compared: no swap.
    return jnp.where(jnp.isnan(exponent), 0, jnp.exp(jnp.minimum(exponent, 0)))
