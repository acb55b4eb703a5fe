"""Whether a run has drawn enough for the tolerance that its tuning promises.

A run without bias still errs by chance: n draws know a standard deviation σ to σ√((κ − 1)/4n), κ
the kurtosis and n the effective number of squares. The promise is of all parameters together.
"""

import dataclasses
import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sghmc.results import convergence, diagnostics
from sghmc.results.samples import Samples
from sghmc.tuning.report import TuneReport

_CONFIDENCE = 0.95
"""That no standard deviation is farther off than what is told: one run in twenty may be."""
_TO_SPARE = 1.2
"""Of a longer run, since how much longer it must be is an estimate."""
_MOST_SECONDS = 20.0
"""Of a longer run: rather a promise of less."""
_MOST_NUMBERS = 500
"""Numbers of the draws that are looked at: of more, some, evenly spaced."""


class Precision(NamedTuple):
    """`error` is that of any standard deviation, relative, with the confidence of the promise.

    `least` is what it would be if as many draws were independent.
    """

    error: float
    least: float


def precision(samples: Samples) -> Precision | None:
    """What a run's draws know; None where nothing was kept that moves."""
    variables = diagnostics.named_leaves(samples.positions, samples.hyper)
    found = [_of_number(x) for x in diagnostics.numbers(variables, _MOST_NUMBERS).values()]
    known = np.array([pair for pair in found if np.all(np.isfinite(pair))])
    if len(known) == 0:
        return None
    return Precision(*(_reach(errors) for errors in known.T))


def _reach(errors: np.ndarray) -> float:
    """How far off the worst may be: Π P(|error| < reach) is the confidence wanted.

    As if errors were independent; where they are not, all are below it more often.
    """
    normal, low, high = NormalDist(), 0.0, 10 * float(errors.max())
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        inside = math.prod(2 * normal.cdf(middle / error) - 1 for error in errors if error > 0)
        low, high = (low, middle) if inside > _CONFIDENCE else (middle, high)
    return high


def _of_number(draws: np.ndarray) -> tuple[float, float]:
    """The standard error of the standard deviation, relative; and if draws were independent."""
    away = np.asarray(draws, np.float64)[None]
    squares = (away - away.mean()) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = (squares**2).mean() / squares.mean() ** 2 - 1
        effective = convergence.effective_size(squares)[0]
        return float(np.sqrt(excess / 4 / effective)), float(np.sqrt(excess / 4 / squares.size))


def stretch(samples: Samples, report: TuneReport) -> float | None:
    """How many times as long a run of as many draws must be to keep its promise.

    None where it is kept, and where no such run would keep it, or none that is cheap.
    """
    found, room = precision(samples), report.tolerance - report.predicted_error
    if found is None or not report.is_met or samples.is_interrupted or found.error <= room:
        return None
    longer = _TO_SPARE * (found.error / room) ** 2
    is_cheap = longer * (samples.seconds or 0.0) < _MOST_SECONDS
    return longer if found.least < room and is_cheap else None


def judged(report: TuneReport, samples: Samples) -> TuneReport:
    """The report of a tuning after the run, whose draws may be too few for the tolerance."""
    found = precision(samples)
    if found is None:
        return report
    report = dataclasses.replace(report, monte_carlo_error=found.error)
    room = report.tolerance - report.predicted_error
    if not report.is_met or found.error <= room:
        return report
    needed = math.ceil(samples.num_draws * (found.error / room) ** 2)
    note = (
        f"{samples.num_chains * samples.num_draws:,} draws know standard deviations to "
        f"± {100 * found.error:.2g} % only: num_samples={_rounded(needed)} would do"
    )
    return dataclasses.replace(report, is_met=False, notes=(note, *report.notes))


def _rounded(count: int) -> int:
    """Up, to two digits."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit
