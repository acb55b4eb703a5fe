"""What programs are compiled for, and by which options of XLA for CPUs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from sghmc.types import PyTree


def has_accelerator() -> bool:
    return jax.default_backend() != "cpu"


@functools.cache
def loop_options() -> dict[str, Any]:
    """Wide vectors on CPUs that have them: normals then cost two thirds of what they do without."""
    return _understood({"xla_cpu_prefer_vector_width": 512})


@functools.cache
def once_options() -> dict[str, Any]:
    """For what runs once, so that its compilation is what counts."""
    return _understood({"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False})


def _understood(options: dict[str, Any]) -> dict[str, Any]:
    """As arguments of `jit`; none on an accelerator, or where XLA does not know these names."""
    if has_accelerator():
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:
        return {}
    return {"compiler_options": options}


def apart(number, make: Callable[[], PyTree]) -> PyTree:
    """`make()`, through which XLA for CPUs does not fuse: it would compile it for every use again.

    It is a branch that is always taken, by a number below 2³² that the compiler does not know. An
    accelerator would ask the host which branch it is, and does without.
    """
    if has_accelerator():
        return make()
    shapes = jax.eval_shape(make)

    def zeros():
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return lax.cond(never(number), zeros, make) if jax.tree.leaves(shapes) else make()


def never(number) -> Bool[Array, ""]:
    """False, which the compiler takes for a property of a number below 2³²."""
    return (jnp.asarray(number).astype(jnp.uint32) >> np.uint32(1)).astype(jnp.int32) < 0
