"""The application that all commands share: common options, errors, and printing."""

import contextlib
import json
import pathlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TextIO

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sghmc.checkpoint.checkpoint import CheckpointError
from sghmc.core.files import cache
from sghmc.core.version import __version__
from sghmc.display import printable

MODEL = "model.sghmc"
"""File name of a fitted model in the folder of its results."""
_MAX_COLUMNS = 80

app = typer.Typer(
    name="sghmc",
    help="Bayesian inference on data too big for exact MCMC.",
    epilog="In Python: import sghmc; help(sghmc.sample)",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_USER_ERRORS = (ValueError, TypeError, OSError, ImportError, CheckpointError, FloatingPointError)
"""Errors that are shown by their message; others are the library's and keep their traceback."""

Out = Annotated[pathlib.Path, typer.Option(help="Folder for the results.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.", min=0)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"sghmc {__version__}")
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
    """Handle the options before a command."""


@contextlib.contextmanager
def work(debug: bool) -> Iterator[None]:
    """Keep compiled programs, and show errors and warnings of a command as messages."""
    keep_compiled_programs()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except _USER_ERRORS as error:
        if debug:
            raise
        message = str(error) or type(error).__name__
        show(f"sghmc: {message}", file=sys.stderr)
        raise typer.Exit(1) from None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning without the line of the library that raised it."""
    show(f"sghmc: {message}", file=sys.stderr)


def keep_compiled_programs() -> None:
    """Let jax keep compiled programs in the user's cache folder, where there can be one."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home directory
        cache()


def console() -> Console:
    screen = Console()
    screen.width = min(screen.width, _MAX_COLUMNS)
    return screen


def show(text: str, file: TextIO | None = None) -> None:
    """Print text with control characters escaped, so that a table cannot steer the terminal."""
    print(printable(text, kept="\n"), file=file)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table whose long cells are cut to fit."""
    table = Table(box=box.SIMPLE)
    for heading in headings:
        table.add_column(Text(printable(heading)), overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_short(cell)) for cell in row))
    console().print(table)


def _short(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else printable(str(cell))


def is_watched() -> bool:
    """Return whether the output is a terminal, where tables are shown, not a file or a pipe."""
    return sys.stdout.isatty()


def has_bars(quiet: bool, as_json: bool) -> bool:
    """Return whether runs show progress bars."""
    return is_watched() and not quiet and not as_json


def print_json(result: dict[str, Any]) -> None:
    print(json.dumps(result, allow_nan=False))
