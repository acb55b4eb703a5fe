"""What a terminal of 80 columns shows of a table."""

import rich.console


def fits(table) -> bool:
    """Whether no cell is cut or wrapped in 80 columns."""
    console = rich.console.Console(width=80)
    with console.capture() as capture:
        console.print(table)
    shown = capture.get()
    # A title, a head of three lines, a foot of one: more lines than rows means a wrapped cell.
    return "…" not in shown and len(shown.splitlines()) == 5 + table.row_count


def cells(table) -> list[list[str]]:
    """The cells of a table, row by row."""
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]
