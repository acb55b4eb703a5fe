"""A NumPyro model as a function: log densities of some examples, and of all that is not one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.util import sum_rightmost

from sghmc.interop.arguments import Arguments
from sghmc.interop.sites import Plates


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
        """All sites at these unconstrained values, and by how much the plate scales its own."""
        plates = Plates(
            handlers.substitute(self.function, data=self.fixed),
            self.plate,
            examples.numbers,
            # Either the model gets rows of these examples only, or it picks them by their numbers.
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
        """Of every example, and of everything else: the prior, its Jacobians, other sites."""
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
        """What a latent site's value is; the transform's Jacobian enters the model as a factor."""

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
