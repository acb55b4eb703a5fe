"""Checks of what `sample` is given: each error names the input, what came, and the remedy."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from sghmc.adapt import Adaptation
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.core import runtime
from sghmc.core.checks import as_array, check_count
from sghmc.engine.chain import NEVER, returned_arrays
from sghmc.engine.devices import CHAIN, Placement
from sghmc.engine.layout import InitialPositions, Layout, num_bytes
from sghmc.engine.loop import InitialState
from sghmc.engine.options import RunOptions
from sghmc.gradients import Gradient
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import AbstractPosterior, StackedPosterior
from sghmc.posterior.target import Potential, Target
from sghmc.results.until import Until
from sghmc.samplers import Kernel, Sampler
from sghmc.types import PyTree


def check_options(options: RunOptions, target: Any) -> None:
    gradient, keep, averages = options.gradient, options.keep, options.averages
    posterior_axis, num_chains = options.posterior_axis, options.num_chains
    num_samples = 1 if options.num_samples is None else options.num_samples
    check_counts(num_samples, options.num_burnin, options.thinning, num_chains)
    if options.until is not None and not isinstance(options.until, Until):
        raise TypeError(f"until must be sghmc.Until(ess=400) or the like, not {options.until!r}.")
    if not isinstance(target, Target | StackedPosterior):
        raise TypeError(f"sample needs a Posterior or a Potential, not {target!r}.")
    if not isinstance(gradient, Gradient):
        raise TypeError(f"gradient must be sghmc.Minibatch(500) or the like, not {gradient!r}.")
    if keep is not None and not callable(keep):
        raise TypeError(f"keep must be a function of the position, not {keep!r}.")
    if averages is not None and not (
        isinstance(averages, dict)
        and all(map(callable, averages.values()))
        and all(isinstance(name, str) for name in averages)
    ):
        raise TypeError(f"averages must be a dict {{name: function}}, not {averages!r}.")
    if options.checkpoint is not None and not isinstance(options.checkpoint, Checkpoint):
        raise TypeError(f"checkpoint must be sghmc.Checkpoint(folder), not {options.checkpoint!r}.")
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


def check_sampler(sampler, options: RunOptions, target: Target | StackedPosterior) -> None:
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sample needs a sampler such as sghmc.SGHMC(…), not {sampler!r}.")
    if options.adapt is not None:
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


def check_fisher(gradient: Gradient, target: Target) -> None:
    """Check that the gradient is one whose noise EmpiricalFisher can estimate."""
    if target.is_stochastic:
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


def _check_adapt(adapt: Any, sampler: Sampler, num_burnin_steps: int) -> None:
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
    """Refuse a call from inside a compiled function: the host drives a run."""
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


def check_gibbs(gibbs: Any, target: Target, like: PyTree) -> None:
    """Check that Gibbs updates return hyperparameters like those of the target."""
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
    """Refuse what chains cannot start from; return one chain's parameters by shapes and dtypes."""
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


def check_functions(target: Target, like: PyTree) -> None:
    """Check that U, log-likelihood and log-prior return one real number."""
    try:
        shown = _returned_shapes(target, like)
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


def _returned_shapes(target: Target, like: PyTree) -> dict[str, Any]:
    """Return what the functions of a target return, by shapes and dtypes."""
    calls: dict[str, tuple[Any, ...]]
    if isinstance(target, Potential) and target.stochastic:
        key = jax.random.key(0)
        calls = {"The potential U(params, key)": (Potential.estimate, target, like, key)}
    elif not isinstance(target, AbstractPosterior):
        calls = {"The potential U(params)": (_potential, target, like)}
    else:
        hyper = () if target.hyper is None else (target.hyper,)
        calls = {
            "log_likelihood(params, example)": (
                *(target.log_likelihood, like, target.example),
                *hyper,
            ),
            "log_prior(params)": (target.log_prior, like, *hyper),
        }
    return {name: eqx.filter_eval_shape(_traced_once, *call) for name, call in calls.items()}


def _potential(target: Target, params: PyTree) -> jax.Array:
    return target.potential(params)


@eqx.filter_jit
def _traced_once(function: Callable, *args) -> Any:
    """Call a function, traced once: jax would trace Modules that hold data again and again."""
    return jax.tree.map(
        lambda leaf: as_array(leaf, "What U(params) or log p returns"), function(*args)
    )


def check_initial_states(begun: InitialState) -> None:
    """Refuse an initial position where the potential or its gradient is not finite."""
    assert begun.is_finite is not None
    assert begun.potential is not None
    for chain in np.flatnonzero(~np.atleast_1d(begun.is_finite)):
        potential = np.atleast_1d(begun.potential)[chain]
        raise ValueError(
            f"The potential or its gradient is not finite where chain {chain} starts: the "
            f"potential is {potential}. Start elsewhere, or look for NaN in the data and log of "
            f"zero in the model."
        )


