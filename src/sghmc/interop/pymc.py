"""PyMC models as posteriors, whose rows a sampler may take in batches."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import tree
from sghmc.core.checks import require
from sghmc.posterior.posterior import RowPosterior, as_arrays
from sghmc.results import summaries
from sghmc.results.samples import Samples
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz

__all__ = ["PyMCPosterior", "posterior"]


_is_double = jax.config.read("jax_enable_x64")
pymc = require("pymc", extra="pymc")
import pytensor.tensor
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.mode import JAX
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.link.utils import fgraph_to_python

# Importing pytensor's jax linker turns double precision on for every program of the process.
jax.config.update("jax_enable_x64", _is_double)

_NUM_COMPARED_ROWS = 8
# Largest relative difference of a row's log density, alone and among all: single precision.
_TOLERANCE = 1e-3


def posterior(model: Any = None, *, rows: bool = True) -> "PyMCPosterior":
    """Return the posterior of a PyMC model, by default the one whose context is open.

    One example is one entry along the first axis of the largest observed variable. Observed values,
    `pm.Data` and constants whose first axis is as long have a row for each example, and a batch
    sees its own rows of them; everything else is left whole. The rows are checked: each must have
    the log density alone that it has among all. With `rows=False` every gradient uses all data, and
    a model may couple its observations in any way.

    Parameters are PyMC's value variables, unconstrained, a dict by name (`sigma_log__`), and the
    prior has the Jacobians. Discrete variables cannot be sampled by gradients and are refused.

    >>> import jax, numpy as np, pymc as pm, sghmc, sghmc.interop.pymc
    >>> with pm.Model() as model:
    ...     x = pm.Data("x", np.linspace(-1, 1, 100))
    ...     slope, sigma = pm.Normal("slope"), pm.HalfNormal("sigma")
    ...     pm.Normal("y", slope * x, sigma, observed=np.linspace(-2, 2, 100))
    >>> posterior = sghmc.interop.pymc.posterior(model)
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), posterior, "auto", posterior.init(jax.random.key(1)), num_chains=4,
    ...     progress=False,
    ... )
    >>> posterior.to_arviz(samples)["posterior"]["sigma"].dims
    ('chain', 'draw')
    """
    model = pymc.modelcontext(model)
    _check_model(model)
    found = PyMCPosterior(model, _num_rows(model) if rows else 1, rows)
    if rows:
        found.check_rows()
    return found


def _check_model(model: Any) -> None:
    if not model.observed_RVs:
        raise ValueError("The model observes nothing: give at least one variable observed=….")
    discrete = [rv.name for rv in model.free_RVs if np.dtype(rv.dtype).kind in "iub"]
    if discrete:
        raise ValueError(
            f"{', '.join(discrete)} is discrete, and gradients cannot move it: sum it out of the "
            f"model (pm.Mixture, pm.Marginalized…), or sample with PyMC."
        )
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise ValueError(
                f"{rv.name} has a total_size: leave it and pm.Minibatch out and give the whole "
                f"data, since sghmc takes the batches and scales them."
            )


def _num_rows(model: Any) -> int:
    lengths = [value.shape[0] for value in _observed(model) if value.ndim]
    if not lengths:
        raise ValueError("The model observes single numbers only: take rows=False.")
    return max(lengths)


def _observed(model: Any) -> list[np.ndarray]:
    return [_known(model.rvs_to_values[rv]) for rv in model.observed_RVs]


def _by_row(model: Any, num_rows: int) -> list[Any]:
    """Return the observed variables whose first axis has an entry for each row."""
    pairs = zip(model.observed_RVs, _observed(model), strict=True)
    return [rv for rv, data in pairs if data.shape[:1] == (num_rows,)]


def _known(variable: Any) -> np.ndarray:
    """Return the value of a constant or a shared variable, `pm.Data` among them."""
    if isinstance(variable, SharedVariable):
        return np.asarray(variable.get_value())
    if isinstance(variable, Constant):
        return np.asarray(variable.data)
    raise ValueError(
        f"{variable} is computed, not given: observe arrays or pm.Data, and leave pm.Minibatch "
        f"out, since sghmc takes the batches."
    )


def _jax_function(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., tuple]:
    """Translate a pytensor graph into a jax function, with shared variables as they are now.

    Constants stay NumPy's, so that the function computes in the precision of its arguments: the
    mode search asks in double precision, a run in single.
    """
    shared = [each for each in graph_inputs(outputs) if isinstance(each, SharedVariable)]
    constants = {each: pytensor.tensor.constant(_known(each)) for each in shared}
    graph = FunctionGraph(list(inputs), clone_replace(list(outputs), constants), clone=True)
    with warnings.catch_warnings():
        # Checks such as sigma > 0 hold for every unconstrained value.
        warnings.filterwarnings("ignore", message="Skipping Check")
        JAX.optimizer.rewrite(graph)
        function = fgraph_to_python(
            graph, jax_funcify, type_conversion_fn=lambda data, *_, **__: data
        )

    def quiet(*arguments: Any) -> tuple:
        with warnings.catch_warnings():
            # The graph casts to float64, and means "as precise as we are".
            warnings.filterwarnings("ignore", message="Explicitly requested dtype")
            return function(*arguments)

    return quiet


class _Graph(eqx.Module):
    """The sum of a model's terms, as a function of the parameters and of the rows given."""

    function: Callable[..., tuple] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, params: dict[str, jax.Array], rows: PyTree = ()) -> jax.Array:
        alone = jax.tree.map(lambda leaf: leaf[None], rows)
        terms = self.function(*(params[name] for name in self.names), *alone)
        return sum((jnp.sum(term) for term in terms), jnp.zeros(()))


