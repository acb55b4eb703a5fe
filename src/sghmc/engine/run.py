"""run(): checks what it is given, runs the compiled loop block by block, gathers the draws."""

import contextlib
import ctypes
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from sghmc import theory
from sghmc.adapt import Adaptation
from sghmc.checkpoint.checkpoint import Checkpoint, Folder, Save
from sghmc.checkpoint.draws import Memory, Store
from sghmc.checkpoint.multiprocess import JointFolder
from sghmc.core import processes, random
from sghmc.core import running_sum as keeping
from sghmc.engine import checks, loop
from sghmc.engine.layout import Layout
from sghmc.engine.placement import Alone, Placement, placement
from sghmc.engine.program import GRADIENT, NEVER, NUM_STREAMS, Carry, DrawInfo, Program, Record
from sghmc.engine.progress import Bar, Interruption
from sghmc.engine.reading import Reader
from sghmc.gradients.base import Estimator, FullBatch, Gradient
from sghmc.gradients.fisher import RunningNoise
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import StackedPosterior, Target
from sghmc.posterior.source import DataError
from sghmc.results.health import Origin
from sghmc.results.samples import DivergenceError, GradientNoiseError, Growth, Info, Samples
from sghmc.samplers.base import Sampler
from sghmc.types import PyTree

_BLOCK_SECONDS = 0.5
_BLOCK_BYTES = 1 << 23
_CHUNK = 65_536
"""Draws whose numbers are looked at at once."""
_LONG_COMPILATION = 1.0
"""Seconds from which a first block was mostly compilation of a large program."""


def run(
    key: jax.Array,
    target: Target | StackedPosterior,
    sampler: Sampler,
    init: PyTree,
    *,
    gradient: Gradient | None = None,
    num_samples: int = 1000,
    num_burnin: int = 0,
    thinning: int = 1,
    num_chains: int = 1,
    init_axis: int | None = None,
    posterior_axis: int | None = None,
    keep: Callable[..., PyTree] | None = None,
    averages: dict[str, Callable[..., PyTree]] | None = None,
    trace: Callable[[dict[str, PyTree]], PyTree] | None = None,
    gibbs: Gibbs | None = None,
    adapt: Adaptation | None = None,
    info: bool = True,
    progress: bool = True,
    checkpoint: Checkpoint | None = None,
    mesh: jax.sharding.Mesh | None = None,
    throw: bool = True,
    room: int | None = None,
) -> Samples:
    """Draw from a target with a sampler: `sample`, whose arguments these are, without "auto".

    The compiled loop has room for `room` draws: so runs of different lengths share it. Without
    `room`, for all.
    """
    arguments = {name: value for name, value in locals().items() if name != "room"}
    checks.check_key(key)
    checks.check_counts(num_samples, num_burnin, thinning, num_chains)
    gradient = FullBatch() if gradient is None else gradient
    checks.check_types(target, sampler, gradient, keep, averages)
    checks.check_axis(target, posterior_axis, num_chains)
    checks.check_adapt(adapt, sampler, num_burnin * thinning)
    place = placement(mesh, num_chains, target, gradient)
    processes.be_unhurried()
    is_stacked = isinstance(target, StackedPosterior)
    positions = checks.start_positions(init, init_axis, num_chains)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), positions)
    one = target[0] if is_stacked else target
    checks.check_functions(one, like)
    checks.check_gibbs(gibbs, one, like)
    with _opened(checkpoint, arguments) as folder:
        estimator = _prepare(gradient, target, positions)
        checks.check_shared(estimator, is_stacked)
        is_kept = _kept_draws(sampler, num_burnin, num_samples, thinning)
        num_steps = len(is_kept) * thinning
        program = Program(
            target=target.chains if is_stacked else target,
            kernel=sampler.prepare(like, num_steps),
            estimator=estimator,
            gibbs=gibbs,
            adapt=adapt,
            keep=keep,
            averages=dict(averages or {}),
            trace=trace,
            keys=_shared(chain_keys(key, num_chains), estimator),
            layout=Layout.of(like, num_chains),
            thinning=thinning,
            has_info=info,
            is_stacked=is_stacked,
        )
        checks.check_fisher(program.kernel.fisher, gradient)
        origin = None if is_stacked else _origin(program, sampler, gradient, num_steps)
        checks.check_source(program, sampler)
        with _reading(program, sampler, len(is_kept), place) as reader:
            run = _Run(program, positions, is_kept, origin, folder, reader, place, room)
            return run.finish(progress, throw)


