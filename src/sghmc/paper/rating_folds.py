"""Ratings in folds: one posterior and one test set a fold, and how predictions of it are scored.

How each row of Table 1 is run: model, sampler, and what happens at which step.
"""

import dataclasses
import math
import os
import pathlib
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.gradients.minibatch import Minibatch
from sghmc.paper import methods
from sghmc.paper.methods import OPTIMIZERS, MethodSettings
from sghmc.paper.pages import draw
from sghmc.posterior.posterior import Posterior, StackedPosterior
from sghmc.recommender.factor_gibbs import SIDES
from sghmc.recommender.factor_model import FactorizationModel
from sghmc.recommender.ratings import Ratings, folds, load_ratings, synthetic_ratings
from sghmc.results.samples import Samples
from sghmc.results.scores import interval_coverage
from sghmc.samplers import Sampler
from sghmc.samplers.sghmc import SGHMC
from sghmc.types import PyTree


@dataclasses.dataclass(frozen=True)
class Problem:
    """Ratings brought to (r − lowest)/(highest − lowest), less their mean; rows of each fold."""

    ratings: Ratings
    spread: float
    """Stars in a unit of the scaled ratings."""
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
        """A posterior for each fold; its number is among the hyperparameters."""
        posteriors = []
        for fold, (train, _) in enumerate(self.splits):
            part, number = self.ratings.take(train), jnp.asarray(fold, jnp.int32)
            posteriors.append(model.posterior(part.user, part.item, part.rating, fold=number))
        return Posterior.stack(posteriors)

    def counts(self) -> PyTree:
        """Training ratings of each user and item: (fold, row)."""
        sizes = (self.ratings.num_users, self.ratings.num_items)
        return {
            side: jnp.stack(
                [
                    jnp.asarray(np.bincount(getattr(self.ratings, side)[train], minlength=size))
                    for train, _ in self.splits
                ]
            )
            for side, size in zip(SIDES, sizes, strict=True)
        }


class TestSets(eqx.Module):
    """The folds' test rows, (fold, row), shorter ones padded with rows of weight 0.

    As ratings have a lowest and a highest value, predictions are scored within them: `rmse` is that
    of the clipped prediction, `unclipped` that of the mean as it is. All in scaled units.
    """

    model: FactorizationModel
    user: jax.Array
    item: jax.Array
    rating: jax.Array
    weight: jax.Array
    range: tuple[float, float]

    __test__ = False  # pytest would look for tests in it

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
        """A chain's predictions of its own fold."""
        fold = hyper["fold"]
        return self.model.predict(params, self.user[fold], self.item[fold])

    def predict_square(self, params: PyTree, hyper: PyTree) -> jax.Array:
        return self.predict(params, hyper) ** 2

    def averages(self) -> dict[str, Any]:
        """What is averaged over draws; `fold` stays what it is."""
        return {
            "mean": self.predict,
            "square": self.predict_square,
            "noise": lambda params, hyper: 1 / hyper["noise"],
            "fold": lambda params, hyper: hyper["fold"],
        }

    def score_draw(self, params: PyTree, hyper: PyTree) -> dict[str, jax.Array]:
        """Errors of the predictions of a single draw."""
        return self._errors(self.predict(params, hyper), hyper["fold"])

    def score_average(self, means: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Errors, and the mean log-density of a test rating, of the averages so far."""
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
    """The share of test ratings inside the central predictive intervals, over all folds."""
    errors, stds = [], []
    for fold, (_, test) in enumerate(problem.splits):
        mean, square = (
            averages[name][fold][: len(test)].astype(np.float64) for name in ("mean", "square")
        )
        errors.append(mean - problem.ratings.rating[test])
        stds.append(np.sqrt(square - mean**2 + averages["noise"][fold]))
    return interval_coverage(np.concatenate(errors), np.concatenate(stds))


def load(dataset: str, path: str | None) -> Ratings:
    """Ratings by name, from `path` or from $SGHMC_DATA."""
    if dataset == "synthetic":
        return synthetic_ratings(0)
    if dataset not in ("ml-1m", "ml-100k"):
        raise ValueError(f'dataset must be "ml-1m", "ml-100k" or "synthetic", but is {dataset!r}.')
    return load_ratings(path or _find(dataset))


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


# How each row of Table 1 is run: model, sampler, and what happens at which step.

_RATE_A_RATING = 1e-10
"""Of our own recipe, until masses adapt: one learning rate for all rows, this times the batch size,
so that the factors' scales can settle."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What happens when, in steps; the first `num_quiet` are without noise, or without adapted
    masses where those are adapted."""

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
    """Whether masses follow the rows' curvature in burn-in."""


def papers(
    name: str, problem: Problem, rank: int, settings: MethodSettings, schedule: Schedule
) -> Recipe:
    """One of the paper's four methods."""
    sampler = settings.sampler(name, schedule.num_quiet)
    return Recipe(problem.model(rank), sampler, schedule, is_adapted=False)


def ours(problem: Problem, rank: int, step_size: float, decay: float, schedule: Schedule) -> Recipe:
    """SGHMC with a mass for each row, and priors with means."""
    rate = _RATE_A_RATING * schedule.batch_size
    sampler = SGHMC(step_size, friction=decay * step_size / rate, mass=step_size**2 / rate)
    return Recipe(problem.model(rank, prior="dimension"), sampler, schedule, is_adapted=True)


def sample_folds(
    recipe: Recipe, name: str, problem: Problem, regularizer: float, key, progress
) -> Samples:
    """All folds of one method, a fold a chain. `regularizer` is that of the optimizers."""
    model, schedule, num_folds = recipe.model, recipe.schedule, len(problem.splits)
    tests, posterior = TestSets.of(model, problem), problem.posterior(model)
    options: dict[str, Any] = methods.kept(
        name, tests.score_draw, tests.averages(), tests.score_average
    )
    if name in OPTIMIZERS:
        posterior = _regularized(posterior, regularizer)
    else:
        # Ours updates precisions from the first step on: its masses need them.
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
    """Unit noise and one fixed precision for everything, as the optimizers have it."""
    precisions = [posterior.chains.hyper[side]["precision"] for side in SIDES]
    return eqx.tree_at(
        lambda p: [p.chains.hyper[side]["precision"] for side in SIDES],
        posterior,
        [jnp.full_like(precision, regularizer) for precision in precisions],
    )
