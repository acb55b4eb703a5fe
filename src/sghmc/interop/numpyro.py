"""NumPyro models as posteriors."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sghmc.core import runtime
from sghmc.core.checks import require

require("numpyro", extra="numpyro")

from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import Predictive

from sghmc.interop.numpyro_arguments import GivenArguments, Rows, Whole
from sghmc.interop.numpyro_model import INFER, Examples, Model, Plates, Site, Structure
from sghmc.posterior.posterior import RowPosterior, as_arrays
from sghmc.results import summaries
from sghmc.results.samples import Samples
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz

__all__ = ["NumPyroPosterior", "Rows", "Whole", "posterior"]

_DENSITY_TOLERANCE = 1e-3
"""Relative tolerance of a row's log density, alone and among all rows: rounding errors."""
_NUM_COMPARED_ROWS = 8


def posterior(model: Callable, *args, plate: Any = INFER, **kwargs) -> "NumPyroPosterior":
    """Make a posterior from a NumPyro model and the arguments that NumPyro's MCMC would get.

    One example is one member of the plate that contains all observed sites (if there are several,
    name it with `plate`). Arguments whose first axis is as long as the plate have a row for each
    example, and a batch gets its own rows of them; all others are passed whole. Wrap an argument in
    `Rows(array, axis=1)` or `Whole(array)` to change that. The model must index arrays that are not
    arguments with the plate's indices. A model without such a plate, or with `plate=None`, runs on
    all data. (Bind a model's own argument of the name `plate` with functools.partial.)

    Parameters are the unconstrained values of the latent sites, a dict by name, and the prior
    includes the Jacobians; everything outside the plate counts as prior. Sites of type param stay
    at their initial values, as in NumPyro's MCMC. A latent site inside the plate, one value for
    each example, is a parameter with that many entries: gradients from batches are unbiased, but
    noisy, since a batch informs few of those entries.

    >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
    >>> import sghmc, sghmc.interop.numpyro
    >>> def model(y):
    ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    ...     with numpyro.plate("data", len(y)):
    ...         numpyro.sample("y", dist.Normal(0.0, scale), obs=y)
    >>> posterior = sghmc.interop.numpyro.posterior(model, jnp.array([-1.0, 0.5, 2.0]))
    >>> posterior.num_examples
    3
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), posterior, sghmc.SGHMC(0.1, friction=1.0),
    ...     posterior.init(jax.random.key(1)), num_samples=100, num_chains=4, progress=False,
    ... )
    >>> posterior.draws(samples)["scale"].shape
    (4, 100)
    """
    if not callable(model):
        raise TypeError(f"posterior needs a NumPyro model, a function, not {model!r}.")
    given = GivenArguments(args, kwargs)
    structure = Structure.of(model, given)
    name = structure.example_plate(plate, given)
    if name is None:
        return NumPyroPosterior(model, structure, None, given)
    size = structure.plates[name]
    row_names = given.row_names(size)
    failures = []
    for is_sliced in (True, False) if row_names else (False,):
        try:
            candidate = NumPyroPosterior(model, structure, name, given, is_sliced)
            candidate.check_rows()
        except Exception as error:  # the model may raise any error if shapes do not fit
            failures.append(error)
        else:
            return candidate
    raise ValueError(
        f"The model cannot run on some of the {size} members of plate {name!r} alone. With rows of "
        f"{' and '.join(row_names) or 'no argument'}: {str(failures[0]).splitlines()[0]} Give all "
        f"data with a row for each example as arguments, in Rows(array, axis=…) if the first axis "
        f"does not count rows, and arrays without examples in Whole(array); compute what depends "
        f"on several rows before the model; or run on all data with plate=None."
    ) from failures[0]


