"""The host of a run: has the compiled loop make draws block by block, and gathers them.

What is said of a run that went wrong: which chain, at which step, and the remedy.
"""

import dataclasses
import time
import warnings
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from sghmc.checkpoint.folder import RunFolder, Save
from sghmc.checkpoint.store import DrawStore, RamStore
from sghmc.core import runtime, tree
from sghmc.core.signals import Interruption
from sghmc.engine import checks, loop
from sghmc.engine.blocking import Pace
from sghmc.engine.chain import NEVER, DrawInfo, DrawRecord, LoopState, RunSpec
from sghmc.engine.devices import Placement
from sghmc.engine.init import InitialPositions
from sghmc.engine.layout import Layout
from sghmc.engine.prefetch import Reader
from sghmc.engine.progress import Bar
from sghmc.gradients.noise import RunningNoise
from sghmc.posterior.sources import DataError
from sghmc.results.prediction import Origin
from sghmc.results.samples import DivergenceError, GradientNoiseError, Growth, Samples, lasting
from sghmc.results.summaries import Info
from sghmc.samplers import fisher_of
from sghmc.types import PyTree

_BLOCK_BYTES = 1 << 23
"""Records that the compiled loop holds before they go to the host."""
_BLOCK_WORK, _BLOCK_DRAWS = 1 << 30, 1 << 10
"""Parameters of all draws of a block, and how many draws it may have in any case: of a large model
that keeps little, room for as many as bytes allow would be room for days."""


class StoredDraws(NamedTuple):
    """What is stored of draws: the loop's records, and when they had come. Names files."""

    positions: PyTree
    hyper: PyTree
    trace: PyTree
    info: DrawInfo
    clock: Float[np.ndarray, "1 draw"]

    @classmethod
    def of(cls, record: DrawRecord, clock: Float[np.ndarray, "1 draw"]) -> "StoredDraws":
        return cls(*record, clock)


