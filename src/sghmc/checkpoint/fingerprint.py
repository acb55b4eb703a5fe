"""The arguments of a run in words, so that another run's are told apart and the difference named.

Settings are compared by value, arrays by shape and contents, functions by their code and by what
this refers to: closures, defaults, and globals of the user's own modules.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
import platform
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import processes
from sghmc.posterior.posterior import Posterior
from sghmc.posterior.source import Source

_LARGEST = 1 << 26
"""Bytes of an array that are looked at: of larger ones, evenly spaced rows."""
_FEW = 4
"""Numbers of an array that are shown rather than hashed."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
_FUNCTION = types.FunctionType | types.MethodType | functools.partial


def describe(arguments: Mapping[str, Any]) -> dict[str, str]:
    """A line for every part of the arguments, by its path, and some for where they are run.

    >>> import sghmc
    >>> describe({"sampler": sghmc.SGD(0.1)})["sampler.learning_rate"]
    '0.1'
    """
    lines = {
        "the version of sghmc": _version(),
        "the version of jax": jax.__version__,
        "the version of python": ".".join(platform.python_version_tuple()[:2]),
        "the kind of device": jax.default_backend(),
        "jax_enable_x64": str(jax.config.read("jax_enable_x64")),
    }
    return lines | _Describer().lines(arguments)


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two descriptions, in words."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    # Where a whole part came or went, its own line says it: those below it are no news.
    tops = [name for name in names if not any(_is_below(name, top) for top in names)]
    return [
        f"{name} was {then.get(name, 'not there')}, is {now.get(name, 'gone')}" for name in tops
    ]


def _is_below(name: str, top: str) -> bool:
    return name.startswith((f"{top}.", f"{top}["))


def _version() -> str:
    try:
        return importlib.metadata.version("sghmc-jax")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class _Describer:
    """Walks through objects: never in circles, and through each function and class once."""

    def __init__(self):
        self.active: set[int] = set()
        self.known: dict[int, tuple[Any, str]] = {}
        """What was said of functions and classes, which it keeps alive so that ids stay theirs."""

    def lines(self, parts: Mapping[str, Any]) -> dict[str, str]:
        lines: dict[str, str] = {}
        for name, part in parts.items():
            self._add(name, part, lines)
        return lines

    def _add(self, name: str, value: Any, lines: dict[str, str]) -> None:
        if isinstance(value, _PLAIN):
            lines[name] = repr(value)
        elif isinstance(value, jax.Array | np.ndarray):
            lines[name] = _array(value)
        elif isinstance(value, types.CodeType):
            lines[name] = _code(value)
        elif isinstance(value, types.ModuleType):
            lines[name] = f"module {value.__name__}"
        elif id(value) in self.active:
            lines[name] = "itself"
        elif isinstance(value, type | _FUNCTION):
            lines[name] = self._once(value)
        else:
            self.active.add(id(value))
            lines[name] = self._once(type(value))
            for part, entry in _parts(value).items():
                self._add(name + part, entry, lines)
            self.active.remove(id(value))

    def _once(self, value: Any) -> str:
        if id(value) not in self.known:
            self.active.add(id(value))
            said = _qualified(value) if isinstance(value, type) else f"function {_name(value)}"
            inner = _insides(value)
            if inner:
                text = json.dumps(sorted(self.lines(inner).items()))
                said += f" {hashlib.sha256(text.encode()).hexdigest()[:16]}"
            self.known[id(value)] = value, said
            self.active.remove(id(value))
        return self.known[id(value)][1]


def _parts(value: Any) -> dict[str, Any]:
    """The parts of an object by what follows its name in a path to them."""
    if isinstance(value, Source):
        value = value.identity()
    if isinstance(value, Mapping):
        return {f"[{key!r}]": entry for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": entry for i, entry in enumerate(value)}
    if isinstance(value, set | frozenset):
        return {f"[{i}]": entry for i, entry in enumerate(sorted(value, key=repr))}
    if dataclasses.is_dataclass(value):
        # How many rows a stream has by now says nothing of which run it belongs to.
        is_growing = isinstance(value, Posterior) and value.source and value.source.is_growing
        names = [field.name for field in dataclasses.fields(value)]
        return {f".{n}": getattr(value, n) for n in names if not (is_growing and n == "num_real")}
    if hasattr(value, "__wrapped__"):  # jax.jit and its like
        return {".__wrapped__": value.__wrapped__}
    own = {} if _is_library(type(value).__module__) else getattr(value, "__dict__", {})
    return {f".{key}": entry for key, entry in own.items()}


def _insides(value: Any) -> dict[str, Any]:
    """What makes a function or a class what it is, besides its name."""
    if isinstance(value, type):
        own = {} if _is_library(value.__module__) else vars(value)
        return {k: entry for k, entry in own.items() if isinstance(entry, types.FunctionType)}
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    if isinstance(value, types.MethodType):
        return {"function": value.__func__, "self": value.__self__}
    return {
        "code": value.__code__,
        "defaults": (value.__defaults__, value.__kwdefaults__),
        "closure": [_content(cell) for cell in value.__closure__ or ()],
        "globals": _globals(value),
    }


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _array(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{value.dtype} {np.asarray(jax.random.key_data(value)).tolist()}"
    shape = f"{value.dtype}{list(value.shape)}"
    if value.size <= _FEW:
        return f"{shape} {np.asarray(value).tolist()}"
    step = math.ceil(value.nbytes / _LARGEST)
    rows = np.asarray(processes.fetch(value[::step] if step > 1 else value))
    return f"{shape} {hashlib.sha256(rows.tobytes()).hexdigest()[:16]}"


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a function that was not yet defined when this one was
        return None


def _globals(function: types.FunctionType) -> dict[str, Any]:
    """The globals that the code names, where these are the user's own business."""
    if _is_library(function.__module__):
        return {}
    names = sorted(_names(function.__code__))
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _names(code: types.CodeType) -> set[str]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _code(code: types.CodeType) -> str:
    # Neither names of files nor numbers of lines: code may move.
    consts = [
        _code(const)
        if isinstance(const, types.CodeType)
        else repr(sorted(const, key=repr) if isinstance(const, frozenset) else const)
        for const in code.co_consts
    ]
    whole = repr((code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


@functools.cache
def _is_library(module: str | None) -> bool:
    """Whether a module is not the user's: its own version stands for its code."""
    top = (module or "builtins").partition(".")[0]
    if top == "sghmc" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file
