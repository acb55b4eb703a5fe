"""Table 1: matrix factorization of MovieLens ratings, five folds as chains of one program.

SGD, SGD with momentum, SGLD and SGHMC with the paper's settings; `best` runs our own instead:
SGHMC with a mass matched to each row, priors with means, large batches in shuffled epochs.
Ratings are brought to (r − 1)/4 less their mean; errors are reported in stars.
"""

import dataclasses
import math
import os
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.data.ratings import Ratings, folds, load_ratings, synthetic_ratings
from sghmc.experiments import pictures
from sghmc.gradients import Minibatch
from sghmc.models.factorization import SIDES, MatrixFactorization
from sghmc.posterior import Posterior, StackedPosterior
from sghmc.samplers.base import Sampler
from sghmc.samplers.descent import SGD, Momentum
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.sgld import SGLD
from sghmc.samples import Samples
from sghmc.sampling import sample
from sghmc.types import PyTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

LABELS = {"sgd": "SGD", "momentum": "SGD with momentum", "sgld": "SGLD", "sghmc": "SGHMC"}
PAPER = {
    "sgd": (0.8538, 0.0009),
    "momentum": (0.8539, 0.0009),
    "sgld": (0.8412, 0.0009),
    "sghmc": (0.8411, 0.0011),
}
OPTIMIZERS = ("sgd", "momentum")
COVERAGES = (0.5, 0.8, 0.95)


@dataclasses.dataclass(frozen=True)
class Config:
    """The paper's settings. A round is `gibbs_every` steps; predictions enter the average every
    `average_every` steps. Without an accelerator and without `full` a run has `small_steps`.
    """

    data: str | None = None
    dataset: str = "ml-1m"
    full: bool = False
    search: bool = False
    best: bool = False
    methods: tuple[str, ...] = tuple(LABELS)
    num_folds: int = 5
    rank: int = 20
    batch_size: int = 4_000
    num_steps: int = 2_000_000
    num_burnin: int = 100_000
    small_steps: int = 20_000
    small_burnin: int = 10_000
    gibbs_every: int = 2_000
    average_every: int = 2_000
    num_quiet_rounds: int = 2
    sgd_step: float = 0.4e-5
    momentum_step: float = 0.4e-6
    sgld_step: float = 0.8e-5
    sghmc_step: float = 0.4e-6
    momentum_decay: float = 0.05
    regularizer: float = 4.0
    best_batch_size: int = 40_000
    best_steps: int = 100_000
    best_burnin: int = 10_000
    best_small_steps: int = 8_000
    best_small_burnin: int = 4_000
    best_quiet_steps: int = 3_000
    best_step: float = 0.06
    best_decay: float = 0.1
    best_gibbs_every: int = 500
    best_average_every: int = 50

    @classmethod
    def quick(cls) -> "Config":
        return cls(
            dataset="synthetic",
            full=True,
            rank=4,
            batch_size=500,
            num_steps=3_000,
            num_burnin=1_000,
            gibbs_every=100,
            average_every=50,
            sgd_step=3e-4,
            momentum_step=3e-5,
            sgld_step=1e-4,
            sghmc_step=1e-5,
            best_batch_size=2_000,
            best_steps=2_000,
            best_burnin=1_000,
            best_quiet_steps=300,
            best_gibbs_every=50,
            best_average_every=10,
        )


class Recipe(NamedTuple):
    """How one row of the table is run."""

    model: MatrixFactorization
    sampler: Sampler
    batch_size: int
    num_steps: int
    num_burnin: int
    average_every: int
    gibbs_every: int
    gibbs_start: int
    adapt_start: int
    adapts: bool


