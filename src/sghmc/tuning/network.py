"""tune_network(): SGHMC for a network from where training left it, by a few products."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sghmc.core.checking import check_count
from sghmc.engine import checks
from sghmc.engine.options import RunOptions
from sghmc.engine.trainable import hold_fixed
from sghmc.gradients.minibatch import Minibatch, with_data
from sghmc.posterior.base import AbstractPosterior
from sghmc.samplers.settings import check_setting
from sghmc.samplers.sghmc import SGHMC
from sghmc.types import PyTree, Schedule

NUM_PRODUCTS = 20
"""Hessian products that a call is worth, each two or three gradients of `num_rows` rows."""
_NUM_PROBES, _PROBE_ROWS = 32, 4
"""Random vectors for the mean curvatures of leaves, each with a fourth of the rows: what other
leaves add to a leaf's mean is noise, which more vectors lessen."""
_SHARE = 0.35
"""ε in units of 1/√h: on a Gaussian the step is stable below 2, and its bias is ε²h/4, 3 %."""


def tune_network(
    key: jax.Array,
    posterior: AbstractPosterior,
    params: PyTree,
    *,
    trainable: PyTree | None = None,
    temperature: float | Schedule = 1.0,
    momentum_decay: float = 0.1,
    num_rows: int = 64,
) -> SGHMC:
    """SGHMC for a network of any size, from parameters that were trained: no runs, no search.

        M = mean of ∂²U/∂θ² over a leaf, and its standard error
        ε = 0.35/√h, h the largest eigenvalue of M^{−½} ∇²U M^{−½}
        C = (α/ε) M, so that all momenta decay by the same share α in a step

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `posterior` | U | with its prior, the curvature of what data do not determine |
    | `params` | | where chains will start, not far from a mode |
    | `trainable` | | which leaves will move, as for `sample`: the settings are those of that part |
    | `temperature` | τ | handed on to the sampler |
    | `momentum_decay` | α | 1 is SGLD; the smaller, the longer momenta last |
    | `num_rows` | | rows of a Hessian product: few make h too large, and ε small |

    Scales differ between the leaves of a network far more than inside one. With one mass a leaf the
    sampler's state is that of SGD with momentum, parameters and velocities.

    These settings make a run stable, and its momenta nearly as warm as they should be. They promise
    nothing of how long it takes, nor of gradient noise: see `samples.health()`.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> posterior = sghmc.Posterior(
    ...     lambda theta, x: -0.5 * x * (4 * jnp.sum(theta["a"]**2) + 100 * theta["b"] ** 2),
    ...     lambda theta: -0.5 * jnp.sum(theta["a"]**2), jnp.ones(50),
    ... )
    >>> start = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    >>> sampler = sghmc.tune_network(jax.random.key(0), posterior, start)
    >>> {name: round(mass) for name, mass in sampler.mass.items()}, round(sampler.step_size, 2)
    ({'a': 201, 'b': 5000}, 0.35)
    """
    checks.check_key(key)
    check_count(num_rows, "num_rows")
    check_setting(temperature, "temperature")
    if not 0 < momentum_decay <= 1:
        raise ValueError(f"momentum_decay must lie in (0, 1], but is {momentum_decay!r}.")
    target = posterior
    if trainable is not None:
        target, params, _ = hold_fixed(posterior, params, trainable, RunOptions())
    target = with_data(target, Minibatch(num_rows))
    params = jax.tree.map(jnp.asarray, params)
    of_leaves, of_step = jax.random.split(key)
    mass = jax.tree.map(float, _mean_curvatures(of_leaves, target, params, num_rows))
    _check(mass)
    step_size = _SHARE / math.sqrt(_largest_curvature(of_step, target, params, mass, num_rows))
    friction = jax.tree.map(lambda of_leaf: momentum_decay / step_size * of_leaf, mass)
    return SGHMC(step_size, friction, mass, temperature=temperature)


