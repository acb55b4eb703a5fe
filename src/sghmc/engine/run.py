"""run(): checks its arguments, prepares the fixed parts of a run, and has the driver run it."""

import contextlib
import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from sghmc.checkpoint import fingerprint
from sghmc.checkpoint.folder import Save, open_folder
from sghmc.core import runtime
from sghmc.core.checks import check_count, value_at
from sghmc.core.signals import Interruption
from sghmc.engine import checks
from sghmc.engine.agreement import check_agreement
from sghmc.engine.chain import RunSpec, chain_keys, with_shared_gradients
from sghmc.engine.devices import Placement
from sghmc.engine.driver import Driver, OneDevice
from sghmc.engine.layout import InitialPositions, Layout
from sghmc.engine.mesh import placement_for
from sghmc.engine.options import RunOptions, why_not_longer
from sghmc.engine.prefetch import Reader
from sghmc.engine.program_hash import trace_run
from sghmc.posterior.posterior import StackedPosterior
from sghmc.posterior.sources import DataError
from sghmc.posterior.target import Target
from sghmc.results.prediction import Origin
from sghmc.results.samples import (
    DivergenceError,
    GradientNoiseError,
    Samples,
)
from sghmc.results.selection import joined, thinned
from sghmc.samplers import Kernel, LazyRows, Sampler, fisher_of
from sghmc.types import PyTree

_MAX_STATE_BYTES = 1 << 30
"""Largest state of a run, all chains together, that is kept with its draws for `Samples.more`."""
_CHUNK_DRAWS = 65_536
"""Draws whose step numbers are computed at once: those of all draws would be a large array."""


class CheckedRun(NamedTuple):
    """Parts of a run but its gradient estimator, whose making may take a while."""

    one: Target
    place: Placement
    positions: InitialPositions
    layout: Layout
    is_kept: Bool[np.ndarray, " draw"]
    kernel: Kernel


