"""What programs are compiled for, and by which options of XLA for CPUs."""

import functools
from typing import Any

import jax


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
