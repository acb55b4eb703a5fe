"""What a run does in several places, traced once for all of them and for all runs alike.

Functions here are jitted, though they run inside of compiled programs, so that Python goes through
a model once: of a deep network that takes as long as a good part of its compilation.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.engine.chains import each_carry
from sghmc.engine.program import Carry, DrawRecord, Program, Variates
from sghmc.types import StepInfo


def step(chain: Program, t, variates: Variates, carry: Carry) -> tuple[Any, StepInfo]:
    """`Program.step`, traced once for the beginning and for the loop; draws what is missing."""
    t = jnp.asarray(t, jnp.int32)
    known = carry._replace(sums=None, info=None, failed_at=None, noise=None, adaptation=None)
    return _traced_step(chain, t, chain.draw(t, variates), known)


@eqx.filter_jit
def _traced_step(chain: Program, t, variates: Variates, carry: Carry) -> tuple[Any, StepInfo]:
    return chain.step(t, variates, carry)


def observe(
    program: Program, t, carry: Carry, is_counted: bool | jax.Array = True
) -> tuple[Carry, DrawRecord]:
    """What is kept of all chains after step t, and their averages, if it `is_counted`.

    Traced once for all that share a program.
    """
    return _observe(program, jnp.asarray(t, jnp.int32), carry, jnp.asarray(is_counted))


@eqx.filter_jit
def _observe(program: Program, t, carry: Carry, is_counted) -> tuple[Carry, DrawRecord]:
    return each_carry(program, carry, lambda chain, carry: chain.observe(t, carry, is_counted))


def record_like(program: Program, carry: Carry) -> DrawRecord:
    """Shapes of what `observe` records."""
    step, flag = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.bool_))
    return eqx.filter_eval_shape(_observe, program, step, carry, flag)[1]
