"""The structure of a NumPyro model, and its log densities of some examples and of the rest."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.util import sum_rightmost
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from sghmc.interop.numpyro_arguments import Arguments, GivenArguments

INFER = object()
"""Default of `plate`: infer it from the model's observed sites."""


class Plates(Messenger):
    """Run a model with plate `name` at `indices`, and all other plates in full.

    If the model gets only the rows of those examples (`is_sliced`), its plate counts them from 0,
    and `numpyro.subsample` leaves arrays as they are.
    """

    def __init__(self, model: Callable, name: str | None = None, indices=None, is_sliced=False):
        super().__init__(model)
        self.name, self.indices, self.is_sliced = name, indices, is_sliced
        self.sizes: dict[str, int] = {}
        self.subsampled: dict[str, int] = {}

    def process_message(self, msg) -> None:
        if msg["type"] == "subsample" and self.is_sliced:
            msg["kwargs"]["event_dim"] = None
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        self.sizes[msg["name"]] = size
        if subsample_size not in (None, size):
            self.subsampled[msg["name"]] = subsample_size
        if msg["name"] != self.name or self.indices is None:
            indices = jnp.arange(size)
        else:
            count = self.indices.shape[0]
            indices = jnp.arange(count) if self.is_sliced else self.indices
        msg["value"], msg["args"] = indices, (size, indices.shape[0])


class Site(NamedTuple):
    """The static properties of a sample or deterministic site of a model."""

    kind: str
    plates: dict[str, int]
    """The axis of each plate around it, counted from the right."""
    num_batch_axes: int = 0
    unconstrained_shape: tuple[int, ...] = ()
    is_discrete: bool = False
    has_data: bool = False
    event_dims: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: dict[str, Any]) -> "Site":
        plates = {frame.name: frame.dim for frame in message["cond_indep_stack"]}
        event_dims = tuple(message.get("infer", {}).get("event_dims", ()))
        if message["type"] == "deterministic":
            return cls("deterministic", plates, event_dims=event_dims)
        if message["is_observed"]:
            # A factor is an observed site without data.
            has_data = jnp.size(message["value"]) > 0
            return cls("observed", plates, has_data=has_data, event_dims=event_dims)
        distribution = message["fn"]
        is_discrete = distribution.support.is_discrete
        shape = tuple(distribution.shape())
        if not is_discrete:
            shape = tuple(biject_to(distribution.support).inverse_shape(shape))
        num_axes = len(distribution.batch_shape)
        return cls("latent", plates, num_axes, shape, is_discrete, event_dims=event_dims)

    @property
    def dims(self) -> list[str]:
        """The names of its axes for arviz, from plates and event_dims."""
        return [*sorted(self.plates, key=lambda name: self.plates[name]), *self.event_dims]


class Structure(NamedTuple):
    """A model's sites by name, the sizes of its plates, and its param and mutable sites' values."""

    sites: dict[str, Site]
    plates: dict[str, int]
    subsampled: dict[str, int]
    fixed: dict[str, Any]

    @classmethod
    def of(cls, model: Callable, given: GivenArguments) -> "Structure":
        args, kwargs = given.whole().filled([])
        sites: dict[str, Site] = {}
        plates = Plates(model)

        def run(is_first: bool):
            start = handlers.substitute(
                handlers.seed(plates, jax.random.key(0)), substitute_fn=init_to_uniform
            )
            messages = handlers.trace(start).get_trace(*args, **kwargs)
            if is_first:
                kinds = ("sample", "deterministic")
                sites.update({k: Site.of(m) for k, m in messages.items() if m["type"] in kinds})
            kinds = ("param", "mutable")
            return {name: m["value"] for name, m in messages.items() if m["type"] in kinds}

        try:
            # Shapes are enough to know a model; values are computed if it has param sites.
            fixed = run(False) if jax.eval_shape(lambda: run(True)) else {}
        except Exception as error:
            raise ValueError(_does_not_run(error, given)) from error
        structure = cls(sites, plates.sizes, plates.subsampled, fixed)
        structure.check()
        return structure

    def of_kind(self, kind: str) -> dict[str, Site]:
        return {name: site for name, site in self.sites.items() if site.kind == kind}

    def check(self) -> None:
        if not self.of_kind("observed"):
            raise ValueError(
                "The model has no observed site, so there is nothing to learn from: pass the data "
                "that go to numpyro.sample(…, obs=…), or add a numpyro.factor."
            )
        for name, site in self.of_kind("latent").items():
            if site.is_discrete:
                raise ValueError(
                    f"Site {name!r} is discrete and not observed, but samplers with gradients move "
                    f"through real numbers: sum it out (a mixture is "
                    f"numpyro.distributions.MixtureSameFamily), or observe it."
                )
        if not self.of_kind("latent"):
            raise ValueError("The model has no latent site: there is nothing to sample.")

    def local_axes(self, plate: str | None) -> dict[str, int]:
        """Return the axis that counts examples of each latent site inside the plate."""
        return {
            name: site.num_batch_axes + site.plates[plate]
            for name, site in self.of_kind("latent").items()
            if plate in site.plates
        }

    def example_plate(self, wanted: Any, given: GivenArguments) -> str | None:
        """Return the plate that counts examples; None if the model runs on all data at once."""
        around = [set(site.plates) for site in self.of_kind("observed").values()]
        if wanted is None:
            return None
        if wanted is not INFER:
            return self._named_plate(wanted, set().union(*around))
        if len(self.subsampled) > 1:
            raise ValueError(
                f"The plates {_listed(self.subsampled)} are both subsampled, but a batch is drawn "
                f"from one: name it with plate=…, and the others are run in full; plate=None runs "
                f"all in full."
            )
        around = [names for names in around if names]
        if not around:
            return None
        common = set.intersection(*around)
        if not common:
            sizes = {name: self.plates[name] for names in around for name in sorted(names)}
            raise ValueError(
                f"The observed sites lie in different plates, {_listed(sizes)} (sizes "
                f"{', '.join(str(size) for size in sizes.values())}), so that it is not clear what "
                f"one example is: name the plate to draw batches from with plate=…, and the other "
                f"sites are run in full; or plate=None runs all in full."
            )
        for likely in (
            common & set(self.subsampled),
            common,
            {name for name in common if given.row_names(self.plates[name])},
        ):
            if len(likely) == 1:
                return likely.pop()
        raise ValueError(
            f"All observed sites lie in the plates {_listed(sorted(common))}, and it is not clear "
            f"which one counts examples: name it with plate=…, or run on all data with plate=None."
        )

    def _named_plate(self, wanted: str, around: set[str]) -> str:
        if wanted not in around:
            raise ValueError(
                f"plate is {wanted!r}, but the plates with observed sites are "
                f"{_listed(sorted(around)) or 'none'}."
            )
        return wanted


