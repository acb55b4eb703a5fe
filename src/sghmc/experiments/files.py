"""Results on disk: whole or not at all."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def staged(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A scratch folder whose files move into `folder` once all of them are written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        stage = pathlib.Path(scratch)
        yield stage
        folder.mkdir(exist_ok=True)
        for file in sorted(stage.iterdir()):
            os.replace(file, folder / file.name)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # neither JSON nor text
        raise ValueError(f"{path} is broken: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is broken: it does not hold named results.")
    return content


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
