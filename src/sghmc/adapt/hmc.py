"""Adaptation of the step size and the mass of HMC during burn-in."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.adapt import Adaptation
from sghmc.adapt import mass as masses
from sghmc.samplers import AdaptsMass, AdaptsStepSize, as_protocol

# γ, t₀ and κ of dual averaging, as their authors chose them.
_SHRINKAGE, _DELAY, _FORGETTING = 0.05, 10.0, 0.75
# Dual averaging shrinks towards this multiple of its first step size, as its authors have it: too
# large a step is noticed sooner than one too small.
_FIRST_FACTOR = 10.0
# The mass stays fixed in the first and the last sixth: chains arrive, and ε̄ settles.
_MARGIN_DIVISOR = 6
# With fewer, the first and the last part would have less than ten trajectories each.
_MIN_TRAJECTORIES = 60
# Variances from a shorter first window are mostly noise.
_MIN_FIRST_WINDOW = 20


class AdaptHMC(Adaptation):
    """The step size of `HMC` by dual averaging, and its mass from the spread of the draws.

        h ← h + (a* − a − h)/(k + 10),  log ε = log(10 ε₀) − √k h/0.05
        log ε̄ ← log ε̄ + k^−0.75 (log ε − log ε̄),  k = 1, 2, … since the mass last changed

    a is the acceptance of trajectory k, ε₀ the step size when the mass changed.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `until` | | the trajectory after which nothing changes, with ε = ε̄ from then on |
    | `target_acceptance` | a* | what the acceptance should be on average |
    | `mass` | | False leaves the mass as it was given |
    | `start` | | the first trajectory |

    Masses change as `AdaptMass` changes them, after a sixth of the way and up to five sixths.
    `num_steps` stays: a trajectory is then about ε·`num_steps` long in units of standard
    deviations. Where that is near a whole turn, 2π, chains hardly move: give `HMC` a `jitter`.

    Law: after `until`, that of `HMC`, exact with its accept step.

    Hoffman & Gelman, JMLR 2014, §3.2.

    >>> import sghmc
    >>> sghmc.AdaptHMC(until=500).target_acceptance
    0.8
    """

    until: int
    target_acceptance: float = 0.8
    mass: bool = True
    start: int = 0
    every: int = eqx.field(init=False, default=1)

    def __check_init__(self):
        if not 0 < self.target_acceptance < 1:
            raise ValueError(
                f"target_acceptance must be above 0 and below 1, but is {self.target_acceptance!r}."
            )
        if self.until < self.start + _MIN_TRAJECTORIES:
            raise ValueError(
                f"Dual averaging needs {_MIN_TRAJECTORIES} trajectories or more, but from "
                f"{self.start} to {self.until} there are {self.until - self.start}: take a later "
                f"until."
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the numbers of trajectories after which the mass changes."""
        margin = (self.until - self.start) // _MARGIN_DIVISOR
        first = max(_MIN_FIRST_WINDOW, margin // 2)
        return masses.windows(self.start + margin, self.until - margin, first) if self.mass else ()

    def begin(self, kernel, position):
        spread = None
        if self.mass:
            spread = masses.begin(as_protocol(kernel, AdaptsMass).diagonal_mass(position))
        step_size = as_protocol(kernel, AdaptsStepSize).constant_step_size()
        return HMCMemory(spread, begin_search(step_size))

    def revise(self, moment, memory):
        kernel, state, spread = moment.kernel, moment.state, memory.spread
        search = memory.search.with_acceptance(moment.acceptance, self.target_acceptance)
        if self.mass:
            spread, is_new = masses.revise(moment, None, spread, self.ends, self.every)
            is_early = moment.t + 1 <= self.start + (self.until - self.start) // _MARGIN_DIVISOR
            spread = _where(is_early, masses.begin(spread.mass), spread)
            search = _where(is_new, begin_search(jnp.exp(search.log_mean)), search)
            kernel, state = kernel.with_mass(state, spread.mass)
        is_over = moment.t + 1 >= self.until
        step_size = jnp.exp(jnp.where(is_over, search.log_mean, search.log_step_size))
        return kernel.with_step_size(step_size), state, HMCMemory(spread, search)


class Search(NamedTuple):
    """Dual averaging: log 10ε₀, k, h, log ε and log ε̄."""

    center: jax.Array
    num_seen: jax.Array
    shortfall: jax.Array
    log_step_size: jax.Array
    log_mean: jax.Array

    def with_acceptance(self, acceptance, target: float) -> "Search":
        count = self.num_seen + 1
        shortfall = self.shortfall + (target - acceptance - self.shortfall) / (count + _DELAY)
        log_step_size = self.center - jnp.sqrt(count) / _SHRINKAGE * shortfall
        weight = count**-_FORGETTING
        log_mean = self.log_mean + weight * (log_step_size - self.log_mean)
        return Search(self.center, count, shortfall, log_step_size, log_mean)


class HMCMemory(NamedTuple):
    """Memory of one chain's adaptation; `spread` is None if the mass stays fixed."""

    spread: masses.Spread | None
    search: Search


def begin_search(step_size: jax.Array) -> Search:
    zero, log = jnp.zeros_like(step_size), jnp.log(step_size)
    return Search(jnp.log(_FIRST_FACTOR) + log, zero, zero, log, log)


def _where(condition, one, other):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
