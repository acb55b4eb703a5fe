"""Until: when a run is long enough, by its draws, its gradients or the clock."""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from sghmc.core import runtime
from sghmc.results.summaries import SummaryTable
from sghmc.types import PyTree

if TYPE_CHECKING:
    from sghmc.results.samples import Samples

_MAX_QUANTITIES = 2_000
"""Numbers of a draw that are evaluated; of more, some are, evenly spaced, as for a verdict."""
_MIN_DRAWS = 4
"""Draws of each chain before the first evaluation: fewer have no effective size."""
_MIN_SIZE = 100
"""Effective draws before a Monte Carlo error is believed: chains that hardly moved have a small
one."""
_MIN_GROWTH, _MAX_GROWTH = 1.03, 2.0
"""Draws at an evaluation over those at the one before: by the share reached, within these."""


@dataclasses.dataclass(frozen=True)
class Until:
    """Limits of a run, which ends as soon as it reaches one of them: `sample(…, until=Until(…))`.

    | field | the run ends when |
    | --- | --- |
    | `ess` | every kept number has this effective size: the smallest `ess_bulk` of `summary` |
    | `mcse` | every mean is as precise: the largest `mcse_mean` of `summary`, in its own \
units, after 100 effective draws |
    | `gradients` | all chains together took so many gradients, burn-in included |
    | `seconds` | so much time went by since the call, tuning and compilation included |

    `ess` and `mcse` are evaluated at numbers of draws that depend on the draws alone, so that the
    same key ends after the same draws on an idle machine, a busy one, and after a resume. They
    are estimates: a chain that never saw a mode does not miss it. `samples.verdict` says more.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), target, sghmc.HMC(0.6, num_steps=3), jnp.zeros(2),
    ...     num_chains=4, until=sghmc.Until(ess=400, seconds=60), progress=False,
    ... )
    >>> bool(400 <= samples.summary().ess_bulk.min() < 480)
    True
    """

    ess: float | None = None
    mcse: float | None = None
    gradients: int | None = None
    seconds: float | None = None

    def __post_init__(self):
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise ValueError("Until needs a limit: ess, mcse, gradients or seconds.")
        for name, value in given.items():
            is_number = isinstance(value, int | float) or hasattr(value, "dtype")
            if not (is_number and value > 0):
                raise ValueError(f"{name} must be a number above 0, but is {value!r}.")

    @property
    def judges_draws(self) -> bool:
        return self.ess is not None or self.mcse is not None

    def later(self, seconds: float) -> "Until":
        """Return the limits that are left after so many seconds."""
        if self.seconds is None:
            return self
        return dataclasses.replace(self, seconds=max(self.seconds - seconds, 1e-9))

    def max_draws(self, gradients_per_draw: int) -> int | None:
        """Return how many draws of each chain `gradients` allows, burn-in included."""
        return None if self.gradients is None else int(self.gradients) // gradients_per_draw

    def first_check(self, num_chains: int) -> int:
        """Return the number of draws of each chain at which to evaluate them first."""
        sizes = [size for size in (self.ess, self.mcse and _MIN_SIZE) if size is not None]
        return max(_MIN_DRAWS, math.ceil(min(sizes, default=0) / (2 * num_chains)))

    def share(self, samples: "Samples", num_draws: int) -> float:
        """Return how much of the draws that are needed the first `num_draws` are: 1 is enough."""
        some = {name: leaf[:, :num_draws] for name, leaf in samples.variables.items()}
        table = SummaryTable.of(some, _MAX_QUANTITIES)
        size, shares = table.worst("ess_bulk", is_largest=False)[1], [0.0]
        if self.ess is not None:
            shares.append(size / self.ess)
        if self.mcse is not None:
            error = table.worst("mcse_mean", is_largest=True)[1]
            shares.append(min((self.mcse / error) ** 2 if error else 1.0, size / _MIN_SIZE))
        return max(share for share in shares if not math.isnan(share))


def next_check(num_draws: int, share: float) -> int:
    """Return the number of draws at which to evaluate next, by what share of the need there is."""
    growth = min(max(1 / max(share, 1e-9), _MIN_GROWTH), _MAX_GROWTH)
    return math.ceil(growth * num_draws)


class Watch:
    """The limits of a run on its way: evaluated at some numbers of its draws, and by the clock."""

    def __init__(self, until: Until | None, num_chains: int, kept: PyTree):
        self.until, self.is_met = until, False
        self.judges_draws = until is not None and until.judges_draws
        if self.judges_draws and not jax.tree.leaves(kept):
            raise ValueError(
                f"{until} judges what is kept of a draw, but keep stores nothing: have it return "
                f"the numbers that count."
            )
        self.check = 0 if until is None else until.first_check(num_chains)
        """Number of kept draws of each chain at which they are evaluated next."""
        self.share_per_draw = 0.0
        """Share of the draws needed that each is, by the last evaluation."""

    def is_over(self, num_kept: int, seconds: float, samples: Callable[[], "Samples"]) -> bool:
        """Return whether a limit is reached, in all processes of a run alike."""
        if self.until is None:
            return False
        while self.judges_draws and not self.is_met and self.check <= num_kept:
            share = self.until.share(samples(), self.check)
            self.is_met, self.share_per_draw = share >= 1, share / self.check
            self.check = next_check(self.check, share)
        left = self.seconds_left(seconds)
        self.is_met |= bool(runtime.broadcast(left is not None and left <= 0))
        return self.is_met

    def seconds_left(self, seconds: float) -> float | None:
        if self.until is None or self.until.seconds is None:
            return None
        return self.until.seconds - seconds

    def draws_left(self, num_kept: int) -> list[int]:
        """Return after how many draws the next evaluation is due, if there is one."""
        return [self.check - num_kept] if self.judges_draws else []

    def share(self, num_kept: int, seconds: float, least: float) -> float:
        """Return which share of the run is over, as it seems now."""
        left = self.seconds_left(seconds)
        by_clock = 0.0 if left is None else seconds / (seconds + max(left, 0.0))
        return min(1.0, max(least, by_clock, self.share_per_draw * num_kept))
