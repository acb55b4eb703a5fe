"""Counts of what a function costs, from the program that jax traces: equal on every machine.

A measured time would differ from call to call, and with it everything that is chosen by it.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

# Elementary operations that one element of a primitive costs, in multiplications; 1 if not named.
_WEIGHTS = (
    dict.fromkeys(("lgamma", "digamma", "polygamma", "igamma", "igammac", "regularized_"
                   "incomplete_beta", "bessel_i0e", "bessel_i1e", "erf_inv", "igamma_grad_a"), 60)
    | dict.fromkeys(("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erfc",
                     "sin", "cos", "tan", "pow", "atan2", "asin", "acos", "atan", "sinh", "cosh",
                     "asinh", "acosh", "atanh", "cbrt"), 8)
    | dict.fromkeys(("sqrt", "rsqrt", "div", "rem", "sort"), 3)
    | dict.fromkeys(("gather", "scatter-add", "scatter"), 10)
    | dict.fromkeys(("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "slice",
                     "copy", "stop_gradient", "expand_dims"), 0)
)  # fmt: skip
# Factorizations and solves of a (d, d) matrix, in d³ operations.
_CUBIC = {"cholesky": 1 / 3, "triangular_solve": 1, "lu": 1, "eigh": 10, "svd": 10, "qr": 2}
# Iterations of a loop of unknown length.
_WHILE_ITERATIONS = 10


class Operations(NamedTuple):
    """Elementary operations, loop iterations, and equations to compile."""

    elementary: float
    iterations: float
    equations: float

    def __add__(self, other: "Operations") -> "Operations":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Operations(*(a + b for a, b in zip(self, other, strict=True)))


def count_operations(function: Callable, *arguments: Any) -> Operations:
    """Count the operations of a function of arrays or shapes, without running or compiling it.

    >>> import jax, jax.numpy as jnp
    >>> x = jax.ShapeDtypeStruct((100,), jnp.float32)
    >>> count_operations(lambda x: jnp.sum(x * x), x).elementary
    200.0
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Jaxpr) -> Operations:
    total = Operations(0.0, 0.0, 0)
    for equation in jaxpr.eqns:
        total += _count_equation(equation)
    return total


def _count_equation(equation: Any) -> Operations:
    name, params = equation.primitive.name, equation.params
    inner = [_count(each) for each in _programs(params.values())]
    if name == "scan":
        length = params["length"]
        return Operations(length * inner[0].elementary, length * (1 + inner[0].iterations),
                          inner[0].equations)  # fmt: skip
    if name == "while":
        body = max(inner)
        times = _WHILE_ITERATIONS
        return Operations(times * body.elementary, times * (1 + body.iterations), body.equations)
    if name == "cond":
        return max(inner)
    if inner:
        return sum(inner[1:], inner[0])
    return Operations(_elements(equation), 0.0, 1)


def _elements(equation: Any) -> float:
    """Return the elementary operations of a single primitive, from its shapes."""
    name = equation.primitive.name
    shapes: list[tuple[int, ...]] = [getattr(var.aval, "shape", ()) for var in equation.invars]
    sizes = [math.prod(getattr(var.aval, "shape", ())) for var in equation.outvars]
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * sizes[0] * math.prod(shapes[0][axis] for axis in contracted)
    if name in _CUBIC:
        return _CUBIC[name] * math.prod(shapes[0]) * shapes[0][-1]
    # A reduction reads more than it writes.
    size = max(map(math.prod, shapes), default=0) if name.startswith("reduce") else max(sizes)
    return float(_WEIGHTS.get(name, 1) * size)


def _programs(values: Any) -> Iterator[Jaxpr]:
    """Yield the programs among the parameters of an equation."""
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, list | tuple):
            yield from _programs(value)


def shapes_of(tree: Any) -> Any:
    """Return the arrays of a pytree as shapes and dtypes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
