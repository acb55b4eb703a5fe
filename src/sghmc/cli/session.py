"""What all commands share: the application, common options, errors, and what is printed."""

import contextlib
import json
import pathlib
import sys
import unicodedata
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

MODEL = "model.sghmc"
"""The file of a fitted model in the folder of its results."""
_WIDTH = 80
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that steer a terminal or hide in text."""

app = typer.Typer(
    name="sghmc",
    help="Bayesian inference on data too big for exact MCMC.",
    epilog="In Python: import sghmc; help(sghmc.sample)",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_OF_THE_USER = (ValueError, TypeError, OSError, ImportError, CheckpointError, FloatingPointError)
"""Errors whose message is enough; others are mistakes of the library, and keep their traceback."""

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
    """What stands before a command."""


@contextlib.contextmanager
def work(debug: bool) -> Iterator[None]:
    """A command's work: compiled programs are kept, errors and warnings come out as messages."""
    keep_compiled_programs()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except _OF_THE_USER as error:
        if debug:
            raise
        message = str(error) or type(error).__name__
        show(f"sghmc: {message}", file=sys.stderr)
        raise typer.Exit(1) from None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """What is doubtful, to whoever ran the command: not where in the library it was noticed."""
    show(f"sghmc: {message}", file=sys.stderr)


def keep_compiled_programs() -> None:
    """Let jax keep what it compiled in the user's cache folder, where there can be one."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        cache()


def console() -> Console:
    screen = Console()
    screen.width = min(screen.width, _WIDTH)
    return screen


def show(text: str, file: TextIO | None = None) -> None:
    """Print for a reader: names and cells of somebody's table do not command the terminal."""
    print(harmless(text), file=file)


def harmless(text: str) -> str:
    r"""Control and formatting characters as the escapes that a program would write for them.

    >>> harmless("red: \x1b[31m, and on\n")
    'red: \\x1b[31m, and on\n'
    """
    return "".join(
        ascii(letter)[1:-1]
        if unicodedata.category(letter) in _UNSEEN and letter != "\n"
        else letter
        for letter in text
    )


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for a reader, who sees as much of long cells as fits."""
    table = Table(box=box.SIMPLE)
    for heading in headings:
        table.add_column(Text(harmless(heading)), overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_short(cell)) for cell in row))
    console().print(table)


def _short(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else harmless(str(cell))


def is_watched() -> bool:
    """Whether somebody reads along, who wants tables: not a file or a pipe."""
    return sys.stdout.isatty()


def has_bars(quiet: bool, as_json: bool) -> bool:
    """Whether runs show how far they are."""
    return is_watched() and not quiet and not as_json


def print_json(result: dict[str, Any]) -> None:
    print(json.dumps(result, allow_nan=False))
