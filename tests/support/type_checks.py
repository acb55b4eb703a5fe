"""Checks of types and shapes at run time: every function of sghmc, where a test calls it."""

from collections.abc import Callable
from typing import Any, Self, get_args

import jaxtyping
import pytest
from beartype import beartype


def checked(function: Callable) -> Callable:
    """Let beartype check a function; its `Self` needs a decorated class, so that is left out."""
    annotations = getattr(function, "__annotations__", {})
    for name, hint in annotations.items():
        if hint is Self or Self in get_args(hint):
            annotations[name] = Any
    return beartype(function)


class _Unchecked:
    """`pytest.raises` whose block may call functions with arguments of wrong types."""

    def __init__(self, context: Any):
        self.context = context

    def __enter__(self) -> Any:
        jaxtyping.config.update("jaxtyping_disable", True)
        return self.context.__enter__()

    def __exit__(self, *exception: Any) -> Any:
        jaxtyping.config.update("jaxtyping_disable", False)
        return self.context.__exit__(*exception)


def install() -> None:
    """Check all functions of sghmc, which must not be imported yet.

    Inside of `pytest.raises` a call is meant to be refused, with an error of ours that is better
    than a checker's: there nothing is checked.
    """
    jaxtyping.install_import_hook("sghmc", "type_checks.checked")
    raises = pytest.raises
    pytest.raises = lambda *arguments, **options: (  # pyright: ignore
        raises(*arguments, **options)
        if len(arguments) > 1
        else _Unchecked(raises(*arguments, **options))
    )
