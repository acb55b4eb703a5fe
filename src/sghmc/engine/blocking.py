"""Blocks of a run: steps, draws and variates of the compiled loops, and draws between checks."""

import contextlib
import ctypes
import math
from typing import Literal, NamedTuple

from sghmc.core import runtime, tree
from sghmc.engine.chain import RunSpec
from sghmc.samplers import LazyRows, fisher_of

_BLOCK_VARIATES = 65_536
"""Variates drawn at once: enough to vectorize, few enough to stay in the cache."""
_MIN_STEPS_OF_SMALL = 8
"""A model is small where so many of its steps fit into one block."""
_MIN_STEPS_OF_MANY_CHAINS = 4
"""Steps of a block of very many chains, though they do not fit."""
_BLOCK_DRAWS, _BLOCK_TRAJECTORIES = 512, 32
"""Draws of a block on an accelerator, which makes all of them even where fewer are asked for: of
single steps, and of trajectories, beside which a device-to-host sync costs nothing."""
_BLOCK_ROWS = 1_048_576
"""Variates of gradients drawn at once, alone: each time costs an accelerator some launches."""


class Blocking(NamedTuple):
    """Lengths of the loops that a run is cut into.

    `period` steps go by between moments when a Gibbs update, an adaptation, a renewal of the
    estimator's memory or an estimate of its noise may be due: they are asked for then only. Where a
    step has few variates, `draws_per_block` draws have theirs made together; where that would not
    be one draw, `block_length` steps. An accelerator asks the host whether to go on at every turn
    of a loop whose length is not compiled in: there blocks are always whole (`is_padded`), and what
    was not asked for is thrown away. A model with many parameters makes its normals step by step
    (`block_has_motion` is False), and is looked at once a draw (`is_watched` is False), since the
    potential of every step would cost a pass over them; so is one whose potentials nobody wants,
    and one whose steps leave parts of the state behind.

    Where there is room for one record at a time, it is made after the loop (`records_after`).

    | `burnin` | its draws | where |
    | --- | --- | --- |
    | "kept" | are recorded as others are, and the host drops them | small models, as they are |
    | "skipped" | are not recorded, or not counted: a number says so | larger models |
    | "apart" | have a program of their own | small models whose draws functions look at, or that \
adapt; accelerators, which would ask the host for that number |
    """

    period: int
    draws_per_block: int
    block_length: int
    block_has_motion: bool
    is_watched: bool
    adapts: bool
    is_padded: bool
    burnin: Literal["kept", "skipped", "apart"]
    records_after: bool

    def rows(self, capacity: int) -> int:
        """Return how many draws a record of `capacity` must have room for."""
        whole = self.draws_per_block if self.is_padded and self.draws_per_block else 1
        return -(-capacity // whole) * whole

    @classmethod
    def of(
        cls, spec: RunSpec, num_normals: int, num_rows: int, capacity: int, must_watch: bool
    ) -> "Blocking":
        """Return the blocking for so many variates of all chains' motion, and of their rows.

        There is room for `capacity` records; for none in a program of burn-in alone.
        """
        is_lazy = isinstance(spec.kernel, LazyRows)
        # It draws less than a step of all parameters would, but its draws are as large.
        num_normals = tree.size(spec.layout.like) if is_lazy else num_normals
        together = _BLOCK_VARIATES // max(1, num_normals + num_rows)
        is_small, is_padded = together >= _MIN_STEPS_OF_SMALL, runtime.has_accelerator()
        # So many chains of a small model that it is not small any more: alone, each would make its
        # normals again for everything that they enter.
        is_many = spec.layout.num_chains > 1 and spec.layout.axis == -1
        is_wide = is_many and not is_small and not is_padded
        together = max(_MIN_STEPS_OF_MANY_CHAINS, together) if is_wide else together
        draws = together // spec.thinning if is_small or is_wide else 0
        records_after = draws == 0 and capacity == 1
        burnin: Literal["kept", "skipped", "apart"]
        if draws == 0:
            burnin = "skipped" if records_after or not is_padded else "apart"
        else:
            has_functions = spec.keep or spec.averages or spec.trace or spec.adapt
            burnin = "apart" if has_functions else "kept"
        adapts = spec.adapt is not None and (capacity == 0 or burnin == "skipped")
        intervals = [spec.thinning]
        intervals += [spec.gibbs.every] if spec.gibbs else []
        intervals += [spec.estimator.renew_every] if spec.estimator.renew_every else []
        fisher = fisher_of(spec.kernel)
        intervals += [fisher.every] if fisher else []
        intervals += [spec.adapt.every] if spec.adapt and adapts else []
        period = math.gcd(*intervals)
        most = together if is_small or is_wide else max(1, _BLOCK_ROWS // max(1, num_rows))
        most = min(most, period)
        # A divisor of the period: a count known at compile time spares an accelerator a question
        # to the host. Elsewhere, where there is none but 1, the last block is cut short.
        length = max(n for n in range(1, most + 1) if period % n == 0)
        length = most if length == 1 and not is_padded else length
        whole = _BLOCK_DRAWS if spec.kernel.num_gradients == 1 else _BLOCK_TRAJECTORIES
        return cls(
            period=period,
            draws_per_block=min(draws, whole) if is_padded else draws,
            block_length=length,
            block_has_motion=is_small or (is_wide and length > 1),
            is_watched=must_watch
            or (spec.has_info and (is_small or spec.thinning == 1) and not is_lazy),
            adapts=adapts,
            is_padded=is_padded,
            burnin=burnin,
            records_after=records_after,
        )


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

    def follow(self, count: int, seconds: float) -> None:
        """Choose the next block by the time that `count` draws took."""
        if not self.first_seconds and seconds > _LONG_COMPILATION_SECONDS:
            _give_memory_back()
        self.first_seconds = self.first_seconds or seconds
        self.count = max(self.least, int(count * min(_MAX_GROWTH, _BLOCK_SECONDS / seconds)))


def _give_memory_back() -> None:
    """Let the system have what a compiler freed: glibc would keep it, and draws come on top."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)
