"""A posterior whose batches the compiler spreads over an axis of a mesh."""

from collections.abc import Callable
from typing import Self

import equinox as eqx
import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from sghmc.posterior.row_posterior import RowPosterior
from sghmc.types import PyTree


class Spread(RowPosterior):
    """The same posterior, each batch of which is cut over the devices of an axis.

    All devices see one program: unlike with `Shard`, parameters may lie along that axis, too.
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    num_real: jax.Array | None
    where: NamedSharding | PartitionSpec = eqx.field(static=True)
    num_parts: int = eqx.field(static=True)
    hyper: PyTree = None

    @classmethod
    def of(
        cls, posterior: RowPosterior, where: NamedSharding | PartitionSpec, num_parts: int
    ) -> Self:
        return cls(
            posterior.log_likelihood,
            posterior.log_prior,
            posterior.data,
            posterior.num_real,
            where,
            num_parts,
            posterior.hyper,
        )

    def batch(self, variates, i, size):
        rows = super().batch(variates, i, size)
        if size % self.num_parts:
            return rows
        return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, self.where), rows)
