"""Fingerprint of a run: its arguments as text, and hashes of what its functions compute.

Two runs are the same run where their fingerprints are equal; where they differ, the difference can
be named. Settings are compared by value, arrays by shape and all their contents. Functions are
compared by what they compute: `jaxpr_hash` covers the program that jax traces and every value that
it uses, wherever that value comes from.
"""

import contextlib
import contextvars
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

from sghmc.core import runtime
from sghmc.core.version import __version__
from sghmc.gradients import Gradient
from sghmc.posterior.posterior import AbstractPosterior, RowPosterior, StackedPosterior
from sghmc.posterior.sources import Source, SourceRef
from sghmc.posterior.target import Potential, Target
from sghmc.samplers import Sampler
from sghmc.types import PyTree

# Arrays of at most this many entries are written out; larger ones are hashed.
_MAX_PRINTED_ENTRIES = 4
# 16 hexadecimal digits are 64 bits: two runs are never equal by chance.
_HASH_DIGITS = 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, type)
_FUNCTION = types.FunctionType | types.MethodType | types.BuiltinFunctionType | functools.partial
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Whether arrays that lie over several processes are described by their shape alone.
_IS_OWN = contextvars.ContextVar("is_own", default=False)


def describe(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return a line of text for every part of the arguments, by its path, and some for the system.

    A function is only named as one here: `jaxpr_hash` covers what it computes.

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


@contextlib.contextmanager
def own_contents() -> Iterator[None]:
    """Describe arrays over several processes by shape and dtype: no process waits for another."""
    token = _IS_OWN.set(True)
    try:
        yield
    finally:
        _IS_OWN.reset(token)


def differences(
    then: Mapping[str, str], now: Mapping[str, str], words: str = "was {}, is {}"
) -> list[str]:
    """List the differences between two descriptions, each as text."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    # Where a whole part came or went, its own line is enough: those below it say nothing new.
    tops = [
        name for name in names if not any(name.startswith((f"{top}.", f"{top}[")) for top in names)
    ]
    return [
        f"{name} {words.format(then.get(name, 'not there'), now.get(name, 'gone'))}"
        for name in tops
    ]


def _add(name: str, value: Any, lines: dict[str, str], above: tuple[int, ...]) -> None:
    """Add lines for a value and all its parts; `above` has the ids of what it is a part of."""
    if isinstance(value, _PLAIN):
        lines[name] = repr(value)
    elif isinstance(value, jax.Array | np.ndarray):
        lines[name] = _array_text(value)
    elif id(value) in above:
        lines[name] = "itself"
    elif isinstance(value, _FUNCTION) and not isinstance(value, jax.tree_util.Partial):
        lines[name] = "a function"
    else:
        # Without the module: a class may move between modules and stay the same class.
        package = type(value).__module__.partition(".")[0]
        lines[name] = f"{package}.{type(value).__qualname__}"
        for part, entry in _parts(value).items():
            _add(name + part, entry, lines, (*above, id(value)))


def _parts(value: Any) -> dict[str, Any]:
    """Return the parts of an object by what follows its name in a path to them."""
    if isinstance(value, SourceRef):
        value = value.source
    if isinstance(value, Source):
        # Copies of a file on several machines differ in their times of change.
        value = Source.identity(value) if _IS_OWN.get() else value.identity()
    if isinstance(value, Mapping):
        return {f"[{key!r}]": entry for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": entry for i, entry in enumerate(value)}
    if isinstance(value, set | frozenset):
        return {f"[{i}]": entry for i, entry in enumerate(sorted(value, key=repr))}
    if dataclasses.is_dataclass(value):
        # A growing stream belongs to the same run, however many rows it has by now.
        is_growing = isinstance(value, RowPosterior) and value.source and value.source.is_growing
        names = [field.name for field in dataclasses.fields(value)]
        return {f".{n}": getattr(value, n) for n in names if not (is_growing and n == "num_real")}
    return _parts_of_other(value)


def _parts_of_other(value: Any) -> dict[str, Any]:
    """Return the attributes of an object; of a pytree without any, what jax takes for its parts."""
    if isinstance(value, jax.tree_util.Partial):
        # jax takes its arrays for arguments, which a traced program does not contain.
        return {f".{part}": getattr(value, part) for part in ("func", "args", "keywords")}
    if hasattr(value, "__dict__"):
        return {f".{key}": entry for key, entry in vars(value).items()}
    children = jax.tree_util.default_registry.flatten_one_level(value)
    return {} if children is None else {f"[{i}]": entry for i, entry in enumerate(children[0])}


def is_described(settings: Any) -> bool:
    """Tell whether settings, and those inside of them, are classes of sghmc.

    `describe` then has all that they prepare for a run. Other classes may prepare arrays from any
    value outside of them.

    >>> import sghmc
    >>> is_described(sghmc.Cyclical(sghmc.SGHMC(0.1, 1.0), 10, 0.5))
    True
    """
    if type(settings).__module__.partition(".")[0] != "sghmc":
        return False
    inner = [getattr(settings, field.name) for field in dataclasses.fields(settings)]
    return all(is_described(part) for part in inner if isinstance(part, Sampler | Gradient))


def _array_text(value: Any) -> str:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{value.dtype} {np.asarray(jax.random.key_data(value)).tolist()}"
    shape = f"{value.dtype}{list(value.shape)}"
    if _IS_OWN.get() and isinstance(value, jax.Array) and not value.is_fully_addressable:
        return f"{shape} over all processes"
    if value.size <= _MAX_PRINTED_ENTRIES:
        return f"{shape} {np.asarray(value).tolist()}"
    content = np.ascontiguousarray(runtime.fetch(value))
    return f"{shape} {hashlib.sha256(content.view(np.uint8).data).hexdigest()[:_HASH_DIGITS]}"


def target_hashes(target: Target | StackedPosterior, like: PyTree) -> dict[str, str]:
    """Hash the functions of a target by what they compute for parameters `like`."""
    one = target[0] if isinstance(target, StackedPosterior) else target
    if isinstance(one, Potential) and one.stochastic:
        key = jax.eval_shape(lambda: jax.random.key(0))
        return {"target.potential": jaxpr_hash(one.estimate, like, key)}
    if not isinstance(one, AbstractPosterior):
        return {"target.potential": jaxpr_hash(one.potential, like)}
    hyper = () if one.hyper is None else (one.hyper,)
    return {
        "target.log_likelihood": jaxpr_hash(one.log_likelihood, like, one.example, *hyper),
        "target.log_prior": jaxpr_hash(one.log_prior, like, *hyper),
    }


def jaxpr_hash(function: Callable, *arguments: Any) -> str:
    """Hash what a function computes: the program that jax traces, and the values in it.

    Arguments are pytrees, of whose arrays only shapes and dtypes count. What Python does while jax
    traces is covered by its effect on the program. What a callback to the host does when the
    program runs is not covered.

    >>> import jax.numpy as jnp
    >>> scale = 2.0
    >>> before = jaxpr_hash(lambda x: scale * x, jnp.ones(3))
    >>> scale = 3.0
    >>> before == jaxpr_hash(lambda x: scale * x, jnp.ones(3))
    False
    """
    # Shapes without shardings: the devices of a run are no part of what it computes.
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf,
        arguments,
    )
    closed, _, _ = eqx.filter_make_jaxpr(function)(*shapes)
    found = hashlib.sha256()
    for word in _words(closed.jaxpr, closed.consts):
        found.update(word.encode() + b"\0")
    return found.hexdigest()[:_HASH_DIGITS]


def _words(jaxpr: Jaxpr, consts: list[Any]) -> Iterator[str]:
    """Yield a program as text that is equal in every process: variables by number, values whole."""
    numbers: dict[Any, int] = {}

    def named(atom: Any) -> str:
        if isinstance(atom, Literal):
            return f"{_array_text(np.asarray(atom.val))}:{atom.aval}"
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
    """Yield the text of a parameter of a program: another program, values, or names."""
    if isinstance(value, ClosedJaxpr):
        yield from _words(value.jaxpr, value.consts)
    elif isinstance(value, Jaxpr):
        yield from _words(value, [])
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        yield _array_text(np.asarray(value) if isinstance(value, np.generic) else value)
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
        # Rules that jax applied while it traced, and callbacks: their code is not covered.
        yield getattr(value, "__qualname__", type(value).__name__)
    else:
        yield _ADDRESS.sub("", repr(value))
