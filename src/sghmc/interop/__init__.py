"""Interfaces to other libraries, each of which is imported by its own file only."""

import importlib
from types import ModuleType

from sghmc.interop.reference import nuts

__all__ = ["nuts"]


def __getattr__(name: str) -> ModuleType:
    """Import the file of a library when it is first used."""
    if name in ("numpyro", "optax", "pymc"):
        return importlib.import_module(f"sghmc.interop.{name}")
    raise AttributeError(f"module 'sghmc.interop' has no attribute {name!r}")
