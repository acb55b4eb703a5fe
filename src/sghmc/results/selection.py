"""Parts of a run's draws, and the draws of several runs as those of one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sghmc.results.samples import Samples
from sghmc.results.summaries import Info

# Bytes of draws that an error may hold in memory.
_MAX_COPIED_BYTES = 1 << 30


def joined(samples: Samples, new: Samples) -> Samples:
    """Return the draws of a run and those that followed them, with its averages and times."""

    def along(old: Any, new: Any) -> Any:
        return jax.tree.map(
            lambda *leaves: np.concatenate(leaves, axis=min(1, leaves[0].ndim - 1)), old, new
        )

    return dataclasses.replace(
        new,
        positions=along(samples.positions, new.positions),
        hyper=along(samples.hyper, new.hyper),
        trace=along(samples.trace, new.trace),
        info=Info(
            **{name: along(part, vars(new.info)[name]) for name, part in vars(samples.info).items()}
        ),
        clock=along(samples.clock, new.clock),
        tuning=samples.tuning,
    )


def thinned(samples: Samples, every: int, num_before: int = 0) -> Samples:
    """Return every `every`-th draw of each chain; averages and steps are still those of all.

    Counting begins `num_before` draws before the first.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> from sghmc.results.selection import thinned
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
    chosen = slice(every - 1 - num_before % every, None, every)
    growth = tuple(each._replace(draw=each.draw // every) for each in samples.growth)
    some = _map_draws(samples, lambda leaf: leaf[:, chosen], lambda clock: clock[chosen])
    going_on = samples.continuation and samples.continuation.thinned(every)
    return dataclasses.replace(some, growth=growth, continuation=going_on)


def lasting(samples: Samples, num_saved: int) -> Samples:
    """Return draws that stay valid when another run takes over their files, and cuts them short.

    They are copies or, if these would be large, the first `num_saved` draws, which no run removes.
    """
    arrays = jax.tree.leaves((samples.positions, samples.hyper, samples.trace))
    if sum(leaf.nbytes for leaf in arrays) > _MAX_COPIED_BYTES:
        return _map_draws(
            samples, lambda leaf: leaf[:, :num_saved], lambda clock: clock[:num_saved]
        )
    return _map_draws(samples, np.array, np.array)


def _map_draws(samples: Samples, change: Callable, change_clock: Callable) -> Samples:
    """Apply `change` to all arrays of draws, axes (chain, draw, …); the clock has draws alone."""
    info = {name: jax.tree.map(change, value) for name, value in vars(samples.info).items()}
    return dataclasses.replace(
        samples,
        positions=jax.tree.map(change, samples.positions),
        hyper=jax.tree.map(change, samples.hyper),
        trace=jax.tree.map(change, samples.trace),
        info=Info(**info),
        clock=None if samples.clock is None else change_clock(samples.clock),
    )
