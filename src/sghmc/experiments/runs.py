"""Runs that are of use only when they are whole."""

from typing import Any

from sghmc.results.samples import Samples
from sghmc.sampling import sample


def draw(*arguments: Any, num_samples: int, **options: Any) -> Samples:
    """`sample`; but Ctrl-C raises KeyboardInterrupt instead of returning a part of the draws."""
    samples = sample(*arguments, num_samples=num_samples, **options)
    if samples.num_draws < num_samples:
        raise KeyboardInterrupt
    return samples
