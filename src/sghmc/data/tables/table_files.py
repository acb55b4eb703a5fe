"""Columns of a table on disk: text with any delimiter, parquet, npz, or one of them in a zip."""

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from sghmc.core.optional import require
from sghmc.data.tables.archives import Archive
from sghmc.data.tables.npy import read_npz
from sghmc.data.tables.text import Style, read_text

_SUFFIXES = (".dat", ".data", ".csv", ".tsv", ".txt", ".parquet", ".npz")
_MOST_ROWS = 1 << 30
"""Of a parquet file, whose few bytes may stand for any number of equal rows."""


def read_columns(
    path: pathlib.Path, style: Style, favourites: Sequence[str] = ()
) -> Mapping[str, Any]:
    """The columns of a table by name: of pyarrow, or of numpy where the file is.

    `favourites` are the files to take from a folder or an archive that holds several.
    """
    if path.is_dir():
        path = _in_folder(path, favourites)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix.lower() != ".zip":
        return _columns(path, path.suffix, str(path), style)
    with Archive(path) as archive:
        member = _choose(archive, favourites)
        content = archive.read(member)
    return _columns(content, pathlib.PurePosixPath(member).suffix, f"{member} in {path}", style)


def _columns(
    source: pathlib.Path | bytes, suffix: str, name: str, style: Style
) -> Mapping[str, Any]:
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
    """The member that holds the table: one of the usual names, or the only one that could."""
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
    try:
        whole = pa.BufferReader(source) if isinstance(source, bytes) else source
        with parquet.ParquetFile(whole) as file:
            if file.metadata.num_rows > _MOST_ROWS:
                raise ValueError(
                    f"{name} has {file.metadata.num_rows:,} rows: at most {_MOST_ROWS:,} are read."
                )
            return file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{name} is not a complete parquet file: {error}") from error
