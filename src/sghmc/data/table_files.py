"""Read tables from files: text with any delimiter, parquet, npz, or one of them in a zip."""

import csv
import io
import itertools
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sghmc.core.checks import require
from sghmc.core.files import check_plain
from sghmc.data.archives import Archive, check_unpacked, read_npz, unpacked
from sghmc.data.columns import as_arrow
from sghmc.data.parquet import batches_of

if TYPE_CHECKING:
    import pyarrow

_DELIMITERS = (",", ";", "\t", "::")
"""Delimiters in order of preference, if several cut the rows equally well."""
_ONE_LETTER = "\x1f"
"""Replaces MovieLens' "::", since pyarrow takes delimiters of one letter only."""
_NUM_SNIFFED_ROWS = 20
"""Number of rows by which the delimiter is chosen."""
_MAX_LINE_BYTES = 1 << 24
"""Longest first line: names of 160 letters for 100,000 columns."""
_HEAD_BYTES = 1 << 16
"""Bytes after the first line that are read to choose the delimiter."""
_BLOCK_BYTES = 1 << 20
"""Bytes that pyarrow parses at a time, if a row is not longer."""


class Style(NamedTuple):
    """The types of a text table's columns, and its names if it has no header.

    `is_text(name)` says which columns stay text, letter by letter; without it, types are inferred
    from entries, and an empty entry is missing. `headerless` are the names of the columns of a
    table without a header, which is recognised by a number in the third column of its first line.
    """

    is_text: Callable[[str], bool] | None = None
    headerless: Sequence[str] = ()


def read_text(source: pathlib.Path | bytes, name: str, style: Style) -> Any:
    """Read a pyarrow table from a text file, or from its content."""
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
            # Not a path: by its suffix pyarrow would unpack it, without bounds.
            pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source)),
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
    # Entries repeat, so dictionaries are small.
    text = pa.dictionary(pa.int32(), pa.string())
    return arrow_csv.ConvertOptions(
        column_types={each: text for each in names if style.is_text(each)}
    )


def _head(source: pathlib.Path | bytes, name: str) -> str:
    """Read the first line of a text, and some more."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        first = file.readline(_MAX_LINE_BYTES)
        if len(first) == _MAX_LINE_BYTES and not first.endswith(b"\n"):
            raise ValueError(
                f"{name} cannot be read as a table: its first line has more than "
                f"{_MAX_LINE_BYTES:,} bytes."
            )
        rest = file.read(_HEAD_BYTES)
    return (first + rest).decode("utf-8-sig", "replace")


def _delimiter(head: str) -> str:
    """Choose the delimiter that cuts the first rows into equal numbers of fields, most of all.

    >>> _delimiter("a;b\\n1,5;2\\n"), _delimiter('"size; m²",price\\n3,4\\n')
    (';', ',')
    """
    counts = {each: _counts(head, each) for each in _DELIMITERS}
    cutting = [each for each, found in counts.items() if max(found[1:] or found, default=1) > 1]
    alike = [each for each in cutting if len(set(counts[each])) == 1]
    # If a row is malformed, no delimiter cuts all rows equally; then the first line decides.
    return max(alike or cutting, key=lambda each: counts[each][0], default=_DELIMITERS[0])


def _counts(head: str, delimiter: str) -> list[int]:
    """Count the fields of each of the first rows."""
    try:
        return [len(row) for row in itertools.islice(_rows(head, delimiter), _NUM_SNIFFED_ROWS)]
    except csv.Error:  # fields without an end
        return []


def _rows(head: str, delimiter: str) -> Any:
    """Return the rows of a text, without the last if it was cut off."""
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


# Tables of all formats.

_SUFFIXES = (".dat", ".data", ".csv", ".tsv", ".txt", ".parquet", ".npz")
_PACKED = (".gz", ".bz2")


def read_columns(
    path: pathlib.Path, style: Style, favourites: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Read the columns of a table by name: of pyarrow, or of numpy from an npz file.

    `favourites` are the files to take from a folder or an archive that holds several.
    """
    if path.is_dir():
        path = _in_folder(path, favourites)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    check_plain(path)
    if path.suffix.lower() != ".zip":
        return _columns(path, str(path), path, style)
    with Archive(path) as archive:
        member = _choose(archive, favourites)
        content = archive.read(member)
    return _columns(content, f"{member} in {path}", pathlib.PurePosixPath(member), style)