def run(config: Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    config, note = _sized(config)
    problem = Problem.of(config)
    found: dict[str, Any] = {}
    if config.search:
        config, found = _searched(config, problem, key, progress)
    names = ("best",) if config.best else config.methods
    methods = {name: _row(config, name, problem, key, progress) for name in names}
    return {"note": note, "search": found, "methods": methods}


def _sized(config: Config) -> tuple[Config, str]:
    steps = config.best_steps if config.best else config.num_steps
    if config.full or jax.default_backend() != "cpu":
        return config, f"{steps:,} steps"
    smaller = dataclasses.replace(
        config,
        num_steps=config.small_steps,
        num_burnin=config.small_burnin,
        gibbs_every=500,
        average_every=50,
        best_steps=config.best_small_steps,
        best_burnin=config.best_small_burnin,
    )
    short = smaller.best_steps if config.best else smaller.num_steps
    note = f"no accelerator: {short:,} steps, where the full run (--full) has {steps:,}"
    return smaller, note


@dataclasses.dataclass(frozen=True)
class Problem:
    """The ratings, scaled, and the rows of each fold."""

    ratings: Ratings
    spread: float
    """Stars in a unit of the scaled ratings."""
    splits: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, config: Config) -> "Problem":
        ratings = _load(config)
        low, high = float(ratings.rating.min()), float(ratings.rating.max())
        spread = high - low
        scaled = (ratings.rating - low) / spread
        scaled = dataclasses.replace(ratings, rating=scaled - scaled.mean(dtype=np.float64))
        return cls(scaled, spread, folds(scaled, config.num_folds))

    def stack(self, model: MatrixFactorization) -> StackedPosterior:
        ratings = self.ratings
        posteriors = []
        for fold, (train, _) in enumerate(self.splits):
            part = ratings.take(train)
            number = jnp.asarray(fold, jnp.int32)
            posteriors.append(model.posterior(part.user, part.item, part.rating, fold=number))
        return Posterior.stack(posteriors)

    def counts(self) -> PyTree:
        """Training ratings of each user and item, for each fold."""
        shapes = {"user": self.ratings.num_users, "item": self.ratings.num_items}
        return {
            name: jnp.asarray(
                np.stack(
                    [
                        np.bincount(getattr(self.ratings, name)[train], minlength=length)
                        for train, _ in self.splits
                    ]
                ),
                jnp.float32,
            )
            for name, length in shapes.items()
        }


def _load(config: Config) -> Ratings:
    if config.dataset == "synthetic":
        return synthetic_ratings(0)
    if config.dataset not in ("ml-1m", "ml-100k"):
        raise ValueError(
            f'dataset must be "ml-1m", "ml-100k" or "synthetic", but is {config.dataset!r}.'
        )
    return load_ratings(config.data or _find(config.dataset))


def _find(dataset: str) -> pathlib.Path:
    """The ratings in $SGHMC_DATA, under any of the names they come by."""
    folder = os.environ.get("SGHMC_DATA")
    names = (f"{dataset}.zip", f"{dataset}/ratings.dat", f"{dataset}/u.data", f"{dataset}.npz")
    candidates = [
        pathlib.Path(folder or "") / sub / name for sub in ("", "movielens") for name in names
    ]
    for path in candidates if folder else ():
        if path.exists():
            return path
    raise FileNotFoundError(
        f"table1 needs ratings: get {dataset}.zip from GroupLens and give its path with --data, or "
        f"its folder in $SGHMC_DATA; --dataset synthetic needs no file."
    )


class FoldErrors(eqx.Module):
    """Prediction less rating on a fold's test rows, shorter folds padded with zeros."""

    model: MatrixFactorization
    user: jax.Array
    item: jax.Array
    rating: jax.Array
    weight: jax.Array

    @classmethod
    def of(cls, model: MatrixFactorization, problem: Problem) -> "FoldErrors":
        tests = [test for _, test in problem.splits]
        longest = max(len(test) for test in tests)
        rows = np.stack([np.resize(test, longest) for test in tests])
        weight = np.stack([np.arange(longest) < len(test) for test in tests])
        ratings = problem.ratings
        return cls(
            model,
            jnp.asarray(ratings.user[rows]),
            jnp.asarray(ratings.item[rows]),
            jnp.asarray(ratings.rating[rows]),
            jnp.asarray(weight, jnp.float32),
        )

    def __call__(self, params: PyTree, hyper: PyTree) -> jax.Array:
        fold = hyper["fold"]
        predicted = self.model.predict(params, self.user[fold], self.item[fold])
        return (predicted - self.rating[fold]) * self.weight[fold]

    def count(self, params: PyTree, hyper: PyTree) -> jax.Array:
        return jnp.sum(self.weight[hyper["fold"]])


def _recipe(config: Config, name: str, problem: Problem) -> Recipe:
    users, items = problem.ratings.num_users, problem.ratings.num_items
    if name == "best":
        unit = 1e-10 * config.best_batch_size
        sampler = SGHMC(
            config.best_step,
            friction=config.best_decay * config.best_step / unit,
            mass=config.best_step**2 / unit,
        )
        return Recipe(
            MatrixFactorization(users, items, config.rank, prior="dimension"),
            sampler,
            config.best_batch_size,
            config.best_steps,
            config.best_burnin,
            config.best_average_every,
            config.best_gibbs_every,
            gibbs_start=0,
            adapt_start=config.best_quiet_steps,
            adapts=True,
        )
    quiet = config.num_quiet_rounds * config.gibbs_every

    def warm(t):
        return jnp.where(t < quiet, 0.0, 1.0)

    samplers = {
        "sgd": lambda: SGD(config.sgd_step),
        "momentum": lambda: Momentum(config.momentum_step, config.momentum_decay),
        "sgld": lambda: SGLD(config.sgld_step, temperature=warm),
        "sghmc": lambda: SGHMC.from_learning_rate(
            config.sghmc_step, config.momentum_decay, temperature=warm
        ),
    }
    return Recipe(
        MatrixFactorization(users, items, config.rank),
        samplers[name](),
        config.batch_size,
        config.num_steps,
        config.num_burnin,
        config.average_every,
        config.gibbs_every,
        gibbs_start=quiet,
        adapt_start=0,
        adapts=False,
    )