class Driver:
    """How far a run is, and the draws it has gathered: those that `is_kept`, not of burn-in."""

    store: DrawStore

    def __init__(
        self,
        program: RunSpec,
        start: InitialPositions,
        is_kept: Bool[np.ndarray, " draw"],
        origin: Origin | None,
        folder: RunFolder | None,
        reader: Reader | None,
        place: Placement,
    ):
        self.origin, self.folder, self.reader = origin, folder, reader
        self.place, self.start = place, start
        if reader is not None:
            if folder is not None and folder.has_saves:
                reader.check_start()
            program = reader.program_at(0)[0]
        self.program = place.place_program(program)
        self.is_kept, self.num_draws = is_kept, len(is_kept)
        self.changes = np.append(np.flatnonzero(np.diff(is_kept)) + 1, self.num_draws)
        """Draws before which keeping begins or ends, and the end."""
        save = self._begun() if folder is None else self._resumed(folder)
        self.done, self.carry, self.startup_seconds = save.done, save.state, save.startup_seconds
        self.num_saved, self.began = save.done, time.perf_counter() - save.seconds
        self.plan = place.plan(self.program, self.carry, self.capacity)
        self.has_warned = False

    def _begun(self) -> Save:
        carry = self._first_carry()
        self.store = RamStore(*self._room(self.place.fetched_like(self.program.layout, carry)))
        return Save(0, carry, 0.0, 0.0)

    def _resumed(self, folder: RunFolder) -> Save:
        """The newest save of the folder or, where there is none, the beginning."""
        layout, place = self.program.layout, self.place
        like = place.fetched_like(layout, place.carry_like(self.program))
        self.store = folder.open_store(*self._room(like))
        save = folder.resume(like, self.is_kept)
        if save is None:
            return Save(0, self._first_carry(), 0.0, 0.0)
        if self.reader is not None and save.done:
            self.reader.resume(save.done, save.sizes)
        save.state = place.place_carry(layout, save.state)
        return save

    def _first_carry(self, *, looks: bool = False) -> LoopState:
        begun = self.place.begin(self.program, self.start, looks=looks)
        checks.check_beginning(begun)
        return begun.carry

    def _room(self, carry: LoopState) -> tuple[StoredDraws, int]:
        """What no draws look like, and how many there will be."""
        record = loop.record_like(self.program, carry)
        self.capacity = capacity_for(record, self.program.layout)
        return _no_draws(self.program.layout, record), int(self.is_kept.sum())

    def run(self, *, progress: bool, throw: bool) -> Samples:
        """Make the draws that are left, and return all."""
        thinning, startup = self.program.thinning, self.startup_seconds
        pace = [Pace(self.plan.least) for _ in range(2)]
        is_shown = progress and runtime.is_leader()
        bar = Bar(is_shown, self.num_draws * thinning, self.done * thinning)
        fault: DataError | None = None
        with Interruption(takes_sigterm=self.folder is not None) as interruption, bar:
            while self.done < self.num_draws and not interruption.agreed():
                is_kept = bool(self.is_kept[self.done])
                try:
                    with pace[is_kept].timing(self._left(is_kept)) as count:
                        failed_at = self._advance(int(runtime.broadcast(count)), is_kept)
                except DataError as error:
                    fault = error
                    break
                self.startup_seconds = startup + sum(p.first_seconds for p in pace)
                bar.update(self.done * thinning, failed_at)
                if failed_at.min() < 2 * thinning:  # a bad start shows in the first draws
                    self._first_carry(looks=True)
                if throw and (failed_at < NEVER).any():
                    raise DivergenceError(divergence(failed_at), self._lasting())
                self._judge_noise(throw)
                if self.folder is not None and self.folder.is_due(self.done):
                    self._save(self.folder)
            if self.folder is not None and self.num_saved < self.done:
                self._save(self.folder)
        if fault is not None and throw:
            fault.samples = self._samples()
            raise fault
        if self.done < self.num_draws or interruption.happened:
            reason = "Interrupted" if fault is None else f"{fault} The run ended"
            warnings.warn(
                f"{reason} after {self.done} of {self.num_draws} draws; those so far are returned.",
                stacklevel=4,
            )
        return dataclasses.replace(self._samples(), is_interrupted=interruption.happened)

    def _left(self, is_kept: bool) -> int:
        """How many draws may be made before looking up; puts their batches into the program."""
        stop = self.changes[np.searchsorted(self.changes, self.done, side="right")]
        most = [int(stop) - self.done]
        most += [self.capacity] if is_kept else []
        most += [] if self.folder is None else [self.folder.draws_until_check(self.done)]
        if self.reader is not None:
            program, end = self._read(self.reader)
            self.program = self.place.place_program(program)
            most.append(end - self.done)
        return min(most)

    def _read(self, reader: Reader) -> tuple[RunSpec, int]:
        """The program with the batches of the next draws; where reading fails, all processes do."""
        found, fault = None, None
        try:
            found = reader.program_at(self.done)
        except DataError as error:
            fault = error
        runtime.fail_together(fault, "Reading data")
        assert found is not None
        return found

    def _advance(self, count: int, is_kept: bool) -> Int[np.ndarray, " chain"]:
        """Make `count` draws, gather them, and tell at which step each chain failed."""
        try:
            with runtime.detect_lost_peer():
                self.carry, records = self.place.advance(
                    self.program,
                    self.carry,
                    np.int32(self.done),
                    np.int32(count),
                    np.int32(is_kept),
                    capacity=self.capacity if is_kept or self.plan.burnin != "apart" else 0,
                )
                failed_at = np.atleast_1d(runtime.fetch(self.carry.failed_at))
        except Exception as error:  # by what name a callback's error comes differs
            source = self.program.target.source
            if source is None or source.fault is None:
                raise
            # What went wrong with the data inside the compiled loop took the state with it.
            self.carry, self.num_saved = self.carry._replace(sums=None), self.done
            raise source.fault from error
        if is_kept:
            records = self.place.fetch_records(self.program.layout, records)
            rows = DrawRecord(*jax.tree.map(lambda leaf: leaf[:, :count], tuple(records)))
            clock = np.full((1, count), time.perf_counter() - self.began)
            self.store.append(StoredDraws.of(rows, clock))
            is_finite = np.asarray(rows.info.is_finite)
            bad = _first_bad_step(is_finite, self.done, self.program.thinning)
            failed_at = np.minimum(failed_at, bad)
        self.done += count
        return failed_at

    def _judge_noise(self, throw: bool) -> None:
        """Say, once, that an estimate of the gradient noise left no room for it."""
        noise = self.carry.noise and runtime.fetch(self.carry.noise._replace(mean=None))
        if noise is None or self.has_warned or not (noise.failed_at < NEVER).any():
            return
        fisher = fisher_of(self.program.kernel)
        assert fisher is not None
        message = too_much_noise(noise, fisher.raise_friction)
        if throw:
            raise GradientNoiseError(message, self._lasting())
        warnings.warn(message, stacklevel=5)
        self.has_warned = True

    def _save(self, folder: RunFolder) -> None:
        seconds = time.perf_counter() - self.began
        sizes = () if self.reader is None else self.reader.sizes
        carry = self.place.fetch_carry(self.program.layout, self.carry)
        folder.save(Save(self.done, carry, seconds, self.startup_seconds, sizes))
        self.num_saved = self.done

    def _samples(self) -> Samples:
        layout, draws = self.program.layout, self.store.draws()
        sums = self.place.fetch_carry(layout, self.carry.sums)
        sums = layout.chains_first(jax.tree.map(np.asarray, sums))
        return Samples(
            positions=draws.positions,
            hyper=draws.hyper,
            trace=draws.trace,
            averages={} if sums is None else sums.means(),
            info=Info(**draws.info._asdict()),
            num_steps=self.done * self.program.thinning,
            seconds=time.perf_counter() - self.began,
            startup_seconds=self.startup_seconds,
            origin=self.origin,
            clock=draws.clock[0],
            growth=_growth(self.reader, self.is_kept),
        )

    def _lasting(self) -> Samples:
        """For an error, which may outlive this run's hold on its folder."""
        if self.folder is None:
            return self._samples()
        return lasting(self._samples(), int(self.is_kept[: self.num_saved].sum()))


