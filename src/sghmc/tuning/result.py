"""The result of a tuning: settings, a report, its precision after the run, and its saved form.

A run without bias still has a Monte Carlo error: n draws estimate a standard deviation σ with an
error of σ√((κ − 1)/4n), κ the kurtosis and n the effective number of squares.
"""

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.checkpoint.checkpoint import Checkpoint, DamagedError
from sghmc.checkpoint.folder import open_folder
from sghmc.core import runtime, tree
from sghmc.core.matrices import LowRankFactor
from sghmc.gradients import Gradient
from sghmc.results import convergence, patterns, summaries
from sghmc.results.health import Health
from sghmc.results.samples import Samples, judge
from sghmc.samplers import Sampler
from sghmc.samplers.wrappers import Whitened
from sghmc.types import PyTree

# Probability that no standard deviation is farther off than reported: one run in twenty may be.
_CONFIDENCE = 0.95
# If as many independent draws had an error of so many times the one allowed, tails are heavy, and
# no number of draws is promised to be enough.
_HEAVY_TAILED_SHARE = 2.0
# Factor on the length of an extended run, because its length is an estimate.
_EXTENSION_MARGIN = 1.2
# A run is not extended beyond this counted cost, in seconds of a nominal machine; a larger error is
# reported instead.
_MAX_EXTENDED_SECONDS = 20.0
# Of more quantities than this, some are evaluated, evenly spaced.
_MAX_QUANTITIES = 500
# Arrays that a saved tuning may hold, each as large as the largest: a matrix over all parameters,
# or a start for each chain.
_MAX_SAVED_ARRAYS = 16
_JSON_TYPES = (type(None), bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class TuneReport:
    """Settings that were chosen, what pilot runs measured, and the error to expect; `print` it.

    | field | meaning |
    | --- | --- |
    | `engine` | "exact": HMC on all data with an accept step; "minibatch": SGHMC without |
    | `choice` | why this engine: the predicted seconds of both |
    | `num_parameters`, `num_examples` | size of the problem; a potential has no examples |
    | `distance` | from the mode found to the true one, in standard deviations |
    | `estimator`, `gradient_noise` | gradient estimator; noise Ṽ of each candidate, in whitened \
coordinates |
    | `step_size`, `friction` | in whitened coordinates |
    | `num_steps`, `acceptance` | leapfrog steps of a trajectory, and the share accepted |
    | `predicted_error` | relative error of standard deviations by theory, on a Gaussian |
    | `halving_change`, `halving_noise` | largest change of a log standard deviation by half the \
step size, and its Monte Carlo error |
    | `kinetic_temperature` | of the momenta in the pilot runs: 1 is right |
    | `autocorrelation_time` | 1 + Σρ in steps, of the slowest parameter in the pilot runs |
    | `monte_carlo_error` | largest relative error of a standard deviation in 19 of 20 runs; known \
after the run |
    | `tolerance`, `is_met` | allowed relative error, and whether all of this keeps within it |
    | `complaints` | reasons in the tuning itself why it does not; the verdict repeats them |
    | `unsettled` | what pilot runs left open, and the run's own draws may answer |
    | `cares` | what to mind after the run, such as draws that are too few |
    | `searched` | where other modes were searched, and what that cannot exclude |
    | `notes` | these complaints, and other remarks |
    | `run` | the run with these settings, whose verdict is the one that counts |
    | `seconds`, `stages` | time of the tuning, and of each stage |
    | `step_cost` | counted cost of a step of one chain, in seconds of a nominal machine |
    | `budget` | seconds that were given: then results depend on the machine; else None |
    """

    engine: str
    num_parameters: int
    distance: float
    estimator: str
    step_size: float
    kinetic_temperature: float
    autocorrelation_time: float
    tolerance: float
    friction: float = math.nan
    gradient_noise: dict[str, float] = dataclasses.field(default_factory=dict)
    num_steps: int = 1
    acceptance: float = math.nan
    predicted_error: float = 0.0
    halving_change: float = math.nan
    halving_noise: float = math.nan
    monte_carlo_error: float = math.nan
    complaints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    num_examples: int | None = None
    choice: str = ""
    seconds: float = 0.0
    stages: dict[str, float] = dataclasses.field(default_factory=dict)
    step_cost: float = 0.0
    budget: float | None = None
    unsettled: tuple[str, ...] = ()
    cares: tuple[str, ...] = ()
    searched: str = ""
    run: Samples | None = dataclasses.field(default=None, repr=False, compare=False)

    def of_run(self, run: Samples) -> "TuneReport":
        """Return the report of a run, which shows that run's verdict."""
        return dataclasses.replace(self, run=run)

    @functools.cached_property
    def judged(self) -> Health | None:
        """Verdict on the run, or None before it."""
        return None if self.run is None else judge(self.run, self)

    @property
    def allowed_error(self) -> float:
        """Return the Monte Carlo error that the tolerance leaves beside the predicted bias."""
        return self.tolerance - self.predicted_error

    @property
    def is_met(self) -> bool:
        """Whether the verdict on the run is "trustworthy"; before it, what pilot runs promise."""
        if self.judged is not None:
            return self.judged.level == "trustworthy"
        is_open = self.complaints or self.unsettled
        return not is_open and not self.monte_carlo_error > self.allowed_error

    @property
    def verdict(self) -> str:
        """Return the verdict on the run; before it, what pilot runs promise."""
        if self.judged is not None:
            return self.judged.verdict
        if self.engine == "exact" and self.is_met:
            error = ""
            if not math.isnan(self.monte_carlo_error):
                error = f" (± {100 * self.monte_carlo_error:.2g} % of standard deviations)"
            return f"exact: no error but that of a finite number of draws{error}"
        aim = f"errors of standard deviations below {100 * self.tolerance:.3g} %"
        return f"{aim} are {'to be expected' if self.is_met else 'NOT to be expected'}"

    def __str__(self) -> str:
        data = "a potential" if self.num_examples is None else f"{self.num_examples:,} examples"
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.stages.items())
        lines = [
            f"{self.num_parameters:,} parameters, {data}; tuned in {self.seconds:.1f} s ({stages})",
            f"engine: {self.engine} ({self.choice})",
            *(self._exact_lines if self.engine == "exact" else self._minibatch_lines),
            f"verdict: {self.verdict}",
        ]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    @property
    def _exact_lines(self) -> list[str]:
        return [
            f"HMC on all data, whitened: trajectories of {self.num_steps} steps of "
            f"{self.step_size:.3g}, {100 * self.acceptance:.0f} % accepted; one independent draw "
            f"in about {max(1.0, 2 * self.autocorrelation_time - 1):.1f} trajectories"
        ]

    @property
    def _minibatch_lines(self) -> list[str]:
        noises = ", ".join(f"{name} {value:.3g}" for name, value in self.gradient_noise.items())
        halving = "half the step size was not tried"
        if not math.isnan(self.halving_change):
            halving = (
                f"half the step size changed them by at most {100 * self.halving_change:.1f} % "
                f"(± {100 * self.halving_noise:.1f} %)"
            )
        return [
            f"gradient: {self.estimator}" + (f" (gradient noise: {noises})" if noises else ""),
            f"step size {self.step_size:.3g}, friction {self.friction:.3g}, whitened; one "
            f"independent draw in about {2 * self.autocorrelation_time:.0f} steps",
            f"standard deviations: {100 * self.predicted_error:.1f} % too wide by theory; "
            f"{halving}",
        ]


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """Settings for a posterior; `init` has a leading chain axis, for `sample(…, init_axis=0)`.

    Draws that are `thinning` steps apart are nearly independent.
    """

    sampler: Whitened
    gradient: Gradient
    init: PyTree
    thinning: int
    report: TuneReport


