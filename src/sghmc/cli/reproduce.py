"""`sghmc reproduce`: the paper's figures, table and theorems."""

import pathlib
import sys
from typing import Annotated, Any

import typer

from sghmc import experiments
from sghmc.cli import session
from sghmc.cli.session import AsJson, Debug, Out, Quiet, Seed, app, show
from sghmc.display.page import FILE, write

_EVERYTHING = "all"


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


def _flag(name: str, words: str) -> Any:
    return typer.Option(f"--{name}", help=words)


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
    quick: Annotated[bool, _flag("quick", "A small version: seconds, rough.")] = False,
    full: Annotated[bool, _flag("full", "figure4, table1: all of it without a GPU, too.")] = False,
    search: Annotated[
        bool, _flag("search", "figure4, table1: choose settings as the paper did.")
    ] = False,
    best: Annotated[bool, _flag("best", "table1: our own recipe instead of the paper's.")] = False,
    data: Annotated[
        str | None,
        typer.Option(help="MNIST's folder (figure4; else $SGHMC_DATA) or ratings (table1)."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="mnist or digits (figure4); ml-1m, ml-100k or synthetic (table1)."),
    ] = None,
    average_every: Annotated[
        int | None,
        typer.Option(min=1, help="table1: steps between predictions that are averaged."),
    ] = None,
    seed: Seed = 0,
    out: Out = pathlib.Path("results"),
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Reproduce figures and theorems of the paper (Chen, Fox & Guestrin, 2014).

    Prints what was measured against what was expected. Writes config.json,
    result.json, a picture and report.html for each NAME, in a folder of
    its own; for several a report.html that leads to them. Where data are missing the others are
    made, and the exit status is 1.
    """
    results: dict[str, Any] = {}
    given = {
        "full": full,
        "search": search,
        "best": best,
        "data": data,
        "dataset": dataset,
        "average_every": average_every,
    }
    options = {option: value for option, value in given.items() if value}
    missing: dict[str, str] = {}
    with session.work(debug):
        for name in names:
            progress = session.has_bars(quiet, as_json)
            chosen = options if len(names) == 1 else experiments.known_options(name, options)
            try:
                results[name] = experiments.reproduce(
                    name, out, quick=quick, seed=seed, progress=progress, **chosen
                )
            except FileNotFoundError as error:  # its data: the others can go on without
                if len(names) == 1:
                    raise
                missing[name] = str(error)
                show(f"sghmc: {name}: {error}\n", file=sys.stderr)
                continue
            if not (quiet or as_json):
                session.console().print(experiments.table(name, results[name]))
                show(f"Written to {out / name}.\n")
        if len(names) > 1:
            contents = write(out / FILE, experiments.contents(out, missing))
            if not (quiet or as_json):
                show(f"All of it: {contents}")
        if as_json:
            session.print_json(results | {name: {"missing": why} for name, why in missing.items()})
        if missing:
            raise typer.Exit(1)
