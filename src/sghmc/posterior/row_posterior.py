"""Posteriors whose rows lie in arrays or in a source."""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.integers import check_fit, held_type
from sghmc.posterior import passes
from sghmc.posterior.base import AbstractPosterior, part_of
from sghmc.types import PyTree


class RowPosterior(AbstractPosterior):
    """`data` are a pytree of arrays with a shared leading axis, one row an example, or a source."""

    def __check_init__(self):
        for name, function in (
            ("log_likelihood", self.log_likelihood),
            ("log_prior", self.log_prior),
        ):
            if not callable(function):
                raise TypeError(f"{name} must be a function, not {function!r}.")
        if self.source is not None:
            return
        leaves = jax.tree.leaves(self.data)
        if not leaves:
            raise ValueError("data holds no array: give a pytree of arrays, one row an example.")
        if any(leaf.ndim == 0 for leaf in leaves):
            raise ValueError(
                "data holds a number without axes: every array of the data needs a leading axis, "
                "one row an example."
            )
        lengths = sorted({leaf.shape[0] for leaf in leaves})
        if len(lengths) > 1:
            raise ValueError(
                f"The arrays of the data have leading axes of different lengths {lengths}: they "
                f"must share it, one row an example."
            )
        if lengths[0] == 0:
            raise ValueError("data is empty: its leading axis has length 0. Give at least one row.")

    @property
    def _table(self):
        return self.data

    @property
    def num_examples(self):
        return self.num_rows if self.num_real is None else self.num_real

    def rows(self, indices):
        if self.source is not None:
            return passes.rows_of_source(self.source, indices)
        return jax.tree.map(lambda leaf: leaf.at[indices].get(mode="promise_in_bounds"), self.data)

    def examples(self, variates, i, size):
        part = part_of(variates, i, size)
        return part if self.source is not None else self.rows(part)

    def batch(self, variates, i, size):
        return self.examples(variates, i, size)

    def batch_size(self, batch):
        return jax.tree.leaves(batch)[0].shape[0]

    def log_likelihood_sum(self, params, batch):
        return passes.sum_over_batch(batch, lambda rows: self.log_likelihoods(params, rows))

    def _over_rows(self, of_rows):
        if self.source is not None:
            return passes.sum_over_source(self.source, of_rows, self.num_examples)
        return passes.sum_over_table(self.data, of_rows, self.num_examples)


def as_arrays(data: PyTree) -> PyTree:
    """Arrays of numbers as they will be held; a data frame's columns go by name."""
    return jax.tree.map(_as_array, _columns(data))


def _columns(data: PyTree) -> PyTree:
    """A data frame's columns by name, as sources give them; other data as they are."""
    is_frame = hasattr(data, "columns") and hasattr(data, "to_numpy")
    return {str(name): np.asarray(data[name]) for name in data.columns} if is_frame else data


def _as_array(leaf) -> jax.Array:
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        if leaf.dtype.kind not in "fiubc":
            raise TypeError(f"data must hold numbers, but holds an array of dtype {leaf.dtype}.")
        check_fit(leaf, held_type(leaf.dtype), "The data")
    return jnp.asarray(leaf)
