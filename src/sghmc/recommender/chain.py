"""The chain behind the recommender: SGHMC over factors and biases, masses matched to each row.

Shapes are padded, so that a few more ratings, users or items find their program compiled: padded
ratings do not count, and a padded user is one who rated nothing, whose law is the prior and who
leaves the law of the others as it is.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.signals import whole_or_nothing
from sghmc.estimators.weighted_rows import padded_size
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.minibatch import Minibatch
from sghmc.posterior.posterior import Posterior
from sghmc.recommender.factor_gibbs import SIDES
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.recommender.features import Sides
from sghmc.recommender.likelihood import Likelihood, Problem, Sizes
from sghmc.recommender.ratings import Ratings
from sghmc.results.samples import DivergenceError, Samples
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

_ADAPT_EVERY = 10
"""Steps: masses are cheap, and follow quickly."""

_NUM_ATTEMPTS, _SHORTENED = 8, 0.7
"""A chain that diverges is tried again with a step shorter by this factor, down to a twelfth."""

_START_PRODUCTS, _START_BIASES = 0.25, 0.2
"""Variances that a chain starts from, of ratings whose variance is 1: of the factors' products, and
of either bias."""


@dataclasses.dataclass(frozen=True)
class ChainSettings:
    """How a chain runs; counts are in steps, `num_draws` are kept, `thinning` steps apart."""

    rank: int
    num_draws: int
    thinning: int
    num_burnin: int
    batch_size: int | None
    step_size: float
    momentum_decay: float
    progress: bool

    @property
    def num_burnin_draws(self) -> int:
        return -(-self.num_burnin // self.thinning)


class Chain(NamedTuple):
    """Draws (leading axis) of the rows of users and items, and of hyperparameters.

    The last is where the chain stands.
    """

    position: PyTree
    hyper: PyTree

    @property
    def last(self) -> "Chain":
        return jax.tree.map(lambda leaf: leaf[-1], self)

    def by_name(self) -> dict[str, np.ndarray]:
        """All draws in one flat dict: "user", "user.mean", "noise", …"""
        named = dict(self.position)
        for name, part in self.hyper.items():
            named |= (
                {f"{name}.{key}": each for key, each in part.items()}
                if name in SIDES
                else {name: part}
            )
        return named

    @classmethod
    def of(cls, named: dict[str, np.ndarray]) -> "Chain":
        """The chain whose `by_name` this is."""
        hyper: dict[str, PyTree] = {side: {} for side in SIDES}
        for name, part in named.items():
            side, dot, key = name.partition(".")
            if dot:
                hyper[side][key] = part
            elif name not in SIDES:
                hyper[name] = part
        return cls({side: named[side] for side in SIDES}, hyper)


def run_factor_chain(
    key: jax.Array,
    ratings: Ratings,
    settings: ChainSettings,
    start: Chain | None,
    likelihood: Likelihood,
    sides: Sides,
) -> Chain:
    """Draw from the posterior given ratings in the model's units, and features.

    From `start`, a single state, the chain goes on; users and items that it does not know yet come
    in from the prior. A chain that diverges starts over with a smaller step. Ctrl-C raises
    KeyboardInterrupt: a few draws would not be the posterior that was asked for.
    """
    sizes = Sizes(*(padded_size(count, 8) for count in (ratings.num_users, ratings.num_items)))
    features = {side: each.features() for side, each in sides.items()}
    problem = likelihood.problem(ratings, sizes, settings.rank, features)
    of_start, of_run = jax.random.split(key)
    begin = _begin(of_start, problem, likelihood, start)
    hyper = {
        **jax.tree.map(jnp.asarray, begin.hyper),
        "counts": _counts(sizes, ratings, likelihood),
    }
    posterior = problem.posterior.with_hyper({**problem.posterior.hyper, **hyper})
    with whole_or_nothing():
        samples = _sample(of_run, posterior, problem, begin, settings)
    return _kept(samples, problem.model, ratings, likelihood)


def _counts(sizes: Sizes, ratings: Ratings, likelihood: Likelihood) -> PyTree:
    """The number of ratings of each user and item."""
    weight = likelihood.weight(ratings)
    return {
        side: jnp.asarray(np.bincount(getattr(ratings, side), weight, size), jnp.float32)
        for side, size in sizes._asdict().items()
    }


def _counts_of(hyper: PyTree) -> PyTree:
    return hyper["counts"]


def _kept(
    samples: Samples, model: AbstractFactorization, ratings: Ratings, likelihood: Likelihood
) -> Chain:
    """What is kept of a run: no padding, and of centers what they are on the whole."""
    rows, counts = samples.positions[0], {"user": ratings.num_users, "item": ratings.num_items}
    position = {
        "user": rows[:, : counts["user"]],
        "item": rows[:, model.num_users :][:, : counts["item"]],
    }
    hyper = jax.tree.map(lambda leaf: np.asarray(leaf[0]), samples.hyper)
    kept = {name: hyper[name] for name in likelihood.kept}
    if "noise" in kept:
        kept["noise"] = kept["noise"][:, : counts["user"]]
    for side, count in counts.items():
        kept[side] = hyper[side]
        if "center" in kept[side]:
            center = kept[side].pop("center")[:, :count]
            kept[side] |= {"typical": center.mean(axis=1), "varied": center.var(axis=1)}
    return Chain(position, kept)


def _begin(key: jax.Array, problem: Problem, likelihood: Likelihood, start: Chain | None) -> Chain:
    """Where a chain starts: from rough variances, or from `start` and new rows of the prior."""
    model = problem.model
    if start is None:
        scale = (_START_PRODUCTS / model.rank) ** 0.25
        variances = np.append(np.full(model.rank, scale**2), _START_BIASES)
        precision = (1 / variances).astype(np.float32)
        rough = {"mean": np.zeros_like(precision), "precision": precision}
        priors = {side: {**prior, **rough} for side, prior in model.prior_start().items()}
        return Chain(model.init(key, scale), {**priors, **likelihood.start(problem)})
    priors = {side: _resumed(model, side, start.hyper[side]) for side in SIDES}
    sizes = (model.num_users, model.num_items)
    rows = [
        _extended(of_side, start.position[side], priors[side], size)
        for side, size, of_side in zip(SIDES, sizes, jax.random.split(key), strict=True)
    ]
    rest = likelihood.resumed(start.hyper, problem)
    return Chain(jnp.concatenate(rows), {**priors, **rest})


def _resumed(model: AbstractFactorization, side: str, prior: PyTree) -> PyTree:
    """A side's prior, with the centers of its rows where there are features."""
    if side not in model.features:
        return prior
    size = model.num_users if side == "user" else model.num_items
    names = ("mean", "precision", "weights", "weight_scale")
    center = prior["mean"][None] + model.features[side].times(jnp.asarray(prior["weights"]), size)
    return {name: prior[name] for name in names} | {"center": center}


