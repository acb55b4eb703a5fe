"""The driver of a run: has the compiled loop make draws block by block, and gathers them."""

import contextlib
import ctypes
import dataclasses
import time
import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from sghmc.checkpoint.folder import RunFolder, Save
from sghmc.checkpoint.store import DiskStore, RamStore
from sghmc.core import runtime, tree
from sghmc.core.signals import Interruption
from sghmc.engine import loop
from sghmc.engine.chain import NEVER, Blocking, RunSpec
from sghmc.engine.checks import check_initial_states
from sghmc.engine.devices import Placement
from sghmc.engine.layout import DrawInfo, DrawRecord, InitialPositions, Layout, LoopState
from sghmc.engine.messages import divergence, too_much_noise
from sghmc.engine.prefetch import Reader
from sghmc.engine.progress import NotebookBar, TerminalBar
from sghmc.posterior.sources import DataError
from sghmc.results.prediction import Origin
from sghmc.results.samples import DivergenceError, GradientNoiseError, Growth, Samples
from sghmc.results.selection import lasting
from sghmc.results.summaries import Info
from sghmc.results.until import Until, Watch
from sghmc.samplers import fisher_of
from sghmc.types import PyTree

_BLOCK_BYTES = 1 << 23
"""Bytes of records that the compiled loop holds before they go to the host."""
_BLOCK_WORK, _BLOCK_DRAWS = 1 << 30, 1 << 10
"""Parameters of all draws of a block, and how many draws it may have in any case: of a large model
that keeps little, room for as many as bytes allow would be room for days."""
_LARGE_PARAMETERS = 1 << 21
"""Parameters of all chains from which on the initial states are compiled with full optimization:
drawing momenta by a program compiled in a hurry would take longer than compiling a better one."""


class StoredDraws(NamedTuple):
    """Stored parts of the draws: the loop's records, and when they came. Names of files."""

    positions: PyTree
    hyper: PyTree
    trace: PyTree
    info: DrawInfo
    clock: Float[np.ndarray, "1 draw"]


class Bar:
    """Steps a second, time left, and how many chains are finite; shown where it `is_shown`."""

    def __init__(self, is_shown: bool, num_steps: int, num_done: int = 0):
        self.is_shown, self.num_steps, self.num_done = is_shown, num_steps, num_done
        self.shown: TerminalBar | NotebookBar | None = None

    def __enter__(self) -> "Bar":
        if self.is_shown:
            from rich import get_console

            console = get_console()
            if console.is_jupyter:
                self.shown = NotebookBar()
            elif console.is_terminal:
                self.shown = TerminalBar(console, self.num_steps, self.num_done)
        return self

    def update(self, num_done: int, failed_at: Int[np.ndarray, " chain"]) -> None:
        if self.shown is not None:
            num_failed = int((failed_at < NEVER).sum())
            self.shown.update(num_done, num_failed, len(failed_at), self.num_steps)

    def __exit__(self, *exception) -> None:
        if self.shown is not None:
            self.shown.stop()


# How many draws the compiled loop makes before the host checks the run

_BLOCK_SECONDS = 0.5
"""Time between two checks of the run: Ctrl-C and the progress bar wait no longer than that."""
_MAX_GROWTH = 16.0
"""Largest factor by which a block may grow over the one before; the first block is mostly
compilation, so its time predicts little."""
_LONG_COMPILATION_SECONDS = 1.0
"""Seconds from which a first block was mostly compilation of a large spec."""


class Pace:
    """Draws of the next block: `least`, to compile, then as many as take half a second."""

    def __init__(self, least: int = 1):
        self.count, self.least, self.first_seconds = least, least, 0.0

    def within(self, seconds: float | None) -> int:
        """Return how many draws the next block may have, where so many seconds are left."""
        if seconds is None:
            return self.count
        share = min(1.0, max(0.0, seconds) / _BLOCK_SECONDS)
        return max(self.least, int(share * self.count))

    def follow(self, count: int, seconds: float) -> float:
        """Choose the next block by the time that `count` draws took; return it for the first."""
        of_first = 0.0 if self.first_seconds else seconds
        if of_first > _LONG_COMPILATION_SECONDS:
            _give_memory_back()
        self.first_seconds = self.first_seconds or seconds
        self.count = max(self.least, int(count * min(_MAX_GROWTH, _BLOCK_SECONDS / seconds)))
        return of_first