def _no_likelihood(params: PyTree, example: PyTree) -> jax.Array:
    """Return 0: without rows all of a model stands in its prior."""
    return jnp.zeros(())


class PyMCPosterior(RowPosterior):
    """The posterior of a PyMC model; made by `sghmc.interop.pymc.posterior`.

    Parameters are unconstrained: `draws` and `to_arviz` map a run's draws to PyMC's names and
    scales.
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    model: Any = eqx.field(static=True)
    hyper: PyTree = None
    num_real: jax.Array | None = None

    def __init__(self, model: Any, num_rows: int, is_by_row: bool):
        values = model.value_vars
        names = tuple(value.name for value in values)
        by_row = _by_row(model, num_rows) if is_by_row else []
        rest = [rv for rv in model.observed_RVs if rv not in by_row]
        prior = [*model.free_RVs, *model.potentials, *rest]
        graphs = model.logp(vars=by_row, sum=False) if by_row else []
        arrays, one, replaced = [], [], {}
        for each in dict.fromkeys(ancestors(graphs)):
            if isinstance(each, SharedVariable | Constant) and each.type.ndim > 0:
                data = _known(each)
                if data.shape[0] == num_rows:
                    arrays.append(data)
                    one.append(pytensor.tensor.tensor(dtype=each.dtype, shape=(1, *data.shape[1:])))
                    replaced[each] = one[-1]
                elif data.dtype.kind in "iu" and data.ndim == 1 and data[0] == num_rows:
                    # The shape of all observations, to which pytensor broadcasts: now of one.
                    replaced[each] = pytensor.tensor.constant(np.array([1, *data[1:]], data.dtype))
        alone = clone_replace(graphs, replaced, rebuild_strict=False) if graphs else []
        self.log_likelihood = _Graph(_jax_function([*values, *one], alone), names)
        self.log_prior = _Graph(_jax_function(values, model.logp(vars=prior, sum=False)), names)
        # Without rows the model is one example, whose likelihood is part of the "prior".
        self.data = as_arrays(tuple(arrays) or (np.zeros(1),))
        self.model, self.hyper, self.num_real = model, None, None
        if not by_row:
            self.log_likelihood = _no_likelihood

    def init(self, key: jax.Array, jitter: float = 1.0) -> dict[str, jax.Array]:
        """Draw a start around PyMC's initial point, uniform within `jitter`, as PyMC's is.

        Starts for several chains are `jax.vmap(posterior.init)(jax.random.split(key, num_chains))`
        and `sample(…, init_axis=0)`.
        """
        point = {name: jnp.asarray(value) for name, value in self.model.initial_point().items()}
        flat = tree.ravel(point)
        return tree.unravel(
            flat + jax.random.uniform(key, flat.shape, flat.dtype, -jitter, jitter), point
        )

    def check_rows(self) -> None:
        """Refuse a model whose rows, run alone, are not what they are among all others."""
        params = self.init(jax.random.key(0), 0.1)
        values = self.model.value_vars
        whole = self.model.logp(vars=_by_row(self.model, self.num_rows), sum=False)
        numbers = np.unique(np.linspace(0, self.num_rows - 1, _NUM_COMPARED_ROWS).astype(int))
        together = _jax_function(values, whole)(*(params[value.name] for value in values))
        remedy = "take rows=False, so that every gradient uses all data."
        try:
            expected = sum(np.reshape(term, (self.num_rows, -1)).sum(1) for term in together)
            found = np.asarray(self.log_likelihoods(params, self.rows(jnp.asarray(numbers))))
        except Exception as error:  # the model's own, of any kind, where shapes do not fit
            raise ValueError(f"The model cannot run on single rows ({error}): {remedy}") from error
        expected = np.asarray(expected)[numbers]
        is_close = np.abs(found - expected) <= _TOLERANCE * (1 + np.abs(expected))
        if not is_close.all():
            row = int(np.flatnonzero(~is_close)[0])
            raise ValueError(
                f"Row {numbers[row]} has log density {found[row]:g} alone, but {expected[row]:g} "
                f"among all rows: something couples the rows; {remedy}"
            )

    def draws(self, samples: Samples) -> dict[str, np.ndarray]:
        """Return a run's draws of free and deterministic variables, on PyMC's scales.

        Axes are (chain, draw, …). The run must have kept positions, as it does without `keep`.
        """
        chosen = pymc.util.get_default_varnames(self.model.unobserved_value_vars, False)
        function = _jax_function(self.model.value_vars, chosen)
        positions = [samples.positions[value.name] for value in self.model.value_vars]
        leading = (samples.num_chains, samples.num_draws)
        flat = [np.asarray(each).reshape(-1, *each.shape[2:]) for each in positions]
        found = jax.jit(lambda flat: jax.lax.map(lambda one: function(*one), flat))(flat)
        return {
            variable.name: np.asarray(values).reshape(*leading, *values.shape[1:])
            for variable, values in zip(chosen, found, strict=True)
        }

    def to_arviz(self, samples: Samples) -> "arviz.InferenceData":
        """Return a run's draws as PyMC returns its own: names, scales, dims and coords."""
        draws = self.draws(samples)
        plain = dataclasses.replace(samples, positions=draws).to_arviz()
        statistics = plain["sample_stats"].data_vars
        observed = zip(self.model.observed_RVs, _observed(self.model), strict=True)
        return summaries.from_groups(
            {
                "posterior": draws,
                "sample_stats": {str(name): array.values for name, array in statistics.items()},
                "observed_data": {rv.name: data for rv, data in observed},
            },
            coords={name: list(values) for name, values in self.model.coords.items() if values},
            dims={name: list(dims) for name, dims in self.model.named_vars_to_dims.items()},
        )
