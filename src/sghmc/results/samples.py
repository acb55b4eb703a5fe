"""What a run returns."""

import dataclasses
import math
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sghmc.display import page
from sghmc.results import convergence, diagnostics, overview
from sghmc.results.health import Health, HealthWarning, assess
from sghmc.results.info import Growth, Info
from sghmc.results.origin import Origin, SavedOrigin
from sghmc.results.report import Check, run_page
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz
    import pandas

_TOLERANCE = 0.05
"""The relative error of a standard deviation that is nothing to speak of."""
_MOST_REPORTED = 2_000
"""Numbers that a verdict and a report look at: each takes a millisecond, of thousands of draws."""


@dataclasses.dataclass(frozen=True)
class Samples:
    """The draws of a run, on the host.

    | field | what |
    | --- | --- |
    | `positions` | what `keep` returned (default: the parameters); axes (chain, draw, …) |
    | `hyper` | the hyperparameters of each draw, or None |
    | `averages` | mean of each averaged function over the kept draws; leading chain axis |
    | `trace` | what `trace` made of the averages at each draw, or None; axes (chain, draw, …) |
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

    def with_tuning(self, report: Any) -> "Samples":
        return dataclasses.replace(self, tuning=report)

    @property
    def num_chains(self) -> int:
        return self.info.is_finite.shape[0]

    @property
    def num_draws(self) -> int:
        """Kept draws of each chain."""
        return self.info.is_finite.shape[1]

    def to_arviz(self) -> "arviz.InferenceData":
        """The draws as arviz, and so every plot and diagnostic there, takes them.

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
        return diagnostics.to_arviz(
            self._variables(),
            {name: values for name, values in statistics.items() if values is not None},
        )

    def summary(self, names: Sequence[str] | None = None) -> "pandas.DataFrame":
        """One row for each number of the draws (of the variables `names`).

        The columns are mean, sd, a highest-density interval, the Monte Carlo standard errors
        mcse_mean and mcse_sd, the effective sample sizes ess_bulk and ess_tail, and r_hat, which
        needs two chains or more. The table's `attrs` hold what `health` says of the run; where that
        is trouble, a `HealthWarning` says it aloud.
        """
        table = diagnostics.summary(self._variables(), names)
        health = self.health()
        table.attrs = {"verdict": health.verdict, **dataclasses.asdict(health)}
        if not health.is_sound:
            warnings.warn(health.verdict, HealthWarning, stacklevel=2)
        return table

    def health(self, tolerance: float = _TOLERANCE) -> Health:
        """A verdict on the run: chains, momenta, and what theory says of its settings.

        Gradient noise and curvature are measured at some of the draws, where they are the
        parameters themselves: a `keep` that stores something else leaves that part out.

        >>> import jax, jax.numpy as jnp, sghmc
        >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
        >>> samples = sghmc.sample(
        ...     jax.random.key(0), target, sghmc.SGHMC(1.2, friction=0.5), jnp.zeros(2),
        ...     num_samples=1000, num_chains=4, progress=False,
        ... )
        >>> samples.health().is_sound  # the step is too large: variances are twice too large
        False
        """
        table = diagnostics.table(self._variables(), _MOST_REPORTED)
        found = assess(table, self.origin, self.positions, self.hyper, self.info, tolerance)
        return found.after(self.tuning)

    def settling_draws(self, within: float = 0.1) -> float:
        """How many draws the chains need, after the data last grew, until they have settled.

        From N to N' rows the posterior moves by about √(N'/N − 1) of its new standard deviations;
        that falls by 1/e in an autocorrelation time (1 + Σρ, of the slowest number kept since), and
        has settled when `within` standard deviations are left. Zero where nothing grew.
        """
        if not self.growth:
            return 0.0
        last = self.growth[-1]
        moved = math.sqrt(abs(last.num_examples / last.num_before - 1))
        later = min((last.draw + self.num_draws) // 2, self.num_draws - 2)  # on their way before
        since = [leaf[:, later:] for leaf in self._variables().values()]
        slowest = max(convergence.slowest_time(leaf) for leaf in since)
        return slowest * max(0.0, math.log(moved / within))

    def plot(self, kind: str = "trace", names: Sequence[str] | None = None, **options):
        """A picture through arviz: "trace", "rank", "autocorrelation" or "pair"; its axes."""
        return diagnostics.plot(self.to_arviz(), kind, names, **options)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str = "Run report",
        *,
        predictive: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> pathlib.Path:
        """One page of HTML that needs nothing beside it; where it was written.

        The verdict of `health`, what to do, settings and speed, every number (of very many, some,
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
        checks = [Check.of(str(name), pair) for name, pair in (predictive or {}).items()]
        variables = self._variables()
        numbers = diagnostics.numbers(variables, _MOST_REPORTED)
        table = diagnostics.table(variables, _MOST_REPORTED).frame()
        temperature = None if self.origin is None else self.origin.temperature
        statistics = {
            "potential": (self.info.potential, None),
            "kinetic temperature": (self.info.kinetic_temperature, temperature),
            "acceptance": (self.info.acceptance, None),
        }
        content = run_page(
            title,
            self.health(),
            table,
            numbers,
            sum(math.prod(leaf.shape[2:]) for leaf in variables.values()),
            overview.settings(
                self.origin, self.info, self.num_steps, self.seconds, self.startup_seconds
            ),
            {name: shown for name, shown in statistics.items() if shown[0] is not None},
            checks,
            None if self.tuning is None else str(self.tuning),
        )
        return page.write(path, content)

    def __repr__(self) -> str:
        return f"Samples({'; '.join(self._overview())})"

    def _repr_html_(self) -> str:
        return overview.table(f"Samples: {'; '.join(self._overview())}", self._variables())

    def _overview(self) -> list[str]:
        variables, averages = self._variables(), self.averages
        return overview.parts(variables, averages, self.info, self.num_steps, self.seconds)

    def _variables(self) -> dict[str, np.ndarray]:
        """Every array of the draws, by name."""
        return diagnostics.named_leaves(self.positions, self.hyper)
