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
_MODEL = "model.sghmc"

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
    full: Annotated[
        bool, typer.Option("--full", help="figure4, table1: all of it without a GPU, too.")
    ] = False,
    search: Annotated[
        bool, typer.Option("--search", help="figure4, table1: choose settings as the paper did.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="table1: our own recipe instead of the paper's.")
    ] = False,
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
    given = {
        "full": full,
        "search": search,
        "best": best,
        "data": data,
        "dataset": dataset,
        "average_every": average_every,
    }
    options = {option: value for option, value in given.items() if value}
    with _session(debug):
        for name in names:
            progress = not (quiet or as_json) and _is_watched()
            chosen = options if len(names) == 1 else experiments.known_options(name, options)
            results[name] = experiments.reproduce(
                name, out, quick=quick, seed=seed, progress=progress, **chosen
            )
            if not (quiet or as_json):
                _console().print(experiments.table(name, results[name]))
                print(f"Written to {out / name}.\n")
        if as_json:
            _print_json(results)


@app.command()
def fit(
    table: Annotated[pathlib.Path, typer.Argument(help="A csv or parquet file.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[pathlib.Path, typer.Option(help="Folder for the results.")] = pathlib.Path(
        "results/fit"
    ),
    task: Annotated[
        str | None, typer.Option(help="classification or regression; else by the target.")
    ] = None,
    model: Annotated[str, typer.Option(help="mlp or linear.")] = "mlp",
    test_fraction: Annotated[float, typer.Option(help="Share of rows to judge by.")] = 0.2,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; may be repeated.")
    ] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit a Bayesian model to a table, and judge it on held-out rows.

    Columns of text become one input a category. The model then takes the
    held-out rows in too. Writes result.json, predictions.csv,
    reliability.png and model.sghmc.
    """
    with _session(debug):
        from sghmc.data.features import read_table
        from sghmc.estimators import tabular

        fitted = tabular.fit_table(
            read_table(table),
            target,
            task=task,
            kind=model,
            test_fraction=test_fraction,
            ignored=ignore,
            seed=seed,
            progress=not (quiet or as_json) and _is_watched(),
        )
        with files.staged(out) as stage:
            files.write_json(stage / "result.json", fitted.result)
            (stage / "predictions.csv").write_text(fitted.predictions, encoding="utf-8")
            tabular.plot_reliability(fitted.result).savefig(stage / "reliability.png", dpi=150)
            fitted.model.save(stage / _MODEL)
        if as_json:
            _print_json(fitted.result)
        elif not quiet:
            print("\n".join(tabular.summary(fitted.result)))
            print(f"The model is {out / _MODEL}.")


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
    """Predict new rows with a fitted model, as csv with uncertainty."""
    with _session(debug):
        if quiet and out is None:
            raise ValueError("--quiet without --out would predict for nobody: name a file.")
        from sghmc import estimators
        from sghmc.data.features import read_table
        from sghmc.estimators import tabular

        loaded = estimators.load(model / _MODEL if model.is_dir() else model)
        columns = tabular.predict_table(loaded, read_table(table))
        if out is not None:
            with files.staged(out.absolute().parent) as stage:
                (stage / out.name).write_text(tabular.as_csv(columns), encoding="utf-8")
        if as_json:
            _print_json(columns)
        elif out is None:
            sys.stdout.write(tabular.as_csv(columns))
        elif not quiet:
            print(f"Predictions of {len(columns['row'])} rows are in {out}.")


RatingsFile = Annotated[
    pathlib.Path,
    typer.Argument(help="ml-1m.zip, ratings.dat, u.data, or a table: user, item, rating."),
]
Rank = Annotated[int, typer.Option(help="Dimensions of the factors.", min=1)]
Duplicates = Annotated[
    str, typer.Option(help='A pair rated twice is an "error", or its "last" or "mean" counts.')
]


@app.command()
def fit_ratings(
    ratings: RatingsFile,
    out: Annotated[pathlib.Path, typer.Option(help="Folder for the model.")] = pathlib.Path(
        "results/ratings"
    ),
    rank: Rank = 20,
    holdout: Annotated[
        float, typer.Option(help="Share of ratings held out to judge the model.", min=0, max=0.5)
    ] = 0.1,
    duplicates: Duplicates = "error",
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit a recommender to ratings, and judge it on held-out ones.

    The model then takes those in too. Writes config.json, result.json and model.sghmc.
    """
    with _session(debug):
        from sghmc.data.ratings import load_ratings
        from sghmc.estimators.recommender import fit_and_judge

        progress = not (quiet or as_json) and _is_watched()
        table = load_ratings(ratings, duplicates=duplicates)
        model, result = fit_and_judge(
            table, holdout, rank=rank, random_state=seed, progress=progress
        )
        config = {"ratings": str(ratings), "holdout": holdout, "duplicates": duplicates}
        with files.staged(out) as stage:
            files.write_json(stage / "config.json", {**config, **model.get_params()})
            files.write_json(stage / "result.json", result)
            model.save(stage / _MODEL)
        if as_json:
            _print_json(result)
        elif not quiet:
            if judged := result.get("held_out"):
                print(f"{judged['num_ratings']:,} held-out ratings: RMSE {judged['rmse']:.4f}.")
                for level, share in judged["coverage"].items():
                    print(f"The {level} predictive intervals cover {share:.1%} of them.")
            print(f"The model is {out / _MODEL}.")


@app.command()
def recommend(
    source: Annotated[
        pathlib.Path,
        typer.Argument(help="What fit-ratings wrote, or a file of ratings, fitted first."),
    ],
    user: Annotated[str, typer.Option(help="The user's id.")],
    k: Annotated[int, typer.Option("-k", help="How many items.", min=1)] = 10,
    explore: Annotated[
        float, typer.Option(help="1: by one draw from the posterior (Thompson).", min=0)
    ] = 0.0,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also items that the user has rated.")
    ] = False,
    rank: Rank = 20,
    duplicates: Duplicates = "error",
    seed: Seed = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Recommend items to a user, with how sure the predictions are.

    For a user who is not among the ratings: what people like.
    """
    with _session(debug):
        from sghmc.data.ratings import id_of, load_ratings
        from sghmc.estimators.recommender import MatrixFactorization, is_model

        source = source / _MODEL if (source / _MODEL).exists() else source
        if is_model(source):
            model = MatrixFactorization.load(source)
        else:
            table = load_ratings(source, duplicates=duplicates)
            progress = not as_json and _is_watched()
            model = MatrixFactorization(rank, random_state=seed, progress=progress).fit(table)
        known = id_of(user, model.ratings_.users)
        best = model.recommend(
            known, k, exclude_seen=not include_seen, explore=explore, random_state=seed
        )
        is_known = known in model.ratings_.users
        if as_json:
            columns = {name: column.tolist() for name, column in best._asdict().items()}
            _print_json({"user": known, "is_known": is_known, **columns})
            return
        if not is_known:
            print(f"User {user} has rated nothing here: this is what people like.")
        for item, rating, std in zip(*best, strict=True):
            print(f"{item}\t{rating:.2f} ± {std:.2f}")


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