def _columns(
    source: pathlib.Path | bytes, name: str, path: pathlib.PurePath, style: Style
) -> Mapping[str, Any]:
    source = unpacked(source, name)
    suffix = (path.with_suffix("") if path.suffix.lower() in _PACKED else path).suffix
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    if size == 0:
        raise ValueError(f"{name} is empty.")
    if suffix.lower() == ".npz":
        return read_npz(source if isinstance(source, bytes) else source.read_bytes(), name)
    is_parquet = suffix.lower() == ".parquet"
    table = _read_parquet(source, name) if is_parquet else read_text(source, name, style)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    if len(columns) < table.num_columns:
        names = sorted(table.column_names)
        repeated = sorted({a for a, b in itertools.pairwise(names) if a == b})
        raise ValueError(f"{name} has columns of the same name: {', '.join(repeated)}.")
    return columns


def _in_folder(folder: pathlib.Path, favourites: Sequence[str]) -> pathlib.Path:
    for favourite in favourites:
        if (folder / favourite).exists():
            return folder / favourite
    wanted = f"holds none of {', '.join(favourites)}" if favourites else "is no table"
    raise FileNotFoundError(f"The folder {folder} {wanted}: name the file.")


def _choose(archive: Archive, favourites: Sequence[str]) -> str:
    """Return the member with the table: one of the usual names, or the only candidate."""
    members = archive.members
    for favourite in favourites:
        named = [each for each in members if pathlib.PurePosixPath(each).name == favourite]
        if named:
            return min(named, key=len)
    found = [each for each in members if each.lower().endswith(_SUFFIXES)]
    if len(found) != 1:
        wanted = f"one of {', '.join(favourites)}, or one table" if favourites else "one table"
        raise ValueError(
            f"{archive.name} should hold {wanted}, but holds "
            f"{', '.join(members[:8]) or 'nothing'}{', …' if len(members) > 8 else ''}."
        )
    return found[0]


def _read_parquet(source: pathlib.Path | bytes, name: str) -> Any:
    pa, parquet = require("pyarrow", extra="data"), require("pyarrow.parquet", extra="data")
    packed, size, batches = 0, 0, []
    try:
        whole = pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source))
        packed = whole.size()
        with parquet.ParquetFile(whole) as file:
            schema = file.schema_arrow
        texts = [each.name for each in schema if pa.types.is_string(each.type)]
        # As a dictionary, whose decoded size is known before it is made.
        with parquet.ParquetFile(whole, read_dictionary=texts) as file:
            for batch in batches_of(file, name):
                size += sum(_decoded_bytes(column) for column in batch.columns)
                check_unpacked(name, packed, size)
                batches.append(batch)
            return pa.Table.from_batches(batches, file.schema_arrow).cast(schema)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name} is not a complete parquet file: {error}") from error


def _decoded_bytes(column: Any) -> int:
    pa, compute = require("pyarrow", extra="data"), require("pyarrow.compute", extra="data")
    if not pa.types.is_dictionary(column.type) or not pa.types.is_string(column.type.value_type):
        return column.nbytes
    lengths = compute.binary_length(column.dictionary).take(column.indices)
    return column.nbytes + (compute.sum(lengths).as_py() or 0)


# Tables of numbers and text, to fit and to predict.

Columns = dict[str, np.ndarray]
"""Columns by name: float64 (NaN is missing), int64 (or uint64), booleans, dates as datetime64, and
text as str objects (None is missing)."""


def read_table(path: pathlib.Path, only: Collection[str] | None = None) -> Columns:
    """Read the columns of a file; those that are not in `only` (if given) are left out.

    A column of lists, or of whatever else is no number, text or date, comes as objects.
    """
    table = read_columns(path, Style())
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of {path} have different lengths: {lengths}.")
    if set(lengths.values()) <= {0}:
        raise ValueError(f"{path} has column names, but no rows.")
    return {
        name: _column(column, name, path)
        for name, column in table.items()
        if only is None or name in only
    }


def _column(column: Any, name: str, path: pathlib.Path) -> np.ndarray:
    pa = require("pyarrow", extra="data")
    array = as_arrow(column, name, str(path))
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, has_gaps = array.type, array.null_count > 0
    is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if is_whole and not has_gaps:
        values = array.to_numpy(zero_copy_only=False)
        is_plain = values.dtype in (np.uint64, np.bool_)
        return values if is_plain else values.astype(np.int64)
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        if pa.types.is_time(kind):  # hours
            return _floats(array.cast(pa.time64("us")).cast(pa.int64())) / 3.6e9
        return array.cast(pa.timestamp("ms"), safe=False).to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    is_number = is_whole or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if is_number or pa.types.is_null(kind):
        return _floats(array)
    values = np.empty(len(array), object)
    values[:] = array.to_pylist()
    return values


def _floats(array: "pyarrow.Array") -> np.ndarray:
    pa = require("pyarrow", extra="data")
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