@dataclasses.dataclass(frozen=True, eq=False)
class Continuation:
    """Goes on with a run that has ended: `Samples.more` calls it.

    `state` is that of the run's end, on the host; a run with a checkpoint has it there. `refusal`
    says why the run cannot go on. Of the run's draws every `every`-th is in the samples, which
    `finish` completes.
    """

    arguments: tuple[jax.Array, Target | StackedPosterior, Sampler, PyTree]
    options: RunOptions
    spec: RunSpec
    state: Save | None
    num_kept: int
    refusal: str | None
    every: int = 1
    finish: Callable[[Samples], Samples] | None = None

    def thinned(self, every: int) -> "Continuation":
        return dataclasses.replace(self, every=every * self.every)

    def __call__(self, samples: Samples, num_samples: int) -> Samples:
        """Return these samples with so many more draws of each chain."""
        check_count(num_samples, "n")
        if self.refusal is not None:
            raise ValueError(f"The run cannot go on: {self.refusal}.")
        total = (self.num_kept // self.every + num_samples) * self.every
        options = dataclasses.replace(self.options, num_samples=total, until=None)
        if self.state is None:
            found = thinned(run(*self.arguments, options), self.every)
        else:
            try:
                new = run(*self.arguments, options, self)
            except (DataError, DivergenceError, GradientNoiseError) as error:
                error.samples = joined(samples, error.samples)
                raise
            first = self.num_kept % self.every
            found = joined(samples, thinned(new, self.every, first))
        return found if self.finish is None else self.finish(found)


def run(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler,
    init: PyTree,
    options: RunOptions,
    earlier: Continuation | None = None,
) -> Samples:
    """Draw from a target with a sampler: `sample` without "auto".

    After an `earlier` run in memory, the draws are those that follow its own.
    """
    began = time.perf_counter()
    with Interruption(is_patient=False), contextlib.ExitStack() as stack:
        if runtime.is_multiprocess():
            check_agreement(key, target, sampler, init, options)
        arguments = functools.partial(_fitting, key, target, sampler, init, options)
        parts = runtime.together(arguments, "The check of arguments")
        folder, reader, origin, is_kept = None, None, None, parts.is_kept
        if options.checkpoint is not None:
            identity = options.identity(key, target, sampler, init)
            folder = stack.enter_context(open_folder(options.checkpoint, identity))
            folder.check()
        spec = prepared(parts, key, target, options) if earlier is None else earlier.spec
        if earlier is not None and not eqx.tree_equal(parts.kernel, spec.kernel):
            raise ValueError(
                f"The run cannot go on: {sampler.name} prepares other settings for a longer run."
            )
        if folder is not None:
            arrays = _arrays_of_user_classes(spec, sampler, options)
            if not is_kept[options.num_burnin :].all():
                arrays |= {"draws": is_kept}
            folder.identify({"steps": trace_run(spec)} | arrays)
        if not isinstance(target, StackedPosterior):
            last_step = len(is_kept) * options.thinning - 1
            origin = Origin(
                target=target,
                sampler=sampler,
                gradient=options.gradient,
                estimator=spec.estimator,
                temperature=float(value_at(sampler.dynamics.temperature, last_step)),
                is_adapted=options.adapt is not None,
                keeps_positions=options.keep is None,
            )
        if spec.target.source is not None and spec.estimator.takes_rows:
            reader = Reader(spec, sampler, len(is_kept), parts.place)
            stack.enter_context(contextlib.closing(reader))
        driver = Driver(spec, parts.positions, is_kept, origin, folder, reader, parts.place)
        if options.until is not None:
            driver.until = options.until.later(time.perf_counter() - began)
        driver.before = None if earlier is None else earlier.state
        driver.start()
        samples = driver.run(progress=options.progress, throw=options.throw)
        refusal, state = why_not_longer(sampler, target), None
        if driver.is_lost:
            refusal = "its data failed, and the state went with them"
        elif parts.layout.num_chains * parts.layout.state_bytes(parts.kernel) > _MAX_STATE_BYTES:
            refusal = refusal or "its state is too large to be kept with the draws"
        elif folder is None and refusal is None:
            state = driver.state()
            state.state = jax.device_get(state.state)
        num_kept = int(np.count_nonzero(is_kept[: driver.done]))
        is_full = options.num_samples is None and driver.done == len(is_kept)
        if is_full and options.until and not (driver.watch.is_met or options.until.gradients):
            warnings.warn(
                f"The run ended after {num_kept} draws of each chain, all there is room for, "
                f"before {options.until}: keep less of a draw, keep=, or take more thinning.",
                stacklevel=3,
            )
        arguments = key, target, sampler, init
        going_on = Continuation(arguments, options, spec, state, num_kept, refusal)
        return dataclasses.replace(samples, continuation=going_on)


def _fitting(key, target, sampler, init, options: RunOptions) -> CheckedRun:
    """Check that everything can be made, and fits into memory."""
    parts = checked(key, target, sampler, init, options)
    checks.check_memory(parts.kernel, parts.layout, options, parts.one.hyper, parts.place)
    return parts


def checked(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler,
    init: PyTree,
    options: RunOptions,
) -> CheckedRun:
    """Check everything that can be refused before it is made, and return the parts of the run."""
    num_chains = options.num_chains
    checks.check_outside(key, init)
    checks.check_key(key)
    checks.check_options(options, target)
    checks.check_sampler(sampler, options, target)
    place, over = OneDevice(), None
    if options.mesh is not None or options.sharding is not None or runtime.is_multiprocess():
        place = over = placement_for(options, target)
    if runtime.is_multiprocess():
        runtime.avoid_preemption()
    like = checks.check_init(init, options.init_axis, num_chains)
    layout = Layout.of(like, num_chains, None if over is None else over.shardings(like))
    one = target[0] if isinstance(target, StackedPosterior) else target
    checks.check_functions(one, like)
    if options.gibbs is not None:
        checks.check_gibbs(options.gibbs, one, like)
    num_samples = options.num_samples
    if num_samples is None:
        num_samples = checks.max_draws(layout, options, one.hyper)
    is_kept = _kept_draws(sampler, options, num_samples)
    kernel = sampler.prepare(like, len(is_kept) * options.thinning)
    if options.until is not None and options.until.gradients is not None:
        per_draw = options.thinning * num_chains * kernel.num_gradients
        is_kept = is_kept[: options.until.max_draws(per_draw)]
        if not is_kept.any():
            raise ValueError(
                f"{options.until} allows {len(is_kept)} draws at {per_draw} gradients each, all "
                f"chains together, and none of them is kept: allow more, or take less burn-in."
            )
        is_kept = is_kept[: np.flatnonzero(is_kept)[-1] + 1]
    if fisher_of(kernel) is not None:
        checks.check_fisher(options.gradient, one)
    if isinstance(kernel, LazyRows) and layout.shardings is not None:
        raise ValueError(
            f"{sampler.name} moves single rows of parameters, but the mesh spreads these over "
            f"several devices: leave the axis 'model' out, or give the sampler inside of it."
        )
    positions = InitialPositions(init, options.init_axis)
    return CheckedRun(one, place, positions, layout, is_kept, kernel)


def prepared(
    parts: CheckedRun, key: jax.Array, target: Target | StackedPosterior, options: RunOptions
) -> RunSpec:
    """Prepare the gradient estimator, and return all fixed parts of the run."""
    is_stacked, gradient = isinstance(target, StackedPosterior), options.gradient
    if not isinstance(target, StackedPosterior):
        estimator = gradient.prepare(target, parts.positions.of_chain(0))
    else:
        of_chains = [
            gradient.prepare(target[i], parts.positions.of_chain(i))
            for i in range(target.num_chains)
        ]
        if of_chains[0].is_shared:
            raise ValueError(
                "Batches cannot be shared by chains whose posteriors have data of their own: take "
                "shared=False with Posterior.stack."
            )
        arrays, rest = zip(*(eqx.partition(each, eqx.is_array) for each in of_chains), strict=True)
        estimator = eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest[0])
    keys = chain_keys(key, options.num_chains)
    return RunSpec(
        target=target.chains if isinstance(target, StackedPosterior) else target,
        kernel=parts.kernel,
        estimator=estimator,
        gibbs=options.gibbs,
        adapt=options.adapt,
        keep=options.keep,
        averages=dict(options.averages or {}),
        trace=options.trace,
        keys=with_shared_gradients(keys) if estimator.is_shared else keys,
        layout=parts.layout,
        thinning=options.thinning,
        has_info=options.info,
        is_stacked=is_stacked,
    )


def _arrays_of_user_classes(
    spec: RunSpec, sampler: Sampler, options: RunOptions
) -> dict[str, list[Any]]:
    """Return the arrays that `prepare` of a user's own classes made, by what prepared them.

    A traced program has their shapes alone.
    """
    parts = {"sampler": (sampler, spec.kernel), "gradient": (options.gradient, spec.estimator)}
    return {
        f"arrays of the {name}": jax.tree.leaves(eqx.filter(made, eqx.is_array))
        for name, (settings, made) in parts.items()
        if not fingerprint.is_described(settings)
    }


def _kept_draws(
    sampler: Sampler, options: RunOptions, num_samples: int
) -> Bool[np.ndarray, " draw"]:
    """Return a mask over all draws: True where a draw is kept. The run ends at the last True."""
    num_burnin, thinning = options.num_burnin, options.thinning
    num_draws = num_burnin + num_samples
    while True:
        is_kept = np.empty(num_draws, bool)
        for first in range(0, num_draws, _CHUNK_DRAWS):
            stop = min(first + _CHUNK_DRAWS, num_draws)
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
