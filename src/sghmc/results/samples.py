"""Result of a run: `Samples`, and the errors that carry them if the run went wrong."""

import dataclasses
import functools
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import display
from sghmc.results import convergence, patterns, report, summaries
from sghmc.results.health import Health, HealthWarning, assess
from sghmc.results.prediction import Origin, SavedOrigin
from sghmc.results.summaries import Info, SummaryTable
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz
    import pandas

# Relative error of a standard deviation that does not matter.
_TOLERANCE = 0.05
# Quantities that a verdict and a report evaluate: each takes a millisecond, of thousands of draws.
_MAX_REPORTED = 2_000
# Bytes of draws that an error may hold in memory.
_MAX_COPIED_BYTES = 1 << 30


class Growth(NamedTuple):
    """From the kept draw `draw` on the posterior had `num_examples` rows, and fewer before."""

    draw: int
    num_before: int
    num_examples: int


@dataclasses.dataclass(frozen=True)
class Samples:
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

    def __post_init__(self):
        # The report of a tuning shows the verdict on the run that came of it. It holds a copy
        # without itself: a cycle of references would keep large draws in memory.
        if hasattr(self.tuning, "of_run"):
            bare = dataclasses.replace(self, tuning=None)
            object.__setattr__(self, "tuning", self.tuning.of_run(bare))

    @property
    def num_chains(self) -> int:
        return self.info.is_finite.shape[0]

    @property
    def num_draws(self) -> int:
        """Return the number of kept draws of each chain."""
        return self.info.is_finite.shape[1]

    def to_arviz(self) -> "arviz.InferenceData":
        """Convert the draws for arviz, with all its plots and diagnostics.

        Variables are named by their paths: `weights`, `layers[0].bias`; an array or a tuple at the
        top is `position`, hyperparameters follow `hyper`. The group sample_stats has `potential`,
        `diverging` (the draw is not finite) and, where the sampler has them, `kinetic_temperature`
        and `acceptance_rate`.

        >>> import jax, jax.numpy as jnp, sghmc
        >>> target = sghmc.Potential(lambda params: jnp.sum(params["weights"] ** 2) / 2)
        >>> samples = sghmc.sample(
        ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0),
        ...     {"weights": jnp.zeros(2)}, num_samples=100, num_chains=4, progress=False,
        ... )
        >>> dict(samples.to_arviz().posterior.weights.sizes)
        {'chain': 4, 'draw': 100, 'weights_dim_0': 2}
        """
        statistics = {
            "potential": self.info.potential,
            "diverging": ~self.info.is_finite,
            "kinetic_temperature": self.info.kinetic_temperature,
            "acceptance_rate": self.info.acceptance,
        }
        return summaries.to_arviz(
            self.variables,
            {name: values for name, values in statistics.items() if values is not None},
        )

    def summary(self, names: Sequence[str] | None = None) -> "pandas.DataFrame":
        """Return a table with one row for each number of the draws (of the variables `names`).

        The columns are mean, sd, a highest-density interval, the Monte Carlo standard errors
        mcse_mean and mcse_sd, the effective sample sizes ess_bulk and ess_tail, and r_hat, which
        needs two chains or more. The table's `attrs` hold the `verdict`; if the run is not sound,
        there is a `HealthWarning` too.
        """
        table = summaries.summary(self.variables, names)
        health = self.verdict
        found = {field.name: getattr(health, field.name) for field in dataclasses.fields(health)}
        found.pop("judge")
        table.attrs = {"verdict": health.verdict, "level": health.level, **found}
        if not health.is_sound:
            warnings.warn(health.verdict, HealthWarning, stacklevel=2)
        return table

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

    def plot(self, kind: str = "trace", names: Sequence[str] | None = None, **options: Any) -> Any:
        """Plot through arviz: "trace", "rank", "autocorrelation" or "pair"; return its axes."""
        return summaries.plot(self.to_arviz(), kind, names, **options)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str = "Run report",
        *,
        predictive: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> pathlib.Path:
        """Write one page of HTML that needs no other file; return where it was written.

        The `verdict`, what to do, settings and speed, every number (of very many, some,
        evenly spaced) with its effective size and R-hat, and pictures of those that mix worst.

        `predictive` has predictive checks by name: a number that sums up the observed data, and the
        same number for data sets that the model made, one for each draw or some.

        >>> import tempfile
        >>> import jax, jax.numpy as jnp, numpy as np, sghmc
        >>> data = np.random.default_rng(0).normal(size=100)
        >>> posterior = sghmc.Posterior(
        ...     lambda mean, y: -0.5 * (y - mean) ** 2, lambda mean: -0.5 * mean**2, data
        ... )
        >>> samples = sghmc.sample(
        ...     jax.random.key(0), posterior, sghmc.SGHMC(0.05, friction=10.0), jnp.zeros(()),
        ...     num_samples=100, num_chains=4, progress=False,
        ... )
        >>> noise = np.random.default_rng(1).normal(size=(4, 100, len(data)))
        >>> replicated = samples.positions[..., None] + noise
        >>> checks = {"largest": (data.max(), replicated.max(axis=-1))}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     samples.report(folder, predictive=checks).name
        'report.html'
        """
        checks = [
            report.PredictiveCheck.of(str(name), pair) for name, pair in (predictive or {}).items()
        ]
        return display.write(path, _page(self, title, checks))

    def __repr__(self) -> str:
        run = self.info, self.num_steps, self.seconds
        return f"Samples({'; '.join(report.overview_parts(self.variables, self.averages, *run))})"

    def _repr_html_(self) -> str:
        return report.overview_table(repr(self), self.variables)

    @functools.cached_property
    def variables(self) -> dict[str, np.ndarray]:
        """Every array of the draws by name, axes (chain, draw, …); constrained ones constrained."""
        positions = self.positions
        if isinstance(self.origin, Origin) and self.origin.keeps_positions:
            positions = jax.tree.map(np.asarray, self.origin.target.constrained(positions))
        return summaries.named_leaves(positions, self.hyper)


