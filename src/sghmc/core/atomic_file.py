"""Files that are there whole or not at all.

A draft is written beside its place, flushed to the disk, and renamed. So a reader, a full disk or a
killed process never leaves half a file under its name, and the place may be a mount point. Drafts
get the permissions that the umask leaves, and no link is followed.
"""

import contextlib
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator

_SUFFIX = ".unfinished"


def is_draft(name: str) -> bool:
    """Whether a name is that of a draft, which a killed process may have left."""
    return name.startswith(".") and name.endswith(_SUFFIX)


def remove_drafts(folder: pathlib.Path) -> None:
    """Remove what killed processes left below a folder that nobody else writes to."""
    for path in folder.rglob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


def write(path: pathlib.Path, content: bytes | str) -> None:
    with draft(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def draft(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty file to write to, which takes the place of `path` when the block ends well.

    It is made at once: a folder that cannot be written to is an error before any work is done.
    """
    with _made(path.parent):
        unfinished = _draft_in(path.parent)
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            yield unfinished
            _flush(unfinished)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def drafts(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A scratch folder inside `folder`; its files move there together when the block ends well."""
    with _made(folder):
        scratch = _draft_in(folder)
        scratch.mkdir()
        try:
            yield scratch
            files = sorted(scratch.iterdir())
            for file in files:
                _flush(file)
            for file in files:
                os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _made(folder: pathlib.Path) -> Iterator[None]:
    """The folder and those above it; what had to be made goes again if nothing is put there."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder to write to.")
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: the work was done
            for each in missing:
                each.rmdir()


def _draft_in(folder: pathlib.Path) -> pathlib.Path:
    return folder / f".{secrets.token_hex(8)}{_SUFFIX}"


def _flush(file: pathlib.Path) -> None:
    with open(file, "r+b") as opened:
        os.fsync(opened.fileno())
