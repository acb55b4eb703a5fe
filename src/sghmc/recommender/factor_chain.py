"""Run SGHMC over factors and biases for any likelihood, with masses matched to each row.

A likelihood gives the chain its posterior, and turns draws into predictions; this file says what a
likelihood must have, and runs the chain. Shapes are padded, so that a few more ratings, users or
items reuse the compiled program: padded ratings have no weight, and a padded user is one who rated
nothing, whose law is the prior and who does not change the law of the others.
"""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.signals import whole_or_nothing
from sghmc.estimators.weighted_rows import padded_size
from sghmc.gradients import FullBatch, Minibatch
from sghmc.posterior.posterior import Posterior
from sghmc.recommender.factor_draws import FactorDraws
from sghmc.recommender.factor_gibbs import SIDES, Features
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.ratings import Ratings, Sizes
from sghmc.recommender.side_information import Sides
from sghmc.results.samples import DivergenceError, Samples
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

_ADAPT_EVERY_STEPS = 10
"""Steps between adaptations of the masses, which are cheap."""

_MAX_ATTEMPTS, _STEP_SIZE_FACTOR = 8, 0.7
"""A chain that diverges is tried again with a step shorter by this factor, down to a twelfth."""

_START_PRODUCT_VARIANCE, _START_BIAS_VARIANCE = 0.25, 0.2
"""Starting variances of the factors' products and of a bias, if those of ratings are 1."""


class ChainProblem(NamedTuple):
    """A model, its posterior given ratings, and how a chain should step through them."""

    model: AbstractFactorization
    posterior: Posterior
    batch_size: int
    """Default number of ratings in a batch; of pairs, if an example is a tile of pairs."""
    gibbs_every: int
    """Steps between Gibbs updates, which may need a pass over all ratings."""
    pairs_per_example: int = 1


class StepSchedule(NamedTuple):
    """Default step size, momentum decay and numbers of steps of a likelihood's chain."""

    step_size: float
    momentum_decay: float
    thinning: int
    num_burnin: int


