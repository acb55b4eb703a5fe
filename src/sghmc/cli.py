"""The command line: parses, calls, saves. No science."""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

import sghmc
from sghmc import demo as demonstration
from sghmc import experiments
from sghmc.experiments import files

_WIDTH = 80
_EVERYTHING = "all"

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


def main() -> None:
    """The entry point of the `sghmc` command."""
    app()


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


@app.command()
def demo(
    out: Annotated[pathlib.Path, typer.Option(help="Folder for the results.")] = pathlib.Path(
        "results/demo"
    ),
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Few draws: seconds, rough.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Sample a posterior from minibatches and compare it with exact HMC.

    A logistic regression on scikit-learn's breast cancer data, no network.
    Writes config.json, result.json and demo.png.
    """
    with _session(debug):
        config = demonstration.Config.quick() if quick else demonstration.Config()
        result = demonstration.run(
            config, jax.random.key(seed), progress=not (quiet or as_json) and _is_watched()
        )
        with files.staged(out) as stage:
            files.write_json(
                stage / "config.json", {"seed": seed, "quick": quick, **dataclasses.asdict(config)}
            )
            files.write_json(stage / "result.json", result)
            demonstration.plot(result).savefig(stage / "demo.png", dpi=150)
        if as_json:
            _print_json(result)
        elif not quiet:
            console = _console()
            console.print(demonstration.table(result))
            console.print(demonstration.verdict(result))
            print(f"The picture is {out / 'demo.png'}.")


def _known_names(names: list[str]) -> list[str]:
    """The experiments asked for, each once; anything else is a usage error."""
    known = list(experiments.EXPERIMENTS)
    for name in names:
        if name not in known and name != _EVERYTHING:
            raise typer.BadParameter(
                f"There is no experiment {name!r}. There are {', '.join(known)}, and all of them "
                f"as {_EVERYTHING!r}."
            )
    return known if _EVERYTHING in names else list(dict.fromkeys(names))


@app.command()
def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            callback=_known_names,
            help=f"Any of {', '.join(experiments.EXPERIMENTS)}; or {_EVERYTHING}.",
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: seconds, rough.")
    ] = False,
    seed: Seed = 0,
    out: Annotated[
        pathlib.Path, typer.Option(help="Folder for the results, one folder in it a NAME.")
    ] = pathlib.Path("results"),
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Reproduce figures and theorems of the paper (Chen, Fox & Guestrin, 2014).

    Prints what was measured against what was expected.
    Writes config.json, result.json and a picture for each NAME.
    """
    results: dict[str, Any] = {}
    with _session(debug):
        for name in names:
            progress = not (quiet or as_json) and _is_watched()
            results[name] = experiments.reproduce(
                name, out, quick=quick, seed=seed, progress=progress
            )
            if not (quiet or as_json):
                _console().print(experiments.table(name, results[name]))
                print(f"Written to {out / name}.\n")
        if as_json:
            _print_json(results)


@contextlib.contextmanager
def _session(debug: bool) -> Iterator[None]:
    """A command's work: compiled programs are kept, errors come out as one message."""
    _keep_compiled_programs()
    try:
        yield
    except (ValueError, TypeError, OSError, sghmc.DivergenceError) as error:
        if debug:
            raise
        message = str(error) or type(error).__name__
        print(f"sghmc: {message}", file=sys.stderr)
        raise typer.Exit(1) from None


def _keep_compiled_programs() -> None:
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


def _console() -> Console:
    console = Console()
    console.width = min(console.width, _WIDTH)
    return console


def _is_watched() -> bool:
    """Whether somebody sees a progress bar: in a file or a pipe it would only be noise."""
    return sys.stdout.isatty()


def _print_json(result: dict[str, Any]) -> None:
    print(json.dumps(result, allow_nan=False))
