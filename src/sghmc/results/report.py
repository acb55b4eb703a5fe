"""The HTML page of a run, with the verdict first, and its overview for `print` and notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sghmc import display
from sghmc.results.health import Health
from sghmc.results.prediction import Origin, SavedOrigin
from sghmc.results.summaries import Info

if TYPE_CHECKING:
    import pandas

_NUM_PICTURED = 6
_COLUMNS = ("mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")
# An observed summary in this share of either tail of the replicated ones is not as expected.
_RARE_SHARE = 0.025
# Variables that a printed overview names, and that a notebook lists: a line, and a page.
_MAX_NAMED, _MAX_LISTED = 6, 50
# Seconds for a run that made no draw after its first.
_MIN_SECONDS = 1e-9


class PredictiveCheck(NamedTuple):
    """A summary of the data, and the same summary of data sets that the model made."""

    name: str
    observed: float
    replicated: np.ndarray

    @classmethod
    def of(cls, name: str, pair: Any) -> "PredictiveCheck":
        """Check a user's pair of an observed summary and replicated ones."""
        try:
            observed, replicated = (np.asarray(part, float) for part in pair)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"predictive[{name!r}] must be a pair: a number that sums up the data, and an "
                f"array of the same number for replicated data sets ({error})."
            ) from None
        if observed.ndim or not replicated.size:
            raise ValueError(
                f"predictive[{name!r}] must be one number and an array of such numbers, but their "
                f"shapes are {observed.shape} and {replicated.shape}: sum the data up, as by its "
                f"mean, and each replicated data set likewise."
            )
        if not np.all(np.isfinite(observed)) or not np.all(np.isfinite(replicated)):
            raise ValueError(f"predictive[{name!r}] holds numbers that are not finite.")
        return cls(name, float(observed), replicated.ravel())

    @property
    def share_above(self) -> float:
        """Return the share of replicated summaries above the observed one; ties count half."""
        above, equal = self.replicated > self.observed, self.replicated == self.observed
        return float(above.mean() + equal.mean() / 2)

    @property
    def is_expected(self) -> bool:
        return _RARE_SHARE <= self.share_above <= 1 - _RARE_SHARE


def run_page(
    title: str,
    health: Health,
    table: "pandas.DataFrame",
    quantities: Mapping[str, np.ndarray],
    num_quantities: int,
    settings: Mapping[str, object],
    statistics: Mapping[str, tuple[np.ndarray, float | None]],
    checks: Sequence[PredictiveCheck],
    notes: str | None,
) -> str:
    """Return the HTML page of a run.

    | argument | meaning |
    | --- | --- |
    | `table` | a row for each of `quantities` |
    | `quantities` | single numbers of the draws by name; axes (chain, draw) |
    | `num_quantities` | how many there are in all |
    | `settings` | what made the run, and how fast |
    | `statistics` | of each draw, axes (chain, draw), and the level they should have |
    | `notes` | the tuner's report, or None |
    """
    sections = [
        display.verdict(health.verdict, health.is_sound),
        display.section("What to do next", display.points(_next_steps(health, checks))),
        display.section("What the verdict rests on", display.facts(health.evidence)),
        display.section("The run", display.facts(settings)),
    ]
    if notes:
        sections.append(display.section("Tuning", display.preformatted(notes)))
    if checks:
        sections.append(_predictive_section(checks))
    sections.append(_quantities_section(table, num_quantities))
    sections += _worst_section(table, quantities) + _statistics_section(statistics)
    return display.page(title, sections)


def _next_steps(health: Health, checks: Sequence[PredictiveCheck]) -> list[str]:
    steps = [*health.reasons, *health.cares]
    if not steps:
        steps.append("Nothing needs mending. More draws make Monte Carlo errors (mcse) smaller.")
    strange = [check.name for check in checks if not check.is_expected]
    if strange:
        steps.append(
            f"The model does not make data like those observed in {', '.join(strange)}: change "
            f"the model. Better sampling of this one will not help."
        )
    return steps


def _predictive_section(checks: Sequence[PredictiveCheck]) -> str:
    parts = []
    for check in checks:
        words = (
            f"{check.name}: observed {check.observed:.4g}; of the replicated data sets "
            f"{check.share_above:.1%} have more: "
            f"{'as expected' if check.is_expected else 'not as expected'}"
        )
        pictures = display.replicates_picture(check.observed, check.replicated)
        parts.append(display.side_by_side(words, [display.picture(pictures, words)]))
    return display.section("Predictive checks", f'<div class="side">{"".join(parts)}</div>')


