"""The paper's four methods, as Fig. 4 and Table 1 run them, and ratings in folds for Table 1.

Every fold has its posterior and its test set. A recipe is a model, a sampler and a schedule.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper
from sghmc.gradients import Minibatch
from sghmc.paper import draw
from sghmc.posterior.posterior import Posterior, StackedPosterior
from sghmc.recommender.factor_gibbs import SIDES
from sghmc.recommender.factor_model import FactorizationModel
from sghmc.recommender.ratings import Ratings, folds, load_ratings, synthetic_ratings
from sghmc.results.samples import Samples
from sghmc.results.scores import interval_coverage
from sghmc.samplers import Sampler
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.optimizers import SGD, Momentum
from sghmc.samplers.sghmc import SGHMC
from sghmc.types import PyTree

_CONFIDENCE_LEVEL = 0.95
_ROUNDING = 1e-12
"""Relative standard deviation up to which differences count as equal: it is rounding."""


def mean_and_sd(values: np.ndarray) -> dict[str, float]:
    """Return mean and standard deviation, which is 0 for a single value."""
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sd": sd}


def compare(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return the mean difference, its 95 % interval and p-value by the paired t-test.

    The difference is positive where the reference is smaller. Interval and p-value are None for a
    single pair, and where all differences are equal.
    """
    from scipy import stats

    differences = np.subtract(values, reference)
    mean, count = float(differences.mean()), len(differences)
    if count < 2 or differences.std() <= _ROUNDING * np.abs(values).max():
        return {"difference": mean, "interval": None, "p_value": None}
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(_CONFIDENCE_LEVEL)
    return {
        "difference": mean,
        "interval": [float(low), float(high)],
        "p_value": float(test.pvalue),  # pyright: ignore[reportAttributeAccessIssue]
    }


LABELS = {"sgd": "SGD", "momentum": "SGD with momentum", "sgld": "SGLD", "sghmc": "SGHMC"}
SHORT = LABELS | {"momentum": "momentum"}
"""Short names for tables of 80 columns."""
OPTIMIZERS = ("sgd", "momentum")
COLORS = {
    "sgd": paper.SKY,
    "momentum": paper.COLORS["green"],
    "sgld": paper.COLORS["blue"],
    "sghmc": paper.COLORS["red"],
}
OURS = paper.PURPLE
"""Color of a setting of our own."""


@dataclasses.dataclass(frozen=True)
class MethodSettings:
    """Step sizes as in the supplement: factors before the gradient of the whole potential.

    SGHMC and momentum share `momentum_decay`, the optimizers `regularizer`.
    """

    sgd: float
    momentum: float
    sgld: float
    sghmc: float
    momentum_decay: float
    regularizer: float

    def sampler(self, name: str, num_quiet_steps: int) -> Sampler:
        """Return one of the four methods; samplers have no noise in their first steps."""
        warm, decay = warm_after(num_quiet_steps), self.momentum_decay
        return {
            "sgd": lambda: SGD(self.sgd),
            "momentum": lambda: Momentum(self.momentum, decay),
            "sgld": lambda: SGLD(self.sgld, temperature=warm),
            "sghmc": lambda: SGHMC.from_learning_rate(self.sghmc, decay, temperature=warm),
        }[name]()

    def of(self, name: str) -> dict[str, float]:
        """Return the settings that this method uses."""
        used = {"step": getattr(self, name)}
        if name in ("momentum", "sghmc"):
            used["momentum_decay"] = self.momentum_decay
        if name in OPTIMIZERS:
            used["regularizer"] = self.regularizer
        return used


def is_cut(config: Any) -> bool:
    """Return whether a run is cut short: there is no accelerator, and `full` is not set."""
    return not config.full and jax.default_backend() == "cpu"


def warm_after(num_quiet_steps: int, temperature: float = 1.0) -> Callable:
    """Return a temperature schedule without noise in the first steps, as the authors' scripts."""
    return lambda t: jnp.where(t < num_quiet_steps, 0.0, temperature)


def kept(
    name: str,
    score_draw: Callable,
    averages: Mapping[str, Callable],
    score_average: Callable,
) -> dict[str, Any]:
    """Return arguments of `sample` that score an optimizer's iterates or a sampler's averages."""
    if name in OPTIMIZERS:
        return {"keep": score_draw}
    return {
        "keep": lambda params, hyper: (),
        "averages": dict(averages),
        "trace": score_average,
    }


def over_time(name: str, samples: Samples) -> Any:
    """Return the scores at each draw of a run with the arguments of `kept`."""
    return samples.positions if name in OPTIMIZERS else samples.trace


# Ratings in folds, and how each row of Table 1 is run on them and scored.