def _check(mass: PyTree) -> None:
    for path, of_leaf in jax.tree.leaves_with_path(mass):
        if not (math.isfinite(of_leaf) and of_leaf > 0):
            raise ValueError(
                f"The curvature of the potential in params{jax.tree_util.keystr(path)} is "
                f"{of_leaf:g} on average: give this leaf a proper prior, train it first, or set "
                f"mass and step size by hand."
            )


@eqx.filter_jit
def _mean_curvatures(key, target: AbstractPosterior, params: PyTree, num_rows: int) -> PyTree:
    """Of each leaf the trace of its part of ∇²U over its size (Hutchinson's estimate).

    The likelihood's part counts where it is positive: far from a mode it need not be. Its standard
    error is added. What a large leaf adds to a small one's estimate may hide all of it, and a mass
    too light makes the step of all leaves short, where one too heavy slows its own leaf alone.
    """

    def of_probe(key: jax.Array) -> tuple[PyTree, PyTree]:
        of_rows, of_vector = jax.random.split(key)
        vector = _random_like(jax.random.rademacher, of_vector, params)
        likelihood = _likelihood_gradient(target, of_rows, max(1, num_rows // _PROBE_ROWS))
        parts = [_product(gradient, params, vector) for gradient in (likelihood, _prior(target))]
        data, prior = (jax.tree.map(_mean_product, vector, part) for part in parts)
        return data, prior

    found = lax.map(of_probe, jax.random.split(key, _NUM_PROBES))
    return jax.tree.map(_upper_mean, *found)


def _upper_mean(data: Float[Array, " probe"], prior: Float[Array, " probe"]) -> Float[Array, ""]:
    error = jnp.std(data, ddof=1) / math.sqrt(_NUM_PROBES)
    return jnp.maximum(jnp.mean(data), 0) + error + jnp.mean(prior)


@eqx.filter_jit
def _largest_curvature(
    key, target: AbstractPosterior, params: PyTree, mass: PyTree, num_rows: int
) -> Float[Array, ""]:
    """|h| of the stiffest direction of M^{−½} ∇²U M^{−½}, by powers of it."""
    of_rows, of_vector = jax.random.split(key)
    likelihood, prior = _likelihood_gradient(target, of_rows, num_rows), _prior(target)

    def whitened(vector: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, of_leaf: leaf / jnp.sqrt(of_leaf), vector, mass)

    def gradient(params: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, likelihood(params), prior(params))

    def multiply(_, carry: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
        vector, length = carry
        vector = jax.tree.map(lambda leaf: (leaf / length).astype(leaf.dtype), vector)
        image = whitened(_product(gradient, params, whitened(vector)))
        return image, _length(image)

    start = _random_like(jax.random.normal, of_vector, params)
    count = NUM_PRODUCTS - _NUM_PROBES // _PROBE_ROWS
    return lax.fori_loop(0, count, multiply, (start, _length(start)))[1]


def _likelihood_gradient(target: AbstractPosterior, key: jax.Array, num_rows: int):
    """−(N/n) Σ ∇log p(x | θ), a function of θ, over some rows."""
    rows = target.rows(jax.random.randint(key, (num_rows,), 0, target.num_examples))
    scale = target.num_examples / num_rows

    def potential(params: PyTree) -> jax.Array:
        return -scale * jnp.sum(target.log_likelihoods(params, rows))

    return jax.grad(potential)


def _prior(target: AbstractPosterior):
    return jax.grad(lambda params: -jnp.asarray(target.log_prior_at(params), jnp.float32))


def _product(gradient, params: PyTree, vector: PyTree) -> PyTree:
    return jax.jvp(gradient, (params,), (vector,))[1]


def _random_like(draw, key: jax.Array, params: PyTree) -> PyTree:
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [draw(own, leaf.shape, leaf.dtype) for own, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, drawn)


def _mean_product(one: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.mean(one * other, dtype=jnp.float32)


def _length(vector: PyTree) -> jax.Array:
    squares = [jnp.sum(jnp.square(leaf), dtype=jnp.float32) for leaf in jax.tree.leaves(vector)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares)))