class Precision(NamedTuple):
    """Largest relative Monte Carlo error of any standard deviation, with 95 % confidence.

    `independent_error` is what it would be if the draws were independent.
    """

    error: float
    independent_error: float


def precision(samples: Samples) -> Precision | None:
    """Return the Monte Carlo error of the standard deviations, or None if nothing kept varies."""
    quantities = summaries.quantities(samples.variables, _MAX_QUANTITIES).values()
    found = [_standard_errors(draws) for draws in quantities if not patterns.heavy_tails(draws)]
    known = np.array([pair for pair in found if np.all(np.isfinite(pair))])
    return Precision(*map(_largest_error, known.T)) if len(known) else None


def _standard_errors(draws: np.ndarray) -> tuple[float, float]:
    """Return the relative standard error of the standard deviation of draws (chain, draw).

    The second one is that of as many independent draws.
    """
    away = np.asarray(draws, np.float64)[None]
    squares = (away - away.mean()) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = (squares**2).mean() / squares.mean() ** 2 - 1
        effective = convergence.effective_size(squares)[0]
        return float(np.sqrt(excess / 4 / effective)), float(np.sqrt(excess / 4 / squares.size))


def _largest_error(errors: np.ndarray) -> float:
    """Return the x with Π P(|error| < x) = 95 % over normal errors of these standard deviations.

    Errors count as independent; if they are not, all are below x more often.
    """
    normal, low, high = NormalDist(), 0.0, 10 * float(errors.max())
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        inside = math.prod(2 * normal.cdf(middle / error) - 1 for error in errors if error > 0)
        low, high = (low, middle) if inside > _CONFIDENCE else (middle, high)
    return high


