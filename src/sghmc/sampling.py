"""sample(): the one call that draws."""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from typing import Literal

import jax

from sghmc.adapt import Adaptation
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.core import runtime
from sghmc.engine import checks
from sghmc.engine.devices import Rules
from sghmc.engine.options import RunOptions, hold_fixed
from sghmc.engine.run import run
from sghmc.gradients import FullBatch, Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import StackedPosterior
from sghmc.posterior.target import Target
from sghmc.results.samples import Samples
from sghmc.results.selection import thinned
from sghmc.results.until import Until
from sghmc.samplers import Sampler
from sghmc.tuning import result
from sghmc.tuning.result import Tuned
from sghmc.tuning.tune import Engine, tune
from sghmc.types import PyTree

_BATCH_SIZE = 500
"""Examples in a step of "auto", unless a `gradient` says how many."""
_NUM_SAMPLES = 1000
"""Kept draws of each chain, unless `num_samples` or `until` say otherwise."""
# Longer runs of "auto" if the Monte Carlo error of the first is too large.
_MAX_EXTENSIONS = 2
_ENGINES: dict[str, Engine] = {"auto": "auto", "auto:exact": "exact", "auto:minibatch": "minibatch"}


def sample(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler | Literal["auto", "auto:exact", "auto:minibatch"],
    init: PyTree,
    *,
    gradient: Gradient | None = None,
    num_samples: int | None = None,
    num_burnin: int = 0,
    thinning: int | None = None,
    num_chains: int = 1,
    init_axis: int | None = None,
    posterior_axis: int | None = None,
    trainable: PyTree | None = None,
    keep: Callable[..., PyTree] | None = None,
    averages: dict[str, Callable[..., PyTree]] | None = None,
    trace: Callable[[dict[str, PyTree]], PyTree] | None = None,
    gibbs: Gibbs | None = None,
    adapt: Adaptation | None = None,
    info: bool = True,
    progress: bool = True,
    checkpoint: Checkpoint | None = None,
    mesh: jax.sharding.Mesh | None = None,
    sharding: Rules | None = None,
    throw: bool = True,
    until: Until | None = None,
) -> Samples:
    """Draw from a posterior or a potential.

    | argument | meaning |
    | --- | --- |
    | `key` | a typed jax key, `jax.random.key(0)`: the same key gives the same draws |
    | `sampler` | `SGHMC(…)` or the like; `"auto"`: what `tune` chooses, from near `init`; |
    | | `"auto:exact"` and `"auto:minibatch"` name the engine |
    | `init` | where chains start; with `init_axis=0` it carries a leading chain axis |
    | `posterior_axis` | 0: the target is `Posterior.stack([…])`, one posterior for each chain |
    | `trainable` | which leaves of `init` move, a filter as equinox has them; the rest is held |
    | `gradient` | `FullBatch()` (default), `Minibatch(500)`, `ControlVariate(500)`, … |
    | `num_samples` | kept draws of each chain; a draw is `thinning` sampler steps. Default 1000, |
    | | or with `until` as many as it takes |
    | `thinning` | default 1; with `"auto"`, enough that neighbouring draws are nearly independent |
    | `num_burnin` | draws discarded first |
    | `keep` | function of a position: what is stored of a draw; `lambda p: ()` stores nothing |
    | `averages` | functions of a position: their means over kept draws, in constant memory |
    | `trace` | function of the averages so far, stored with each draw: how an average settles |
    | `gibbs` | exact updates of hyperparameters between steps |
    | `adapt` | changes of the sampler during burn-in |
    | `info` | False: nothing is known of a draw but whether it is finite, not even its potential |
    | `progress` | show steps per second, time left and health |
    | `checkpoint` | `Checkpoint(path)`: save state and draws there, and go on from there |
    | `mesh` | devices to spread the run over: axes named among "chain", "data" and "model" |
    | `sharding` | rules (pattern of a parameter's path, `PartitionSpec`): how a mesh cuts them |
    | `throw` | raise `DivergenceError` when a chain is not finite, instead of flagging its draws |
    | `until` | `Until(ess=400, seconds=60)`: end at so many effective draws, at a Monte Carlo |
    | | error, a number of gradients or seconds, or at `num_samples`, whichever comes first |

    `keep` and `averages` take (position, hyper) where the posterior has hyperparameters. Ctrl-C
    returns what was drawn so far; `samples.more(n)` goes on.

    `trainable` is True, False or a function of a leaf, for every leaf of `init` or a prefix of it.
    Chains move `moving, fixed = eqx.partition(init, trainable)`: draws, `init_axis` and settings
    like a mass have the structure of `moving`. What is fixed exists once for all chains, and in no
    draw. The target's functions, `keep`, `averages` and Gibbs updates see all parameters,
    `eqx.combine(moving, fixed)`: so one puts a draw together, too.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(2),
    ...     num_samples=100, num_chains=4, progress=False,
    ... )
    >>> samples.positions.shape
    (4, 100, 2)
    """
    options = RunOptions(
        gradient=FullBatch() if gradient is None else gradient,
        num_samples=_NUM_SAMPLES if num_samples is None and until is None else num_samples,
        num_burnin=num_burnin, num_chains=num_chains,
        thinning=1 if thinning is None else thinning,
        init_axis=init_axis, posterior_axis=posterior_axis,
        keep=keep, averages=averages, trace=trace, gibbs=gibbs, adapt=adapt, info=info,
        progress=progress, checkpoint=checkpoint, mesh=mesh, sharding=sharding, throw=throw,
        until=until,
    )  # fmt: skip
    if trainable is not None:
        target, init, options = hold_fixed(target, init, trainable, options)
    if isinstance(sampler, Sampler):
        return run(key, target, sampler, init, options)
    if sampler not in _ENGINES:
        raise TypeError(
            f'sample needs a sampler such as sghmc.SGHMC(…), or "auto", not {sampler!r}.'
        )
    if isinstance(target, StackedPosterior):
        raise TypeError('"auto" takes one posterior at a time, not a stack of them.')
    if target.is_stochastic:
        raise TypeError(
            '"auto" searches the mode by exact values of the potential, and a stochastic one has '
            "none: give a sampler, such as SGHMC(…, gradient_noise=EmpiricalFisher())."
        )
    began = time.perf_counter()
    seconds = None if until is None else until.seconds
    tuned = _tuned(key, target, init, options, sampler)
    if until is not None:
        options = dataclasses.replace(options, until=until.later(time.perf_counter() - began))
    samples = _drawn(jax.random.fold_in(key, 1), target, tuned, options, thinning)
    precision = result.precision(samples)
    has_end = until is not None and (options.num_samples is None or until != Until(seconds=seconds))
    for attempt in range(_MAX_EXTENSIONS):
        left = None if seconds is None else seconds - (time.perf_counter() - began)
        factor = result.extension_factor(tuned.report, precision, samples, left)
        # By the clock of process 0, since all must draw again together.
        factor = json.loads(runtime.text_of_leader(functools.partial(json.dumps, factor)))
        if factor is None or thinning is not None or checkpoint is not None or has_end:
            break
        tuned = dataclasses.replace(tuned, thinning=math.ceil(factor * tuned.thinning))
        samples = _drawn(jax.random.fold_in(key, 2 + attempt), target, tuned, options, thinning)
        precision = result.precision(samples)
    return _reported(samples, tuned.report)


