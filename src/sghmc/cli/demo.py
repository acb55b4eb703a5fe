"""`sghmc demo`."""

import dataclasses
import pathlib
from typing import Annotated

import jax
import typer

from sghmc.cli import session
from sghmc.cli.session import AsJson, Debug, Out, Quiet, Seed, app
from sghmc.core import atomic_file
from sghmc.display.page import write
from sghmc.experiments import demo as demonstration
from sghmc.experiments import files


@app.command()
def demo(
    out: Out = pathlib.Path("results/demo"),
    picture: Annotated[
        pathlib.Path | None, typer.Option(help="Write the picture here, too: a .png or .svg.")
    ] = None,
    seed: Seed = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Few draws: seconds, rough.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """A posterior that exact MCMC cannot have in the time.

    A regression on rows made on the spot, whose answer is known: "auto" beside
    HMC in the same seconds. Writes config.json, result.json, demo.png and
    report.html.
    """
    with session.work(debug):
        config = demonstration.Config(**(demonstration.QUICK if quick else {}))
        settings = {"seed": seed, "quick": quick, **dataclasses.asdict(config)}
        with atomic_file.drafts(out) as stage:
            progress = session.has_bars(quiet, as_json)
            result = demonstration.run(config, jax.random.key(seed), progress=progress)
            files.write_json(stage / "config.json", settings)
            files.write_json(stage / "result.json", result)
            write(stage, demonstration.page(settings, result))
            demonstration.save_picture(result, stage / "demo.png")
        if picture is not None:
            demonstration.save_picture(result, picture)
        if as_json:
            session.print_json(result)
        elif not quiet:
            screen = session.console()
            screen.print(demonstration.table(result))
            screen.print(demonstration.verdict(result))
            print(f"The picture is {out / 'demo.png'}.")
