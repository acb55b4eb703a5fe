"""Tables as text: csv and its like, with whichever delimiter cuts their rows alike."""

import csv
import io
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sghmc.core.optional import require

_DELIMITERS = (",", ";", "\t", "::")
"""Where two do as well, the first of them."""
_ONE_LETTER = "\x1f"
"""Stands for MovieLens' "::", since fast readers take delimiters of one letter."""
_NUM_SEEN = 20
"""Rows by which a delimiter is judged."""
_LONGEST_LINE = 1 << 24
"""Bytes: names of 160 letters for 100,000 columns. A longer first line is no table's."""
_HEAD_BYTES = 1 << 16
"""After the first line, what is looked at to find the delimiter."""
_BLOCK_BYTES = 1 << 20
"""What pyarrow parses at a time, if a row is not longer."""


class Style(NamedTuple):
    """What the columns of a text are taken for.

    `is_text(name)` says which stay text, letter by letter; without it, all are what their entries
    look like, and an empty entry is missing. `headerless` are the names of columns whose first line
    may be a row already: it is, where the third of them is a number.
    """

    is_text: Callable[[str], bool] | None = None
    headerless: Sequence[str] = ()


def read_text(source: pathlib.Path | bytes, name: str, style: Style) -> Any:
    """The pyarrow table in a file, or in its content."""
    pa, arrow_csv = require("pyarrow", extra="data"), require("pyarrow.csv", extra="data")
    head = _head(source, name)
    try:
        delimiter = _delimiter(head)
        first = next(iter(_rows(head, delimiter)), [])
    except csv.Error as error:
        raise ValueError(f"{name} cannot be read as a table: {error}.") from error
    has_header = not _is_row(first, style.headerless)
    names = first if has_header else list(style.headerless[: len(first)])
    quote = '"' if delimiter != "::" else False
    if delimiter == "::":
        content = source if isinstance(source, bytes) else source.read_bytes()
        source, delimiter = content.replace(b"::", _ONE_LETTER.encode()), _ONE_LETTER
    block = max(_BLOCK_BYTES, 8 * (head.find("\n") + 1 or len(head)))
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(source) if isinstance(source, bytes) else source,
            arrow_csv.ReadOptions(block_size=block, column_names=None if has_header else names),
            arrow_csv.ParseOptions(delimiter=delimiter, quote_char=quote),
            _conversion(names, style),
        )
        return table.rename_columns([each.strip() for each in table.column_names])
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read as a table: {error}") from error


def _conversion(names: Sequence[str], style: Style) -> Any:
    pa, arrow_csv = require("pyarrow", extra="data"), require("pyarrow.csv", extra="data")
    if style.is_text is None:
        return arrow_csv.ConvertOptions(strings_can_be_null=True)
    # Entries repeat, so that a dictionary of them is small.
    text = pa.dictionary(pa.int32(), pa.string())
    return arrow_csv.ConvertOptions(
        column_types={each: text for each in names if style.is_text(each)}
    )


def _head(source: pathlib.Path | bytes, name: str) -> str:
    """The beginning of a text, its first line to the end."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        first = file.readline(_LONGEST_LINE)
        if len(first) == _LONGEST_LINE and not first.endswith(b"\n"):
            raise ValueError(
                f"{name} cannot be read as a table: its first line has more than "
                f"{_LONGEST_LINE:,} bytes."
            )
        rest = file.read(_HEAD_BYTES)
    return (first + rest).decode("utf-8-sig", "replace")


def _delimiter(head: str) -> str:
    """The one that cuts the first rows into equally many fields, the most of them.

    >>> _delimiter("a;b\\n1,5;2\\n"), _delimiter('"size; m²",price\\n3,4\\n')
    (';', ',')
    """
    counts = {each: _counts(head, each) for each in _DELIMITERS}
    cutting = [each for each, found in counts.items() if max(found[1:] or found, default=1) > 1]
    alike = [each for each in cutting if len(set(counts[each])) == 1]
    # Where a row is bad, none cuts all alike: then the first line decides.
    return max(alike or cutting, key=lambda each: counts[each][0], default=_DELIMITERS[0])


def _counts(head: str, delimiter: str) -> list[int]:
    """How many fields each of the first rows has."""
    try:
        return [len(row) for row in itertools.islice(_rows(head, delimiter), _NUM_SEEN)]
    except csv.Error:  # fields without an end
        return []


def _rows(head: str, delimiter: str) -> Any:
    """The rows of a text, and not the last where it was cut off."""
    lines = list(io.StringIO(head, newline=""))
    if len(lines) > 1 and not head.endswith("\n") and len(head) > _HEAD_BYTES // 4:
        lines.pop()
    if delimiter != "::":
        return (row for row in csv.reader(lines, delimiter=delimiter) if row)
    return (line.rstrip("\r\n").split("::") for line in lines if line.strip())


def _is_row(fields: Sequence[str], headerless: Sequence[str]) -> bool:
    return 3 <= len(fields) <= len(headerless) and is_number(fields[2])


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
