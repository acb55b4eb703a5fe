"""What "auto" chose, kept with a run's checkpoint: text and arrays, no pickle."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.checkpoint.errors import DamagedError
from sghmc.checkpoint.folder import open_folder
from sghmc.core import tree
from sghmc.gradients.base import Gradient
from sghmc.samplers.base import Sampler
from sghmc.tuning.tune import Tuned, TuneReport
from sghmc.types import PyTree

_PLAIN = (type(None), bool, int, float, str)
_MOST_ARRAYS = 16
"""As large as the largest of a result: a matrix of all parameters, or a start for each chain."""


def recall(
    checkpoint: Checkpoint, arguments: Mapping[str, Any], tuning: Callable[[], Tuned]
) -> Tuned:
    """The result of `tuning`: that of an earlier run with these arguments, where there is one."""
    init = arguments["init"]
    size = tree.size(jax.tree.map(np.asarray, init))
    most = _MOST_ARRAYS * (1 + max(size, arguments["num_chains"]) * size)

    def decode(content: Any, arrays: Mapping[str, np.ndarray]) -> Tuned:
        try:
            tuned = _Decoder(init, arrays).decode(content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise DamagedError(f"it is no result of tuning ({error!r})") from error
        if not isinstance(tuned, Tuned):
            raise DamagedError(f"it holds a {type(tuned).__name__}")
        return tuned

    with open_folder(checkpoint, arguments) as folder:
        found = folder.read_tuning(decode, most)
        if found is None:
            folder.write_tuning(*_encoded(tuning(), init))
            found = folder.read_tuning(decode, most)
        assert found is not None
        return found


def _encoded(tuned: Tuned, init: PyTree) -> tuple[Any, dict[str, np.ndarray]]:
    encoder = _Encoder(init)
    return encoder.encode(tuned), encoder.arrays


class _Encoder:
    """Objects as JSON holds them, with their arrays apart."""

    def __init__(self, init: PyTree):
        self.structure = jax.tree.structure(init)
        self.arrays: dict[str, np.ndarray] = {}

    def encode(self, value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray | jax.Array):
            name = f"{len(self.arrays):04d}"
            self.arrays[name] = np.asarray(value)
            return {"array": name}
        if isinstance(value, _PLAIN):
            return value
        # Parameters, whatever they are made of: the run knows their structure.
        is_tree = not jax.tree_util.all_leaves([value])
        if is_tree and jax.tree.structure(value) == self.structure:
            return {"params": [self.encode(leaf) for leaf in jax.tree.leaves(value)]}
        if isinstance(value, tuple):
            return {"tuple": [self.encode(entry) for entry in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encode(part) for part in item] for item in value.items()]}
        kind = type(value)
        if _kinds().get(kind.__name__) is not kind:
            raise TypeError(f"A checkpoint cannot hold a {kind.__name__} that tuning chose.")
        fields = [field.name for field in dataclasses.fields(value)]
        return {"class": kind.__name__} | {n: self.encode(getattr(value, n)) for n in fields}


class _Decoder:
    def __init__(self, init: PyTree, arrays: Mapping[str, np.ndarray]):
        self.structure = jax.tree.structure(init)
        self.arrays = arrays

    def decode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        (kind, content), *rest = value.items()
        if kind == "array":
            return self.arrays[content]
        if kind == "params":
            return jax.tree.unflatten(self.structure, [self.decode(leaf) for leaf in content])
        if kind == "tuple":
            return tuple(self.decode(entry) for entry in content)
        if kind == "dict":
            return {self.decode(key): self.decode(entry) for key, entry in content}
        if kind != "class" or content not in _kinds():
            raise DamagedError(f"it holds a {content!r}")
        return _kinds()[content](**{name: self.decode(part) for name, part in rest})


def _kinds() -> dict[str, type]:
    """The classes that a file may name: ours alone."""
    found = [Tuned, TuneReport, *_below(Sampler), *_below(Gradient)]
    return {
        kind.__name__: kind
        for kind in found
        if kind.__module__.startswith("sghmc.")
        and getattr(sys.modules[kind.__module__], kind.__name__, None) is kind
    }


def _below(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