@contextlib.contextmanager
def _opened(checkpoint: Checkpoint | None, arguments: dict[str, Any]) -> Iterator[Folder | None]:
    """The checkpoint's folder, which belongs to these arguments; None without one."""
    if checkpoint is None:
        yield None
    else:
        kind = JointFolder if processes.are_many() else Folder
        with checkpoint.open(arguments, kind) as folder:
            folder.check()
            yield folder


@contextlib.contextmanager
def _reading(program: Program, sampler: Sampler, num_draws: int, place: Placement):
    """What reads batches for a run, where the data are a source; else None."""
    reader = Reader.of(program, sampler, num_draws, place)
    try:
        yield reader
    finally:
        if reader is not None:
            reader.close()


class _Draws(NamedTuple):
    """What is stored of draws: the loop's records, and when they had come. Names files."""

    positions: PyTree
    hyper: PyTree
    trace: PyTree
    info: DrawInfo
    clock: np.ndarray


class _Run:
    """The host's side of a run: how far it is, and the draws it has gathered.

    `is_kept` says of every draw whether it is kept: not in burn-in.
    """

    store: Store

    def __init__(
        self, program: Program, positions, is_kept: np.ndarray, origin, folder, reader, place, room
    ):
        self.origin, self.folder = origin, folder
        self.reader: Reader | None = reader
        self.place: Placement = place
        self.room: int | None = room
        if reader is not None:
            if folder is not None and folder.has_saves:
                reader.check_start()
            program = reader.program_at(0)[0]
        self.program = program = place.place(program)
        self.is_kept, self.total = is_kept, len(is_kept)
        self.changes = np.append(np.flatnonzero(np.diff(is_kept)) + 1, self.total)
        save = Save(0, None, 0.0, 0.0)
        if folder is None:
            save.carry = self._start(positions)
            self._make_room(place.like(program.layout, save.carry))
        else:
            like = place.like(program.layout, place.start_like(program, positions).carry)
            self._make_room(like)
            save = folder.resume(like, is_kept) or save
            if reader is not None and save.done:
                reader.resume(save.done, save.sizes)
            if save.carry is None:
                save.carry = self._start(positions)
            else:
                save.carry = place.outward(program.layout, save.carry)
        self.done, self.carry, self.startup_seconds = save.done, save.carry, save.startup_seconds
        self.saved, self.started = save.done, time.perf_counter() - save.seconds
        self.has_warned = False

    def _start(self, positions: PyTree) -> Carry:
        start = self.place.start(self.program, positions)
        checks.check_start(start)
        return start.carry

    def _make_room(self, carry: Carry) -> None:
        """Make the store, and see how many draws the compiled loop may hold at a time."""
        num_samples = int(self.is_kept.sum())
        _, record = eqx.filter_eval_shape(loop.observe, self.program, 0, carry)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(record))
        self.capacity = max(1, min(self.room or num_samples, _BLOCK_BYTES // size))
        record = jax.tree.map(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), record)
        nothing = _Draws(*Alone().records(self.program.layout, record), np.empty((1, 0)))
        if self.folder is None:
            self.store = Memory(nothing, num_samples)
        else:
            self.store = self.folder.store(nothing, num_samples)

    def finish(self, progress: bool, throw: bool) -> Samples:
        thinning, startup = self.program.thinning, self.startup_seconds
        pace = {True: _Pace(), False: _Pace()}
        bar = Bar(progress and processes.is_leader(), self.total * thinning, self.done * thinning)
        fault: DataError | None = None
        with Interruption() as interruption, bar:
            while self.done < self.total and not processes.told(interruption.happened):
                is_kept = bool(self.is_kept[self.done])
                try:
                    with pace[is_kept].timing(self._left(is_kept)) as count:
                        failed_at = self._advance(int(processes.told(count)), is_kept)
                except DataError as error:
                    fault = error
                    break
                self.startup_seconds = startup + sum(p.first_seconds for p in pace.values())
                bar.update(self.done * thinning, failed_at)
                if throw and (failed_at < NEVER).any():
                    raise DivergenceError(_explain(failed_at), self._samples())
                self._judge_noise(throw)
                if self.folder is not None and self.folder.is_due(self.done):
                    self._save()
            if self.folder is not None and self.saved < self.done:
                self._save()
        if fault is not None and throw:
            fault.samples = self._samples()
            raise fault
        if self.done < self.total:
            reason = "Interrupted" if fault is None else f"{fault} The run ended"
            warnings.warn(
                f"{reason} after {self.done} of {self.total} draws; those so far are returned.",
                stacklevel=4,
            )
        return self._samples()

    def _left(self, is_kept: bool) -> int:
        """How many draws may be made before looking up; puts their batches into the program."""
        stop = self.changes[np.searchsorted(self.changes, self.done, side="right")]
        most = [int(stop) - self.done]
        most += [self.capacity] if is_kept else []
        most += [] if self.folder is None else [self.folder.left(self.done)]
        if self.reader is not None:
            program, end = self._read()
            self.program = self.place.place(program)
            most.append(end - self.done)
        return min(most)

    def _read(self) -> tuple[Program, int]:
        """The program with the batches of the next draws, unless some process has no such."""
        assert self.reader is not None
        found, fault = None, None
        try:
            found = self.reader.program_at(self.done)
        except DataError as error:
            fault = error
        processes.agreed(fault, "Reading data")
        assert found is not None
        return found

    def _save(self) -> None:
        seconds = time.perf_counter() - self.started
        sizes = () if self.reader is None else self.reader.sizes
        carry = self.place.inward(self.program.layout, self.carry)
        self.folder.save(Save(self.done, carry, seconds, self.startup_seconds, sizes))
        self.saved = self.done

    def _judge_noise(self, throw: bool) -> None:
        """Say, once, that an estimate of the gradient noise left no room for it."""
        noise = self.carry.noise and processes.fetched(self.carry.noise._replace(mean=None))
        if noise is None or self.has_warned or not (noise.failed_at < NEVER).any():
            return
        fisher = self.program.kernel.fisher
        assert fisher is not None
        message = _explain_noise(noise, fisher.raise_friction)
        if throw:
            raise GradientNoiseError(message, self._samples())
        warnings.warn(message, stacklevel=5)
        self.has_warned = True

    def _advance(self, count: int, is_kept: bool) -> np.ndarray:
        """Make `count` draws, gather them, and tell at which step each chain failed."""
        try:
            with processes.noticing():
                self.carry, records = self.place.advance(
                    self.program,
                    self.carry,
                    np.int32(self.done),
                    np.int32(count),
                    capacity=self.capacity if is_kept else 0,
                )
                failed_at = np.atleast_1d(processes.fetched(self.carry.failed_at))
        except Exception as error:  # by what name a callback's error comes differs
            fault = self._fault()
            if fault is None:
                raise
            raise fault from error
        if is_kept:
            records = self.place.records(self.program.layout, records)
            rows = Record(*jax.tree.map(lambda leaf: leaf[:, :count], tuple(records)))
            clock = np.full((1, count), time.perf_counter() - self.started)
            self.store.append(_Draws(*rows, clock))
            failed_at = np.minimum(failed_at, self._first_bad(np.asarray(rows.info.is_finite)))
        self.done += count
        return failed_at

    def _fault(self) -> DataError | None:
        """What went wrong with the data inside the compiled loop, and took the state with it."""
        source = getattr(self.program.target, "source", None)
        if source is None or source.fault is None:
            return None
        self.carry, self.saved = self.carry._replace(sums=None), self.done
        return source.fault

    def _first_bad(self, is_finite: np.ndarray) -> np.ndarray:
        """The step of each chain's first new draw that is not finite.

        A step reports the potential where it began, so that a bad end shows here first.
        """
        draw = self.done + (~is_finite).argmax(1)
        is_bad = ~is_finite.all(1)
        return np.where(is_bad, (draw + 1) * self.program.thinning - 1, NEVER)

    def _growth(self) -> tuple[Growth, ...]:
        """When the data grew, in kept draws."""
        growth = [] if self.reader is None else self.reader.growth
        return tuple(
            each._replace(draw=int(np.count_nonzero(self.is_kept[: each.draw]))) for each in growth
        )

    def _samples(self) -> Samples:
        layout = self.program.layout
        draws = self.store.draws()
        sums = self.place.inward(layout, self.carry.sums)
        means = {} if sums is None else layout.over_chains(keeping.mean)(sums)
        return Samples(
            positions=draws.positions,
            hyper=draws.hyper,
            trace=draws.trace,
            averages=jax.tree.map(lambda leaf: layout.outward(np.asarray(leaf)), means),
            info=Info(**draws.info._asdict()),
            num_steps=self.done * self.program.thinning,
            seconds=time.perf_counter() - self.started,
            startup_seconds=self.startup_seconds,
            origin=self.origin,
            clock=draws.clock[0],
            growth=self._growth(),
        )


class _Pace:
    """How many draws to make before looking up: one, to compile, then half a second's worth."""

    def __init__(self):
        self.count, self.first_seconds = 1, 0.0

    @contextlib.contextmanager
    def timing(self, most: int):
        count = min(self.count, most)
        start = time.perf_counter()
        yield count
        elapsed = time.perf_counter() - start
        if not self.first_seconds and elapsed > _LONG_COMPILATION:
            _give_memory_back()
        self.first_seconds = self.first_seconds or elapsed
        self.count = max(1, int(count * min(16.0, _BLOCK_SECONDS / elapsed)))


def _kept_draws(sampler: Sampler, num_burnin: int, num_samples: int, thinning: int) -> np.ndarray:
    """Of every draw of the run, whether it is kept: the run ends with the last that is."""
    num_draws = num_burnin + num_samples
    while True:
        is_kept = np.empty(num_draws, bool)
        for first in range(0, num_draws, _CHUNK):  # step numbers of all draws would be large
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


def _prepare(gradient: Gradient, target: Target | StackedPosterior, positions: PyTree) -> Estimator:
    """The estimator of all chains; with a chain axis where each has a posterior of its own."""

    if not isinstance(target, StackedPosterior):
        return gradient.prepare(target, _of_chain(positions, 0))
    chains = [
        gradient.prepare(target[i], _of_chain(positions, i)) for i in range(target.num_chains)
    ]
    arrays, rest = zip(*(eqx.partition(each, eqx.is_array) for each in chains), strict=True)
    return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), rest[0])