def _reported(samples: Samples, report: result.TuneReport) -> Samples:
    """Return the samples with their tuning's report, which later draws renew."""
    going_on = samples.continuation
    if going_on is not None:
        finish = functools.partial(_reported, report=report)
        going_on = dataclasses.replace(going_on, finish=finish)
    found = result.with_precision(report, result.precision(samples), samples)
    return dataclasses.replace(samples, tuning=found, continuation=going_on)


def _drawn(
    key: jax.Array, target: Target, tuned: Tuned, options: RunOptions, thinning: int | None
) -> Samples:
    """Run with the tuned settings, and with the tuned thinning where none is given."""
    num_samples, num_burnin, every = options.num_samples, options.num_burnin, 1
    chosen = {"gradient": tuned.gradient, "init_axis": 0}
    if thinning is None and tuned.report.engine == "exact":
        # Pilots keep every trajectory: so does the run, which then is the same program. Where its
        # draws are judged on the way, all of them are returned.
        every = 1 if num_samples is None else tuned.thinning
        chosen |= {"num_samples": num_samples and every * num_samples}
        chosen |= {"num_burnin": tuned.thinning * num_burnin}
    elif thinning is None:
        chosen["thinning"] = tuned.thinning
    options = dataclasses.replace(options, **chosen)
    return thinned(run(key, target, tuned.sampler, tuned.init, options), every)


def _tuned(
    key: jax.Array,
    target: Target,
    init: PyTree,
    options: RunOptions,
    sampler: Literal["auto", "auto:exact", "auto:minibatch"],
) -> Tuned:
    """Return what `tune` chooses for "auto", or chose before where a checkpoint has it."""
    has_axis = options.init_axis is not None or options.posterior_axis is not None
    if has_axis or options.adapt is not None:
        raise ValueError(
            '"auto" chooses starts and settings itself, for one posterior: give one init, and no '
            "init_axis, posterior_axis or adapt; or call sghmc.tune first."
        )
    whole = (getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(target))
    if not all(whole):
        raise ValueError(
            '"auto" tunes in process 0, which has only a part of these arrays: give every process '
            "all rows, or a source that all can read; or call sghmc.tune in a program of one "
            "process, and sample with its sampler in all."
        )
    checks.check_options(options, target)
    seconds = None if options.until is None else options.until.seconds
    tuning = functools.partial(
        tune,
        jax.random.fold_in(key, 0),
        target,
        init,
        batch_size=options.gradient.batch_rows or _BATCH_SIZE,
        num_chains=options.num_chains,
        gibbs=options.gibbs,
        engine=_ENGINES[sampler],
        num_samples=options.num_samples or _NUM_SAMPLES,
        until=None if seconds is None else Until(seconds=seconds),
        progress=options.progress,
    )
    if options.checkpoint is not None:
        identity = options.identity(key, target, sampler, init)
        tuning = functools.partial(result.recall, options.checkpoint, identity, tuning)
    return result.tune_on_leader(init, tuning)
