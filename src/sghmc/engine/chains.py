"""A function of one chain, for all chains of a program."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from sghmc.engine.program import Carry, Program
from sghmc.samplers.base import Kernel
from sghmc.types import PyTree


def each_chain(program: Program, function: Callable, kernel: Kernel | None, *args: PyTree):
    """`function(chain, *args)` for every chain, `chain` being the program as that chain sees it.

    `kernel` has the chains' own, or is None where they share the program's. It and the other
    arguments have the chain axis where the loop has it; what chains share, `function` closes over.
    """
    layout = program.layout
    own, rest = eqx.partition(_own_parts(program), eqx.is_array)

    def of_chain(own, keys, kernel, *args):
        chain = eqx.tree_at(_own_parts, program, eqx.combine(own, rest)) if own else program
        chain = chain if kernel is None else chain.with_kernel(kernel)
        return function(chain.with_keys(keys), *args)

    keys = layout.to_loop(program.keys)
    return layout.over_chains(of_chain, leading=(0,))(own, keys, kernel, *args)


def each_carry(program: Program, carry: Carry, function: Callable[[Program, Carry], Any]) -> Any:
    """`function(chain, carry)` for every chain, with its own kernel where it has one."""
    return each_chain(program, function, carry.kernel, carry)


def _own_parts(program: Program) -> tuple:
    """The parts of a program, besides its keys, that have a leading chain axis."""
    if program.is_stacked:
        return program.target, program.estimator
    if program.batches is not None and not program.estimator.is_shared:
        return (program.batches.places,)
    return ()
