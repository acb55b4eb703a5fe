"""Side information of a recommender's users and items: what it learned of it, and for whom."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from sghmc.data.ratings import Ratings, codes_of
from sghmc.data.side_information import Entries, SideEncoding, SideTable, side_table
from sghmc.estimators.rows import padded, padded_size
from sghmc.models.factor_features import Features
from sghmc.models.factor_gibbs import SIDES


@dataclasses.dataclass(frozen=True)
class Side:
    """The features of one side: how columns became them, and those of all codes."""

    encoding: SideEncoding
    entries: Entries

    def features(self) -> Features:
        """As a model takes them, padded so that a few more find their program compiled."""
        group = self.encoding.group
        length = padded_size(len(self.entries.row), 4)
        row, column, value = (jnp.asarray(padded(part, length)) for part in self.entries)
        sizes = np.bincount(group).astype(np.float32)
        return Features(row, column, value, jnp.asarray(group), jnp.asarray(sizes))

    def centers(self, draws: dict[str, np.ndarray], side: str, codes: np.ndarray) -> np.ndarray:
        """What rows of some codes lie around under each draw: (draw, code, column)."""
        from scipy import sparse

        weights = draws[f"{side}.weights"]
        place = np.full(int(max(codes.max(initial=0), self.entries.row.max(initial=0))) + 1, -1)
        place[codes] = np.arange(len(codes))
        row = place[self.entries.row]
        mine = row >= 0
        matrix = sparse.csr_array(
            (self.entries.value[mine], (row[mine], self.entries.column[mine])),
            (len(codes), weights.shape[1]),
        )
        means = draws[f"{side}.mean"]
        return np.stack([mean + matrix @ each for mean, each in zip(means, weights, strict=True)])


Sides = dict[str, Side]
"""By "user" and "item", those that have features."""


def given(users: Any, items: Any) -> dict[str, SideTable]:
    """Tables of features, by side."""
    tables = dict(zip(SIDES, (users, items), strict=True))
    return {side: side_table(table, side) for side, table in tables.items() if table is not None}


def with_ids(ratings: Ratings, tables: dict[str, SideTable]) -> Ratings:
    """Ratings that also know whom only a table of features knows."""
    for side, table in tables.items():
        known = getattr(ratings, f"{side}s")
        new = table.ids[codes_of(table.ids, known) < 0]
        ratings = dataclasses.replace(ratings, **{f"{side}s": np.concatenate([known, new])})
    return ratings


def learned(tables: dict[str, SideTable], ratings: Ratings) -> Sides:
    """Features of a first fit."""
    encodings = {
        side: SideEncoding.of(table, getattr(ratings, f"{side}s")) for side, table in tables.items()
    }
    empty = {side: Side(encoding, Entries.none()) for side, encoding in encodings.items()}
    return extended(empty, tables, ratings, dict.fromkeys(empty, 0))


def extended(
    sides: Sides, tables: dict[str, SideTable], ratings: Ratings, known: dict[str, int]
) -> Sides:
    """With the rows of new tables, and with those beyond the known that no table has.

    Features are those of the first fit: of a new category nothing is known.
    """
    if unexpected := set(tables) - set(sides):
        name = f"{unexpected.pop()}s"
        raise ValueError(
            f"The model was fitted without features of {name}: give fit(…, {name}=…) those of all."
        )
    found = {}
    for side, old in sides.items():
        ids, entries = getattr(ratings, f"{side}s"), old.entries
        table = tables.get(side, SideTable(ids[:0], {}))
        codes = codes_of(table.ids, ids)
        absent = np.setdiff1d(np.arange(known[side], len(ids)), codes)
        if len(codes):
            entries = entries.replaced(old.encoding.entries(table, codes), codes)
        entries = entries.replaced(old.encoding.without_row(absent), absent)
        found[side] = Side(old.encoding, entries)
    return found
