"""Check that all processes of a run were given the same arguments, before the first step."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax

from sghmc.checkpoint import fingerprint
from sghmc.core import runtime
from sghmc.engine.options import RunOptions
from sghmc.types import PyTree

# Differences that the error lists.
_MAX_SHOWN = 4
# Name of the line that says why the arguments of a process cannot be described.
_ERROR = "the error"


def check_agreement(
    key: jax.Array, target: Any, sampler: Any, init: PyTree, options: RunOptions
) -> None:
    """Refuse a run of several processes that were not given the same arguments, and name them.

    Each process hashes what it has: N, shapes, the rows of arrays and files, settings, and what
    functions compute. Of an array over all processes it knows the shape and its own part alone.
    """
    identity = functools.partial(options.identity, key, target, sampler, init)
    texts = runtime.gather_texts(json.dumps(_described(identity, options), sort_keys=True))
    other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
    if other is None:
        return
    first, its = json.loads(texts[0]), json.loads(texts[other])
    if _ERROR in first or _ERROR in its:  # what else differs comes of it
        first, its = (
            {name: lines[name] for name in lines if name == _ERROR} for lines in (first, its)
        )
    found = fingerprint.differences(first, its, f"is {{}} in process 0, {{}} in process {other}")
    more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    raise runtime.ProcessError(
        f"Processes 0 and {other} of {jax.process_count()} were given different arguments: "
        f"{'; '.join(found[:_MAX_SHOWN])}{more}. Give every process the same data, settings and "
        f"key; of an array over all processes, each gives equally many rows."
    )


def _described(identity: Callable[[], dict[str, Any]], options: RunOptions) -> dict[str, str]:
    """Describe the arguments of this process; what is wrong with them is said later, in all."""
    try:
        with fingerprint.own_contents():
            lines = fingerprint.describe(identity())
    except Exception as error:
        lines = {_ERROR: f"{type(error).__name__}: {error}"}
    mesh, saved = options.mesh, options.checkpoint
    shape = None if mesh is None else (mesh.axis_names, mesh.devices.shape)
    lines |= {"mesh": str(shape), "sharding": str(options.sharding), "throw": str(options.throw)}
    lines |= {"num_samples": str(options.num_samples), "until": str(options.until)}
    lines["checkpoint"] = str(None if saved is None else (saved.every, saved.seconds))
    return lines