@dataclasses.dataclass(frozen=True)
class Problem:
    """Ratings scaled to (r − lowest)/(highest − lowest) less their mean, and the rows of folds."""

    ratings: Ratings
    spread: float
    """Number of stars in a unit of the scaled ratings."""
    splits: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, ratings: Ratings, num_folds: int) -> "Problem":
        low, high = float(ratings.rating.min()), float(ratings.rating.max())
        spread = high - low
        scaled = (ratings.rating - low) / spread
        scaled = dataclasses.replace(ratings, rating=scaled - scaled.mean(dtype=np.float64))
        return cls(scaled, spread, folds(scaled, num_folds))

    def model(self, rank: int, **settings: Any) -> FactorizationModel:
        return FactorizationModel(self.ratings.num_users, self.ratings.num_items, rank, **settings)

    def posterior(self, model: FactorizationModel) -> StackedPosterior:
        """Return a posterior for each fold; the fold's number is among the hyperparameters."""
        posteriors = []
        for fold, (train, _) in enumerate(self.splits):
            part, number = self.ratings.take(train), jnp.asarray(fold, jnp.int32)
            posteriors.append(model.posterior(part.user, part.item, part.rating, fold=number))
        return Posterior.stack(posteriors)

    def counts(self) -> PyTree:
        """Return how many training ratings each user and item has: (fold, row)."""

        def count(rows: np.ndarray, size: int) -> jax.Array:
            counts = [np.bincount(rows[train], minlength=size) for train, _ in self.splits]
            return jnp.asarray(np.stack(counts))

        sizes = (self.ratings.num_users, self.ratings.num_items)
        return {s: count(getattr(self.ratings, s), n) for s, n in zip(SIDES, sizes, strict=True)}


