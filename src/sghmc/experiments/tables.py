"""Tables for a terminal, a row a case. rich is imported when a table is made."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """The first column is words, to the left; the others are numbers, to the right."""
    from rich.table import Table

    shown = Table(title=title)
    for i, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if i else "left")
    for row in rows:
        shown.add_row(*row)
    return shown
