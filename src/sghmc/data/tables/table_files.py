"""Columns of a table on disk: text with any delimiter, parquet, npz, or one of them in a zip."""

import io
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from sghmc.data.tables.archives import Archive

_SUFFIXES = (".dat", ".data", ".csv", ".tsv", ".txt", ".parquet", ".npz")
_FAVOURITES = ("ratings.dat", "u.data", "ratings.csv", "ratings.parquet", "ratings.npz")
_HEADERLESS = ("user", "item", "rating", "timestamp")
_ONE_LETTER = "\x1f"
"""Stands for MovieLens' "::", since fast readers take delimiters of one letter."""
_MOST_ROWS = 1 << 30


def read_columns(path: pathlib.Path) -> Mapping[str, Any]:
    """The columns of a table by name; those of text stay text, except ratings and times."""
    if path.is_dir():
        path = _in_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix.lower() == ".zip":
        with Archive(path) as archive:
            member = _choose(archive)
            name, content = f"{member} in {path}", archive.read(member)
    else:
        member, name, content = path.name, str(path), path.read_bytes()
    if not content:
        raise ValueError(f"{name} is empty.")
    suffix = pathlib.PurePosixPath(member).suffix.lower()
    if suffix == ".npz":
        return _read_npz(content, name)
    if suffix == ".parquet":
        return _read_parquet(content, name)
    return _read_text(content, name)


def _in_folder(folder: pathlib.Path) -> pathlib.Path:
    for favourite in _FAVOURITES:
        if (folder / favourite).exists():
            return folder / favourite
    raise FileNotFoundError(
        f"The folder {folder} holds none of {', '.join(_FAVOURITES)}: name the file of ratings."
    )


def _choose(archive: Archive) -> str:
    """The member that holds the ratings: one of the usual names, or the only table."""
    members = archive.members
    for favourite in _FAVOURITES:
        named = [each for each in members if pathlib.PurePosixPath(each).name == favourite]
        if named:
            return min(named, key=len)
    found = [each for each in members if each.lower().endswith(_SUFFIXES)]
    if len(found) != 1:
        raise ValueError(
            f"{archive.name} should hold one of {', '.join(_FAVOURITES)}, or one table, but holds "
            f"{', '.join(members[:8]) or 'nothing'}{', …' if len(members) > 8 else ''}."
        )
    return found[0]


def _read_npz(content: bytes, name: str) -> Mapping[str, np.ndarray]:
    columns = {}
    with Archive(io.BytesIO(content), name) as archive:
        for member in archive.members:
            try:
                array = np.lib.format.read_array(
                    io.BytesIO(archive.read(member)), allow_pickle=False
                )
            except (ValueError, MemoryError) as error:
                raise ValueError(
                    f"The array {member} in {name} cannot be read: {error}. Save arrays of numbers "
                    f"or of text (dtype str), not of Python objects."
                ) from error
            columns[member.removesuffix(".npy")] = array
    return columns


def _read_parquet(content: bytes, name: str) -> Mapping[str, pa.ChunkedArray]:
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(content))
        if file.metadata.num_rows > _MOST_ROWS:
            raise ValueError(
                f"{name} has {file.metadata.num_rows:,} rows: at most {_MOST_ROWS:,} are read."
            )
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name} is not a complete parquet file: {error}") from error
    return dict(zip(table.column_names, table.columns, strict=True))


def _read_text(content: bytes, name: str) -> Mapping[str, pa.ChunkedArray]:
    from pyarrow import csv

    first = content[: content.find(b"\n") + 1 or None].decode("utf-8-sig", "replace").strip("\r\n")
    delimiter = next((each for each in ("::", "\t", ";") if each in first), ",")
    fields = [field.strip().strip('"') for field in first.split(delimiter)]
    has_header = not (3 <= len(fields) <= len(_HEADERLESS) and _is_number(fields[2]))
    names = fields if has_header else list(_HEADERLESS[: len(fields)])
    if delimiter == "::":
        content, delimiter = content.replace(b"::", _ONE_LETTER.encode()), _ONE_LETTER
    # Ids stay text until all are seen: 007 is not 7. They repeat, so a dictionary of them is small.
    text = pa.dictionary(pa.int32(), pa.string())
    try:
        table = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=names, skip_rows=int(has_header)),
            csv.ParseOptions(delimiter=delimiter, quote_char=delimiter != _ONE_LETTER and '"'),
            csv.ConvertOptions(
                column_types={each: text for each in names if not _is_numeric_name(each)}
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise ValueError(f"{name} cannot be read as a table: {error}") from error
    return {each: _as_numbers(table.column(each)) for each in names}


def _is_numeric_name(name: str) -> bool:
    return name.strip().lower() in ("rating", "ratings", "timestamp")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_numbers(column: pa.ChunkedArray) -> Any:
    """Ids in text as whole numbers, where every one is written as such."""
    if not pa.types.is_dictionary(column.type):
        return column
    encoded: Any = column.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no rows at all
        return column
    texts = encoded.dictionary.to_pylist()
    if not all(_is_whole(text) for text in texts):
        return encoded
    numbers = pa.array([int(text) for text in texts], pa.int64())
    return pa.DictionaryArray.from_arrays(encoded.indices, numbers)


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 19 and str(int(text)) == text
