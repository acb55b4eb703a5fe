"""What the paper says in words or numbers, next to what came out here.

Runs that are of use only when they are whole.

Tables for a terminal, a row a case. rich is imported when a table is made.

What the experiments' pictures share. matplotlib is imported when a picture is made.

Pages of results: one for an experiment, and one that leads to those of all experiments.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sghmc import display
from sghmc.core.checks import require
from sghmc.results.samples import Samples
from sghmc.sampling import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


class Claim(NamedTuple):
    """`agrees` is None where this run cannot tell."""

    paper: str
    here: str
    agrees: bool | None


# Runs that are of use only when they are whole.


def draw(*arguments: Any, num_samples: int, **options: Any) -> Samples:
    """`sample`; but Ctrl-C raises KeyboardInterrupt instead of returning a part of the draws."""
    samples = sample(*arguments, num_samples=num_samples, **options)
    if samples.is_interrupted:
        raise KeyboardInterrupt
    return samples


# Tables for a terminal, a row a case. rich is imported when a table is made.


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """The first column is words, to the left; the others are numbers, to the right."""
    from rich.table import Table

    shown = Table(title=title)
    for i, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if i else "left")
    for row in rows:
        shown.add_row(*row)
    return shown


# What the experiments' pictures share. matplotlib is imported when a picture is made.

COLORS = {"truth": "#222222", "blue": "#0072b2", "red": "#d55e00", "green": "#009e73"}
"""Distinct for the color-blind (Okabe and Ito)."""
SKY, PURPLE = "#56b4e9", "#cc79a7"


def panels(columns: int, size: tuple[float, float], *, rows: int = 1) -> tuple["Figure", Any]:
    """Axes, row by row, on a figure of its own: nothing is shared with the caller's pyplot."""
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


# Pages of results: one for an experiment, and one that leads to those of all experiments.

_MOST_CLAIMS = 6
"""More than these are on the experiment's own page alone."""
_OF_THE_RUN = ("seed", "quick", "seconds", "machine", "device", "jax", "python")


def experiment_page(
    name: str,
    title: str,
    claims: Sequence[Claim],
    figure: "Figure",
    table: "Table",
    config: Mapping[str, Any],
) -> str:
    run = {key: config[key] for key in _OF_THE_RUN if key in config}
    settings = {
        key: value for key, value in config.items() if key not in run and key != "experiment"
    }
    return display.page(
        title,
        [
            display.verdict(*judged(claims)),
            *([display.paragraph(_QUICK)] if config.get("quick") else []),
            display.section("The paper and this run", _beside(claims)),
            display.section("The figure, as made here", drawing(figure, title)),
            display.section("Measured", rich_table(table)),
            display.section("The run", display.facts({"command": _command(name, config), **run})),
            display.section("Settings", display.facts(settings)),
        ],
    )


class Entry(NamedTuple):
    """An experiment in the table of contents: its page, if it has one, and a summary."""

    title: str
    verdict: str
    address: str | None
    summary: str


def contents_page(entries: Sequence[Entry]) -> str:
    """The table of contents, of `entry` and `missing_entry`."""
    reports = [(e.address, e.title, f": {e.verdict}") for e in entries if e.address is not None]
    missing = [f"{e.title}: {e.verdict}" for e in entries if e.address is None]
    return display.page(
        "The paper, reproduced",
        [
            display.paragraph(
                "Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin, 2014): what "
                "its figures, table and theorems say, and what came out here."
            ),
            *([display.section("Reports", display.links(reports))] if reports else []),
            *([display.section("Not reproduced here", display.points(missing))] if missing else []),
            *(entry.summary for entry in entries if entry.address is not None),
        ],
    )


def entry(
    name: str,
    title: str,
    claims: Sequence[Claim],
    figure: "Figure",
    config: Mapping[str, Any],
) -> Entry:
    words, is_good = judged(claims)
    summary = display.section(
        title,
        display.verdict(words, is_good),
        *([display.paragraph(_QUICK)] if config.get("quick") else []),
        *([_beside(claims)] if len(claims) <= _MOST_CLAIMS else []),
        drawing(figure, title),
        display.paragraph(f"{config.get('seconds', '?')} seconds on {config.get('device', '?')}."),
    )
    return Entry(title, words, f"{name}/{display.FILE}", summary)


def missing_entry(name: str, title: str, reason: str) -> Entry:
    words = f"{reason.rstrip('.')}. The command is: sghmc reproduce {name}"
    return Entry(title, words, None, "")


def judged(claims: Sequence[Claim]) -> tuple[str, bool]:
    """The verdict on an experiment, and whether it is good."""
    told = [claim.agrees for claim in claims if claim.agrees is not None]
    if not told:
        return "this run cannot tell whether the paper's statements hold", False
    number = "all" if all(told) else f"{sum(told)} of"
    words = f"{number} {len(told)} statements of the paper hold here"
    return words + ("" if len(told) == len(claims) else "; of others this run cannot tell"), all(
        told
    )


def drawing(figure: "Figure", words: str, *, dpi: int = 110) -> str:
    return display.card(display.picture_address(figure, dpi=dpi), words)


def rich_table(table: "Table") -> str:
    """A terminal's table as one of HTML."""
    from rich.text import Text

    def plain(cell: Any) -> str:
        return Text.from_markup(str(cell)).plain.replace("\n", " ").strip()

    heads = [plain(column.header) for column in table.columns]
    cells = [[plain(cell) for cell in column.cells] for column in table.columns]
    return display.grid(heads, zip(*cells, strict=True))


_QUICK = "A quick run at small sizes: its numbers are rough."
_ANSWERS = {True: "yes", False: "NO", None: "cannot tell"}


def _beside(claims: Sequence[Claim]) -> str:
    rows = [(claim.paper, claim.here, _ANSWERS[claim.agrees]) for claim in claims]
    return display.grid(("the paper", "here", "agrees"), rows)


def _command(name: str, config: Mapping[str, Any]) -> str:
    quick = " --quick" if config.get("quick") else ""
    return f"sghmc reproduce {name} --seed {config.get('seed', 0)}{quick}"