_INFO_BYTES = 32
"""Bytes of diagnostics and of the clock with each draw of a chain, about."""
_MAX_DRAWS = 1 << 24
"""Kept draws of each chain of a run without `num_samples`: their mask has a byte for each."""
_COPIES_THAT_SURELY_FIT = 64
"""Copies of its parameters that no run needs: if so many fit, its state is not measured."""


def check_memory(
    kernel: Kernel, layout: Layout, options: RunOptions, hyper: PyTree, place: Placement
) -> None:
    """Refuse a run that cannot fit, before it is made."""
    num_chains, limit, accelerator = layout.num_chains, runtime.memory_bytes(), device_room(options)
    room = limit if accelerator is None else accelerator
    draws = (options.num_samples or 0) * _draw_bytes(layout, options, hyper)
    state = 0
    if room is not None and _COPIES_THAT_SURELY_FIT * num_chains * num_bytes(layout.like) > room:
        state = num_chains // place.size(CHAIN) * layout.state_bytes(kernel)
    if accelerator is not None and state > accelerator:
        raise MemoryError(_too_large(num_chains, "The state", state, "each device", accelerator))
    if options.checkpoint is not None:
        path = options.checkpoint.path
        free = runtime.free_bytes(path)
        if free is not None and draws > free and draws > free + runtime.folder_bytes(path):
            raise MemoryError(_too_many(layout, options, draws, "the checkpoint's disk", free))
        draws = 0
    if limit is None:
        return
    if draws > limit:
        raise MemoryError(_too_many(layout, options, draws, "this machine's memory", limit))
    num_devices = 1 if options.mesh is None else len(options.mesh.local_devices)
    on_host = draws + (num_devices * state if accelerator is None else 0)
    if on_host > limit:
        what = "The state" if draws == 0 else "The state and the draws"
        raise MemoryError(_too_large(num_chains, what, on_host, "this machine", limit))


def _draw_bytes(layout: Layout, options: RunOptions, hyper: PyTree) -> int:
    """Count the bytes of a draw of all chains, without what `info` and `trace` add."""
    kept = layout.like
    if options.keep is not None:
        kept = eqx.filter_eval_shape(returned_arrays, "keep", options.keep, layout.like, hyper)
    return layout.num_chains * (num_bytes(kept) + num_bytes(hyper))


def max_draws(layout: Layout, options: RunOptions, hyper: PyTree) -> int:
    """Return how many kept draws a run may have that is told when to end: half of the room."""
    room = runtime.memory_bytes()
    if options.checkpoint is not None:
        room = runtime.free_bytes(options.checkpoint.path)
    of_info = _INFO_BYTES * layout.num_chains
    fitting = (room or math.inf) / 2 / (of_info + _draw_bytes(layout, options, hyper))
    within = (NEVER - 1) // options.thinning - options.num_burnin
    return int(max(1, min(fitting, within, _MAX_DRAWS)))


def _too_large(num_chains: int, what: str, need: int, where: str, limit: int) -> str:
    return (
        f"{what} of {num_chains} chains of this size need {shown(need)} of memory, but {where} has "
        f"{shown(limit)}: run fewer chains at a time, take parameters in bfloat16 with "
        f"StochasticRounding, keep fewer draws, or spread the run, mesh= and sharding=."
    )


def _too_many(layout: Layout, options: RunOptions, need: int, where: str, limit: int) -> str:
    disk = "" if options.checkpoint else ", write them to a disk, checkpoint=sghmc.Checkpoint(path)"
    return (
        f"{layout.num_chains} chains of {options.num_samples:,} draws need {shown(need)}, but "
        f"{where} has room for {shown(limit)}: keep less of a draw, keep=, only their means, "
        f"averages= with keep=lambda params: (), or fewer of them, thinning=…{disk}."
    )


def device_room(options: RunOptions) -> int | None:
    """Return the least memory of this process's accelerators; None where they are CPUs."""
    devices = jax.local_devices()[:1] if options.mesh is None else options.mesh.local_devices
    known = [runtime.device_bytes(device) for device in devices]
    return min((size for size in known if size is not None), default=None)


def shown(size: float) -> str:
    """Return a number of bytes as people say it."""
    if size < 1000:
        return f"{size:,.0f} bytes"
    power = min(4, int(math.log10(size) / 3 + 1e-9))
    number = size / 1000**power
    rounded = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{rounded} {['kB', 'MB', 'GB', 'TB'][power - 1]}"
