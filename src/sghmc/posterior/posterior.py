"""A target given by data, the log-likelihood of one example, and a log-prior."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core.integers import check_fit, held_type
from sghmc.posterior import passes
from sghmc.posterior.base import AbstractPosterior, part_of
from sghmc.posterior.source import Source
from sghmc.posterior.source_ref import SourceRef
from sghmc.posterior.stacked import StackedPosterior, stacked
from sghmc.types import PyTree


class Posterior(AbstractPosterior):
    """A target given by the log-likelihood of one example, a log-prior, and the data.

        U(θ) = −Σᵢ log p(xᵢ | θ) − log p(θ)

    `data` is a pytree of arrays with a shared leading axis, one row an example, or a data frame,
    whose columns go by name; `log_likelihood` sees one example, a pytree of rows. Data larger than
    memory are a source (`sghmc.data`): rows are read as they are needed, and a pass over all of
    them streams. With `hyper`, a pytree of hyperparameters, the functions are
    `log_likelihood(params, example, hyper)` and `log_prior(params, hyper)`.

    >>> import jax.numpy as jnp, sghmc
    >>> posterior = sghmc.Posterior(
    ...     lambda theta, x: -0.5 * (x - theta) ** 2, lambda theta: -0.5 * theta**2, jnp.arange(4.0)
    ... )
    >>> float(posterior.gradient(jnp.array(1.0)))
    -1.0
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    hyper: PyTree = None
    num_real: jax.Array | None = None

    def __init__(self, log_likelihood, log_prior, data: PyTree, hyper: PyTree = None):
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        data = data.source if isinstance(data, SourceRef) else data
        is_source = isinstance(data, Source)
        self.data = SourceRef(data) if is_source else jax.tree.map(_as_array, _columns(data))
        self.hyper = None if hyper is None else jax.tree.map(jnp.asarray, hyper)
        # An array, so that a run can follow it without compiling anew.
        is_growing = is_source and data.is_growing
        self.num_real = jnp.asarray(data.num_rows, jnp.int32) if is_growing else None

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

    @staticmethod
    def stack(posteriors: Sequence["Posterior"]) -> StackedPosterior:
        """One posterior for each chain of a run: cross-validation folds, say.

        They share functions and shapes but for the number of rows. `sample(…, posterior_axis=0)`
        runs one chain on each.
        """
        return stacked(posteriors)

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
        return jnp.sum(self.log_likelihoods(params, batch))

    def _over_rows(self, of_rows):
        if self.source is not None:
            return passes.sum_over_source(self.source, of_rows, self.num_examples)
        return passes.sum_over_table(self.data, of_rows, self.num_examples)


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
