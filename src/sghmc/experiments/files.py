"""Results on disk, as JSON."""

import json
import pathlib
from typing import Any

_MOST_BYTES = 1 << 28
"""Of a file of results: the largest, of a figure with all its points, has a few megabytes."""


def read_json(path: pathlib.Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(
            f"{path} is broken: it has {size:,} bytes, where results have at most {_MOST_BYTES:,}."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is broken: it is nested too deeply.") from None
    except ValueError as error:  # neither JSON nor text
        raise ValueError(f"{path} is broken: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is broken: it does not hold named results.")
    return content


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