def _give_memory_back() -> None:
    """Let the system have what a compiler freed: glibc would keep it, and draws come on top."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)


# The run


class OneDevice(Placement):
    """Runs the loop on one device; a state is saved as the loop has it."""

    def place_spec(self, spec):
        return spec

    def begin(self, spec, positions, *, evaluates):
        layout, is_shared = spec.layout, positions.init_axis is None
        is_large = layout.num_chains * tree.size(layout.like) >= _LARGE_PARAMETERS
        initial_states = loop.compiled_initial_states(is_large=is_large)
        zero = np.int32(0)  # the compiler must not know it: see `runtime.never`
        return initial_states(
            spec, positions.arrays, zero, evaluates=evaluates, is_shared=is_shared
        )

    def blocking(self, spec, carry, capacity):
        return loop.blocking_of(spec, carry, capacity)

    def state_like(self, spec):
        like = spec.layout.chains_like
        return eqx.filter_eval_shape(loop.initial_states, spec, like, 0, evaluates=False).carry

    def advance(self, spec, carry, first, count, num_kept, *, capacity):
        return loop.compiled_draws()(spec, carry, first, count, num_kept, capacity=capacity)

    def fetch_state(self, layout, carry):
        return carry

    def saved_like(self, layout, carry):
        return carry

    def place_state(self, layout, saved):
        return saved

    def fetch_records(self, layout, records):
        return layout.chains_first(jax.tree.map(np.asarray, records), leading=1)


@dataclasses.dataclass(eq=False)
class Driver:
    """A run on its way: how far it is, and the draws of it that are kept.

    `is_kept` says of each draw of the run whether it is; those of burn-in are not. After a run in
    memory, which ended with the state `before`, its draws are those that follow.
    """

    spec: RunSpec
    positions: InitialPositions
    is_kept: Bool[np.ndarray, " draw"]
    origin: Origin | None
    folder: RunFolder | None
    reader: Reader | None
    place: Placement
    until: Until | None = None
    before: Save | None = None
    has_warned: bool = False

    def start(self) -> None:
        """Compute the initial state or read the newest save, and make room for the draws."""
        place, folder, reader = self.place, self.folder, self.reader
        if reader is not None:
            if self.before is not None or (folder is not None and folder.has_saves):
                reader.check_start()
            self.spec = reader.spec_at(0)[0]
        spec = self.spec = place.place_spec(self.spec)
        begins = folder is None and self.before is None
        carry = self._initial_state() if begins else place.state_like(spec)
        like = place.saved_like(spec.layout, carry)
        record = loop.record_like(spec, like)
        self.capacity = capacity_for(record, spec.layout)
        save, num_kept = self.before, int(self.is_kept.sum())
        stored = _no_draws(spec.layout, record)
        self.watch = Watch(self.until, spec.layout.num_chains, (stored.positions, stored.hyper))
        num_new = num_kept if save is None else int(self.is_kept[save.done :].sum())
        grows = {"grows": self.until is not None}
        self.store: RamStore | DiskStore = RamStore(stored, num_new, **grows)
        if folder is not None:
            self.store = folder.open_store(stored, num_kept, **grows)
            save = folder.resume(like, self.is_kept)
            if save is None:
                carry = self._initial_state()
        if save is not None:
            if reader and save.done:
                reader.resume(save.done, save.sizes)
            # Copies, because the loop overwrites its arguments.
            state = jax.tree.map(jnp.array, save.state) if folder is None else save.state
            carry = place.place_state(spec.layout, state)
        save = Save(0, None, 0.0, 0.0) if save is None else save
        self.carry: LoopState = carry
        # Draws before which keeping begins or ends, and the end.
        self.changes = np.append(np.flatnonzero(np.diff(self.is_kept)) + 1, len(self.is_kept))
        self.done = self.num_saved = save.done
        self.startup_seconds, self.began = save.startup_seconds, time.perf_counter() - save.seconds
        self.blocking: Blocking = place.blocking(spec, carry, self.capacity)

    def _initial_state(self, *, evaluates: bool = False) -> LoopState:
        begun = self.place.begin(self.spec, self.positions, evaluates=evaluates)
        if begun.potential is not None:
            check_initial_states(begun)
        return begun.carry

    def run(self, *, progress: bool, throw: bool) -> Samples:
        """Make the draws that are left, and return all."""
        thinning, num_draws, fault = self.spec.thinning, len(self.is_kept), None
        paces = [Pace(self.blocking.rows(1)) for _ in range(2)]  # of burn-in, and of kept draws
        bar = Bar(progress and runtime.is_leader(), num_draws * thinning, self.done * thinning)
        with Interruption(takes_sigterm=self.folder is not None) as interruption, bar:
            while self.done < num_draws and not interruption.agreed():
                if self.watch.is_over(self.store.num_kept, self._seconds, self._samples):
                    break
                pace = paces[is_kept := bool(self.is_kept[self.done])]
                try:
                    possible = self._num_possible(is_kept)
                    count = min(pace.within(self.watch.seconds_left(self._seconds)), possible)
                    began = time.perf_counter()
                    failed_at = self._advance(int(runtime.broadcast(count)), is_kept)
                except DataError as error:
                    fault = error
                    break
                self.startup_seconds += pace.follow(count, time.perf_counter() - began)
                share = self.watch.share(self.store.num_kept, self._seconds, self.done / num_draws)
                bar.num_steps = round(self.done * thinning / share)
                bar.update(self.done * thinning, failed_at)
                if failed_at.min() < 2 * thinning:  # a bad start shows in the first draws
                    self._initial_state(evaluates=True)
                if throw and (failed_at < NEVER).any():
                    raise DivergenceError(divergence(failed_at), self._lasting())
                if self.carry.noise is not None and not self.has_warned:
                    self._check_noise(throw)
                if self.folder is not None and self.folder.is_due(self.done):
                    self._save(self.folder)
            if self.folder is not None and self.num_saved < self.done:
                self._save(self.folder)
        if fault is not None and throw:
            fault.samples = self._samples()
            raise fault
        self.is_lost = fault is not None
        if (self.done < num_draws and not self.watch.is_met) or interruption.happened:
            reason = "Interrupted" if fault is None else f"{fault} The run ended"
            warnings.warn(
                f"{reason} after {self.done} of {num_draws} draws; those so far are returned.",
                stacklevel=4,
            )
        return dataclasses.replace(self._samples(), is_interrupted=interruption.happened)

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self.began

    def _num_possible(self, is_kept: bool) -> int:
        """Return how many draws may be made in one block; put their batches into the run."""
        stop = self.changes[np.searchsorted(self.changes, self.done, side="right")]
        limits = [int(stop) - self.done]
        if is_kept:
            limits += [self.capacity, *self.watch.draws_left(self.store.num_kept)]
        limits += [] if self.folder is None else [self.folder.draws_until_check(self.done)]
        if self.reader is not None:
            spec, end = _with_batches(self.reader, self.done)
            self.spec = self.place.place_spec(spec)
            limits.append(end - self.done)
        return min(limits)

    def _advance(self, count: int, is_kept: bool) -> Int[np.ndarray, " chain"]:
        """Make `count` draws, gather them, and return the step at which each chain failed."""
        has_records = is_kept or self.blocking.burnin != "apart"
        numbers = np.int32(self.done), np.int32(count), np.int32(is_kept)
        try:
            with runtime.detect_lost_peer():
                self.carry, records = self.place.advance(
                    self.spec, self.carry, *numbers, capacity=self.capacity if has_records else 0
                )
                failed_at = np.atleast_1d(runtime.fetch(self.carry.failed_at))
        except Exception as error:  # by what name a callback's error comes differs
            source = self.spec.target.source
            if source is None or source.fault is None:
                raise
            # What went wrong with the data inside the compiled loop took the state with it.
            self.carry, self.num_saved = self.carry._replace(sums=None), self.done
            raise source.fault from error
        if is_kept:
            records = self.place.fetch_records(self.spec.layout, records)
            rows = DrawRecord(*jax.tree.map(lambda leaf: leaf[:, :count], tuple(records)))
            clock = np.full((1, count), self._seconds)
            self.store.append(StoredDraws(*rows, clock))
            # A step reports the potential where it began, so that a bad end shows here first: at
            # the last step of a chain's first draw that is not finite.
            is_finite = np.asarray(rows.info.is_finite)
            last_step = (self.done + (~is_finite).argmax(1) + 1) * self.spec.thinning - 1
            failed_at = np.minimum(failed_at, np.where(is_finite.all(1), NEVER, last_step))
        self.done += count
        return failed_at

    def _check_noise(self, throw: bool) -> None:
        """Raise, or warn once, if an estimate of the gradient noise exceeded the injected noise."""
        fisher, noise = fisher_of(self.spec.kernel), self.carry.noise
        assert fisher is not None
        assert noise is not None
        noise = runtime.fetch(noise._replace(mean=None))
        if not (noise.failed_at < NEVER).any():
            return
        message = too_much_noise(noise, fisher.raise_friction)
        if throw:
            raise GradientNoiseError(message, self._lasting())
        warnings.warn(message, stacklevel=5)
        self.has_warned = True

    def _save(self, folder: RunFolder) -> None:
        folder.save(self.state())
        self.num_saved = self.done

    def state(self) -> Save:
        seconds, sizes = self._seconds, () if self.reader is None else self.reader.sizes
        carry = self.place.fetch_state(self.spec.layout, self.carry)
        return Save(self.done, carry, seconds, self.startup_seconds, sizes)

    def _samples(self) -> Samples:
        layout, draws, averages = self.spec.layout, self.store.draws(), {}
        if self.carry.sums is not None:
            sums = self.place.fetch_state(layout, self.carry.sums)
            averages = layout.chains_first(jax.tree.map(np.asarray, sums)).means()
        return Samples(
            positions=draws.positions,
            hyper=draws.hyper,
            trace=draws.trace,
            averages=averages,
            info=Info(**draws.info._asdict()),
            num_steps=self.done * self.spec.thinning,
            seconds=self._seconds,
            startup_seconds=self.startup_seconds,
            origin=self.origin,
            clock=draws.clock[0],
            growth=_in_kept_draws([] if self.reader is None else self.reader.growth, self.is_kept),
        )

    def _lasting(self) -> Samples:
        """Return the draws for an error, which may outlive this run's hold on its folder."""
        if self.folder is None:
            return self._samples()
        return lasting(self._samples(), int(self.is_kept[: self.num_saved].sum()))


def _with_batches(reader: Reader, draw: int) -> tuple[RunSpec, int]:
    """Read the batches of the next draws; where reading fails, all processes fail."""
    return runtime.together(lambda: reader.spec_at(draw), "Reading data")


def _in_kept_draws(growth: list[Growth], is_kept: np.ndarray) -> tuple[Growth, ...]:
    return tuple(g._replace(draw=int(np.count_nonzero(is_kept[: g.draw]))) for g in growth)


def _no_draws(layout: Layout, record: DrawRecord) -> StoredDraws:
    nothing = jax.tree.map(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), record)
    first: DrawRecord = layout.chains_first(nothing, leading=1)
    return StoredDraws(*first, np.empty((1, 0)))


def capacity_for(record: DrawRecord, layout: Layout) -> int:
    """Return how many draws the compiled loop may hold at a time."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(record))
    # It does not depend on the number of draws: runs of any length share a program.
    enough = max(_BLOCK_DRAWS, _BLOCK_WORK // tree.size(layout.like))
    return min(max(1, _BLOCK_BYTES // size), enough)
