"""New users and items of a fitted recommender, without a refit: their law given the other side."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.data.ratings import Ratings
from sghmc.estimators.recommender.side import Sides
from sghmc.estimators.rows import padded, padded_size
from sghmc.models.factor_conditional import Blocks
from sghmc.types import PyTree

_BLOCK = 64
"""Ratings in a block: somebody who rated much has many, and one program serves all."""


class Known(NamedTuple):
    """How many users and items the draws have rows for."""

    user: int
    item: int


class Newcomers(NamedTuple):
    """Whom to fold in: `users` are the codes of those who get a fresh row, new ones among them.

    `ratings` are all there are, in the model's units.
    """

    draws: dict[str, np.ndarray]
    ratings: Ratings
    known: Known
    users: np.ndarray
    sides: Sides

    def prior(self, side: str, codes: np.ndarray) -> PyTree:
        """Of rows with these codes, draw by draw; padded rows lie around 0."""
        precision = self.draws[f"{side}.precision"].astype(np.float32)
        if side in self.sides:
            centers = self.sides[side].centers(self.draws, side, codes).astype(np.float32)
            mean = padded(centers, padded_size(len(codes), 4), axis=1)
        else:
            mean = self.draws[f"{side}.mean"].astype(np.float32)
        return {"mean": mean, "precision": precision}

    @property
    def new_items(self) -> np.ndarray:
        return np.arange(self.known.item, self.ratings.num_items)


class Task(NamedTuple):
    """Rows to draw: their ratings in blocks, the other side's rows, and their prior."""

    blocks: Blocks
    num_rows: int
    """With padding."""
    others: np.ndarray
    """(draw, row, column)."""
    prior: PyTree


def user_task(new: Newcomers) -> Task:
    """Users, given all their ratings of known items."""
    ratings, place = new.ratings, _places(new.users, new.ratings.num_users)
    rows = np.flatnonzero((place[ratings.user] >= 0) & (ratings.item < new.known.item))
    blocks, length = _blocks(
        place[ratings.user[rows]], ratings.item[rows], ratings.rating[rows], len(new.users)
    )
    items = padded(new.draws["item"], padded_size(new.known.item, 8), axis=1)
    return Task(blocks, length, items, new.prior("user", new.users))


def item_task(new: Newcomers, users: dict[str, np.ndarray]) -> tuple[Task, dict[str, np.ndarray]]:
    """New items, given all who rated them; and those users' parts of other draws by user.

    `users` has draws by name with rows for all users.
    """
    ratings = new.ratings
    rows = np.flatnonzero(ratings.item >= new.known.item)
    raters, rater = np.unique(ratings.user[rows], return_inverse=True)
    codes = new.new_items
    blocks, length = _blocks(
        ratings.item[rows] - new.known.item, rater, ratings.rating[rows], len(codes)
    )
    size = padded_size(len(raters), 4)
    parts = {name: padded(part[:, raters], size, axis=1) for name, part in users.items()}
    return Task(blocks, length, parts.pop("user"), new.prior("item", codes)), parts


def on_processor(work: Callable[[], Any]) -> Any:
    """On the CPU, where there is one: the reduction to tridiagonal form has no batches on a GPU."""
    try:
        processor = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        processor = None
    with jax.default_device(processor):
        return work()


def with_rows(known: np.ndarray, codes: np.ndarray, fresh: Any, length: int) -> np.ndarray:
    """Draws (draw, row, …) up to `length` rows, those of `codes` fresh."""
    rows = padded(known, length, axis=1)
    rows[:, codes] = np.asarray(fresh)[:, : len(codes)]
    return rows


def _places(codes: np.ndarray, count: int) -> np.ndarray:
    """The place of each code among some, −1 where it is none of them."""
    places = np.full(count, -1)
    places[codes] = np.arange(len(codes))
    return places


def _blocks(
    owner: np.ndarray, other: np.ndarray, rating: np.ndarray, num_owners: int
) -> tuple[Blocks, int]:
    """Ratings sorted into blocks of their owners, and the number of owners with padding."""
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=num_owners)
    num_blocks = -(-counts // _BLOCK)
    starts, firsts = (np.cumsum(each) - each for each in (counts, num_blocks))
    sorted_owner = owner[order]
    within = np.arange(len(order)) - starts[sorted_owner]
    block, place = firsts[sorted_owner] + within // _BLOCK, within % _BLOCK
    size = padded_size(max(int(num_blocks.sum()), 1), 4)

    def filled(values: np.ndarray, kind: type) -> jax.Array:
        table = np.zeros((size, _BLOCK), kind)
        table[block, place] = values
        return jnp.asarray(table)

    owners = np.repeat(np.arange(num_owners, dtype=np.int32), num_blocks)
    blocks = Blocks(
        jnp.asarray(padded(owners, size)),
        filled(other[order], np.int32),
        filled(rating[order], np.float32),
        filled(np.ones(len(order)), np.float32),
    )
    return blocks, padded_size(num_owners, 4)