def _sample(config: Config, name: str, problem: Problem, key, progress) -> Samples:
    """All folds of one method, a fold a chain."""
    recipe = _recipe(config, name, problem)
    model, num_folds = recipe.model, len(problem.splits)
    errors = FoldErrors.of(model, problem)
    is_optimizer = name in OPTIMIZERS
    posterior = problem.stack(model)
    if is_optimizer:
        posterior = _regularized(posterior, config.regularizer)
    rounds = recipe.num_burnin // recipe.average_every
    counts = problem.counts()
    of_starts, of_run = (jax.random.fold_in(key, i) for i in range(2))
    return sample(
        of_run,
        posterior,
        recipe.sampler,
        jax.vmap(model.init)(jax.random.split(of_starts, num_folds)),
        init_axis=0,
        posterior_axis=0,
        num_chains=num_folds,
        gradient=Minibatch(recipe.batch_size, replacement="epochs"),
        thinning=recipe.average_every,
        num_burnin=rounds,
        num_samples=recipe.num_steps // recipe.average_every - rounds,
        gibbs=None if is_optimizer else model.gibbs(recipe.gibbs_every, recipe.gibbs_start),
        adapt=model.adapt(
            lambda hyper: jax.tree.map(lambda leaf: leaf[hyper["fold"]], counts),
            recipe.gibbs_every,
            until=recipe.num_burnin,
            start=recipe.adapt_start,
        )
        if recipe.adapts
        else None,
        keep=(lambda p, h: _root_mean(errors(p, h) ** 2, errors.count(p, h)))
        if is_optimizer
        else (lambda p, h: ()),
        averages=None if is_optimizer else _averages(errors),
        trace=None if is_optimizer else _settling,
        progress=progress,
    )


def _averages(errors: FoldErrors) -> dict[str, Any]:
    return {
        "error": errors,
        "square": lambda p, h: errors(p, h) ** 2,
        "noise": lambda p, h: 1 / h["noise"],
        "count": errors.count,
    }


def _root_mean(squares: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(squares) / count)


