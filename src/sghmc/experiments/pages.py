"""Pages of results: one for an experiment, and one that leads to those of all experiments."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sghmc.experiments.claims import Claim
from sghmc.report import page, pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

FILE = "report.html"
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


def contents_page(entries: Sequence[str]) -> str:
    """The table of contents, of `entry` and `missing_entry`."""
    return page.page(
        "Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin, 2014), reproduced",
        [
            page.paragraph(
                "The paper's figures, table and theorems: what it says, and our result."
            ),
            *entries,
        ],
    )


def entry(
    name: str,
    title: str,
    claims: Sequence[Claim],
    figure: "Figure",
    config: Mapping[str, Any],
) -> str:
    """An experiment in the table of contents."""
    return page.section(
        title,
        page.verdict(*judged(claims)),
        *([page.paragraph(_QUICK)] if config.get("quick") else []),
        _beside(claims),
        drawing(figure, title, dpi=60),
        page.link(f"{name}/{FILE}", f"The page of {name}: settings, machine, every number"),
        page.paragraph(f"{config.get('seconds', '?')} seconds on {config.get('device', '?')}."),
    )


def missing_entry(name: str, title: str, reason: str) -> str:
    return page.section(
        title,
        page.verdict(f"not reproduced here: {reason.rstrip('.')}", is_good=False),
        page.paragraph(f"The command is: sghmc reproduce {name}"),
    )


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
