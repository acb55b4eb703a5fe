"""Result of a run: `Samples`, and the errors that carry them if the run went wrong."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.results import convergence, patterns, report, summaries
from sghmc.results.health import Health, assess
from sghmc.results.prediction import Origin, SavedOrigin
from sghmc.results.summaries import Info, SummaryTable
from sghmc.results.views import MAX_REPORTED, Views
from sghmc.types import PyTree

if TYPE_CHECKING:
    pass

# Relative error of a standard deviation that does not matter.
_TOLERANCE = 0.05


class Growth(NamedTuple):
    """From the kept draw `draw` on the posterior had `num_examples` rows, and fewer before."""

    draw: int
    num_before: int
    num_examples: int


@dataclasses.dataclass(frozen=True)
class Samples(Views):
    """The draws of a run, on the host.

    | field | meaning |
    | --- | --- |
    | `positions` | what `keep` returned (default: the parameters); axes (chain, draw, …) |
    | `variables` | the draws by name, constrained parameters on their own scale, as in tables |
    | `hyper` | the hyperparameters of each draw, or None |
    | `averages` | mean of each averaged function over the kept draws; leading chain axis |
    | `trace` | result of `trace` for the averages at each draw, or None; axes (chain, draw, …) |
    | `info` | potential estimate, kinetic temperature, acceptance, finiteness of each draw |
    | `num_steps` | sampler steps made, burn-in and thinning included |
    | `seconds` | wall-clock time of the run, compilation included |
    | `startup_seconds` | the part of it until the first draw, compilation mostly |
    | `clock` | seconds from the start until each draw had come back to the host |
    | `tuning` | the report of `tune`, after `sample(…, "auto", …)` |
    | `origin` | target, sampler and gradient estimator that made the draws |
    | `growth` | when a stream's number of rows grew, and to what |
    | `is_interrupted` | Ctrl-C came while the draws were made, in the last moment perhaps |
    | `continuation` | the run's last state, for `more` |
    """

    positions: PyTree
    hyper: PyTree
    averages: dict[str, Any]
    trace: PyTree
    info: Info
    num_steps: int
    seconds: float
    startup_seconds: float
    clock: np.ndarray | None = None
    tuning: Any = None
    origin: Origin | SavedOrigin | None = None
    growth: tuple[Growth, ...] = ()
    is_interrupted: bool = False
    continuation: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        # The report of a tuning shows the verdict on the run that came of it. It holds a copy
        # without itself: a cycle of references would keep large draws in memory.
        if hasattr(self.tuning, "of_run"):
            bare = dataclasses.replace(self, tuning=None, continuation=None)
            object.__setattr__(self, "tuning", self.tuning.of_run(bare))

    @property
    def num_chains(self) -> int:
        return self.info.is_finite.shape[0]

    @property
    def num_draws(self) -> int:
        """Return the number of kept draws of each chain."""
        return self.info.is_finite.shape[1]

    def more(self, n: int) -> "Samples":
        """Return these draws and `n` more of each chain: the run goes on from its last state.

        The draws are bit for bit those of one longer run with the same settings. A run with a
        checkpoint goes on in its folder. Where settings follow a schedule, which belongs to a
        length, and for draws without a kept state, that is refused.

        >>> import jax, jax.numpy as jnp, sghmc
        >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
        >>> samples = sghmc.sample(
        ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(2),
        ...     num_samples=100, num_chains=4, progress=False,
        ... )
        >>> samples.more(50).positions.shape
        (4, 150, 2)
        """
        if self.continuation is None:
            raise ValueError(
                "The run cannot go on: these draws have no state, as they come from a file, from "
                "an error or from another library. Call sample again with more num_samples, or "
                "with init=samples.last, init_axis=0."
            )
        return self.continuation(self, n)

    @property
    def last(self) -> PyTree:
        """The last position of every chain, from which other runs may start: another data set's.

        >>> import jax, jax.numpy as jnp, sghmc
        >>> key, sampler = jax.random.key(0), sghmc.SGHMC(0.1, friction=1.0)
        >>> old = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
        >>> new = sghmc.Potential(lambda theta: jnp.sum((theta - 0.1) ** 2) / 2)
        >>> run = {"num_samples": 100, "num_chains": 4, "progress": False}
        >>> samples = sghmc.sample(key, old, sampler, jnp.zeros(2), **run)
        >>> samples = sghmc.sample(key, new, sampler, samples.last, init_axis=0, **run)
        """
        if isinstance(self.origin, Origin) and not self.origin.keeps_positions:
            raise ValueError(
                "keep stored something else of the draws than positions: leave keep out, or have "
                "it return the positions, too."
            )
        return jax.tree.map(lambda leaf: np.asarray(leaf[:, -1]), self.positions)

    @property
    def verdict(self) -> Health:
        """The verdict on the run: trustworthy, usable with care, or not trustworthy, and why.

        `samples.verdict(of=f)` judges a function of the draws instead, such as a prediction:
        parameters of a network need not agree where its predictions do.

        >>> import jax, jax.numpy as jnp, sghmc
        >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
        >>> samples = sghmc.sample(
        ...     jax.random.key(0), target, sghmc.HMC(0.6, num_steps=3), jnp.zeros(2),
        ...     num_samples=500, num_chains=4, progress=False,
        ... )
        >>> samples.verdict.level, samples.verdict(of=jnp.sum).level
        ('trustworthy', 'trustworthy')
        """
        found = self._judged if self.tuning is None else self.tuning.judged
        return dataclasses.replace(found, judge=functools.partial(judge, self, self.tuning))

    @functools.cached_property
    def _judged(self) -> Health:
        return judge(self)

    def health(self, tolerance: float = _TOLERANCE) -> Health:
        """Return the `verdict` at another tolerance of a standard deviation's relative error.

        Gradient noise and curvature are measured at some of the draws if these are the parameters
        themselves: with a `keep` that stores something else that part is left out.
        """
        if tolerance == _TOLERANCE:
            return self.verdict
        return judge(self, self.tuning, tolerance=tolerance)

    def settling_draws(self, within: float = 0.1) -> float:
        """Estimate how many draws the chains need to settle after the data last grew.

        From N to N' rows the posterior moves by about √(N'/N − 1) of its new standard deviations;
        that falls by 1/e in an autocorrelation time (1 + Σρ, of the slowest quantity kept since),
        and has settled when `within` standard deviations are left. Zero if nothing grew.
        """
        if not self.growth:
            return 0.0
        last = self.growth[-1]
        moved = math.sqrt(abs(last.num_examples / last.num_before - 1))
        later = min((last.draw + self.num_draws) // 2, self.num_draws - 2)  # on their way before
        since = [leaf[:, later:] for leaf in self.variables.values()]
        slowest = max(convergence.slowest_time(leaf) for leaf in since)
        return slowest * max(0.0, math.log(moved / within))

    def __repr__(self) -> str:
        run = self.info, self.num_steps, self.seconds
        return f"Samples({'; '.join(report.overview_parts(self.variables, self.averages, *run))})"


def judge(
    samples: Samples,
    tuning: Any = None,
    of: Callable[..., PyTree] | None = None,
    tolerance: float | None = None,
) -> Health:
    """Judge a run, or a function of its draws, with what its tuning knows."""
    variables = samples.variables if of is None else _evaluate(samples, of)
    found = assess(
        SummaryTable.of(variables, MAX_REPORTED),
        samples.origin,
        samples.positions,
        samples.hyper,
        samples.info,
        _TOLERANCE if tolerance is None else tolerance,
    ).after(tuning, is_of_parameters=of is None)
    quantities = summaries.quantities(variables, MAX_REPORTED)
    tails = patterns.tail_care(quantities)
    # Heavy tails are no funnel, though steps may be rejected far out.
    funnel = None if tails else patterns.rejected_tail(quantities, samples.info.acceptance)
    return dataclasses.replace(
        found,
        reasons=found.reasons + ((funnel,) if funnel else ()),
        cares=found.cares + ((tails,) if tails else ()),
    )


def _evaluate(samples: Samples, of: Callable[..., PyTree]) -> dict[str, np.ndarray]:
    """Return a function of every draw's position, and of its hyperparameters, by name."""
    has_hyper = samples.hyper is not None
    draws = (samples.positions, samples.hyper) if has_hyper else (samples.positions,)
    shape = (samples.num_chains, samples.num_draws)
    flat = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), draws)
    values = jax.jit(lambda draws: jax.lax.map(lambda one: of(*one), draws))(flat)
    values = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:]), values)
    named = summaries.named_leaves(values).items()
    return {f"f{name[8:]}" if name.startswith("position") else name: x for name, x in named}


class GradientNoiseError(ValueError):
    """Estimated gradient noise exceeds the injected noise. `samples` holds what was drawn."""

    def __init__(self, message: str, samples: Samples):
        super().__init__(message)
        self.samples = samples


class DivergenceError(FloatingPointError):
    """A chain became non-finite. `samples` holds everything drawn until then."""

    def __init__(self, message: str, samples: Samples):
        super().__init__(message)
        self.samples = samples