def extension_factor(
    report: TuneReport, found: Precision | None, samples: Samples, seconds_left: float | None = None
) -> float | None:
    """Return how many times as long a run of as many draws must be to meet the tolerance.

    None if the run meets it, and if no such run would, or none at a small counted cost. With
    `seconds_left` of a budget the clock decides instead.
    """
    if found is None or report.complaints or samples.is_interrupted:
        return None
    allowed = report.allowed_error
    if found.error <= allowed or found.independent_error >= allowed:
        return None
    factor = _EXTENSION_MARGIN * (found.error / allowed) ** 2
    if seconds_left is not None:
        return factor if factor * samples.seconds < seconds_left else None
    cost = samples.num_steps * samples.num_chains * report.step_cost
    return factor if factor * cost < _MAX_EXTENDED_SECONDS else None


def with_precision(report: TuneReport, found: Precision | None, samples: Samples) -> TuneReport:
    """Return the report with the run's Monte Carlo error, and a note if the draws are too few."""
    if found is None:
        return report
    notes, allowed = report.notes, report.allowed_error
    if not report.complaints and found.error > allowed:
        needed = math.ceil(samples.num_draws * (found.error / allowed) ** 2)
        unit = 10 ** max(0, math.floor(math.log10(needed)) - 1)  # rounded up to two digits
        remedy = f"num_samples={math.ceil(needed / unit) * unit} would be enough"
        if found.independent_error > _HEAVY_TAILED_SHARE * allowed:
            remedy = "tails are so heavy that they may not exist; read quantiles"
        note = (
            f"{samples.num_chains * samples.num_draws:,} draws determine standard deviations only "
            f"to ± {100 * found.error:.2g} %: {remedy}"
        )
        return dataclasses.replace(
            report, monte_carlo_error=found.error, notes=(note, *notes), cares=(note,)
        )
    return dataclasses.replace(report, monte_carlo_error=found.error, notes=notes)