@jax.jit
def _of_chain(positions: PyTree, chain) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[chain], positions)


def _origin(program: Program, sampler: Sampler, gradient: Gradient, num_steps: int) -> Origin:
    temperature = getattr(theory.moving(sampler), "temperature", 1.0)
    last = temperature(num_steps - 1) if callable(temperature) else temperature
    return Origin(
        target=program.target,
        sampler=sampler,
        gradient=gradient,
        estimator=program.estimator,
        temperature=float(np.asarray(last)),
        is_adapted=program.adapt is not None,
    )


def _give_memory_back() -> None:
    """Let the system have what a compiler freed: glibc would keep it, and draws come on top."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)


def _shared(keys: jax.Array, estimator: Estimator) -> jax.Array:
    """The same keys, with the first chain's for the gradients of all where these are shared."""
    return keys.at[:, GRADIENT].set(keys[0, GRADIENT]) if estimator.is_shared else keys


def _explain(failed_at: np.ndarray) -> str:
    failed = np.flatnonzero(failed_at < NEVER)
    first = failed[failed_at[failed].argmin()]
    return (
        f"Chain {first} left the finite numbers at step {failed_at[first]} "
        f"({len(failed)} of {len(failed_at)} chains did). Take a smaller step_size (sghmc.theory "
        f"has the stability limit), start nearer the mode, or look for NaN in the data; "
        f"throw=False returns the flagged draws, and this error carries them as .samples."
    )


