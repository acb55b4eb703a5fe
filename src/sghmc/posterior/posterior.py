"""A target given by data, the log-likelihood of one example, and a log-prior."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from sghmc.posterior.row_posterior import RowPosterior, as_arrays
from sghmc.posterior.source import Source
from sghmc.posterior.source_ref import SourceRef
from sghmc.posterior.stacked import StackedPosterior, stacked
from sghmc.types import PyTree


class Posterior(RowPosterior):
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
        self.data = SourceRef(data) if is_source else as_arrays(data)
        self.hyper = None if hyper is None else jax.tree.map(jnp.asarray, hyper)
        # An array, so that a run can follow it without compiling anew.
        is_growing = is_source and data.is_growing
        self.num_real = jnp.asarray(data.num_rows, jnp.int32) if is_growing else None

    @staticmethod
    def stack(posteriors: Sequence["Posterior"]) -> StackedPosterior:
        """One posterior for each chain of a run: cross-validation folds, say.

        They share functions and shapes but for the number of rows. `sample(…, posterior_axis=0)`
        runs one chain on each.
        """
        return stacked(posteriors)
