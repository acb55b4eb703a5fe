"""The command `sghmc report`: an HTML page for a folder of results."""

import pathlib
from typing import Annotated, Any

import typer

from sghmc import paper
from sghmc.checkpoint import folder as run_folder
from sghmc.cli import session
from sghmc.cli.session import AsJson, Debug, Quiet, app, show
from sghmc.core import files
from sghmc.display import write
from sghmc.paper import demo

_Page = Annotated[
    pathlib.Path | None, typer.Option(help="File for the page; else report.html in RUN_DIR.")
]
_BROKEN_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError)
"""Errors that a result.json can raise that no command here wrote."""


@app.command()
def report(
    folder: Annotated[
        pathlib.Path, typer.Argument(metavar="RUN_DIR", help="A folder that a run has written.")
    ],
    out: _Page = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write one page of HTML about a run: its verdict, numbers, pictures.

    RUN_DIR is the folder of sample(…, checkpoint=…), finished or not, or
    what demo, fit, fit-ratings or reproduce have written. The page needs
    no network and nothing beside it.
    """
    with session.work(debug):
        kind = _kind(folder)
        target = folder if out is None else out
        if kind == "run":
            samples = run_folder.read_run(folder)
            path = samples.report(target, title=f"Run in {folder.absolute().name}")
        else:
            path = write(target, _page(kind, folder))
        if as_json:
            session.print_json({"report": str(path), "kind": kind})
        elif not quiet:
            show(f"The report is {path}.")


def _kind(folder: pathlib.Path) -> str:
    """Return the kind of a folder: a run's checkpoint, or the command whose results it has."""
    if not folder.is_dir():
        reason = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {reason}: name the folder of a run.")
    if run_folder.is_run(folder):
        return "run"
    if (folder / "result.json").exists():
        return _command(folder)
    found = sorted(path.name for path in folder.iterdir())
    holds = f"it holds {', '.join(found[:5])}" if found else "it is empty"
    raise ValueError(
        f"{folder} is no folder of a run: {holds}. Name the folder that sample(…, checkpoint=…), "
        f"sghmc demo, fit, fit-ratings or reproduce has written."
    )


def _command(folder: pathlib.Path) -> str:
    config, result = _config(folder), files.read_json(folder / "result.json")
    if config.get("experiment") in paper.EXPERIMENTS:
        return "experiment"
    marks = {"demo": "auto_is_close", "fit": "reliability", "fit-ratings": "num_ratings"}
    for kind, mark in marks.items():
        if mark in result:
            return kind
    path = folder / "result.json"
    raise ValueError(f"No command of sghmc wrote {path}, which has {list(result)[:5]}.")


def _page(kind: str, folder: pathlib.Path) -> str:
    from sghmc.estimators import table_page
    from sghmc.recommender import evaluation

    where = folder / "result.json"
    try:
        config, result = _config(folder), files.read_json(where)
        if kind == "experiment":
            return paper.page(config["experiment"], config, result)
        if kind == "demo":
            return demo.page(config, result)
        if kind == "fit":
            return table_page.table_page(result)
        return evaluation.ratings_page(config, result)
    except _BROKEN_ERRORS as error:
        raise ValueError(
            f"{where} is broken, or of another version "
            f"({type(error).__name__}: {error}): run the command again."
        ) from error


def _config(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "config.json"
    return files.read_json(path) if path.exists() else {}
