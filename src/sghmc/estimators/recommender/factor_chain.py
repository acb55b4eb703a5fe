"""The chain behind the recommender: SGHMC over factors and biases, masses matched to each row.

Shapes are padded, so that a few more ratings, users or items find their program compiled: padded
ratings do not count, and a padded user is one who rated nothing, whose law is the prior and who
leaves the law of the others as it is.
"""

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.adapt import Adapt
from sghmc.data.ratings import Ratings
from sghmc.estimators.rows import padded, padded_size
from sghmc.gradients.exact import FullBatch
from sghmc.gradients.minibatch import Minibatch
from sghmc.models.factor_gibbs import NOISE_SHAPE, SIDES
from sghmc.models.factorization import FactorizationModel
from sghmc.posterior.posterior import Posterior
from sghmc.results.errors import DivergenceError
from sghmc.results.samples import Samples
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

RESOLUTION = 0.01
"""In standard deviations of the ratings: so exactly is a rating known at best. Far below the noise
of ratings by people, and enough that ratings without noise have a proper posterior."""

_ADAPT_EVERY, _GIBBS_EVERY = 10, 50
"""Steps. Masses are cheap and follow quickly; a Gibbs update is a pass over all ratings."""

_NUM_ATTEMPTS, _SHORTENED = 8, 0.7
"""A chain that diverges is tried again with a step shorter by this factor, down to a twelfth."""

_SMALLEST_BATCH, _MOST_BATCHES = 40_000, 10
"""A batch is a part of the data that does not shrink as they grow: its curvature, N/n times that of
its ratings, would shake a step of this size too much."""

_START_PRODUCTS, _START_BIASES, _START_NOISE = 0.25, 0.2, 0.5
"""Variances that a chain starts from, of ratings whose variance is 1: of the factors' products, of
either bias, and of the noise."""


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
        named = {**self.position, **{name: self.hyper[name] for name in _NOISE}}
        for side in SIDES:
            named |= {f"{side}.{part}": self.hyper[side][part] for part in _PRIOR}
        return named

    @classmethod
    def of(cls, named: dict[str, np.ndarray]) -> "Chain":
        """The chain whose `by_name` this is."""
        hyper: dict[str, PyTree] = {name: named[name] for name in _NOISE}
        hyper |= {side: {part: named[f"{side}.{part}"] for part in _PRIOR} for side in SIDES}
        return cls({side: named[side] for side in SIDES}, hyper)


_NOISE, _PRIOR = ("noise", "noise_rate"), ("mean", "precision")


def run(key: jax.Array, ratings: Ratings, settings: ChainSettings, start: Chain | None) -> Chain:
    """Draw from the posterior given ratings (centered, of order 1).

    From `start`, a single state, the chain goes on; users and items that it does not know yet come
    in from the prior. A chain that diverges starts over with a smaller step. Ctrl-C raises
    KeyboardInterrupt: a few draws would not be the posterior that was asked for.
    """
    sizes = tuple(padded_size(count, 8) for count in (ratings.num_users, ratings.num_items))
    model, adapt = _model(*sizes, settings.rank, settings.num_burnin_draws * settings.thinning)
    of_start, of_run = jax.random.split(key)
    begin = _begin(of_start, model, start)
    posterior = _posterior(model, ratings).with_hyper(
        {**jax.tree.map(jnp.asarray, begin.hyper), "counts": _counts(model, ratings)}
    )
    samples = _sample(of_run, posterior, model, adapt, begin, settings)
    rows = samples.positions[0]
    position = {
        "user": rows[:, : ratings.num_users],
        "item": rows[:, model.num_users :][:, : ratings.num_items],
    }
    hyper = {name: part for name, part in samples.hyper.items() if name != "counts"}
    hyper = jax.tree.map(lambda leaf: np.asarray(leaf[0]), hyper)
    hyper["noise"] = hyper["noise"][:, : ratings.num_users]
    return Chain(position, hyper)


