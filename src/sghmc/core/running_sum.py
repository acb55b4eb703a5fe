"""What a run keeps of its draws: an online mean in constant memory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.types import PyTree


class RunningSum(NamedTuple):
    """A compensated sum (Kahan): ten million single-precision terms lose nothing that matters."""

    total: PyTree
    lost: PyTree
    num_terms: jax.Array


def empty(like: PyTree) -> RunningSum:
    """The sum of no terms, of the shapes of `like`."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _real(leaf.dtype)), like)
    return RunningSum(zeros, zeros, jnp.zeros((), jnp.int32))


def add(running: RunningSum, value: PyTree, is_counted: jax.Array) -> RunningSum:
    """Add `value`, or nothing where `is_counted` is False."""

    def totals(total, lost, term):
        term = term.astype(total.dtype) - lost
        new = total + term
        return jnp.where(is_counted, new, total)

    def losses(total, lost, term):
        term = term.astype(total.dtype) - lost
        new = total + term
        return jnp.where(is_counted, (new - total) - term, lost)

    return RunningSum(
        jax.tree.map(totals, running.total, running.lost, value),
        jax.tree.map(losses, running.total, running.lost, value),
        running.num_terms + is_counted,
    )


def mean(running: RunningSum) -> PyTree:
    # What is lost is below the total's last digit.
    return jax.tree.map(lambda total: total / running.num_terms.astype(total.dtype), running.total)


def means(chains: RunningSum) -> PyTree:
    """The means of several sums along a first axis; on the host, where nothing is compiled."""
    count = np.asarray(chains.num_terms)

    def of_total(total):
        total = np.asarray(total)
        with np.errstate(invalid="ignore"):  # without terms: 0/0
            return total / count.reshape(-1, *[1] * (total.ndim - 1)).astype(total.dtype)

    return jax.tree.map(of_total, chains.total)


def _real(dtype):
    return jnp.result_type(dtype, jnp.float32)
