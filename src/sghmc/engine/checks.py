"""What sample() refuses: each error names the input, what came, and the remedy."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from sghmc.adapt import Adaptation
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.core.checks import as_array, check_count
from sghmc.engine.chain import NEVER
from sghmc.engine.init import InitialPositions, InitialState
from sghmc.engine.layout import Layout
from sghmc.engine.options import RunOptions
from sghmc.gradients import Gradient, GradientEstimator
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import AbstractPosterior, StackedPosterior
from sghmc.posterior.target import Potential, Target
from sghmc.samplers import Kernel, LazyRows, Sampler
from sghmc.types import PyTree


def check_options(options: RunOptions, target) -> None:
    gradient, keep, averages = options.gradient, options.keep, options.averages
    check_counts(options.num_samples, options.num_burnin, options.thinning, options.num_chains)
    if not isinstance(target, Target | StackedPosterior):
        raise TypeError(f"sample needs a Posterior or a Potential, not {target!r}.")
    if not isinstance(gradient, Gradient):
        raise TypeError(f"gradient must be sghmc.Minibatch(500) or the like, not {gradient!r}.")
    if keep is not None and not callable(keep):
        raise TypeError(f"keep must be a function of the position, not {keep!r}.")
    if averages is not None and not (
        isinstance(averages, dict) and all(map(callable, averages.values()))
    ):
        raise TypeError(f"averages must be a dict {{name: function}}, not {averages!r}.")
    if options.checkpoint is not None and not isinstance(options.checkpoint, Checkpoint):
        raise TypeError(f"checkpoint must be sghmc.Checkpoint(folder), not {options.checkpoint!r}.")
    _check_axis(target, options.posterior_axis, options.num_chains)


def check_sampler(sampler, options: RunOptions, target: Target | StackedPosterior) -> None:
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sample needs a sampler such as sghmc.SGHMC(…), not {sampler!r}.")
    _check_adapt(options.adapt, sampler, options.num_burnin * options.thinning)
    if not sampler.subtracts_gradient_noise:
        return
    if not options.gradient.is_independent:
        raise ValueError(
            "gradient_noise must not be subtracted with shuffled epochs or palindromes: their "
            "errors cancel over a pass, and subtracting cools the chain. Use replacement=True, or "
            "gradient_noise=0."
        )
    if target.source is not None and not target.source.is_independent:
        raise ValueError(
            "gradient_noise must not be subtracted where a stream's rows may come in shuffled "
            "passes: errors cancel over a pass. Take gradient_noise=0, or Stream(…, "
            "independent=True) if rows are drawn with replacement."
        )


def check_fisher(fisher: EmpiricalFisher | None, gradient: Gradient, target) -> None:
    if fisher is None or target.is_stochastic:
        return
    batch_size = gradient.batch_rows
    if batch_size is None:
        raise ValueError(
            f"EmpiricalFisher estimates the noise of batches, but the gradient is {gradient!r}: "
            f"the exact gradient has none, so take gradient_noise=0; a NoisyGradient's is known, "
            f"so take gradient_noise=variance; or use Minibatch or ControlVariate."
        )
    if batch_size < 2:
        raise ValueError(
            "EmpiricalFisher needs batches of two examples or more, but batch_size is "
            f"{batch_size}: one example has no scatter."
        )


def _check_axis(target, posterior_axis: int | None, num_chains: int) -> None:
    is_stacked = isinstance(target, StackedPosterior)
    if posterior_axis not in (None, 0) or (posterior_axis == 0) != is_stacked:
        raise ValueError(
            f"posterior_axis is {posterior_axis!r} and the target a {type(target).__name__}: one "
            f"posterior a chain is posterior_axis=0 with Posterior.stack([…]), else leave it out."
        )
    if is_stacked and target.num_chains != num_chains:
        raise ValueError(
            f"The target stacks {target.num_chains} posteriors, one for each chain, but num_chains "
            f"is {num_chains}."
        )


def check_shared(estimator: GradientEstimator) -> None:
    """Of one of several posteriors, a chain each."""
    if estimator.is_shared:
        raise ValueError(
            "Batches cannot be shared by chains whose posteriors have data of their own: take "
            "shared=False with Posterior.stack."
        )


def _check_adapt(adapt, sampler: Sampler, num_burnin_steps: int) -> None:
    if adapt is None:
        return
    if not isinstance(adapt, Adaptation):
        raise TypeError(
            f"adapt must be sghmc.Adapt(update, every, until), AdaptMass(until) or the like, not "
            f"{adapt!r}."
        )
    estimate = sampler.dynamics.gradient_noise
    if sampler.subtracts_gradient_noise and not isinstance(estimate, EmpiricalFisher):
        raise ValueError(
            f"gradient_noise is fixed at {estimate}, but friction and preconditioner follow a mass "
            f"that adapts, and may leave no room for it: take EmpiricalFisher(), which is judged "
            f"as it goes, or gradient_noise=0."
        )
    if adapt.until > num_burnin_steps:
        raise ValueError(
            f"adapt goes on until step {adapt.until}, but burn-in ends after {num_burnin_steps} "
            f"steps (num_burnin · thinning): a sampler that adapts has another law than its "
            f"target's. Take a smaller until or a longer burn-in."
        )


def check_key(key) -> None:
    is_array = isinstance(key, jax.Array | np.ndarray)
    is_key = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape != ():
        shown = f"an array of dtype {key.dtype} and shape {key.shape}" if is_array else repr(key)
        raise TypeError(
            f"key must be one typed jax key, such as jax.random.key(0), but is {shown}."
        )


def check_outside(key, init: PyTree) -> None:
    """A run is driven by the host: it is no part of a compiled function."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, init))):
        raise TypeError(
            "sample was called inside jax.jit, vmap, grad or the like, but it compiles and drives "
            "its own loop: call it outside, with num_chains for several chains; inside, take the "
            "steps of sghmc.Stepper."
        )