@functools.lru_cache(maxsize=8)
def _model(
    num_users: int, num_items: int, rank: int, until: int
) -> tuple[FactorizationModel, Adapt]:
    """Model and adaptation: the same objects for the same shapes, so that programs are found."""
    model = FactorizationModel(num_users, num_items, rank, "dimension", "user", RESOLUTION)
    return model, model.adapt(lambda hyper: hyper["counts"], _ADAPT_EVERY, until)


def _posterior(model: FactorizationModel, ratings: Ratings) -> Posterior:
    length = padded_size(len(ratings), 4)
    columns = (padded(column, length) for column in (ratings.user, ratings.item, ratings.rating))
    posterior = model.posterior(*columns)
    count = jnp.asarray(len(ratings), jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, posterior, count, is_leaf=lambda leaf: leaf is None)


def _counts(model: FactorizationModel, ratings: Ratings) -> PyTree:
    """The number of ratings of each user and item."""
    sizes = {"user": model.num_users, "item": model.num_items}
    return {
        name: jnp.asarray(np.bincount(getattr(ratings, name), minlength=size), jnp.float32)
        for name, size in sizes.items()
    }


def _begin(key: jax.Array, model: FactorizationModel, start: Chain | None) -> Chain:
    """Where a chain starts: from rough variances, or from `start` and new rows of the prior."""
    if start is None:
        scale = (_START_PRODUCTS / model.rank) ** 0.25
        variances = np.append(np.full(model.rank, scale**2), _START_BIASES)
        precision = (1 / variances).astype(np.float32)
        prior = {"mean": np.zeros_like(precision), "precision": precision}
        noise = np.full(model.num_users, 1 / _START_NOISE, np.float32)
        rate = np.float32(NOISE_SHAPE * _START_NOISE)
        hyper = {"noise": noise, "noise_rate": rate, "user": prior, "item": prior}
        return Chain(model.init(key, scale), hyper)
    sizes = (model.num_users, model.num_items)
    rows = [
        _extended(of_side, start.position[side], start.hyper[side], size)
        for side, size, of_side in zip(SIDES, sizes, jax.random.split(key), strict=True)
    ]
    noise = start.hyper["noise"]
    new = np.full(model.num_users - len(noise), noise.mean())
    return Chain(jnp.concatenate(rows), {**start.hyper, "noise": np.append(noise, new)})


def _extended(key: jax.Array, rows: np.ndarray, prior: PyTree, length: int) -> jax.Array:
    """Known rows followed by new ones from the prior."""
    normals = jax.random.normal(key, (length - len(rows), rows.shape[1]))
    new = prior["mean"][None] + prior["precision"][None] ** -0.5 * normals
    return jnp.concatenate([jnp.asarray(rows), new.astype(jnp.float32)])


def _batch_size(settings: ChainSettings, posterior: Posterior) -> int | None:
    """Ratings a step looks at, or None for all of them."""
    size = max(_SMALLEST_BATCH, posterior.num_rows // _MOST_BATCHES)
    size = settings.batch_size or size
    return None if size >= int(posterior.num_examples) else size


def _safe_mass(posterior: Posterior, model: FactorizationModel, begin: Chain) -> float:
    """The mass of the stiffest row, for all rows until their first adaptation: slow, but safe."""
    counts = posterior.hyper["counts"]
    sides = model.sides(begin.position)
    squares = max(float(jnp.max(jnp.mean(rows**2, axis=0))) for rows in sides.values())
    most = max(float(jnp.max(count)) for count in counts.values())
    precision = max(float(np.max(begin.hyper[name]["precision"])) for name in counts)
    return float(np.max(begin.hyper["noise"])) * most * max(squares, 1.0) + precision


def _sample(
    key: jax.Array,
    posterior: Posterior,
    model: FactorizationModel,
    adapt: Adapt,
    begin: Chain,
    settings: ChainSettings,
) -> Samples:
    """A run that did not diverge, with as long a step as that took."""
    batch_size = _batch_size(settings, posterior)
    gradient = FullBatch() if batch_size is None else Minibatch(batch_size, replacement="epochs")
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
                gibbs=model.gibbs(_GIBBS_EVERY),
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