def _does_not_run(error: Exception, given: GivenArguments) -> str:
    lists = given.number_lists()
    hint = ""
    if lists:
        hint = f" ({_listed(lists)} are lists of numbers: did you mean arrays?)"
    elif isinstance(
        error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError
    ):
        hint = " (what decides shapes or branches must be a plain number among the arguments)"
    return f"The model does not run with these arguments{hint}: {str(error).splitlines()[0]}"


def _listed(names) -> str:
    return " and ".join(repr(name) for name in names)


# Log densities of some examples, and of the rest.


class Examples(NamedTuple):
    """Some members of the example plate: their rows of the arguments, and their numbers."""

    rows: list[jax.Array]
    numbers: jax.Array


class Model(eqx.Module):
    """A NumPyro model that can be run on some of its examples.

    `plate` counts the examples; None: all data together are one. `local` has the latent sites in
    the plate, each with the axis of its unconstrained value that counts examples. `fixed` has the
    values of param and mutable sites.
    """

    function: Callable
    arguments: Arguments
    plate: str | None
    local: dict[str, int]
    fixed: dict[str, Any]

    def run(self, params: dict[str, jax.Array], examples: Examples) -> tuple[dict[str, Any], float]:
        """Return all sites at these unconstrained values, and the scale factor of the plate."""
        plates = Plates(
            handlers.substitute(self.function, data=self.fixed),
            self.plate,
            examples.numbers,
            # Either the model gets the rows of these examples only, or it indexes its arrays.
            is_sliced=bool(examples.rows),
        )
        model = handlers.substitute(plates, substitute_fn=self._constrained(params, examples))
        args, kwargs = self.arguments.filled(examples.rows)
        sites = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(*args, **kwargs)
        count = examples.numbers.shape[0]
        return sites, 1.0 if self.plate is None else plates.sizes[self.plate] / count

    def log_densities(
        self, params: dict[str, jax.Array], examples: Examples
    ) -> tuple[jax.Array, jax.Array]:
        """Return the log densities of every example, and of the rest: prior, Jacobians, others."""
        sites, factor = self.run(params, examples)
        jacobians = {_jacobian_name(name) for name in params}
        count = examples.numbers.shape[0]
        of_examples, rest = jnp.zeros(count), jnp.zeros(())
        for name, site in sites.items():
            if site["type"] != "sample":
                continue
            log_density = _log_density(site)
            dims = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
            if self.plate in dims:
                of_examples += _by_example(name, log_density / factor, dims[self.plate], count)
            elif self.plate is None and site["is_observed"] and name not in jacobians:
                of_examples += jnp.sum(log_density)
            else:
                rest += jnp.sum(log_density)
        return of_examples, rest

    def _constrained(self, params: dict[str, jax.Array], examples: Examples) -> Callable:
        """Return a function for latent sites' values, which adds the Jacobian as a factor."""

        def value_of(site):
            name = site["name"]
            if site["type"] != "sample" or name not in params:
                return None
            value = params[name]
            if name in self.local:
                value = jnp.take(value, examples.numbers, axis=self.local[name])
            transform = biject_to(site["fn"].support)
            step = site["infer"].get("_scan_current_index")
            if step is not None and value.ndim > len(transform.inverse_shape(site["fn"].shape())):
                value = value[step]
            constrained = transform(value)
            jacobian = transform.log_abs_det_jacobian(value, constrained)
            extra = jnp.ndim(jacobian) - jnp.ndim(constrained) + len(site["fn"].event_shape)
            numpyro.factor(_jacobian_name(name), sum_rightmost(jacobian, extra))
            return constrained

        return value_of


def _jacobian_name(name: str) -> str:
    return f"_{name}_log_det_jacobian"


def _log_density(site: dict[str, Any]) -> jax.Array:
    log_density = site["fn"].log_prob(site["value"])
    return log_density if site["scale"] is None else site["scale"] * log_density


def _by_example(name: str, log_density: jax.Array, dim: int, count: int) -> jax.Array:
    axis = log_density.ndim + dim
    if axis < 0 or log_density.shape[axis] != count:
        raise ValueError(
            f"On {count} example(s), site {name!r} has log densities of shape {log_density.shape}."
        )
    return jnp.sum(log_density, [i for i in range(log_density.ndim) if i != axis])