def capacity_for(record: DrawRecord, layout: Layout) -> int:
    """How many draws the compiled loop may hold at a time."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(record))
    # Not of the number of draws: runs of any length share a program.
    enough = max(_BLOCK_DRAWS, _BLOCK_WORK // tree.size(layout.like))
    return min(max(1, _BLOCK_BYTES // size), enough)


def _no_draws(layout: Layout, record: DrawRecord) -> StoredDraws:
    nothing = jax.tree.map(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), record)
    return StoredDraws.of(layout.chains_first(nothing, leading=1), np.empty((1, 0)))


def _growth(reader: Reader | None, is_kept: np.ndarray) -> tuple[Growth, ...]:
    """When the data grew, in kept draws."""
    growth = [] if reader is None else reader.growth
    return tuple(each._replace(draw=int(np.count_nonzero(is_kept[: each.draw]))) for each in growth)


def _first_bad_step(
    is_finite: Bool[np.ndarray, "chain draw"], done: int, thinning: int
) -> Int[np.ndarray, " chain"]:
    """The last step of each chain's first draw after `done` that is not finite.

    A step reports the potential where it began, so that a bad end shows here first.
    """
    draw = done + (~is_finite).argmax(1)
    return np.where(is_finite.all(1), NEVER, (draw + 1) * thinning - 1)


# What is said of a run that went wrong: which chain, at which step, and the remedy.


def divergence(failed_at: Int[np.ndarray, " chain"]) -> str:
    """Of chains that became non-finite at these steps."""
    failed = np.flatnonzero(failed_at < NEVER)
    first = failed[failed_at[failed].argmin()]
    return (
        f"Chain {first} became non-finite at step {failed_at[first]} "
        f"({len(failed)} of {len(failed_at)} chains did). Take a smaller step_size (sghmc.theory "
        f"has the stability limit), start nearer the mode, or look for NaN in the data; "
        f"throw=False returns the flagged draws, and this error carries them as .samples."
    )


def too_much_noise(noise: RunningNoise, is_raised: bool) -> str:
    """Of an estimate V̂ that leaves no room for it; `is_raised`: though it raised the friction."""
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
