"""Parameters of which some are constrained, and posteriors of them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.posterior.posterior import Posterior
from sghmc.posterior.potential import Potential
from sghmc.transforms.base import Transform
from sghmc.types import PyTree


class Space(eqx.Module):
    """Parameters of which some are constrained.

    `transforms` is a pytree like the parameters, or a prefix of one, with a `Transform` where there
    is a constraint and None where there is none; a dict may leave parameters without one out.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> from jax.scipy.stats import expon, norm
    >>> from sghmc import transforms
    >>> space = transforms.Space({"sd": transforms.Positive()})
    >>> posterior = space.posterior(
    ...     lambda p, y: norm.logpdf(y, p["mean"], p["sd"]),
    ...     lambda p: norm.logpdf(p["mean"], 0, 10) + expon.logpdf(p["sd"]),
    ...     jnp.array([2.1, 1.4, 3.3, 2.2]),
    ... )
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), posterior, "auto", space.unconstrain({"mean": 0.0, "sd": 1.0}),
    ...     num_samples=100, num_chains=4, progress=False,
    ... )
    >>> draws = space.constrain(samples.positions)
    >>> bool(draws["sd"].min() > 0)
    True
    """

    transforms: PyTree

    def __check_init__(self):
        for leaf in jax.tree.leaves(self.transforms, is_leaf=_is_transform):
            if not _is_transform(leaf):
                raise TypeError(
                    f"A space has transforms such as Positive() where a parameter is constrained, "
                    f"and None elsewhere, not {leaf!r}."
                )

    def constrain(self, params: PyTree) -> PyTree:
        """Values of the parameters; any leading axes stay, so that draws are mapped at once."""
        return self._map(lambda transform, x: transform.forward(jnp.asarray(x)), params)

    def unconstrain(self, values: PyTree) -> PyTree:
        """Where a run may start: the real numbers of some values."""
        mapped = self._map(lambda transform, y: transform.inverse(y), values)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), mapped)

    def log_jacobian(self, params: PyTree) -> jax.Array:
        """log |∂(values)/∂(params)|."""
        terms = self._map(lambda transform, x: transform.log_jacobian(x), params, lambda x: 0.0)
        return sum(jax.tree.leaves(terms), jnp.zeros(()))

    def posterior(
        self,
        log_likelihood: Callable[..., jax.Array],
        log_prior: Callable[..., jax.Array],
        data: PyTree,
        hyper: PyTree = None,
    ) -> Posterior:
        """`sghmc.Posterior` of functions that see the values; its parameters are real numbers."""
        return Posterior(
            _OfValues(self, log_likelihood), _WithJacobian(self, log_prior), data, hyper
        )

    def potential(self, function: Callable[[PyTree], jax.Array]) -> Potential:
        """`sghmc.Potential` of a U that sees the values."""
        return Potential(_PotentialOfValues(self, function))

    def _map(
        self, function: Callable[[Transform, Any], Any], tree: PyTree, otherwise=lambda x: x
    ) -> PyTree:
        def of_part(transform, part):
            if transform is None:
                return jax.tree.map(otherwise, part)
            return jax.tree.map(lambda leaf: function(transform, leaf), part)

        return jax.tree.map(of_part, self._whole(tree), tree, is_leaf=_is_transform)

    def _whole(self, tree: PyTree) -> PyTree:
        """The transforms, with None for entries of a dict that have none."""
        if not isinstance(self.transforms, dict) or not isinstance(tree, dict):
            return self.transforms
        unknown = sorted(set(self.transforms) - set(tree))
        if unknown:
            raise ValueError(f"There is no parameter {unknown[0]!r}: there are {sorted(tree)}.")
        return {name: self.transforms.get(name) for name in tree}


class _OfValues(eqx.Module):
    space: Space
    function: Callable

    def __call__(self, params, *args):
        return self.function(self.space.constrain(params), *args)


class _WithJacobian(eqx.Module):
    space: Space
    function: Callable

    def __call__(self, params, *args):
        density = self.function(self.space.constrain(params), *args)
        return density + self.space.log_jacobian(params)


class _PotentialOfValues(eqx.Module):
    space: Space
    function: Callable

    def __call__(self, params):
        return self.function(self.space.constrain(params)) - self.space.log_jacobian(params)


def _is_transform(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, Transform)
