"""What somebody else packed: read in place, and held to bounds before it is unpacked."""

import os
import pathlib
import zipfile
import zlib
from typing import IO

_MOST_BYTES = 4 << 30
_SMALL = 1 << 26
"""Below this size any ratio is harmless."""


def check_unpacked(name: str, packed: int, size: int, most_ratio: int = 200) -> None:
    """Refuse what would take far more memory than its file.

    Text packs 5:1 and repetitive columns 100:1; what packs tighter was made to explode.
    """
    if size > _MOST_BYTES or (size > _SMALL and size > most_ratio * packed):
        raise ValueError(
            f"{name} would unpack from {packed:,} to {size:,} bytes. At most {_MOST_BYTES:,} bytes "
            f"and {most_ratio} times the packed size are read: if that is meant, unpack it "
            f"yourself."
        )


class Archive:
    """A zip file whose members have been looked at: none escapes, what is read is bounded.

    Names that are absolute or climb with "..", and encrypted members, are errors. So is reading
    members that, all of them together, unpack to more than 4 GiB or to more than `most_ratio`
    times their packed size.
    """

    def __init__(
        self,
        file: str | pathlib.Path | IO[bytes],
        name: str | None = None,
        most_ratio: int = 200,
    ):
        self.name, self._most_ratio = name or str(file), most_ratio
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise ValueError(
                f"{self.name} is not a complete zip file ({error}): it is truncated or damaged. "
                f"Fetch it again."
            ) from error
        self._packed, self._unpacked = 0, 0
        try:
            self._size = self._zip.fp.seek(0, os.SEEK_END) if self._zip.fp else 0
            for member in self._zip.infolist():
                self._check(member)
        except ValueError:
            self._zip.close()
            raise

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_) -> None:
        self._zip.close()

    @property
    def members(self) -> list[str]:
        """The names of the files inside."""
        return [member.filename for member in self._zip.infolist() if not member.is_dir()]

    def read(self, member: str) -> bytes:
        found = self._zip.getinfo(member)
        self._packed += found.compress_size
        self._unpacked += found.file_size
        # Members may lie over one another: together they are not larger than the file.
        packed = min(self._packed, self._size)
        check_unpacked(f"{member} in {self.name}", packed, self._unpacked, self._most_ratio)
        try:
            return self._zip.read(member)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise ValueError(
                f"{member} in {self.name} cannot be unpacked ({error}): the zip file is truncated "
                f"or damaged."
            ) from error

    def _check(self, member: zipfile.ZipInfo) -> None:
        # orig_filename: zipfile itself tidies .filename, and must not hide what was meant.
        for written in (member.filename, member.orig_filename):
            path = written.replace("\\", "/")
            if path.startswith("/") or path[1:2] == ":" or ".." in path.split("/"):
                raise ValueError(
                    f"{self.name} has a member {written!r}, whose path leads out of the archive: "
                    f"it is not read."
                )
        if member.flag_bits & 1:
            raise ValueError(f"{member.filename} in {self.name} is encrypted: unpack it first.")
