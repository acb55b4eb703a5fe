"""What all commands share: the application, common options, errors, and what is printed."""

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import jax
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import sghmc
from sghmc.checkpoint.errors import CheckpointError

MODEL = "model.sghmc"
"""The file of a fitted model in the folder of its results."""
_WIDTH = 80

app = typer.Typer(
    name="sghmc",
    help="Bayesian inference on data too big for exact MCMC.",
    epilog="In Python: import sghmc; help(sghmc.sample)",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Seed = Annotated[int, typer.Option(help="Seed of all randomness.", min=0)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"sghmc {sghmc.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """What stands before a command."""


@contextlib.contextmanager
def session(debug: bool) -> Iterator[None]:
    """A command's work: compiled programs are kept, errors come out as one message."""
    keep_compiled_programs()
    try:
        yield
    except (ValueError, TypeError, OSError, CheckpointError, sghmc.DivergenceError) as error:
        if debug:
            raise
        message = str(error) or type(error).__name__
        print(f"sghmc: {message}", file=sys.stderr)
        raise typer.Exit(1) from None


def keep_compiled_programs() -> None:
    """Let jax keep what it compiled in the user's cache folder, where there can be one."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    try:
        folder = _cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return
    if os.access(folder, os.W_OK | os.X_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _cache_folder() -> pathlib.Path:
    """Where the platform wants caches; XDG_CACHE_HOME, where it is set, decides."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        base = pathlib.Path(chosen)
    elif sys.platform == "darwin":
        base = pathlib.Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home())
    else:
        base = pathlib.Path.home() / ".cache"
    return base / "sghmc" / f"jax-{jax.__version__}"


def console() -> Console:
    screen = Console()
    screen.width = min(screen.width, _WIDTH)
    return screen


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for a reader, who sees as much of long cells as fits."""
    table = Table(box=box.SIMPLE)
    for heading in headings:
        table.add_column(Text(heading), overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_short(cell)) for cell in row))
    console().print(table)


def _short(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def is_watched() -> bool:
    """Whether somebody reads along, who wants progress bars and tables: not a file or a pipe."""
    return sys.stdout.isatty()


def print_json(result: dict[str, Any]) -> None:
    print(json.dumps(result, allow_nan=False))
