"""The commands `sghmc fit-ratings` and `sghmc recommend`."""

import contextlib
import pathlib
import sys
from typing import Annotated, Any

import typer

from sghmc.cli import session
from sghmc.cli.session import MODEL, AsJson, Debug, Out, Quiet, Seed, app, show
from sghmc.core import files
from sghmc.display import printable, write

RatingsFile = Annotated[
    pathlib.Path,
    typer.Argument(help="ml-1m.zip, ratings.dat, u.data, or a table: user, item, rating."),
]
Rank = Annotated[int, typer.Option(help="Dimensions of the factors.", min=1)]
Duplicates = Annotated[
    str,
    typer.Option(help='A pair rated twice is an "error", or its "last", "mean" or "sum" counts.'),
]
Users = Annotated[
    pathlib.Path | None,
    typer.Option(help="Features of users: a table with their ids, or u.user, users.dat, a zip."),
]
Items = Annotated[
    pathlib.Path | None,
    typer.Option(help="Features of items: a table with their ids, or u.item, movies.dat, a zip."),
]
LikelihoodName = Annotated[
    str,
    typer.Option(
        help='Ratings are numbers ("gaussian"), levels ("ordinal"), mere events ("implicit") or '
        '"counts"; "auto" tries the first two.'
    ),
]


