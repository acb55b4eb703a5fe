"""run(): checks what it is given, makes the program of a run, and has the host run it."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from sghmc.checkpoint import fingerprint
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.checkpoint.folder import RunFolder, open_folder
from sghmc.core import runtime
from sghmc.core.signals import Interruption
from sghmc.engine import checks
from sghmc.engine.agreement import check_agreement
from sghmc.engine.chain import RunSpec, chain_keys, with_shared_gradients
from sghmc.engine.devices import CHAIN, Placement
from sghmc.engine.driver import Driver
from sghmc.engine.footprint import check_memory
from sghmc.engine.init import InitialPositions
from sghmc.engine.layout import Layout
from sghmc.engine.mesh import placement_for
from sghmc.engine.options import RunOptions
from sghmc.engine.prefetch import Reader
from sghmc.engine.program_hash import trace_run
from sghmc.gradients import GradientEstimator
from sghmc.posterior.posterior import StackedPosterior
from sghmc.posterior.target import Target
from sghmc.results.prediction import Origin
from sghmc.results.samples import Samples
from sghmc.samplers import Kernel, Sampler, fisher_of
from sghmc.samplers.settings import value_at
from sghmc.types import PyTree

_CHUNK = 65_536
"""Draws whose step numbers are looked at at once: those of all draws would be a large array."""


class Parts(NamedTuple):
    """What a run is made of, apart from its estimator, whose making may take a while."""

    one: Target
    place: Placement
    start: InitialPositions
    layout: Layout
    is_kept: Bool[np.ndarray, " draw"]
    kernel: Kernel


def run(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler,
    init: PyTree,
    options: RunOptions,
) -> Samples:
    """Draw from a target with a sampler: `sample` without "auto"."""
    check_agreement(key, target, sampler, init, options)
    parts = checked(key, target, sampler, init, options)
    place, is_kept = parts.place, parts.is_kept
    check_memory(parts.kernel, parts.layout, options, parts.one.hyper, place.size(CHAIN))
    identity = functools.partial(options.identity, key, target, sampler, init)
    with Interruption(is_patient=False), _opened(options.checkpoint, identity) as folder:
        program = program_of(parts, key, target, options)
        if folder is not None:
            prepared = _prepared_outside(program, sampler, options)
            folder.identify({"steps": trace_run(program), "draws": is_kept} | prepared)
        num_steps = len(is_kept) * options.thinning
        origin = _origin(target, sampler, program.estimator, options, num_steps)
        with _reading(program, sampler, len(is_kept), place) as reader:
            host = Driver(program, parts.start, is_kept, origin, folder, reader, place)
            return host.run(progress=options.progress, throw=options.throw)


def checked(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler,
    init: PyTree,
    options: RunOptions,
) -> Parts:
    """The parts of a run, after all that can be refused by looking at them."""
    checks.check_outside(key, init)
    checks.check_key(key)
    checks.check_options(options, target)
    checks.check_sampler(sampler, options, target)
    place = placement_for(options, target)
    runtime.avoid_preemption()
    like = checks.check_init(init, options.init_axis, options.num_chains)
    start, layout = (
        InitialPositions(init, options.init_axis),
        place.layout(like, options.num_chains),
    )
    one = target[0] if isinstance(target, StackedPosterior) else target
    checks.check_functions(one, like)
    checks.check_gibbs(options.gibbs, one, like)
    is_kept = _kept_draws(sampler, options)
    kernel = sampler.prepare(like, len(is_kept) * options.thinning)
    checks.check_fisher(fisher_of(kernel), options.gradient, one)
    checks.check_spread(sampler, kernel, layout)
    return Parts(one, place, start, layout, is_kept, kernel)


def program_of(
    parts: Parts, key: jax.Array, target: Target | StackedPosterior, options: RunOptions
) -> RunSpec:
    """The program of a run, with its estimator."""
    estimator = _prepare(options, target, parts.start)
    return RunSpec(
        target=target.chains if isinstance(target, StackedPosterior) else target,
        kernel=parts.kernel,
        estimator=estimator,
        gibbs=options.gibbs,
        adapt=options.adapt,
        keep=options.keep,
        averages=dict(options.averages or {}),
        trace=options.trace,
        keys=_keys(key, options.num_chains, estimator),
        layout=parts.layout,
        thinning=options.thinning,
        has_info=options.info,
        is_stacked=isinstance(target, StackedPosterior),
    )


def _prepared_outside(
    program: RunSpec, sampler: Sampler, options: RunOptions
) -> dict[str, list[Any]]:
    """Return the arrays that `prepare` of a user's own classes made, by what prepared them.

    A traced program has their shapes alone.
    """
    parts = {
        "sampler": (sampler, program.kernel),
        "gradient": (options.gradient, program.estimator),
    }
    return {
        f"arrays of the {name}": jax.tree.leaves(eqx.filter(prepared, eqx.is_array))
        for name, (settings, prepared) in parts.items()
        if not fingerprint.is_described(settings)
    }


@contextlib.contextmanager
def _opened(
    checkpoint: Checkpoint | None, identity: Callable[[], dict[str, Any]]
) -> Iterator[RunFolder | None]:
    """The checkpoint's folder, which belongs to a run of this identity; None without one."""
    if checkpoint is None:
        yield None
    else:
        with open_folder(checkpoint, identity()) as folder:
            folder.check()
            yield folder


