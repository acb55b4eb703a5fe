"""The page of a run: the verdict first, then what it rests on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sghmc.display import page, pictures
from sghmc.results.health import Health

if TYPE_CHECKING:
    import pandas

_NUM_PICTURED = 6
_NUMBERS = ("mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")
_RARE = 0.025
"""A summary of the data in this share of either tail of the replicated ones is not as expected."""


class Check(NamedTuple):
    """A summary of the data, and the same summary of data sets that the model made."""

    name: str
    observed: float
    replicated: np.ndarray

    @classmethod
    def of(cls, name: str, pair: Any) -> "Check":
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
        """Of the replicated summaries, those above the observed one; ties count half."""
        above, equal = self.replicated > self.observed, self.replicated == self.observed
        return float(above.mean() + equal.mean() / 2)

    @property
    def is_expected(self) -> bool:
        return _RARE <= self.share_above <= 1 - _RARE


def run_page(
    title: str,
    health: Health,
    table: "pandas.DataFrame",
    numbers: Mapping[str, np.ndarray],
    num_numbers: int,
    settings: Mapping[str, object],
    statistics: Mapping[str, tuple[np.ndarray, float | None]],
    checks: Sequence[Check],
    notes: str | None,
) -> str:
    """HTML of a run.

    | argument | meaning |
    | --- | --- |
    | `table` | a row for each of `numbers` |
    | `numbers` | of the draws, by name; axes (chain, draw) |
    | `num_numbers` | how many there are in all |
    | `settings` | what made the run, and how fast |
    | `statistics` | of each draw, axes (chain, draw), and the level they should have |
    | `notes` | what tuning said, or None |
    """
    sections = [
        page.verdict(health.verdict, health.is_sound),
        page.section("What to do next", page.points(_next(health, checks))),
        page.section("What the verdict rests on", page.facts(health.evidence)),
        page.section("The run", page.facts(settings)),
    ]
    if notes:
        sections.append(page.section("Tuning", page.preformatted(notes)))
    sections += _predictive(checks)
    sections += _numbers(table, num_numbers) + _worst(table, numbers) + _of_draws(statistics)
    return page.page(title, sections)


def _next(health: Health, checks: Sequence[Check]) -> list[str]:
    steps = list(health.reasons)
    if health.is_sound:
        steps.append("Nothing needs mending. More draws make Monte Carlo errors (mcse) smaller.")
    strange = [check.name for check in checks if not check.is_expected]
    if strange:
        steps.append(
            f"The model does not make data like those observed in {', '.join(strange)}: change "
            f"the model. Better sampling of this one will not help."
        )
    return steps


def _predictive(checks: Sequence[Check]) -> list[str]:
    if not checks:
        return []
    parts = []
    for check in checks:
        words = (
            f"observed {check.observed:.4g}; of the replicated data sets {check.share_above:.1%} "
            f"have more: {'as expected' if check.is_expected else 'not as expected'}"
        )
        drawn = page.picture(
            pictures.replicates(check.observed, check.replicated), f"{check.name}: {words}"
        )
        parts.append(page.side_by_side(f"{check.name}: {words}", [drawn]))
    inside = f'<div class="side">{"".join(parts)}</div>'
    return [page.section("Predictive checks", inside)]


def _numbers(table: "pandas.DataFrame", num_numbers: int) -> list[str]:
    columns = [name for name in _NUMBERS if name in table.columns]
    entries = zip(table.index, table[columns].to_numpy(float), strict=True)
    parts = [page.rows("numbers", ["name", *columns], entries)]
    if num_numbers > len(table):
        parts.append(
            page.paragraph(
                f"{len(table):,} of {num_numbers:,} numbers, evenly spaced: the verdict rests on "
                f"them."
            )
        )
    return [page.section("Every number", *parts)]


def _worst(table: "pandas.DataFrame", numbers: Mapping[str, np.ndarray]) -> list[str]:
    """The numbers with the smallest effective sizes."""
    names = [
        name for name in table.sort_values("ess_bulk").index if np.all(np.isfinite(numbers[name]))
    ]
    parts = []
    for name in names[:_NUM_PICTURED]:
        values = np.asarray(numbers[name], float)
        drawn = {
            "trace": pictures.trace(values),
            "ranks": pictures.ranks(values),
            "autocorrelation": pictures.autocorrelation(values),
        }
        shown = [page.picture(pair, f"{kind} of {name}") for kind, pair in drawn.items()]
        parts.append(page.side_by_side(name, shown))
    if not parts:
        return []
    words = page.paragraph("A line for each chain, for eight of them at most.")
    return [page.section("The numbers that mix worst", words, *parts)]


def _of_draws(statistics: Mapping[str, tuple[np.ndarray, float | None]]) -> list[str]:
    shown = [
        page.picture(pictures.trace(values, name, level), f"{name} of each draw")
        for name, (values, level) in statistics.items()
        if values.size and np.all(np.isfinite(values))
    ]
    return [page.section("Of each draw", page.side_by_side("", shown))] if shown else []