class Outcome(abc.ABC):
    """Predict ratings from the draws of pairs' means."""

    @property
    @abc.abstractmethod
    def levels(self) -> np.ndarray | None:
        """The possible ratings, in order; None if a rating can be any number."""

    @abc.abstractmethod
    def moments(
        self, draws: FactorDraws, users: np.ndarray, items: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of a new rating of each pair of codes."""

    def ranked(
        self,
        draws: FactorDraws,
        users: np.ndarray,
        items: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like `moments`, for pairs whose means are known to have these means and variances."""
        return self.moments(draws, users, items)

    @abc.abstractmethod
    def probabilities(self, draws: FactorDraws, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Probability of each level for each pair of codes: (pair, level)."""


@dataclasses.dataclass(frozen=True)
class Likelihood(abc.ABC):
    """How ratings are distributed, given the mean of their pair.

    `scale` converts between ratings and the model's units; the first fit sets it.
    """

    scale: np.ndarray

    name: ClassVar[str]
    kept: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters that every draw stores, besides those of rows."""
    schedule: ClassVar[StepSchedule]
    is_rated: ClassVar[bool] = True
    """Whether a rating says how much a user liked an item, not only that the pair came up."""
    repeats: ClassVar[str] = "error"
    """Default treatment of a pair that comes twice in one table: one of `DUPLICATES`."""
    joins: ClassVar[str] = "last"
    """Treatment of a known pair that comes again in a later table."""

    @classmethod
    @abc.abstractmethod
    def of(cls, table: Ratings) -> Self:
        """Return the likelihood with the scale of these ratings."""

    @abc.abstractmethod
    def in_units(self, table: Ratings) -> Ratings:
        """Convert a table to the model's units."""

    @abc.abstractmethod
    def problem(
        self, ratings: Ratings, sizes: Sizes, rank: int, features: dict[str, Features]
    ) -> ChainProblem:
        """Return the model and its posterior given ratings in the model's units."""

    def start(self, num_users: int, last: dict[str, np.ndarray] | None) -> dict[str, Any]:
        """Starting values of the hyperparameters in `kept`.

        `last` is the draw to go on from, by name; it may have fewer users.
        """
        return {}

    @abc.abstractmethod
    def outcome(self, draws: dict[str, np.ndarray], ratings: Ratings, clip: bool) -> Outcome:
        """Return the predictions of draws by name; `clip` keeps means within these ratings."""

    @abc.abstractmethod
    def fold_in(self, key: jax.Array, new: Newcomers) -> dict[str, np.ndarray]:
        """Return draws by name that have rows for new users and items."""


def counted(posterior: Posterior, count: int) -> Posterior:
    """Return a posterior in which only the first `count` rows have weight."""
    real: Any = jnp.asarray(count, jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, posterior, real, is_leaf=lambda leaf: leaf is None)


@dataclasses.dataclass(frozen=True)
class ChainSettings:
    """How a chain runs: `num_draws` draws, kept every `thinning` steps after `num_burnin` steps."""

    rank: int
    num_draws: int
    thinning: int
    num_burnin: int
    batch_size: int | None
    step_size: float
    momentum_decay: float
    progress: bool


def run_factor_chain(
    key: jax.Array,
    ratings: Ratings,
    settings: ChainSettings,
    last: dict[str, np.ndarray] | None,
    likelihood: Likelihood,
    sides: Sides,
) -> dict[str, np.ndarray]:
    """Draw from the posterior given ratings in the model's units, and features.

    Returns draws by name: "user", "user.mean", "noise", …. A chain that is given the `last` draw of
    another goes on from there; rows of new users and items start from the prior. A chain that
    diverges starts again with a smaller step. Ctrl-C raises KeyboardInterrupt, since fewer draws
    than asked for would be another posterior.
    """
    sizes = Sizes(*(padded_size(count, 8) for count in (ratings.num_users, ratings.num_items)))
    features = {side: each.features() for side, each in sides.items()}
    problem = likelihood.problem(ratings, sizes, settings.rank, features)
    of_start, of_run = jax.random.split(key)
    position, hyper = _initial_state(of_start, problem, likelihood, last)
    counts = {"counts": _counts(sizes, ratings, likelihood)}
    posterior = problem.posterior.with_hyper(
        {**problem.posterior.hyper, **jax.tree.map(jnp.asarray, hyper), **counts}
    )
    with whole_or_nothing():
        samples = _sample(of_run, posterior, problem, position, settings)
    return _draws_by_name(samples, problem.model, ratings, likelihood)


def _counts(sizes: Sizes, ratings: Ratings, likelihood: Likelihood) -> dict[str, jax.Array]:
    """Count the ratings of each user and item; if pairs only came up, count how often."""
    weight = None if likelihood.is_rated else ratings.rating
    return {
        side: jnp.asarray(np.bincount(getattr(ratings, side), weight, size), jnp.float32)
        for side, size in sizes._asdict().items()
    }


def _counts_of(hyper: PyTree) -> PyTree:
    return hyper["counts"]


def _initial_state(
    key: jax.Array,
    problem: ChainProblem,
    likelihood: Likelihood,
    last: dict[str, np.ndarray] | None,
) -> tuple[jax.Array, dict[str, Any]]:
    """Start from rough variances, or from the last draw and rows of the prior for newcomers."""
    model = problem.model
    rest = likelihood.start(model.num_users, last)
    if last is None:
        scale = (_START_PRODUCT_VARIANCE / model.rank) ** 0.25
        variances = np.append(np.full(model.rank, scale**2), _START_BIAS_VARIANCE)
        precision = (1 / variances).astype(np.float32)
        rough = {"mean": np.zeros_like(precision), "precision": precision}
        priors = {side: {**prior, **rough} for side, prior in model.prior_start().items()}
        return model.init(key, scale), {**priors, **rest}
    rows, priors = [], {}
    sizes = (model.num_users, model.num_items)
    for side, size, of_side in zip(SIDES, sizes, jax.random.split(key), strict=True):
        known = last[side]
        prior = {name: last[f"{side}.{name}"] for name in ("mean", "precision")}
        center = prior["mean"][None]
        if side in model.features:
            prior |= {name: last[f"{side}.{name}"] for name in ("weights", "weight_scale")}
            center = center + model.features[side].times(jnp.asarray(prior["weights"]), size)
            prior["center"], center = center, center[len(known) :]
        normals = jax.random.normal(of_side, (size - len(known), known.shape[1]))
        new = center + prior["precision"][None] ** -0.5 * normals
        rows += [jnp.asarray(known), new.astype(jnp.float32)]
        priors[side] = prior
    return jnp.concatenate(rows), {**priors, **rest}


def _draws_by_name(
    samples: Samples, model: AbstractFactorization, ratings: Ratings, likelihood: Likelihood
) -> dict[str, np.ndarray]:
    """Name the draws of a run and remove padding; of centers, only mean and variance are kept."""
    rows, counts = samples.positions[0], {"user": ratings.num_users, "item": ratings.num_items}
    hyper = jax.tree.map(lambda leaf: np.asarray(leaf[0]), samples.hyper)
    draws = {"user": rows[:, : counts["user"]]}
    draws["item"] = rows[:, model.num_users :][:, : counts["item"]]
    draws |= {name: hyper[name] for name in likelihood.kept}
    if "noise" in draws:
        draws["noise"] = draws["noise"][:, : counts["user"]]
    for side, count in counts.items():
        prior = hyper[side]
        if "center" in prior:
            center = prior.pop("center")[:, :count]
            prior |= {"typical": center.mean(axis=1), "varied": center.var(axis=1)}
        draws |= {f"{side}.{name}": part for name, part in prior.items()}
    return draws


def _batch_size(settings: ChainSettings, problem: ChainProblem) -> int | None:
    """Number of examples in a batch, or None if a step uses all of them."""
    pairs = settings.batch_size or problem.batch_size
    size = max(1, pairs // problem.pairs_per_example)
    return None if size >= int(problem.posterior.num_examples) else size


def _safe_mass(posterior: Posterior, model: AbstractFactorization, position: jax.Array) -> float:
    """Mass of the stiffest row, for all rows until they first adapt: slow, but it is stable."""
    hyper = posterior.hyper
    counts = hyper["counts"]
    squares = max(
        float(jnp.max(jnp.mean(rows**2, axis=0))) for rows in model.sides(position).values()
    )
    most = max(float(jnp.max(count)) for count in counts.values())
    precision = max(float(np.max(hyper[name]["precision"])) for name in counts)
    noise = max(float(jnp.max(each)) for each in model.precisions(hyper, counts).values())
    return noise * most * max(squares, 1.0) + precision


def _sample(
    key: jax.Array,
    posterior: Posterior,
    problem: ChainProblem,
    position: jax.Array,
    settings: ChainSettings,
) -> Samples:
    """Sample with the longest step size at which the run does not diverge."""
    model, batch_size = problem.model, _batch_size(settings, problem)
    gradient = FullBatch() if batch_size is None else Minibatch(batch_size, replacement="epochs")
    num_burnin = -(-settings.num_burnin // settings.thinning)
    adapt = model.adapt(_counts_of, _ADAPT_EVERY_STEPS, num_burnin * settings.thinning)
    mass = _safe_mass(posterior, model, position)
    failure: DivergenceError | None = None
    step_sizes = [settings.step_size * _STEP_SIZE_FACTOR**i for i in range(_MAX_ATTEMPTS)]
    for attempt, step_size in enumerate(step_sizes):
        try:
            samples = sample(
                jax.random.fold_in(key, attempt),
                posterior,
                SGHMC(step_size, settings.momentum_decay * mass / step_size, mass),
                position,
                gradient=gradient,
                num_samples=settings.num_draws,
                num_burnin=num_burnin,
                thinning=settings.thinning,
                gibbs=model.gibbs(problem.gibbs_every),
                adapt=adapt,
                progress=settings.progress,
            )
        except DivergenceError as error:
            failure = error
            continue
        if samples.is_interrupted:
            raise KeyboardInterrupt
        return samples
    assert failure is not None
    raise DivergenceError(
        f"The chain diverged {_MAX_ATTEMPTS} times, from step_size={settings.step_size:g} down to "
        f"{step_sizes[-1]:.3g}. Give the estimator a smaller step_size, or a longer num_burnin so "
        f"that it can settle, or a smaller rank.",
        failure.samples,
    ) from failure