def judge(
    samples: Samples,
    tuning: Any = None,
    of: Callable[..., PyTree] | None = None,
    tolerance: float | None = None,
) -> Health:
    """Judge a run, or a function of its draws, with what its tuning knows."""
    variables = samples.variables if of is None else _evaluate(samples, of)
    found = assess(
        SummaryTable.of(variables, _MAX_REPORTED),
        samples.origin,
        samples.positions,
        samples.hyper,
        samples.info,
        _TOLERANCE if tolerance is None else tolerance,
    ).after(tuning, is_of_parameters=of is None)
    quantities = summaries.quantities(variables, _MAX_REPORTED)
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


def _page(samples: Samples, title: str, checks: list[report.PredictiveCheck]) -> str:
    """Return the HTML page of a run."""
    variables = samples.variables
    info, temperature = samples.info, None if samples.origin is None else samples.origin.temperature
    statistics = {
        "potential": (info.potential, None),
        "kinetic temperature": (info.kinetic_temperature, temperature),
        "acceptance": (info.acceptance, None),
    }
    return report.run_page(
        title,
        samples.verdict,
        SummaryTable.of(variables, _MAX_REPORTED).frame(),
        summaries.quantities(variables, _MAX_REPORTED),
        sum(math.prod(leaf.shape[2:]) for leaf in variables.values()),
        report.overview_settings(
            samples.origin, info, samples.num_steps, samples.seconds, samples.startup_seconds
        ),
        {name: pair for name, pair in statistics.items() if pair[0] is not None},
        checks,
        None if samples.tuning is None else str(samples.tuning),
    )


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


def thinned(samples: Samples, every: int) -> Samples:
    """Return every `every`-th draw of each chain; averages and steps are still those of all.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> from sghmc.results.samples import thinned
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(2),
    ...     num_samples=100, num_chains=4, progress=False,
    ... )
    >>> thinned(samples, 10).positions.shape
    (4, 10, 2)
    """
    if every == 1:
        return samples
    chosen = slice(every - 1, None, every)
    growth = tuple(each._replace(draw=each.draw // every) for each in samples.growth)
    some = _map_draws(samples, lambda leaf: leaf[:, chosen], lambda clock: clock[chosen])
    return dataclasses.replace(some, growth=growth)


def lasting(samples: Samples, num_saved: int) -> Samples:
    """Return draws that stay valid when another run takes over their files, and cuts them short.

    They are copies or, if these would be large, the first `num_saved` draws, which no run removes.
    """
    arrays = jax.tree.leaves((samples.positions, samples.hyper, samples.trace))
    if sum(leaf.nbytes for leaf in arrays) > _MAX_COPIED_BYTES:
        return _map_draws(
            samples, lambda leaf: leaf[:, :num_saved], lambda clock: clock[:num_saved]
        )
    return _map_draws(samples, np.array, np.array)


def _map_draws(samples: Samples, change: Callable, change_clock: Callable) -> Samples:
    """Apply `change` to all arrays of draws, axes (chain, draw, …); the clock has draws alone."""
    info = {name: jax.tree.map(change, value) for name, value in vars(samples.info).items()}
    return dataclasses.replace(
        samples,
        positions=jax.tree.map(change, samples.positions),
        hyper=jax.tree.map(change, samples.hyper),
        trace=jax.tree.map(change, samples.trace),
        info=Info(**info),
        clock=None if samples.clock is None else change_clock(samples.clock),
    )
