"""Views of a run's draws: tables, plots and pages, and their ArviZ form."""

import dataclasses
import functools
import math
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc import display
from sghmc.posterior.posterior import RowPosterior
from sghmc.results import report, summaries
from sghmc.results.health import Health, HealthWarning
from sghmc.results.prediction import Origin
from sghmc.results.summaries import Info, SummaryTable
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz
    import pandas

MAX_REPORTED = 2_000
"""Quantities that a verdict and a report evaluate: each takes a millisecond, of thousands
of draws."""


_CHUNK_ROWS = 1 << 14
"""Rows whose log-likelihoods are evaluated at a time, at one draw after another."""


class Views:
    """The methods of `Samples` that show its draws, or hand them to other libraries."""

    positions: PyTree
    hyper: PyTree
    info: Info
    origin: Any
    tuning: Any
    num_steps: int
    seconds: float
    startup_seconds: float

    @property
    def verdict(self) -> Health:
        raise NotImplementedError

    @functools.cached_property
    def variables(self) -> dict[str, np.ndarray]:
        """Every array of the draws by name, axes (chain, draw, …); constrained ones constrained."""
        positions = self.positions
        if isinstance(self.origin, Origin) and self.origin.keeps_positions:
            positions = jax.tree.map(np.asarray, self.origin.target.constrained(positions))
        return summaries.named_leaves(positions, self.hyper)

    def to_arviz(self, *, log_likelihood: bool = False) -> "arviz.InferenceData":
        """Convert the draws for arviz, with all its plots and diagnostics.

        Variables are named by their paths: `weights`, `layers[0].bias`; an array or a tuple at the
        top is `position`, hyperparameters follow `hyper`. The group sample_stats has `potential`,
        `diverging` (the draw is not finite) and, where the sampler has them, `kinetic_temperature`
        and `acceptance_rate`. With `log_likelihood` there is a group of that name, for `arviz.loo`
        and `arviz.compare`: a number for every draw and row of the data, float32.

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
        of_rows = {"observation": _log_likelihoods(self)} if log_likelihood else {}
        return summaries.to_arviz(
            self.variables,
            {name: values for name, values in statistics.items() if values is not None},
            log_likelihood=of_rows,
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

    def _repr_html_(self) -> str:
        return report.overview_table(repr(self), self.variables)


def _log_likelihoods(samples: Views) -> np.ndarray:
    """Return the log-likelihood of every row at every draw, axes (chain, draw, row)."""
    target = samples.origin.target if isinstance(samples.origin, Origin) else None
    if not (isinstance(target, RowPosterior) and samples.origin.keeps_positions):
        raise ValueError(
            "log_likelihood needs a run of a Posterior whose draws are its parameters: leave keep "
            "out, and take the samples of the run itself, not those read from a file."
        )
    draws = (samples.positions, samples.hyper)
    flat = jax.tree.map(lambda leaf: jnp.asarray(leaf.reshape(-1, *leaf.shape[2:])), draws)
    num_rows, shape = int(target.num_examples), samples.info.is_finite.shape
    found = np.empty((shape[0] * shape[1], num_rows), np.float32)
    for first in range(0, num_rows, _CHUNK_ROWS):
        stop = min(first + _CHUNK_ROWS, num_rows)
        rows = target.rows(jnp.arange(first, stop))
        found[:, first:stop] = _of_rows(target, flat, rows)
    return found.reshape(*shape, num_rows)


@eqx.filter_jit
def _of_rows(target: RowPosterior, draws: tuple[PyTree, PyTree], rows: PyTree) -> jax.Array:
    def of_draw(draw: tuple[PyTree, PyTree]) -> jax.Array:
        return target.with_hyper(draw[1]).log_likelihoods(draw[0], rows)

    return jax.lax.map(of_draw, draws)


def _page(samples: Views, title: str, checks: list[report.PredictiveCheck]) -> str:
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
        SummaryTable.of(variables, MAX_REPORTED).frame(),
        summaries.quantities(variables, MAX_REPORTED),
        sum(math.prod(leaf.shape[2:]) for leaf in variables.values()),
        report.overview_settings(
            samples.origin, info, samples.num_steps, samples.seconds, samples.startup_seconds
        ),
        {name: pair for name, pair in statistics.items() if pair[0] is not None},
        checks,
        None if samples.tuning is None else str(samples.tuning),
    )