def _explain_noise(noise: RunningNoise, is_raised: bool) -> str:
    failed_at, needed, allowed = (
        np.atleast_1d(each) for each in (noise.failed_at, noise.needed, noise.allowed)
    )
    first = failed_at.argmin()
    needed, allowed = needed[first], allowed[first]
    where = (
        f"in chain {first} from step {failed_at[first]} on ({(failed_at < NEVER).sum()} of "
        f"{len(failed_at)} chains)"
    )
    if is_raised:
        fault = (
            f"The friction that the estimated gradient noise needs {where} makes the momentum "
            f"decay εC/M {needed:.4g}, but every chain diverges from {allowed:.4g} on"
        )
        remedy = f"a step_size at most {(allowed / needed) ** 0.5:.2g} times as large"
    else:
        fault = (
            f"The estimated gradient noise is too large {where}: along its worst direction V̂ is "
            f"{needed:.4g} times the friction (SGLD: the inverse preconditioner), but 2τ/ε leaves "
            f"room for {allowed:.4g} times only"
        )
        remedy = (
            f"a step_size at most {allowed / needed:.3g} times as large, {needed / allowed:.3g} "
            f"times the friction or EmpiricalFisher(raise_friction=True)"
        )
    return (
        f"{fault}. Take {remedy}, larger batches or ControlVariate; throw=False goes on, with "
        f"draws that are spread too wide."
    )


def chain_keys(key: jax.Array, num_chains: int) -> jax.Array:
    """Keys (chain, stream) of three words; a chain's do not depend on how many chains there are."""
    words, xnp = random.words(key), jnp
    if not isinstance(words, Tracer):  # a few operations, not worth a compiler's time
        words, xnp = np.asarray(words), np
    chains = _folded(words[:, None], num_chains)
    x, y = _folded([word[:, None] for word in chains], NUM_STREAMS)
    return jnp.asarray(xnp.stack([x, y, random.parity(x, y)], axis=-1))


def _folded(keys: Any, count: int) -> tuple[Any, Any]:
    """The words of `random.fold` of each key and 0, …, count − 1, along a last axis."""
    numbers = np.arange(count, dtype=np.uint32).reshape(*[1] * (keys[0].ndim - 1), count)
    return random.threefry(keys, np.zeros_like(numbers), numbers)
