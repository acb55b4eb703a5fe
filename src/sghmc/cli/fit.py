"""`sghmc fit` and `sghmc predict`: a table, a model, predictions."""

import contextlib
import pathlib
import sys
from typing import Annotated

import typer

from sghmc.cli import session
from sghmc.cli.session import MODEL, AsJson, Debug, Out, Quiet, Seed, app, show
from sghmc.core import atomic_file
from sghmc.display.page import write
from sghmc.experiments import files


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
    num_steps: Annotated[
        int | None, typer.Option(help="Steps of a network's chains, where the usual are too few.")
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit a Bayesian model to a table, and judge it on held-out rows.

    Columns of text become one input a category. The model then takes the
    held-out rows in too. Writes result.json, predictions.csv,
    reliability.png, report.html and model.sghmc.
    """
    with session.work(debug), atomic_file.drafts(out) as stage:
        from sghmc.data.tables.features import read_table
        from sghmc.estimators import pages
        from sghmc.estimators.table import tabular

        fitted = tabular.fit_table(
            read_table(table, ignored=ignore or []),
            target,
            task=task,
            kind=model,
            test_fraction=test_fraction,
            seed=seed,
            progress=session.has_bars(quiet, as_json),
            num_steps=num_steps,
        )
        files.write_json(stage / "result.json", fitted.result)
        (stage / "predictions.csv").write_text(fitted.predictions, encoding="utf-8")
        tabular.plot_reliability(fitted.result).savefig(stage / "reliability.png", dpi=150)
        fitted.model.save(stage / MODEL)
        write(stage, pages.table_page(fitted.result))
    if as_json:
        session.print_json(fitted.result)
    elif not quiet:
        show("\n".join(tabular.summary(fitted.result)))
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
    spreadsheet would take for a formula begins with an apostrophe.
    """
    with session.work(debug):
        if quiet and out is None:
            raise ValueError("--quiet without --out would predict for nobody: name a file.")
        from sghmc import estimators
        from sghmc.data.tables.features import read_table
        from sghmc.estimators.table import tabular

        # Before the work: a place that cannot be written to is seen at once.
        with contextlib.nullcontext() if out is None else atomic_file.draft(out) as draft:
            loaded = estimators.load(model / MODEL if model.is_dir() else model)
            rows = read_table(table, only=tabular.encoding_of(loaded).inputs)
            columns = tabular.predict_table(loaded, rows)
            if draft is not None:
                draft.write_text(tabular.as_csv(columns), encoding="utf-8")
        if as_json:
            session.print_json(columns)
        elif out is not None and not quiet:
            show(f"Predictions of {len(columns['row'])} rows are in {out}.")
        elif out is None and session.is_watched():
            # The probabilities of all classes are for files: there may be very many.
            shown = {name: cells for name, cells in columns.items() if not name.startswith("p(")}
            session.print_table(list(shown), zip(*shown.values(), strict=True))
        elif out is None:
            sys.stdout.write(tabular.as_csv(columns))