def check_counts(num_samples, num_burnin, thinning, num_chains) -> None:
    check_count(num_samples, "num_samples")
    check_count(num_burnin, "num_burnin", 0)
    check_count(thinning, "thinning")
    check_count(num_chains, "num_chains")
    if (num_burnin + num_samples) * thinning >= NEVER:
        raise ValueError(
            f"(num_burnin + num_samples) · thinning is {(num_burnin + num_samples) * thinning}, "
            f"but a run has at most {NEVER - 1} steps: split it."
        )


def check_gibbs(gibbs, target, like: PyTree) -> None:
    if gibbs is None:
        return
    if not isinstance(gibbs, Gibbs):
        raise TypeError(f"gibbs must be sghmc.Gibbs(update, every=…), not {gibbs!r}.")
    if target.hyper is None:
        raise ValueError(
            "gibbs updates hyperparameters, but the target has none: give Posterior(…, hyper=…)."
        )
    returned = jax.eval_shape(lambda params: gibbs.update(jax.random.key(0), params, target), like)
    old, new = (
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), hyper)
        for hyper in (target.hyper, returned)
    )
    if old != new:
        raise ValueError(
            f"The Gibbs update must return hyper with the structure, shapes and dtypes it was "
            f"given, {old}, but returns {new}."
        )


def check_init(init: PyTree, init_axis: int | None, num_chains: int) -> PyTree:
    """Refuse what chains cannot start from; one chain's parameters, by shapes and dtypes."""
    if init_axis not in (None, 0):
        raise ValueError(f"init_axis must be None or 0, but is {init_axis!r}.")
    if not any(map(np.size, jax.tree.leaves(init))):
        raise ValueError("init holds no parameters: give a pytree of float arrays.")
    for path, leaf in jax.tree.leaves_with_path(init):
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        name = f"init{jax.tree_util.keystr(path)}"
        if not jnp.issubdtype(array.dtype, jnp.floating) or array.dtype.itemsize > 8:
            raise TypeError(
                f"{name} has dtype {array.dtype}, but parameters are real numbers: give floats, "
                f"for example {name}.astype(float)."
            )
        if init_axis == 0 and (array.ndim == 0 or array.shape[0] != num_chains):
            raise ValueError(
                f"With init_axis=0 the leading axis of init counts chains, but {name} has shape "
                f"{array.shape} and num_chains is {num_chains}."
            )
        if not np.all(np.isfinite(np.asarray(array))):
            raise ValueError(f"{name} is not finite: chains must start at finite numbers.")
    one = jax.eval_shape(lambda: InitialPositions(init, init_axis).of_chain(0))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), one)


def check_spread(sampler: Sampler, kernel: Kernel, layout: Layout) -> None:
    """Rows of tables that move one by one must be on one device."""
    if isinstance(kernel, LazyRows) and layout.shardings is not None:
        raise ValueError(
            f"{sampler.name} moves single rows of parameters, but the mesh spreads these over "
            f"several devices: leave the axis 'model' out, or give the sampler inside of it."
        )


def check_functions(target: Target, like: PyTree) -> None:
    """U, log-likelihood and log-prior must return one real number."""
    try:
        shown = _returned(target, like)
    except TypeError as error:
        is_plain = isinstance(like, list | tuple) and all(leaf.shape == () for leaf in like)
        if not is_plain:
            raise
        raise TypeError(
            f"init is a {type(like).__name__} of {len(like)} numbers, which jax takes for as many "
            f"parameters, and the posterior's functions do not: {error}. If it is one vector, give "
            f"jnp.array(init)."
        ) from error
    for name, out in shown.items():
        if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(
                f"{name} must return one real number, a float array of shape (), but returns "
                f"{out}. Sum over the parts of one example with jnp.sum."
            )


def _returned(target: Target, like: PyTree) -> dict[str, Any]:
    """What the functions of a target return, by shapes alone."""
    if isinstance(target, Potential) and target.stochastic:
        return {"The potential U(params, key)": _shape(_estimate, target, like, jax.random.key(0))}
    if not isinstance(target, AbstractPosterior):
        return {"The potential U(params)": _shape(_potential, target, like)}
    hyper = () if target.hyper is None else (target.hyper,)
    return {
        "log_likelihood(params, example)": _shape(
            target.log_likelihood, like, target.example, *hyper
        ),
        "log_prior(params)": _shape(target.log_prior, like, *hyper),
    }


def _potential(target: Target, params: PyTree) -> jax.Array:
    return target.potential(params)


def _estimate(target: Potential, params: PyTree, key: jax.Array) -> jax.Array:
    return target.estimate(params, key)


def _shape(function: Callable, *args) -> Any:
    return eqx.filter_eval_shape(_traced_once, function, *args)


@eqx.filter_jit
def _traced_once(function: Callable, *args) -> Any:
    """Functions may be Modules that hold data: jax would trace those again and again."""
    return jax.tree.map(
        lambda leaf: as_array(leaf, "What U(params) or log p returns"), function(*args)
    )


def check_beginning(begun: InitialState) -> None:
    """Refuse a start where the potential or its gradient is not finite, where it was looked at."""
    if begun.is_finite is None or begun.potential is None:
        return
    for chain in np.flatnonzero(~np.atleast_1d(begun.is_finite)):
        potential = np.atleast_1d(begun.potential)[chain]
        raise ValueError(
            f"The potential or its gradient is not finite where chain {chain} starts: the "
            f"potential is {potential}. Start elsewhere, or look for NaN in the data and log of "
            f"zero in the model."
        )
