"""Fewer draws of a run that has ended."""

import dataclasses
from typing import Any

import jax

from sghmc.results.info import Info
from sghmc.results.samples import Samples


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

    def some(part: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[:, every - 1 :: every], part)

    return dataclasses.replace(
        samples,
        positions=some(samples.positions),
        hyper=some(samples.hyper),
        trace=some(samples.trace),
        info=Info(**{name: some(value) for name, value in vars(samples.info).items()}),
        clock=None if samples.clock is None else samples.clock[every - 1 :: every],
        growth=tuple(each._replace(draw=each.draw // every) for each in samples.growth),
    )
