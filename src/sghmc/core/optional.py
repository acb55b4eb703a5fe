"""Libraries that `pip install sghmc-jax` does not bring: each belongs to an extra."""

import importlib
from types import ModuleType


def require(module: str, *, extra: str) -> ModuleType:
    """The module, imported; where its library is missing, an error that names the extra.

    >>> require("json", extra="data").loads("1")
    1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != library:
            raise  # the library is there; what is missing is something that it imports
        raise ModuleNotFoundError(
            f"This needs {library}, which is not installed: pip install 'sghmc-jax[{extra}]'.",
            name=error.name,
        ) from error