class NumPyroPosterior(RowPosterior):
    """The posterior of a NumPyro model; made by `sghmc.interop.numpyro.posterior`.

    Parameters are unconstrained: `draws` and `to_arviz` map a run's draws back.
    """

    log_likelihood: Callable[..., jax.Array]
    log_prior: Callable[..., jax.Array]
    data: PyTree
    sites: dict[str, Site] = eqx.field(static=True)
    hyper: PyTree = None
    num_real: jax.Array | None = None

    def __init__(
        self,
        function: Callable,
        structure: Structure,
        plate: str | None,
        given: GivenArguments,
        is_sliced: bool = False,
    ):
        size = 1 if plate is None else structure.plates[plate]
        arguments, rows = given.split(size) if is_sliced else (given.whole(), [])
        data = Examples(rows, jnp.asarray(np.arange(size, dtype=np.int32)))
        model = Model(function, arguments, plate, structure.local_axes(plate), structure.fixed)
        first = jax.tree.map(lambda leaf: leaf[:1], data)
        self.log_likelihood, self.log_prior = _LogLikelihood(model), _LogPrior(model, first)
        self.data, self.hyper, self.num_real = as_arrays(data), None, None
        self.sites = structure.sites

    @property
    def model(self) -> Model:
        assert isinstance(self.log_prior, _LogPrior)
        return self.log_prior.model

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of the unconstrained value of every latent site."""
        latent = [(name, site) for name, site in self.sites.items() if site.kind == "latent"]
        return {name: site.unconstrained_shape for name, site in latent}

    def init(self, key: jax.Array, radius: float = 2.0) -> dict[str, jax.Array]:
        """Draw an initial position uniformly within `radius` of 0, as NumPyro does.

        For several chains take `jax.vmap(posterior.init)(jax.random.split(key, num_chains))` and
        `sample(…, init_axis=0)`.
        """
        shapes = self.shapes
        return dict(zip(shapes, _uniforms(key, radius, tuple(shapes.values())), strict=True))

    def constrain(self, params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Map one position to the values of the latent sites; use it in `averages`."""
        sites, _ = self.model.run(params, self.data)
        return {name: sites[name]["value"] for name in self.shapes}

    def unconstrain(self, values: Mapping[str, ArrayLike]) -> dict[str, jax.Array]:
        """Invert `constrain`: map values of all latent sites to an initial position."""
        missing = sorted(set(self.shapes) - set(values))
        if missing:
            raise ValueError(f"values has no {missing}: give the value of every latent site.")
        args, kwargs = self.model.arguments.filled(self.data.rows)
        arrays = {name: jnp.asarray(value) for name, value in values.items()}
        model = handlers.substitute(self._in_full(), data=arrays)
        sites = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(*args, **kwargs)
        return {
            name: biject_to(sites[name]["fn"].support).inv(arrays[name].astype(float))
            for name in self.shapes
        }

    def draws(self, samples: Samples, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Return a run's draws of the latent and deterministic sites, or of those in `names`.

        Axes are (chain, draw, …). The run must have kept positions, as it does without `keep`.
        """
        chosen = None if names is None else tuple(names)
        return self._of_all(self._positions(samples), chosen)

    def constrained(self, draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the values of the latent sites at draws of the parameters."""
        return self._of_all(draws, tuple(self.shapes))

    def _of_all(
        self, positions: dict[str, np.ndarray], names: tuple[str, ...] | None
    ) -> dict[str, np.ndarray]:
        @eqx.filter_jit
        def of_all(posterior, positions):
            return jax.lax.map(lambda params: posterior._sites(params, names), positions)

        leading = next(iter(positions.values())).shape[:2]
        flat = {k: v.reshape(math.prod(leading), *v.shape[2:]) for k, v in positions.items()}
        values = of_all(self, flat)
        return {k: np.asarray(v).reshape(*leading, *v.shape[1:]) for k, v in values.items()}

    def predictive(self, key: jax.Array, samples: Samples, *args, **kwargs) -> dict[str, jax.Array]:
        """Run the model with these arguments for each draw, by NumPyro's `Predictive`.

        Leave the observed values out: `predictive(key, samples, x_new)`. Axes are (chain, draw, …).
        """
        latent = self.draws(samples, list(self.shapes))
        return Predictive(self._in_full(), latent, batch_ndims=2)(key, *args, **kwargs)

    def to_arviz(
        self,
        samples: Samples,
        coords: dict[str, Any] | None = None,
        dims: dict[str, list[str]] | None = None,
    ) -> "arviz.InferenceData":
        """Convert a run's draws to arviz: sites by name, with axes named after their plates.

        The groups are posterior, sample_stats and observed_data; `coords` and `dims` add to the
        model's own.
        """
        draws = self.draws(samples)
        observed = [name for name, site in self.sites.items() if site.has_data]
        named = {name: site.dims for name, site in self.sites.items() if site.dims}
        anywhere = {name: jnp.zeros(shape) for name, shape in self.shapes.items()}
        sites, _ = self.model.run(anywhere, self.data)
        statistics = samples.to_arviz()["sample_stats"].data_vars
        return summaries.from_groups(
            {
                "posterior": draws,
                "sample_stats": {str(name): array.values for name, array in statistics.items()},
                "observed_data": {name: np.asarray(sites[name]["value"]) for name in observed},
            },
            coords=coords,
            dims={**named, **(dims or {})},
        )

    def check_rows(self) -> None:
        """Check that rows have the same log density alone as among all rows."""
        numbers = np.linspace(0, self.num_rows - 1, _NUM_COMPARED_ROWS).astype(np.int32)
        found = jax.tree.map(np.asarray, _compiled_comparison()(self, np.unique(numbers)))
        alone, together, prior, rest = found
        for number, mine, theirs in zip(np.unique(numbers), alone, together, strict=True):
            if _differ(mine, theirs):
                raise ValueError(
                    f"Row {number} has log density {mine:g} alone, but {theirs:g} among all rows: "
                    f"something in the plate depends on other rows."
                )
        if _differ(prior, rest):
            raise ValueError(
                f"Sites outside of the plate have log density {prior:g} with one row and {rest:g} "
                f"with all: something there depends on the rows."
            )

    def _in_full(self) -> Callable:
        """Return the model over all examples, with its param and mutable sites fixed."""
        return Plates(handlers.substitute(self.model.function, data=self.model.fixed))

    def _sites(self, params: dict[str, jax.Array], names: tuple[str, ...] | None):
        sites, _ = self.model.run(params, self.data)
        known = {
            name: site["value"]
            for name, site in sites.items()
            if name in self.shapes or site["type"] == "deterministic"
        }
        for name in names or ():
            if name not in known:
                raise ValueError(f"There is no site {name!r} to draw: there are {sorted(known)}.")
        return known if names is None else {name: known[name] for name in names}

    def _positions(self, samples: Samples) -> dict[str, np.ndarray]:
        positions = samples.positions
        is_dict = isinstance(positions, dict)
        if not is_dict or {k: leaf.shape[2:] for k, leaf in positions.items()} != self.shapes:
            raise ValueError(
                f"The run's positions are not this posterior's parameters, {self.shapes}: leave "
                f"keep= out of sample(…), so that it keeps them."
            )
        return positions


@functools.partial(jax.jit, static_argnames="shapes")
def _uniforms(key: jax.Array, radius: float | jax.Array, shapes: tuple[tuple[int, ...], ...]):
    keys = jax.random.split(key, len(shapes))
    return [
        jax.random.uniform(keys[i], shape, minval=-radius, maxval=radius)
        for i, shape in enumerate(shapes)
    ]


@functools.cache
def _compiled_comparison() -> Any:
    """Return the compiled comparison, which all posteriors of the same shapes share."""
    return eqx.filter_jit(_compare, **runtime.jit_options("once"))


def _compare(posterior: NumPyroPosterior, numbers: jax.Array | np.ndarray) -> tuple[jax.Array, ...]:
    """Return log densities of some rows, alone and among all, and of the rest with one and all."""
    params = posterior.init(jax.random.key(0), radius=0.5)
    together, rest = posterior.model.log_densities(params, posterior.data)
    alone = posterior.log_likelihoods(params, posterior.rows(jnp.asarray(numbers)))
    return alone, together[numbers], posterior.log_prior(params), rest


class _LogLikelihood(eqx.Module):
    """The log density of one example, observed and local latent sites."""

    model: Model

    def __call__(self, params: dict[str, jax.Array], example: Examples) -> jax.Array:
        alone = jax.tree.map(lambda leaf: leaf[None], example)
        return self.model.log_densities(params, alone)[0][0]


class _LogPrior(eqx.Module):
    """The log density of everything but the examples; the model needs one example to run."""

    model: Model
    example: Examples

    def __call__(self, params: dict[str, jax.Array]) -> jax.Array:
        return self.model.log_densities(params, self.example)[1]


def _differ(x: np.ndarray, y: np.ndarray) -> bool:
    """Return whether numbers differ by more than rounding; both may be −∞ or NaN."""
    with np.errstate(invalid="ignore"):
        is_close = np.abs(x - y) <= _DENSITY_TOLERANCE * (1 + np.abs(y))
    return not bool(is_close | (x == y) | (np.isnan(x) & np.isnan(y)))