@contextlib.contextmanager
def _reading(
    program: RunSpec, sampler: Sampler, num_draws: int, place: Placement
) -> Iterator[Reader | None]:
    """What reads batches for a run, where the data are a source; else None."""
    reader = Reader.of(program, sampler, num_draws, place)
    try:
        yield reader
    finally:
        if reader is not None:
            reader.close()


def _prepare(
    options: RunOptions, target: Target | StackedPosterior, start: InitialPositions
) -> GradientEstimator:
    """The estimator of all chains; with a chain axis where each has a posterior of its own."""

    def of_chain(target: Target, chain: int) -> GradientEstimator:
        return options.gradient.prepare(target, start.of_chain(chain))

    if not isinstance(target, StackedPosterior):
        return of_chain(target, 0)
    chains = [of_chain(target[i], i) for i in range(target.num_chains)]
    checks.check_shared(chains[0])
    arrays, rest = zip(*(eqx.partition(each, eqx.is_array) for each in chains), strict=True)
    return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest[0])


def _keys(
    key: jax.Array, num_chains: int, estimator: GradientEstimator
) -> UInt32[Array, "chain stream 3"]:
    of_chains = chain_keys(key, num_chains)
    return with_shared_gradients(of_chains) if estimator.is_shared else of_chains


def _kept_draws(sampler: Sampler, options: RunOptions) -> Bool[np.ndarray, " draw"]:
    """Of every draw of the run, whether it is kept: the run ends with the last that is."""
    num_burnin, num_samples, thinning = options.num_burnin, options.num_samples, options.thinning
    num_draws = num_burnin + num_samples
    while True:
        is_kept = np.empty(num_draws, bool)
        for first in range(0, num_draws, _CHUNK):
            stop = min(first + _CHUNK, num_draws)
            steps = np.arange((first + 1) * thinning - 1, stop * thinning, thinning)
            is_kept[first:stop] = sampler.is_kept(steps)
        is_kept[:num_burnin] = False
        num_kept = np.count_nonzero(is_kept)
        if num_kept == num_samples and is_kept[-1]:
            return is_kept
        if num_kept >= num_samples:
            return is_kept[: np.flatnonzero(is_kept)[num_samples - 1] + 1]
        num_draws *= 2
        checks.check_counts(num_draws - num_burnin, num_burnin, thinning, 1)


def _origin(
    target: Target | StackedPosterior,
    sampler: Sampler,
    estimator: GradientEstimator,
    options: RunOptions,
    num_steps: int,
) -> Origin | None:
    """What made the draws, at the last step's temperature; None where chains differ in it."""
    if isinstance(target, StackedPosterior):
        return None
    return Origin(
        target=target,
        sampler=sampler,
        gradient=options.gradient,
        estimator=estimator,
        temperature=float(value_at(sampler.dynamics.temperature, num_steps - 1)),
        is_adapted=options.adapt is not None,
        keeps_positions=options.keep is None,
    )
