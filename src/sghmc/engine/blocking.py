"""How many steps, draws and variates go into the loops of a run.

How many draws the compiled loop makes before the host looks up.
"""

import contextlib
import ctypes
import math
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sghmc.core import runtime, tree
from sghmc.engine.chain import RunSpec
from sghmc.samplers import LazyRows, fisher_of

_BLOCK_VARIATES = 65_536
"""Variates drawn at once: enough to vectorize, few enough to stay in the cache."""
_SMALL = 8
"""A model is small where so many of its steps fit into one block."""
_FEW = 4
"""Steps of a block of very many chains, though they do not fit."""
_BLOCK_DRAWS, _BLOCK_TRAJECTORIES = 512, 32
"""Draws of a block on an accelerator, which makes all of them even where fewer are asked for: of
single steps, and of trajectories, beside which a question to the host is nothing."""
_BLOCK_ROWS = 1_048_576
"""Variates of gradients drawn at once, alone: each time costs an accelerator some launches."""


class Blocking(NamedTuple):
    """How a run is cut into loops of known length.

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

    @property
    def least(self) -> int:
        """Draws that the loop makes, however few it is asked for."""
        return self.rows(1)

    def rows(self, capacity: int) -> int:
        """How many draws a record of `capacity` must have room for."""
        whole = self.draws_per_block if self.is_padded and self.draws_per_block else 1
        return -(-capacity // whole) * whole

    @classmethod
    def of(
        cls, program: RunSpec, num_normals: int, num_rows: int, capacity: int, must_watch: bool
    ) -> "Blocking":
        """For a step of all chains that takes so many variates for its motion and for its rows.

        There is room for `capacity` records; for none in a program of burn-in alone.
        """
        is_lazy = isinstance(program.kernel, LazyRows)
        # It draws less than a step of all parameters would, but its draws are as large.
        num_normals = tree.size(program.layout.like) if is_lazy else num_normals
        together = _BLOCK_VARIATES // max(1, num_normals + num_rows)
        is_small, is_padded = together >= _SMALL, runtime.has_accelerator()
        # So many chains of a small model that it is not small any more: alone, each would make its
        # normals again for everything that they enter.
        is_many = program.layout.num_chains > 1 and program.layout.axis == -1
        is_wide = is_many and not is_small and not is_padded
        together = max(_FEW, together) if is_wide else together
        draws = together // program.thinning if is_small or is_wide else 0
        records_after = draws == 0 and capacity == 1
        burnin = _burnin(program, draws > 0, records_after)
        adapts = program.adapt is not None and (capacity == 0 or burnin == "skipped")
        intervals = [program.thinning]
        intervals += [program.gibbs.every] if program.gibbs else []
        intervals += [program.estimator.renew_every] if program.estimator.renew_every else []
        fisher = fisher_of(program.kernel)
        intervals += [fisher.every] if fisher else []
        intervals += [program.adapt.every] if program.adapt and adapts else []
        period = math.gcd(*intervals)
        most = together if is_small or is_wide else max(1, _BLOCK_ROWS // max(1, num_rows))
        most = min(most, period)
        # A divisor of the period: a count known at compile time spares an accelerator a question
        # to the host. Elsewhere, where there is none but 1, the last block is cut short.
        length = max(n for n in range(1, most + 1) if period % n == 0)
        length = most if length == 1 and not is_padded else length
        whole = _BLOCK_DRAWS if program.kernel.num_gradients == 1 else _BLOCK_TRAJECTORIES
        return cls(
            period=period,
            draws_per_block=min(draws, whole) if is_padded else draws,
            block_length=length,
            block_has_motion=is_small or (is_wide and length > 1),
            is_watched=must_watch
            or (program.has_info and (is_small or program.thinning == 1) and not is_lazy),
            adapts=adapts,
            is_padded=is_padded,
            burnin=burnin,
            records_after=records_after,
        )


def _burnin(
    program: RunSpec, is_in_blocks: bool, records_after: bool
) -> Literal["kept", "skipped", "apart"]:
    if not is_in_blocks:
        return "skipped" if records_after or not runtime.has_accelerator() else "apart"
    has_functions = program.keep or program.averages or program.trace or program.adapt
    return "apart" if has_functions else "kept"


# How many draws the compiled loop makes before the host looks up.

_BLOCK_SECONDS = 0.5
"""Time between two looks at the run: Ctrl-C and the progress bar wait no longer than that."""
_LARGEST_GROWTH = 16.0
"""Of a block over the one before: the first, of one draw, is mostly compilation and says little."""
_LONG_COMPILATION = 1.0
"""Seconds from which a first block was mostly compilation of a large program."""


class Pace:
    """`least` draws, to compile, then as many as take half a second."""

    def __init__(self, least: int = 1):
        self.count, self.least, self.first_seconds = least, least, 0.0

    @contextlib.contextmanager
    def timing(self, most: int) -> Iterator[int]:
        """How many draws to make inside of this context, at most so many."""
        count = min(self.count, most)
        began = time.perf_counter()
        yield count
        elapsed = time.perf_counter() - began
        if not self.first_seconds and elapsed > _LONG_COMPILATION:
            _give_memory_back()
        self.first_seconds = self.first_seconds or elapsed
        self.count = max(self.least, int(count * min(_LARGEST_GROWTH, _BLOCK_SECONDS / elapsed)))


def _give_memory_back() -> None:
    """Let the system have what a compiler freed: glibc would keep it, and draws come on top."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)