class TestSets(eqx.Module):
    """Test rows of all folds, (fold, row); shorter folds are padded with rows of weight 0.

    Ratings have a lowest and a highest value, so `rmse` scores the prediction clipped to them, and
    `unclipped` the mean itself. All is in scaled units.
    """

    model: FactorizationModel
    user: jax.Array
    item: jax.Array
    rating: jax.Array
    weight: jax.Array
    range: tuple[float, float]

    __test__ = False  # pytest would collect it by its name

    @classmethod
    def of(cls, model: FactorizationModel, problem: Problem) -> "TestSets":
        tests = [test for _, test in problem.splits]
        longest = max(len(test) for test in tests)
        rows = np.stack([np.resize(test, longest) for test in tests])
        weight = np.stack([np.arange(longest) < len(test) for test in tests])
        user, item, rating = (
            jnp.asarray(getattr(problem.ratings, name)[rows]) for name in (*SIDES, "rating")
        )
        ends = float(problem.ratings.rating.min()), float(problem.ratings.rating.max())
        return cls(model, user, item, rating, jnp.asarray(weight, jnp.float32), ends)

    def predict(self, params: PyTree, hyper: PyTree) -> jax.Array:
        """Return a chain's predictions of its own fold."""
        fold = hyper["fold"]
        return self.model.predict(params, self.user[fold], self.item[fold])

    def predict_square(self, params: PyTree, hyper: PyTree) -> jax.Array:
        return self.predict(params, hyper) ** 2

    def averages(self) -> dict[str, Any]:
        """Return functions to average over draws; `fold` is constant."""
        return {
            "mean": self.predict,
            "square": self.predict_square,
            "noise": lambda params, hyper: 1 / hyper["noise"],
            "fold": lambda params, hyper: hyper["fold"],
        }

    def score_draw(self, params: PyTree, hyper: PyTree) -> dict[str, jax.Array]:
        """Return the errors of a single draw's predictions."""
        return self._errors(self.predict(params, hyper), hyper["fold"])

    def score_average(self, means: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return errors and mean log-density of a test rating from the averages so far."""
        fold = jnp.round(means["fold"]).astype(jnp.int32)
        error = means["mean"] - self.rating[fold]
        variance = means["square"] - means["mean"] ** 2 + means["noise"]
        density = -0.5 * jnp.log(2 * math.pi * variance) - 0.5 * error**2 / variance
        log_likelihood = jnp.average(density, weights=self.weight[fold])
        return {**self._errors(means["mean"], fold), "log_likelihood": log_likelihood}

    def _errors(self, predicted: jax.Array, fold: jax.Array) -> dict[str, jax.Array]:
        def root_mean_square(values):
            squares = (values - self.rating[fold]) ** 2
            return jnp.sqrt(jnp.average(squares, weights=self.weight[fold]))

        return {
            "rmse": root_mean_square(jnp.clip(predicted, *self.range)),
            "unclipped": root_mean_square(predicted),
        }


def coverage(averages: dict[str, np.ndarray], problem: Problem) -> dict[str, float]:
    """Return the share of test ratings inside the central predictive intervals, over all folds."""
    errors, stds = [], []
    for fold, (_, test) in enumerate(problem.splits):
        mean, square = (
            averages[name][fold][: len(test)].astype(np.float64) for name in ("mean", "square")
        )
        errors.append(mean - problem.ratings.rating[test])
        stds.append(np.sqrt(square - mean**2 + averages["noise"][fold]))
    return interval_coverage(np.concatenate(errors), np.concatenate(stds))


def named_ratings(dataset: str, path: str | None) -> Ratings:
    """Load ratings by name, from `path` or from $SGHMC_DATA."""
    if dataset == "synthetic":
        return synthetic_ratings(0)
    if dataset not in ("ml-1m", "ml-100k"):
        raise ValueError(f'dataset must be "ml-1m", "ml-100k" or "synthetic", but is {dataset!r}.')
    return load_ratings(path or _find(dataset))


def _find(dataset: str) -> pathlib.Path:
    """Return the path of the ratings in $SGHMC_DATA, under any of their usual names."""
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


_RATE_PER_RATING = 1e-10
"""Learning rate of all rows in our own recipe until masses adapt, over the batch size: so small
that the factors' scales can settle."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Schedule of a run, in steps.

    The first `num_quiet` steps have no noise; of a recipe that adapts masses, no adapted masses.
    """

    batch_size: int
    num_steps: int
    num_burnin: int
    average_every: int
    gibbs_every: int
    num_quiet: int


class Recipe(NamedTuple):
    model: FactorizationModel
    sampler: Sampler
    schedule: Schedule
    is_adapted: bool
    """Whether masses follow the rows' curvature during burn-in."""


def papers(
    problem: Problem, rank: int, schedule: Schedule, name: str, settings: MethodSettings
) -> Recipe:
    """Return the recipe of one of the paper's four methods."""
    sampler = settings.sampler(name, schedule.num_quiet)
    return Recipe(problem.model(rank), sampler, schedule, is_adapted=False)


def ours(problem: Problem, rank: int, schedule: Schedule, step_size: float, decay: float) -> Recipe:
    """Return our recipe: SGHMC with a mass for each row, and priors with means."""
    rate = _RATE_PER_RATING * schedule.batch_size
    sampler = SGHMC(step_size, friction=decay * step_size / rate, mass=step_size**2 / rate)
    return Recipe(problem.model(rank, prior="dimension"), sampler, schedule, is_adapted=True)


def sample_folds(
    recipe: Recipe, name: str, problem: Problem, regularizer: float, key, progress
) -> Samples:
    """Run all folds of one method, a fold a chain; `regularizer` is that of the optimizers."""
    model, schedule, num_folds = recipe.model, recipe.schedule, len(problem.splits)
    tests, posterior = TestSets.of(model, problem), problem.posterior(model)
    options: dict[str, Any] = kept(name, tests.score_draw, tests.averages(), tests.score_average)
    if name in OPTIMIZERS:
        posterior = _regularized(posterior, regularizer)
    else:
        # Our recipe updates precisions from the first step on, because its masses need them.
        start = 0 if recipe.is_adapted else schedule.num_quiet
        options["gibbs"] = model.gibbs(schedule.gibbs_every, start)
    if recipe.is_adapted:
        counts = problem.counts()
        options["adapt"] = model.adapt(
            lambda hyper: {side: counts[side][hyper["fold"]] for side in SIDES},
            schedule.gibbs_every,
            until=schedule.num_burnin,
            start=schedule.num_quiet,
        )
    rounds = schedule.num_burnin // schedule.average_every
    of_starts, of_run = (jax.random.fold_in(key, i) for i in range(2))
    return draw(
        of_run,
        posterior,
        recipe.sampler,
        jax.vmap(model.init)(jax.random.split(of_starts, num_folds)),
        init_axis=0,
        posterior_axis=0,
        num_chains=num_folds,
        gradient=Minibatch(schedule.batch_size, replacement="epochs"),
        thinning=schedule.average_every,
        num_burnin=rounds,
        num_samples=schedule.num_steps // schedule.average_every - rounds,
        progress=progress,
        **options,
    )


def _regularized(posterior: StackedPosterior, regularizer: float) -> StackedPosterior:
    """Return posteriors with unit noise and one fixed precision, as the optimizers have."""
    precisions = [posterior.chains.hyper[side]["precision"] for side in SIDES]
    return eqx.tree_at(
        lambda p: [p.chains.hyper[side]["precision"] for side in SIDES],
        posterior,
        [jnp.full_like(precision, regularizer) for precision in precisions],
    )