def _settling(means: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """RMSE and mean log-likelihood of the averaged predictions so far, in scaled units."""
    error, count = means["error"], means["count"]
    variance = means["square"] - error**2 + means["noise"]
    terms = -0.5 * jnp.log(2 * math.pi * variance) - 0.5 * error**2 / variance
    # Padding has error 0 and variance 1/τ: its terms are taken off again.
    padding = (error.size - count) * -0.5 * jnp.log(2 * math.pi * means["noise"])
    return {
        "rmse": _root_mean(error**2, count),
        "log_likelihood": (jnp.sum(terms) - padding) / count,
    }


def _regularized(posterior: StackedPosterior, regularizer: float) -> StackedPosterior:
    """Unit noise and one fixed precision for everything, as the optimizers have it."""
    precisions = [posterior.chains.hyper[side]["precision"] for side in SIDES]
    return eqx.tree_at(
        lambda p: [p.chains.hyper[side]["precision"] for side in SIDES],
        posterior,
        [jnp.full_like(precision, regularizer) for precision in precisions],
    )


def _searched(config: Config, problem: Problem, key, progress) -> tuple[Config, dict[str, Any]]:
    """The paper's grids; each method's best setting by cross-validation."""
    grids = {
        "sgd": [
            {"sgd_step": step * 1e-5, "regularizer": decay}
            for decay in (1.0, 2.0, 4.0, 8.0)
            for step in (0.1, 0.2, 0.4, 0.8, 1.6)
        ],
        "momentum": [{"momentum_step": step * 1e-6} for step in (0.1, 0.2, 0.4, 0.8)],
        "sgld": [{"sgld_step": step * 1e-5} for step in (0.1, 0.2, 0.4, 0.8, 1.6)],
        "sghmc": [{"sghmc_step": step * 1e-6} for step in (0.1, 0.2, 0.4, 0.8)],
    }
    found: dict[str, Any] = {}
    for name, settings in grids.items():
        rows = []
        for setting in settings:
            tried = dataclasses.replace(config, **setting)
            samples = _sample(tried, name, problem, key, progress)
            rows.append({**setting, "rmse": float(_last(name, samples, problem).mean())})
        best = min(rows, key=lambda row: row["rmse"])
        found[name] = {"tried": rows, "best": best}
        config = dataclasses.replace(config, **{k: v for k, v in best.items() if k != "rmse"})
    return config, found


def _last(name: str, samples: Samples, problem: Problem) -> np.ndarray:
    """The final RMSE of each fold, in stars."""
    rmse = samples.positions if name in OPTIMIZERS else samples.trace["rmse"]
    return problem.spread * rmse[:, -1].astype(np.float64)


def _row(config: Config, name: str, problem: Problem, key, progress) -> dict[str, Any]:
    samples = _sample(config, name, problem, key, progress)
    recipe = _recipe(config, name, problem)
    rmse = _last(name, samples, problem)
    row: dict[str, Any] = {
        "rmse": {
            "mean": float(rmse.mean()),
            "standard_error": float(rmse.std(ddof=1) / np.sqrt(len(rmse))),
            "folds": rmse.tolist(),
        },
        "seconds": samples.seconds,
        "seconds_after_compilation": samples.seconds - samples.startup_seconds,
    }
    over_time = samples.positions if name in OPTIMIZERS else samples.trace["rmse"]
    trace: dict[str, Any] = {"rmse": (problem.spread * over_time.mean(0)).tolist()}
    if name not in OPTIMIZERS:
        shift = math.log(problem.spread)
        trace["log_likelihood"] = (samples.trace["log_likelihood"].mean(0) - shift).tolist()
        row["log_likelihood"] = trace["log_likelihood"][-1]
        row["coverage"] = _coverage(samples, problem)
    steps = recipe.average_every * (1 + np.arange(over_time.shape[1]))
    row["trace"] = {"steps": (recipe.num_burnin + steps).tolist(), **trace}
    return row


def _coverage(samples: Samples, problem: Problem) -> dict[str, float]:
    """The share of test ratings inside the central predictive intervals, over all folds."""
    from scipy import stats

    inside = {level: [] for level in COVERAGES}
    for fold, (_, test) in enumerate(problem.splits):
        error = samples.averages["error"][fold][: len(test)].astype(np.float64)
        spread = samples.averages["square"][fold][: len(test)] - error**2
        deviation = np.sqrt(spread + samples.averages["noise"][fold])
        for level in COVERAGES:
            reach = stats.norm.ppf(0.5 + level / 2)
            inside[level].append(np.mean(np.abs(error) <= reach * deviation))
    return {f"{level:.0%}": float(np.mean(shares)) for level, shares in inside.items()}


_COLORS = {
    "sgd": pictures.SKY,
    "momentum": pictures.COLORS["green"],
    "sgld": pictures.COLORS["blue"],
    "sghmc": pictures.COLORS["red"],
    "best": pictures.PURPLE,
}


def plot(result: dict[str, Any]) -> "Figure":
    figure, axes = pictures.panels(2, (11, 4.2))
    for axis, quantity in zip(axes, ("rmse", "log_likelihood"), strict=True):
        for name, row in result["methods"].items():
            trace = row["trace"]
            if quantity in trace:
                label = LABELS.get(name, "SGHMC, our best")
                axis.plot(trace["steps"], trace[quantity], color=_COLORS[name], label=label)
        axis.set_xlabel("steps")
    axes[0].set(ylabel="test RMSE (stars)", title="Error of the prediction")
    axes[1].set(ylabel="log-likelihood of a test rating", title="Predictive density")
    axes[0].legend(frameon=False)
    return figure


def table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    shown = Table(title=f"Table 1: {result['note']}")
    for heading in ("method", "RMSE", "the paper's", "log-lik.", "95 % covers", "seconds"):
        shown.add_column(heading, justify="left" if heading == "method" else "right")
    for name, row in result["methods"].items():
        rmse, paper = row["rmse"], PAPER.get(name)
        shown.add_row(
            LABELS.get(name, "SGHMC, our best"),
            f"{rmse['mean']:.4f} ± {rmse['standard_error']:.4f}",
            f"{paper[0]:.4f} ± {paper[1]:.4f}" if paper else "",
            f"{row['log_likelihood']:.4f}" if "log_likelihood" in row else "",
            f"{row['coverage']['95%']:.1%}" if "coverage" in row else "",
            f"{row['seconds_after_compilation']:.1f}",
        )
    return shown
