"""Pages of results: one for an experiment, and one that leads to those of all experiments."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sghmc.display import page, pictures
from sghmc.experiments.claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

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
    return page.page(
        title,
        [
            page.verdict(*judged(claims)),
            *([page.paragraph(_QUICK)] if config.get("quick") else []),
            page.section("The paper and this run", _beside(claims)),
            page.section("The figure, as made here", drawing(figure, title)),
            page.section("Measured", rich_table(table)),
            page.section("The run", page.facts({"command": _command(name, config), **run})),
            page.section("Settings", page.facts(settings)),
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
    return page.page(
        "The paper, reproduced",
        [
            page.paragraph(
                "Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin, 2014): what "
                "its figures, table and theorems say, and what came out here."
            ),
            *([page.section("Reports", page.links(reports))] if reports else []),
            *([page.section("Not reproduced here", page.points(missing))] if missing else []),
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
    summary = page.section(
        title,
        page.verdict(words, is_good),
        *([page.paragraph(_QUICK)] if config.get("quick") else []),
        *([_beside(claims)] if len(claims) <= _MOST_CLAIMS else []),
        drawing(figure, title),
        page.paragraph(f"{config.get('seconds', '?')} seconds on {config.get('device', '?')}."),
    )
    return Entry(title, words, f"{name}/{page.FILE}", summary)


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
    return page.card(pictures.address(figure, dpi=dpi), words)


def rich_table(table: "Table") -> str:
    """A terminal's table as one of HTML."""
    from rich.text import Text

    def plain(cell: Any) -> str:
        return Text.from_markup(str(cell)).plain.replace("\n", " ").strip()

    heads = [plain(column.header) for column in table.columns]
    cells = [[plain(cell) for cell in column.cells] for column in table.columns]
    return page.grid(heads, zip(*cells, strict=True))


_QUICK = "A quick run at small sizes: its numbers are rough."
_ANSWERS = {True: "yes", False: "NO", None: "cannot tell"}


def _beside(claims: Sequence[Claim]) -> str:
    rows = [(claim.paper, claim.here, _ANSWERS[claim.agrees]) for claim in claims]
    return page.grid(("the paper", "here", "agrees"), rows)


def _command(name: str, config: Mapping[str, Any]) -> str:
    quick = " --quick" if config.get("quick") else ""
    return f"sghmc reproduce {name} --seed {config.get('seed', 0)}{quick}"