def recall(
    checkpoint: Checkpoint, arguments: Mapping[str, Any], tuning: Callable[[], Tuned]
) -> Tuned:
    """Return the tuning saved by an earlier run with these arguments; else call `tuning`, and save.

    The file holds JSON and arrays, no pickle.
    """
    init = arguments["init"]
    size = tree.size(jax.tree.map(np.asarray, init))
    max_numbers = _MAX_SAVED_ARRAYS * (1 + max(size, arguments["num_chains"]) * size)

    def decode(content: Any, arrays: Mapping[str, np.ndarray]) -> Tuned:
        try:
            tuned = _Codec(init, dict(arrays)).decode(content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is no result of tuning ({error!r})") from error
        if not isinstance(tuned, Tuned):
            raise DamagedError(f"it holds a {type(tuned).__name__}")
        return tuned

    with open_folder(checkpoint, arguments) as folder:
        found = folder.read_tuning(decode, max_numbers)
        if found is None:
            codec = _Codec(init, {})
            folder.write_tuning(codec.encode(tuning()), codec.arrays)
            found = folder.read_tuning(decode, max_numbers)
        assert found is not None
        return found


def tune_on_leader(init: PyTree, tuning: Callable[[], Tuned]) -> Tuned:
    """Tune in process 0 alone, and return what it chose in every process of the run."""
    if not runtime.is_multiprocess():
        return tuning()

    def encoded() -> str:
        codec = _Codec(init, {})
        content = codec.encode(tuning())
        arrays = {n: (str(a.dtype), a.shape, a.tobytes().hex()) for n, a in codec.arrays.items()}
        return json.dumps([content, arrays])

    content, texts = json.loads(runtime.text_of_leader(encoded))
    arrays = {
        name: np.frombuffer(bytes.fromhex(text), jnp.dtype(dtype)).reshape(shape)
        for name, (dtype, shape, text) in texts.items()
    }
    return _Codec(init, arrays).decode(content)


class _Codec:
    """Translate a `Tuned` to JSON with its arrays apart, and back."""

    def __init__(self, init: PyTree, arrays: dict[str, np.ndarray]):
        self.structure, self.arrays = jax.tree.structure(init), arrays

    def encode(self, value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray | jax.Array):
            name = f"{len(self.arrays):04d}"
            self.arrays[name] = np.asarray(value)
            return {"array": name}
        if isinstance(value, _JSON_TYPES):
            return value
        # Parameters may be any pytree: the run knows its structure, the file has the leaves.
        is_tree = not jax.tree_util.all_leaves([value])
        if is_tree and jax.tree.structure(value) == self.structure:
            return {"params": [self.encode(leaf) for leaf in jax.tree.leaves(value)]}
        if isinstance(value, tuple):
            return {"tuple": [self.encode(entry) for entry in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encode(part) for part in item] for item in value.items()]}
        kind = type(value)
        if _saved_classes().get(kind.__name__) is not kind:
            raise TypeError(f"A checkpoint cannot hold a {kind.__name__} that tuning chose.")
        names = [field.name for field in dataclasses.fields(value)]
        return {"class": kind.__name__} | {n: self.encode(getattr(value, n)) for n in names}

    def decode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        (kind, content), *rest = value.items()
        if kind == "array":
            return self.arrays[content]
        if kind == "params":
            return jax.tree.unflatten(self.structure, [self.decode(leaf) for leaf in content])
        if kind == "tuple":
            return tuple(self.decode(entry) for entry in content)
        if kind == "dict":
            return {self.decode(key): self.decode(entry) for key, entry in content}
        if kind != "class" or content not in _saved_classes():
            raise DamagedError(f"it holds a {content!r}")
        fields = {name: self.decode(part) for name, part in rest}
        return _saved_classes()[content](**fields)


def _saved_classes() -> dict[str, type]:
    """Return the classes that a file may name: only those of sghmc."""
    found = [Tuned, TuneReport, LowRankFactor, *_subclasses(Sampler), *_subclasses(Gradient)]
    return {
        kind.__name__: kind
        for kind in found
        if kind.__module__.startswith("sghmc.")
        and getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
    }


def _subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
