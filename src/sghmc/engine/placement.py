"""Where a run's arrays lie: here on one device; `mesh` has a run over several."""

import abc
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sghmc.engine import loop
from sghmc.engine.layout import Layout
from sghmc.engine.loop import Beginning
from sghmc.engine.program import Carry, DrawRecord, Program
from sghmc.types import PyTree


class Placement(abc.ABC):
    """Brings a run's arrays to devices and back, and runs the loop there.

    A carry is saved as the loop has it, whatever devices it was on: a run may go on elsewhere.
    """

    @abc.abstractmethod
    def place_program(self, program: Program) -> Program:
        """The program with its arrays where they belong."""

    @abc.abstractmethod
    def begin(self, program: Program, positions: PyTree) -> Beginning:
        """All chains before step 0, from positions with a leading chain axis."""

    @abc.abstractmethod
    def beginning_like(self, program: Program, positions: PyTree) -> Beginning:
        """What `begin` returns, by shapes and dtypes."""

    @abc.abstractmethod
    def advance(
        self, program: Program, carry: Carry, first, count, *, capacity: int
    ) -> tuple[Carry, Any]:
        """`loop.advance`, where the arrays lie."""

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

    def begin(self, program, positions):
        return loop.begin(program, positions)

    def beginning_like(self, program, positions):
        return eqx.filter_eval_shape(loop.beginning, program, positions, 0)

    def advance(self, program, carry, first, count, *, capacity):
        return loop.advance(program, carry, first, count, capacity=capacity)

    def fetch_carry(self, layout, carry):
        return carry

    def fetched_like(self, layout, carry):
        return carry

    def place_carry(self, layout, saved):
        return saved

    def fetch_records(self, layout, records):
        return layout.chains_first(jax.tree.map(np.asarray, records), leading=1)