@app.command()
def fit_ratings(
    ratings: RatingsFile,
    out: Out = pathlib.Path("results/ratings"),
    rank: Rank = 20,
    holdout: Annotated[
        float, typer.Option(help="Share of ratings held out to judge the model.", min=0, max=0.5)
    ] = 0.1,
    split: Annotated[
        str, typer.Option(help='Held out at "random", each user\'s "last", or the last by "time".')
    ] = "random",
    users: Users = None,
    items: Items = None,
    likelihood: LikelihoodName = "gaussian",
    duplicates: Duplicates = "error",
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Fit a recommender to ratings, and judge it on held-out ones.

    The model then learns from those, too. Writes config.json,
    result.json, report.html and model.sghmc.
    """
    with session.work(debug), files.drafts(out) as stage:
        from sghmc.recommender import evaluation
        from sghmc.recommender.evaluation import fit_and_judge, format_scores

        progress = session.has_bars(quiet, as_json)
        table = _ratings(ratings, duplicates, likelihood)
        features = _features(users, items)
        settings = {"rank": rank, "likelihood": likelihood, "random_state": seed}
        model, result = fit_and_judge(
            table, holdout, split, **features, **settings, progress=progress
        )
        config = {"ratings": str(ratings), "holdout": holdout, "split": split}
        config |= {name: str(path) for name, path in (("users", users), ("items", items)) if path}
        config |= {"duplicates": duplicates}
        config |= model.get_params()
        files.write_json(stage / "config.json", config)
        files.write_json(stage / "result.json", result)
        model.save(stage / MODEL)
        write(stage, evaluation.ratings_page(config, result))
    if as_json:
        session.print_json(result)
    elif not quiet:
        if judged := result.get("held_out"):
            print(f"{judged['num_ratings']:,} held-out ratings:")
            for name, score in format_scores(judged).items():
                print(f"{name}: {score}")
            for level, share in judged.get("coverage", {}).items():
                print(f"The {level} predictive intervals cover {share:.1%} of them.")
        show(f"The model is {out / MODEL}.")


@app.command()
def recommend(
    source: Annotated[
        pathlib.Path,
        typer.Argument(help="What fit-ratings wrote, or a file of ratings, fitted first."),
    ],
    user: Annotated[str | None, typer.Option(help="The user's id.")] = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="For all users, as csv: user, rank, item, rating, std.")
    ] = False,
    out: Annotated[pathlib.Path | None, typer.Option(help="With --all: a file for it.")] = None,
    by: Annotated[
        str, typer.Option(help='With --all: by "mean", "upper" or "lower" bound, or "draw".')
    ] = "mean",
    k: Annotated[int, typer.Option("-k", help="How many items.", min=1)] = 10,
    explore: Annotated[
        float, typer.Option(help="1: by one draw from the posterior (Thompson).", min=0)
    ] = 0.0,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Also items that the user has rated.")
    ] = False,
    new: Annotated[
        pathlib.Path | None,
        typer.Option(help="Ratings, of new users say, taken in first without a new fit."),
    ] = None,
    users: Users = None,
    items: Items = None,
    rank: Rank = 20,
    likelihood: LikelihoodName = "gaussian",
    duplicates: Duplicates = "error",
    seed: Seed = 0,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Recommend items to a user, or to all, with the predictions' standard deviations.

    A user without ratings gets what people like; with features, what similar people like.
    """
    with session.work(debug):
        if everybody == (user is not None):
            raise ValueError("Give either --user ID or --all.")
        if not everybody and (out is not None or by != "mean"):
            raise ValueError("--out and --by are for --all; one user's items have --explore.")
        from sghmc.recommender.evaluation import is_model
        from sghmc.recommender.matrix_factorization import MatrixFactorization
        from sghmc.recommender.ratings import id_of

        source = source / MODEL if (source / MODEL).exists() else source
        features = _features(users, items)
        if is_model(source):
            model = MatrixFactorization.load(source)
        else:
            table = _ratings(source, duplicates, likelihood)
            progress = session.has_bars(False, as_json)
            model = MatrixFactorization(
                rank, likelihood=likelihood, random_state=seed, progress=progress
            ).fit(table, **features)
            features = {}
        if new is not None or features:
            told = None if new is None else _ratings(new, duplicates, model.likelihood_)
            model.fold_in(told, **features)
        if user is None:
            _recommend_to_all(model, out, k, not include_seen, by, seed, as_json)
            return
        known = id_of(user, model.ratings_.users)
        best = model.recommend(
            known, k, exclude_seen=not include_seen, explore=explore, random_state=seed
        )
        is_known = known in model.ratings_.users
        if as_json:
            columns = {name: column.tolist() for name, column in best._asdict().items()}
            session.print_json({"user": known, "is_known": is_known, **columns})
            return
        if not is_known:
            show(f"User {user} has rated nothing here: this is what people like.")
        rows = [
            (item, f"{rating:.2f} ± {std:.2f}") for item, rating, std in zip(*best, strict=True)
        ]
        if session.is_watched():
            session.print_table(("item", "rating"), rows)
        else:
            show("\n".join("\t".join(printable(str(each)) for each in row) for row in rows))


def _ratings(path: pathlib.Path, duplicates: str, likelihood: str) -> Any:
    from sghmc.recommender.rating_answers import reading_options
    from sghmc.recommender.ratings import load_ratings

    return load_ratings(path, **reading_options(likelihood, duplicates))


def _features(users: pathlib.Path | None, items: pathlib.Path | None) -> dict[str, Any]:
    from sghmc.recommender.features import load_side

    given = (("users", "user", users), ("items", "item", items))
    return {name: load_side(path, role) for name, role, path in given if path is not None}


def _recommend_to_all(
    model: Any,
    out: pathlib.Path | None,
    k: int,
    exclude_seen: bool,
    by: Any,
    seed: int,
    as_json: bool,
) -> None:
    from sghmc.estimators import tables

    with contextlib.nullcontext() if out is None else files.draft(out) as draft:
        best = model.recommend_all(k, exclude_seen, by, random_state=seed)
        columns = {name: column.tolist() for name, column in best._asdict().items()}
        if draft is not None:
            draft.write_text(tables.as_csv(columns), encoding="utf-8")
    if as_json:
        session.print_json(columns)
    elif out is None:
        sys.stdout.write(tables.as_csv(columns))
    else:
        show(f"{len(columns['user']):,} recommendations are in {out}.")
