"""Posteriors of one model on different data, a chain each."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.posterior.base import AbstractPosterior
from sghmc.types import PyTree


class StackedPosterior(eqx.Module):
    """Posteriors of the same model on different data; made by `Posterior.stack`.

    `chains` is a posterior whose arrays have one more leading axis, that of the chains.
    """

    chains: AbstractPosterior
    num_chains: int

    def __getitem__(self, chain: int) -> AbstractPosterior:
        arrays, rest = eqx.partition(self.chains, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda leaf: leaf[chain], arrays), rest)

    @property
    def source(self) -> None:
        """Stacked data are arrays."""
        return None

    @property
    def hyper(self) -> PyTree:
        """The hyperparameters of all chains; None where there are none."""
        return self.chains.hyper


def stacked(posteriors: Sequence[AbstractPosterior]) -> StackedPosterior:
    if not posteriors or not all(isinstance(p, AbstractPosterior) for p in posteriors):
        raise TypeError("Posterior.stack needs a list of posteriors, at least one.")
    if any(p.source is not None for p in posteriors):
        raise TypeError(
            "Posterior.stack takes arrays only, but a posterior of the stack has a source for its "
            "data: run it by itself."
        )
    longest = max(p.num_rows for p in posteriors)
    parts = [eqx.partition(pad_rows(p, longest), eqx.is_array) for p in posteriors]
    arrays, rests = [part[0] for part in parts], [part[1] for part in parts]
    first = _shapes(arrays[0])
    for i, (other, rest) in enumerate(zip(arrays, rests, strict=True)):
        if not eqx.tree_equal(rest, rests[0]):
            raise ValueError(
                f"Posterior {i} of the stack has other functions than the first: pass the same "
                f"log_likelihood and log_prior objects to all."
            )
        if _shapes(other) != first:
            raise ValueError(
                f"Posterior {i} of the stack has data or hyperparameters of other shapes or dtypes "
                f"than the first: only the number of rows may differ."
            )
    chains = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rests[0])
    return StackedPosterior(chains, len(posteriors))


def pad_rows(posterior: AbstractPosterior, num_rows: int) -> AbstractPosterior:
    """The same posterior with rows, copies of the first that do not count, to `num_rows`."""
    missing = num_rows - posterior.num_rows

    def pad(leaf):
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    longer = eqx.tree_at(lambda p: p.data, posterior, jax.tree.map(pad, posterior.data))
    count = jnp.asarray(posterior.num_examples, jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, longer, count, is_leaf=lambda leaf: leaf is None)


def _shapes(arrays: PyTree) -> tuple:
    leaves, treedef = jax.tree.flatten(arrays)
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]