def _quantities_section(table: "pandas.DataFrame", num_quantities: int) -> str:
    columns = [name for name in _COLUMNS if name in table.columns]
    entries = zip(table.index, table[columns].to_numpy(float), strict=True)
    parts = [display.rows("numbers", ["name", *columns], entries)]
    if num_quantities > len(table):
        parts.append(
            display.paragraph(
                f"{len(table):,} of {num_quantities:,} numbers, evenly spaced: the verdict rests "
                f"on them."
            )
        )
    return display.section("Every number", *parts)


def _worst_section(table: "pandas.DataFrame", quantities: Mapping[str, np.ndarray]) -> list[str]:
    """Return pictures of the quantities with the smallest effective sizes."""
    in_order = table.sort_values("ess_bulk").index
    names = [name for name in in_order if np.all(np.isfinite(quantities[name]))]
    parts = []
    for name in names[:_NUM_PICTURED]:
        values = np.asarray(quantities[name], float)
        pictures = {
            "trace": display.trace_picture(values),
            "ranks": display.rank_picture(values),
            "autocorrelation": display.autocorrelation_picture(values),
        }
        drawn = [display.picture(pair, f"{kind} of {name}") for kind, pair in pictures.items()]
        parts.append(display.side_by_side(name, drawn))
    if not parts:
        return []
    words = display.paragraph("A line for each chain, for eight of them at most.")
    return [display.section("The numbers that mix worst", words, *parts)]


def _statistics_section(
    statistics: Mapping[str, tuple[np.ndarray, float | None]],
) -> list[str]:
    drawn = [
        display.picture(display.trace_picture(values, name, level), f"{name} of each draw")
        for name, (values, level) in statistics.items()
        if values.size and np.all(np.isfinite(values))
    ]
    return [display.section("Of each draw", display.side_by_side("", drawn))] if drawn else []


def overview_parts(
    variables: Mapping[str, np.ndarray],
    averages: Iterable[str],
    info: Info,
    num_steps: int,
    seconds: float,
) -> list[str]:
    """Return how big the run was, what it kept, and whether all chains are finite."""
    shown = [f"{name} {leaf.shape[2:]}" for name, leaf in list(variables.items())[:_MAX_NAMED]]
    if len(variables) > _MAX_NAMED:
        shown.append(f"and {len(variables) - _MAX_NAMED} more")
    found = [
        overview_size(info),
        f"{_count(num_steps, 'step')} in {seconds:.1f} s",
        ", ".join(shown) if shown else "nothing kept",
    ]
    if averages:
        found.append(f"averages {', '.join(averages)}")
    if info.acceptance is not None and info.acceptance.size:
        found.append(f"acceptance {np.mean(info.acceptance):.2f}")
    failed = int(np.any(~info.is_finite, axis=1).sum())
    found.append(f"{failed} of {len(info.is_finite)} chains not finite" if failed else "all finite")
    return found


def overview_table(title: str, variables: Mapping[str, np.ndarray]) -> str:
    """Return HTML with a row for each variable."""
    rows = [(name, leaf.shape[2:], leaf.dtype) for name, leaf in variables.items()]
    if len(rows) > _MAX_LISTED:
        rows = [*rows[:_MAX_LISTED], (f"and {len(rows) - _MAX_LISTED} more", "", "")]
    return display.notebook_table(title, ("variable", "shape", "dtype"), rows)


def overview_settings(
    origin: Origin | SavedOrigin | None,
    info: Info,
    num_steps: int,
    seconds: float,
    startup_seconds: float,
) -> dict[str, object]:
    """Return what made the run, and how fast, by name."""
    sampling_seconds = max(seconds - startup_seconds, _MIN_SECONDS)
    speed = num_steps * len(info.is_finite) / sampling_seconds
    named: dict[str, object] = {
        "draws": overview_size(info),
        "steps of each chain": f"{num_steps:,}",
        "seconds": f"{seconds:.1f}, {startup_seconds:.1f} of them to the first draw",
        "steps a second, all chains": f"{speed:,.0f}",
    }
    if isinstance(origin, SavedOrigin):
        return named | origin.arguments
    if origin is not None:
        named |= {"sampler": repr(origin.sampler), "gradient": repr(origin.gradient)}
    return named


def overview_size(info: Info) -> str:
    num_chains, num_draws = info.is_finite.shape
    return f"{_count(num_chains, 'chain')} × {_count(num_draws, 'draw')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