def _extended(key: jax.Array, rows: np.ndarray, prior: PyTree, length: int) -> jax.Array:
    """Known rows followed by new ones from the prior."""
    normals = jax.random.normal(key, (length - len(rows), rows.shape[1]))
    center = prior["center"][len(rows) :] if "center" in prior else prior["mean"][None]
    new = center + prior["precision"][None] ** -0.5 * normals
    return jnp.concatenate([jnp.asarray(rows), new.astype(jnp.float32)])


def _batch_size(settings: ChainSettings, problem: Problem) -> int | None:
    """Examples a step looks at, or None for all of them."""
    pairs = settings.batch_size or problem.batch_size
    size = max(1, pairs // problem.pairs_per_example)
    return None if size >= int(problem.posterior.num_examples) else size


def _safe_mass(posterior: Posterior, model: AbstractFactorization, begin: Chain) -> float:
    """The mass of the stiffest row, for all rows until their first adaptation: slow, but safe."""
    counts = posterior.hyper["counts"]
    sides = model.sides(begin.position)
    squares = max(float(jnp.max(jnp.mean(rows**2, axis=0))) for rows in sides.values())
    most = max(float(jnp.max(count)) for count in counts.values())
    precision = max(float(np.max(begin.hyper[name]["precision"])) for name in counts)
    noise = max(float(jnp.max(each)) for each in model.precisions(posterior.hyper, counts).values())
    return noise * most * max(squares, 1.0) + precision


def _sample(
    key: jax.Array,
    posterior: Posterior,
    problem: Problem,
    begin: Chain,
    settings: ChainSettings,
) -> Samples:
    """A run that did not diverge, with as long a step as that took."""
    model, batch_size = problem.model, _batch_size(settings, problem)
    gradient = FullBatch() if batch_size is None else Minibatch(batch_size, replacement="epochs")
    adapt = model.adapt(_counts_of, _ADAPT_EVERY, settings.num_burnin_draws * settings.thinning)
    mass = _safe_mass(posterior, model, begin)
    failure: DivergenceError | None = None
    step_sizes = [settings.step_size * _SHORTENED**attempt for attempt in range(_NUM_ATTEMPTS)]
    for attempt, step_size in enumerate(step_sizes):
        try:
            samples = sample(
                jax.random.fold_in(key, attempt),
                posterior,
                SGHMC(step_size, settings.momentum_decay * mass / step_size, mass),
                begin.position,
                gradient=gradient,
                num_samples=settings.num_draws,
                num_burnin=settings.num_burnin_draws,
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
        f"The chain diverged {_NUM_ATTEMPTS} times, from step_size={settings.step_size:g} down to "
        f"{step_sizes[-1]:.3g}. Give the estimator a smaller step_size, or a longer num_burnin so "
        f"that it can settle, or a smaller rank.",
        failure.samples,
    ) from failure
