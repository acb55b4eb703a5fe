"""Other libraries' models in, our samplers out. Each library is imported by its own file only."""

import importlib
from types import ModuleType

from sghmc.interop.reference import nuts

__all__ = ["nuts"]


def __getattr__(name: str) -> ModuleType:
    """A library's file comes in when it is first named."""
    if name in ("numpyro", "optax", "pymc"):
        return importlib.import_module(f"sghmc.interop.{name}")
    raise AttributeError(f"module 'sghmc.interop' has no attribute {name!r}")
