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
from sghmc.models.factorization import SIDES, MatrixFactorization
from sghmc.posterior.posterior import Posterior
from sghmc.results.errors import DivergenceError
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

_ADAPT_EVERY = 10
_GIBBS_EVERY = 50
_MOST_ATTEMPTS = 8
_SMALLEST_BATCH = 40_000
_MOST_BATCHES = 10


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a chain runs; counts are in steps, `num_draws` are kept, `thinning` steps apart."""

    rank: int
    num_draws: int
    thinning: int
    num_burnin: int
    batch_size: int | None
    step_size: float
    momentum_decay: float
    progress: bool


class Chain(NamedTuple):
    """Draws (leading axis) of the rows of users and items, and of hyperparameters.

    The last is where the chain stands.
    """

    position: PyTree
    hyper: PyTree

    @property
    def last(self) -> "Chain":
        return jax.tree.map(lambda leaf: leaf[-1], self)


def run(key: jax.Array, ratings: Ratings, settings: Settings, start: Chain | None) -> Chain:
    """Draw from the posterior given ratings (centered, of order 1).

    From `start`, a single state, the chain goes on; users and items that it does not know yet come
    in from the prior. A chain that diverges starts over with a smaller step.
    """
    sizes = tuple(padded_size(count, 8) for count in (ratings.num_users, ratings.num_items))
    model, adapt = _model(*sizes, settings.rank, _burnin(settings) * settings.thinning)
    of_start, of_run = jax.random.split(key)
    begin = _begin(of_start, model, start)
    posterior = _posterior(model, ratings).with_hyper(
        {**jax.tree.map(jnp.asarray, begin.hyper), "counts": _counts(model, ratings)}
    )
    step_size = settings.step_size
    for attempt in range(_MOST_ATTEMPTS):
        try:
            samples = _sample(
                jax.random.fold_in(of_run, attempt),
                posterior,
                model,
                adapt,
                begin,
                settings,
                step_size,
            )
            break
        except DivergenceError:
            if attempt == _MOST_ATTEMPTS - 1:
                raise
            step_size *= 0.7
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
) -> tuple[MatrixFactorization, Adapt]:
    """Model and adaptation: the same objects for the same shapes, so that programs are found."""
    model = MatrixFactorization(num_users, num_items, rank, prior="dimension", noise="user")
    return model, model.adapt(lambda hyper: hyper["counts"], _ADAPT_EVERY, until)


def _burnin(settings: Settings) -> int:
    """Draws of burn-in."""
    return -(-settings.num_burnin // settings.thinning)


def _posterior(model: MatrixFactorization, ratings: Ratings) -> Posterior:
    length = padded_size(len(ratings), 4)
    columns = (padded(column, length) for column in (ratings.user, ratings.item, ratings.rating))
    posterior = model.posterior(*columns)
    count = jnp.asarray(len(ratings), jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, posterior, count, is_leaf=lambda leaf: leaf is None)


def _counts(model: MatrixFactorization, ratings: Ratings) -> PyTree:
    """The number of ratings of each user and item."""
    sizes = {"user": model.num_users, "item": model.num_items}
    return {
        name: jnp.asarray(np.bincount(getattr(ratings, name), minlength=size), jnp.float32)
        for name, size in sizes.items()
    }


def _begin(key: jax.Array, model: MatrixFactorization, start: Chain | None) -> Chain:
    """Parameters to start from: factors whose products have variance ¼, or `start` and new rows."""
    if start is None:
        scale = (0.25 / model.rank) ** 0.25
        precision = np.append(np.full(model.rank, scale**-2), 5.0).astype(np.float32)
        prior = {"mean": np.zeros_like(precision), "precision": precision}
        noise = {"noise": np.full(model.num_users, 2.0, np.float32), "noise_rate": np.float32(1.5)}
        return Chain(model.init(key, scale), {**noise, "user": prior, "item": prior})
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


def _batch_size(settings: Settings, posterior: Posterior) -> int | None:
    """Ratings a step looks at, or None for all of them.

    A batch is a part of the data that does not shrink as they grow: its curvature, N/n times that
    of its ratings, would shake a step of this size too much.
    """
    size = max(_SMALLEST_BATCH, posterior.num_rows // _MOST_BATCHES)
    size = settings.batch_size or size
    return None if size >= int(posterior.num_examples) else size


def _sample(key, posterior, model, adapt, begin: Chain, settings: Settings, step_size: float):
    # Until its first adaptation every row has the mass of the stiffest: slow, but safe.
    counts = posterior.hyper["counts"]
    sides = model.sides(begin.position)
    squares = max(float(jnp.max(jnp.mean(rows**2, axis=0))) for rows in sides.values())
    most = max(float(jnp.max(count)) for count in counts.values())
    precision = max(float(np.max(begin.hyper[name]["precision"])) for name in counts)
    mass = float(np.max(begin.hyper["noise"])) * most * max(squares, 1.0) + precision
    friction = settings.momentum_decay * mass / step_size
    batch_size = _batch_size(settings, posterior)
    return sample(
        key,
        posterior,
        SGHMC(step_size, friction, mass),
        begin.position,
        gradient=FullBatch() if batch_size is None else Minibatch(batch_size, replacement="epochs"),
        num_samples=settings.num_draws,
        num_burnin=_burnin(settings),
        thinning=settings.thinning,
        gibbs=model.gibbs(_GIBBS_EVERY),
        adapt=adapt,
        progress=settings.progress,
    )
