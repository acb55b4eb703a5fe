"""The commands `sghmc demo`, `reproduce` (the paper), `fit` and `predict` (tables)."""

import contextlib
import dataclasses
import pathlib
import sys
from typing import Annotated, Any

import jax
import typer

from sghmc import paper
from sghmc.cli import session
from sghmc.cli.session import MODEL, AsJson, Debug, Out, Quiet, Seed, app, show
from sghmc.core import files
from sghmc.display import write
from sghmc.paper import demo as demonstration


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
    """Compute a posterior that exact MCMC cannot compute in the same time.

    It is a regression on generated rows, whose answer is known: "auto" beside
    HMC in the same seconds. Writes config.json, result.json, demo.png and
    report.html.
    """
    with session.work(debug):
        config = demonstration.DemoConfig(**(demonstration.QUICK if quick else {}))
        settings = {"seed": seed, "quick": quick, **dataclasses.asdict(config)}
        with files.drafts(out) as stage:
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


_EVERYTHING = "all"


def _known_names(names: list[str]) -> list[str]:
    """Return each experiment asked for once; anything else is a usage error."""
    known: list[str] = list(paper.EXPERIMENTS)
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
            help=f"Any of {', '.join(paper.EXPERIMENTS)}; or {_EVERYTHING}.",
        ),
    ],
    quick: Annotated[bool, _flag("quick", "A small version: seconds, rough.")] = False,
    full: Annotated[bool, _flag("full", "figure4, table1: all of it without a GPU, too.")] = False,
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
    result.json, a picture and report.html for each NAME, in its own folder.
    Where data are missing, the others are made, and the exit status is 1.
    """
    results: dict[str, Any] = {}
    given = {"full": full, "best": best, "data": data, "dataset": dataset}
    given["average_every"] = average_every
    options = {option: value for option, value in given.items() if value}
    missing: dict[str, str] = {}
    with session.work(debug):
        for name in names:
            progress = session.has_bars(quiet, as_json)
            chosen = options if len(names) == 1 else paper.known_options(name, options)
            try:
                results[name] = paper.reproduce(
                    name, out, quick=quick, seed=seed, progress=progress, **chosen
                )
            except FileNotFoundError as error:  # its data are missing: run the others
                if len(names) == 1:
                    raise
                missing[name] = str(error)
                show(f"sghmc: {name}: {error}\n", file=sys.stderr)
                continue
            if not (quiet or as_json):
                session.console().print(paper.load(name).table(results[name]))
                show(f"Written to {out / name}.\n")
        if as_json:
            session.print_json(results | {name: {"missing": why} for name, why in missing.items()})
        if missing:
            raise typer.Exit(1)


@app.command()
def fit(
    table: Annotated[pathlib.Path, typer.Argument(help="A csv or parquet file.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Out = pathlib.Path("results/fit"),
    task: Annotated[
        str | None, typer.Option(help="classification or regression; else by the target.")
    ] = None,
    model: Annotated[str, typer.Option(help="mlp or linear.")] = "mlp",
    test_fraction: Annotated[float, typer.Option(help="Share of rows to judge by.")] = 0.2,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; may be repeated.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="A column to take for categories; may be repeated.")
    ] = None,
    number: Annotated[
        list[str] | None, typer.Option(help="A column to take for numbers; may be repeated.")
    ] = None,
    num_steps: Annotated[
        int | None, typer.Option(help="Steps of a network's chains, where the usual are too few.")
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit a Bayesian model to a table, and judge it on held-out rows.

    Columns of text become one input for each category, dates calendar features;
    values may be missing. After judging, beside a constant, a linear model and
    boosting, the model is fitted to the held-out rows, too. Writes result.json,
    predictions.csv, reliability.png, report.html and model.sghmc.
    """
    with session.work(debug), files.drafts(out) as stage:
        from sghmc.data.table_files import read_table
        from sghmc.estimators import table_page, tables
        from sghmc.estimators.encoding import Options

        fitted = tables.fit_table(
            read_table(table),
            target,
            task=task,
            kind=model,
            test_fraction=test_fraction,
            options=Options(ignore or (), category or (), number or ()),
            seed=seed,
            progress=session.has_bars(quiet, as_json),
            num_steps=num_steps,
        )
        files.write_json(stage / "result.json", fitted.result)
        (stage / "predictions.csv").write_text(fitted.predictions, encoding="utf-8")
        table_page.plot_reliability(fitted.result).savefig(stage / "reliability.png", dpi=200)
        fitted.model.save(stage / MODEL)
        write(stage, table_page.table_page(fitted.result))
    if as_json:
        session.print_json(fitted.result)
    elif not quiet:
        show("\n".join(table_page.summary(fitted.result)))
        show(f"The model is {out / MODEL}.")


@app.command()
def predict(
    model: Annotated[pathlib.Path, typer.Argument(help="What fit wrote: a folder or model file.")],
    table: Annotated[pathlib.Path, typer.Argument(help="A csv or parquet file of new rows.")],
    out: Annotated[
        pathlib.Path | None, typer.Option(help="File for the predictions; else printed.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Predict new rows with a fitted model, with uncertainty.

    In a terminal a table, in a pipe or a file csv, where a label that a
    spreadsheet would take for a formula begins with an apostrophe. The last
    column says what is odd about a row, such as an unseen category; a row
    whose numbers cannot be read has no prediction.
    """
    with session.work(debug):
        if quiet and out is None:
            raise ValueError(
                "--quiet without --out would show no predictions: name a file by --out."
            )
        from sghmc import estimators
        from sghmc.data.table_files import read_table
        from sghmc.estimators import tables

        # The draft comes first, so that a place that cannot be written to fails at once.
        with contextlib.nullcontext() if out is None else files.draft(out) as draft:
            loaded = estimators.load(model / MODEL if model.is_dir() else model)
            rows = read_table(table, only=tables.encoding_of(loaded).inputs)
            columns = tables.predict_table(loaded, rows)
            if draft is not None:
                draft.write_text(tables.as_csv(columns), encoding="utf-8")
        if as_json:
            session.print_json(columns)
        elif out is not None and not quiet:
            show(f"Predictions of {len(columns['row'])} rows are in {out}.")
        elif out is None and session.is_watched():
            # There may be very many classes, so their probabilities are written to files only.
            shown = {name: cells for name, cells in columns.items() if not name.startswith("p(")}
            session.print_table(list(shown), zip(*shown.values(), strict=True))
        elif out is None:
            sys.stdout.write(tables.as_csv(columns))
