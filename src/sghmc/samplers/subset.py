"""A sum over all data, estimated from rows that are added until they are enough."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from sghmc.core import random
from sghmc.types import Change


class Estimate(NamedTuple):
    """A change of the potential from `num_rows` rows without replacement, and its variance.

    The variance is N²(1 − n/N) s²/n, s² centered and with divisor n − 1: unbiased, and 0 once all
    rows were seen.
    """

    value: jax.Array
    variance: jax.Array
    num_rows: jax.Array


class _Seen(NamedTuple):
    """How many terms, their mean, and the sum of their squares around it."""

    num_terms: jax.Array
    mean: jax.Array
    squares: jax.Array


def estimate(
    change: Change,
    order: jax.Array,
    batch_size: int,
    is_enough: Callable[[Estimate], jax.Array],
) -> Estimate:
    """Looks at `batch_size` more rows in random order, until `is_enough` or all were seen.

    `order` is two random words, the key of a permutation of the rows. Among chains the loop goes on
    until the last has enough, so that it is a real loop, where a branch would always be taken.
    """
    total = change.num_terms
    zero = jnp.zeros((), change.known.dtype)
    if isinstance(total, int) and total == 0:
        return Estimate(change.known, zero, jnp.zeros((), jnp.int32))

    def judged(seen: _Seen) -> Estimate:
        number, count = jnp.asarray(total, zero.dtype), seen.num_terms.astype(zero.dtype)
        scatter = seen.squares / jnp.maximum((count - 1) * count, 1)
        spread = number * scatter * (number - count)
        return Estimate(change.known + number * seen.mean, spread, seen.num_terms)

    def is_short(seen: _Seen) -> jax.Array:
        return (seen.num_terms < 2) | ~is_enough(judged(seen))

    def look(seen: _Seen) -> _Seen:
        place = seen.num_terms + lax.iota(jnp.int32, batch_size)
        rows = random.permuted(order, jnp.zeros(1), jnp.minimum(place, total - 1)[None], total)[0]
        return _joined(seen, change.terms(rows).astype(zero.dtype), place < total)

    nothing = _Seen(jnp.zeros((), jnp.int32), zero, zero)
    return judged(
        lax.while_loop(lambda seen: (seen.num_terms < total) & is_short(seen), look, nothing)
    )


def _joined(seen: _Seen, terms: jax.Array, is_new: jax.Array) -> _Seen:
    """With more terms, by the update of Chan, Golub & LeVeque: no difference of large sums."""
    fresh = jnp.sum(is_new, dtype=jnp.int32)
    mean = jnp.sum(jnp.where(is_new, terms, 0)) / fresh.astype(terms.dtype)
    squares = jnp.sum(jnp.where(is_new, (terms - mean) ** 2, 0))
    count, gap = seen.num_terms + fresh, mean - seen.mean
    share = fresh.astype(mean.dtype) / count.astype(mean.dtype)
    between = seen.num_terms.astype(mean.dtype) * share * gap**2
    return _Seen(count, seen.mean + share * gap, seen.squares + squares + between)
