"""Fewer draws of a run that has ended."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sghmc.results.info import Info
from sghmc.results.samples import Samples

_MOST_COPIED = 1 << 30
"""Bytes of draws that an error may hold in memory."""


def thinned(samples: Samples, every: int) -> Samples:
    """Every `every`-th draw of each chain; averages and steps are still those of all.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> from sghmc.results.thinning import thinned
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(2),
    ...     num_samples=100, num_chains=4, progress=False,
    ... )
    >>> thinned(samples, 10).positions.shape
    (4, 10, 2)
    """
    if every == 1:
        return samples
    chosen = slice(every - 1, None, every)
    growth = tuple(each._replace(draw=each.draw // every) for each in samples.growth)
    some = _of_each(samples, lambda leaf: leaf[:, chosen], lambda clock: clock[chosen])
    return dataclasses.replace(some, growth=growth)


def lasting(samples: Samples, num_saved: int) -> Samples:
    """Draws that stay though their files become another run's, which may cut them short.

    Copies, or where these would be large the first `num_saved` draws, which no run takes away.
    """
    arrays = jax.tree.leaves((samples.positions, samples.hyper, samples.trace))
    if sum(leaf.nbytes for leaf in arrays) > _MOST_COPIED:
        return _of_each(samples, lambda leaf: leaf[:, :num_saved], lambda clock: clock[:num_saved])
    return _of_each(samples, np.array, np.array)


def _of_each(samples: Samples, change: Callable, change_clock: Callable) -> Samples:
    """The same for all arrays of draws, axes (chain, draw, …); the clock has draws alone."""

    def changed(part: Any) -> Any:
        return jax.tree.map(change, part)

    return dataclasses.replace(
        samples,
        positions=changed(samples.positions),
        hyper=changed(samples.hyper),
        trace=changed(samples.trace),
        info=Info(**{name: changed(value) for name, value in vars(samples.info).items()}),
        clock=None if samples.clock is None else change_clock(samples.clock),
    )
