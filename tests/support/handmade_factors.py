"""Posterior draws of a small factorization, made by hand: nothing needs to be fitted."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

NUM_DRAWS, SIZES, WIDTH = 5, {"user": 7, "item": 6}, 4


def handmade_draws(
    seed: int = 0, sizes: Mapping[str, int] = MappingProxyType(SIZES)
) -> dict[str, np.ndarray]:
    """Draws by name; the last column of a row is its bias."""
    generator = np.random.default_rng(seed)
    draws: dict[str, np.ndarray] = {"noise": generator.gamma(3.0, size=(NUM_DRAWS, sizes["user"]))}
    draws["noise_rate"] = generator.gamma(3.0, size=NUM_DRAWS)
    for side, size in sizes.items():
        draws[side] = generator.normal(size=(NUM_DRAWS, size, WIDTH)).astype(np.float32)
        draws[f"{side}.mean"] = generator.normal(size=(NUM_DRAWS, WIDTH))
        draws[f"{side}.precision"] = generator.gamma(3.0, size=(NUM_DRAWS, WIDTH))
    return draws
