"""Where a run's arrays lie: here on one device; `mesh` has a run over several."""

import abc
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sghmc.engine import beginning, loop
from sghmc.engine.beginning import Beginning
from sghmc.engine.layout import Layout
from sghmc.engine.plan import LoopPlan
from sghmc.engine.program import Carry, DrawRecord, Program
from sghmc.engine.starts import Start
from sghmc.types import PyTree


class Placement(abc.ABC):
    """Brings a run's arrays to devices and back, and runs the loop there.

    A carry is saved as the loop has it, whatever devices it was on: a run may go on elsewhere.
    """

    def layout(self, like: PyTree, num_chains: int) -> Layout:
        """How chains with parameters `like` lie in memory."""
        return Layout.of(like, num_chains)

    def size(self, axis: str | None) -> int:
        """Devices along an axis."""
        return 1

    @abc.abstractmethod
    def place_program(self, program: Program) -> Program:
        """The program with its arrays where they belong."""

    @abc.abstractmethod
    def begin(self, program: Program, start: Start, *, looks: bool) -> Beginning:
        """`beginning.begin`, where the arrays lie."""

    @abc.abstractmethod
    def carry_like(self, program: Program) -> Carry:
        """The carry that `begin` returns, by shapes and dtypes."""

    @abc.abstractmethod
    def advance(
        self, program: Program, carry: Carry, first, count, num_kept, *, capacity: int
    ) -> tuple[Carry, Any]:
        """`loop.advance`, where the arrays lie."""

    def plan(self, program: Program, carry: Carry, capacity: int) -> LoopPlan:
        """How the loop is cut on each device."""
        return loop.plan_of(program, carry, capacity)

    @abc.abstractmethod
    def fetch_carry(self, layout: Layout, carry: PyTree) -> PyTree:
        """A carry, or parts of one, as it is saved."""

    @abc.abstractmethod
    def fetched_like(self, layout: Layout, carry: PyTree) -> PyTree:
        """What `fetch_carry` returns, by shapes and dtypes."""

    @abc.abstractmethod
    def place_carry(self, layout: Layout, saved: PyTree) -> PyTree:
        """A saved carry, back in its place."""

    @abc.abstractmethod
    def fetch_records(self, layout: Layout, records: DrawRecord) -> DrawRecord:
        """Records on the host, axes (chain, draw, …)."""


class OneDevice(Placement):
    """Arrays have chains where the loop has them: a carry is saved as it is."""

    def place_program(self, program):
        return program

    def begin(self, program, start, *, looks):
        return beginning.begin(program, start, looks=looks)

    def carry_like(self, program):
        start = program.layout.chains_like
        return eqx.filter_eval_shape(beginning.beginning, program, start, 0, looks=False).carry

    def advance(self, program, carry, first, count, num_kept, *, capacity):
        return loop.advance(program, carry, first, count, num_kept, capacity=capacity)

    def fetch_carry(self, layout, carry):
        return carry

    def fetched_like(self, layout, carry):
        return carry

    def place_carry(self, layout, saved):
        return saved

    def fetch_records(self, layout, records):
        return layout.chains_first(jax.tree.map(np.asarray, records), leading=1)
