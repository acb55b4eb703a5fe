"""The page of a run: the verdict first, then what it rests on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sghmc.health import Health
from sghmc.report import page, pictures

if TYPE_CHECKING:
    import pandas

_MOST_ROWS = 2_000
_NUM_PICTURED = 6
_NUMBERS = ("mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat")


def run_page(
    title: str,
    health: Health,
    table: "pandas.DataFrame",
    settings: Mapping[str, object],
    draws: Mapping[str, np.ndarray],
    statistics: Mapping[str, np.ndarray],
    notes: str | None,
) -> str:
    """HTML of a run.

    | argument | meaning |
    | --- | --- |
    | `table` | a row for each number of the draws, by arviz |
    | `settings` | what made the run, and how fast |
    | `draws` | by name, axes (chain, draw, …) |
    | `statistics` | of each draw, axes (chain, draw) |
    | `notes` | what tuning said, or None |
    """
    sections = [
        page.verdict(health.verdict, health.is_sound),
        page.section("What to do next", page.points(_next(health))),
        page.section("What the verdict rests on", page.facts(_evidence(health))),
        page.section("The run", page.facts(settings)),
    ]
    if notes:
        sections.append(page.section("Tuning", page.preformatted(notes)))
    sections += _numbers(table) + _pictures(table, draws, statistics)
    return page.page(title, sections)


def _next(health: Health) -> Sequence[str]:
    if not health.is_sound:
        return health.reasons
    return ["Nothing needs mending. More draws make Monte Carlo errors (mcse) smaller."]


def _evidence(health: Health) -> dict[str, object]:
    def shown(value: float | None, form: str) -> str:
        return "not known" if value is None else format(value, form)

    named: dict[str, object] = {
        "largest R-hat": shown(health.r_hat, ".3f"),
        "smallest effective size": shown(health.effective, ".0f"),
        "kinetic temperature (1 is right)": shown(health.kinetic_temperature, ".3f"),
        "what gradient noise adds to the injected noise": shown(health.noise_share, "+.1%"),
        "predicted error of standard deviations": shown(health.predicted_error, "+.1%"),
    }
    if health.skipped:
        named["not looked at"] = "; ".join(health.skipped)
    return named


def _numbers(table: "pandas.DataFrame") -> list[str]:
    if not len(table):
        return []
    columns = [name for name in _NUMBERS if name in table.columns]
    worst = table.sort_values("ess_bulk").index[:_MOST_ROWS]
    shown = table.loc[table.index.isin(worst), columns]
    entries = zip(shown.index, shown.to_numpy(float), strict=True)
    parts = [page.rows("numbers", ["name", *columns], entries)]
    if len(table) > _MOST_ROWS:
        parts.append(
            page.paragraph(
                f"The {_MOST_ROWS:,} of {len(table):,} numbers with the smallest effective sizes."
            )
        )
    return [page.section("Every number", *parts)]


def _pictures(
    table: "pandas.DataFrame",
    draws: Mapping[str, np.ndarray],
    statistics: Mapping[str, np.ndarray],
) -> list[str]:
    sections = []
    worst = _worst(table, draws)
    if worst:
        light, dark = pictures.both(pictures.chains(worst), 10, 1 + 1.5 * len(worst))
        words = f"Trace, ranks and autocorrelation of {', '.join(worst)}."
        sections.append(
            page.section(
                "The numbers that mix worst",
                page.picture(light, dark, words),
                page.paragraph("A line for each chain, for eight of them at most."),
            )
        )
    finite = {name: values for name, values in statistics.items() if np.all(np.isfinite(values))}
    if finite and all(values.size for values in finite.values()):
        light, dark = pictures.both(pictures.diagnostics(finite), 10, 0.5 + 1.6 * len(finite))
        words = f"{', '.join(finite)} of each draw."
        sections.append(page.section("Of each draw", page.picture(light, dark, words)))
    return sections


def _worst(table: "pandas.DataFrame", draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The numbers with the smallest effective sizes: name → (chain, draw)."""
    numbers = {}
    for name, values in draws.items():
        flat = np.asarray(values).reshape(*values.shape[:2], -1)
        places = [f"[{', '.join(map(str, at))}]" for at in np.ndindex(values.shape[2:])]
        for i, place in enumerate(places):
            numbers[name if values.ndim == 2 else name + place] = (flat, i)
    known = [name for name in table.sort_values("ess_bulk").index if name in numbers]
    chosen = {name: numbers[name][0][..., numbers[name][1]] for name in known[:_NUM_PICTURED]}
    return {name: values for name, values in chosen.items() if np.all(np.isfinite(values))}
