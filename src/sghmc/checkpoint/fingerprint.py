"""The arguments of a run in words, so that another run's are told apart and the difference named.

Settings are compared by value, arrays by shape and all their contents. Functions are compared by
what they compute: `traced` is the program that jax makes of one, with the values that it uses,
wherever these come from.
"""

import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from sghmc.core import processes
from sghmc.core.version import __version__
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.posterior.source import Source
from sghmc.posterior.source_ref import SourceRef

_FEW = 4
"""Numbers of an array that are shown rather than hashed."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, type)
_FUNCTION = types.FunctionType | types.MethodType | types.BuiltinFunctionType | functools.partial
_DIGITS = 16
"""Of a hash, what is kept: two that are equal by chance are not to be feared."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe(arguments: Mapping[str, Any]) -> dict[str, str]:
    """A line for every part of the arguments, by its path, and some for where they are run.

    Of functions it says no more than that they are: what they compute is `traced`.

    >>> import sghmc
    >>> describe({"sampler": sghmc.SGD(0.1)})["sampler.learning_rate"]
    '0.1'
    """
    lines = {
        "the version of sghmc": __version__,
        "the version of jax": jax.__version__,
        "the kind of device": jax.default_backend(),
        "jax_enable_x64": str(jax.config.read("jax_enable_x64")),
    }
    for name, value in arguments.items():
        _add(name, value, lines, ())
    return lines


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


def _add(name: str, value: Any, lines: dict[str, str], above: tuple[int, ...]) -> None:
    """Lines for a value and all its parts; `above` are those that it is a part of."""
    if isinstance(value, _PLAIN):
        lines[name] = repr(value)
    elif isinstance(value, jax.Array | np.ndarray):
        lines[name] = _array(value)
    elif id(value) in above:
        lines[name] = "itself"
    elif isinstance(value, _FUNCTION):
        lines[name] = "a function"
    else:
        lines[name] = f"{type(value).__module__}.{type(value).__qualname__}"
        for part, entry in _parts(value).items():
            _add(name + part, entry, lines, (*above, id(value)))


def _parts(value: Any) -> dict[str, Any]:
    """The parts of an object by what follows its name in a path to them."""
    if isinstance(value, SourceRef):
        value = value.source.identity()
    elif isinstance(value, Source):
        value = value.identity()
    if isinstance(value, Mapping):
        return {f"[{key!r}]": entry for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": entry for i, entry in enumerate(value)}
    if isinstance(value, set | frozenset):
        return {f"[{i}]": entry for i, entry in enumerate(sorted(value, key=repr))}
    if dataclasses.is_dataclass(value):
        # How many rows a stream has by now says nothing of which run it belongs to.
        is_growing = isinstance(value, RowPosterior) and value.source and value.source.is_growing
        names = [field.name for field in dataclasses.fields(value)]
        return {f".{n}": getattr(value, n) for n in names if not (is_growing and n == "num_real")}
    return {f".{key}": entry for key, entry in getattr(value, "__dict__", {}).items()}


def _array(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{value.dtype} {np.asarray(jax.random.key_data(value)).tolist()}"
    shape = f"{value.dtype}{list(value.shape)}"
    if value.size <= _FEW:
        return f"{shape} {np.asarray(value).tolist()}"
    content = np.ascontiguousarray(processes.fetch(value))
    return f"{shape} {hashlib.sha256(content.view(np.uint8).data).hexdigest()[:_DIGITS]}"


def traced(function: Callable, *arguments: Any) -> str:
    """A hash of what a function computes: of its program in jax, and of the values in it.

    Arguments are pytrees; of their arrays nothing counts but shapes and dtypes. What Python does
    while jax traces it is seen by its effect on the program, and what a callback to the host does
    when the program runs is not.

    >>> import jax.numpy as jnp
    >>> scale = 2.0
    >>> before = traced(lambda x: scale * x, jnp.ones(3))
    >>> scale = 3.0
    >>> before == traced(lambda x: scale * x, jnp.ones(3))
    False
    """
    # Not where arrays lie, either.
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf,
        arguments,
    )
    closed, _, _ = eqx.filter_make_jaxpr(function)(*shapes)
    found = hashlib.sha256()
    for word in _words(closed.jaxpr, closed.consts):
        found.update(word.encode() + b"\0")
    return found.hexdigest()[:_DIGITS]


def _words(jaxpr: Jaxpr, consts: list[Any]) -> Iterator[str]:
    """A program as text that is the same in every process: variables by number, values in full."""
    numbers: dict[Any, int] = {}

    def named(atom: Any) -> str:
        if isinstance(atom, Literal):
            return f"{_array(np.asarray(atom.val))}:{atom.aval}"
        return f"{numbers.setdefault(atom, len(numbers))}:{atom.aval}"

    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        yield f"const {named(variable)}"
        yield from _value_words(value)
    yield f"in {[named(variable) for variable in jaxpr.invars]}"
    for equation in jaxpr.eqns:
        yield f"{equation.primitive.name} {[named(atom) for atom in equation.invars]}"
        for name, value in sorted(equation.params.items()):
            if name not in ("name", "jaxpr_debug_info"):
                yield name
                yield from _value_words(value)
        yield f"out {[named(variable) for variable in equation.outvars]}"
    yield f"return {[named(atom) for atom in jaxpr.outvars]}"


def _value_words(value: Any) -> Iterator[str]:
    """A parameter of a program: another program, values, or names."""
    if isinstance(value, ClosedJaxpr):
        yield from _words(value.jaxpr, value.consts)
    elif isinstance(value, Jaxpr):
        yield from _words(value, [])
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        yield _array(np.asarray(value) if isinstance(value, np.generic) else value)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key)
            yield from _value_words(value[key])
    elif isinstance(value, list | tuple):
        yield f"{len(value)} parts"
        for part in value:
            yield from _value_words(part)
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value)))
    elif callable(value) and not isinstance(value, type):
        # Rules that were applied when the program was made, and callbacks: not to be seen.
        yield getattr(value, "__qualname__", type(value).__name__)
    else:
        yield _ADDRESS.sub("", repr(value))
