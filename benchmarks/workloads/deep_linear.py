"""Deep linear networks at a minimum, for `llc.py`: as arrays of jax, and as numbers for others."""

import itertools
from collections.abc import Sequence

import numpy as np


def matrices_at(widths: Sequence[int], rank: int, seed: int) -> list[np.ndarray]:
    """Layers of this rank, as their product is, with singular values 1 in random directions."""
    rng = np.random.default_rng(seed)
    frames = [np.linalg.qr(rng.normal(size=(width, rank)))[0] for width in widths]
    return [(after @ before.T).astype(np.float32) for before, after in itertools.pairwise(frames)]


def layers_at(widths: Sequence[int], rank: int, seed: int) -> list:
    import jax.numpy as jnp

    return [jnp.asarray(layer) for layer in matrices_at(widths, rank, seed)]


def mean_loss(layers: list):
    """½‖W_L … W_1 − W*‖², W* the product of these layers."""
    import jax.numpy as jnp

    def product(layers):
        whole = layers[0]
        for layer in layers[1:]:
            whole = layer @ whole
        return whole

    best = product(layers)
    return lambda layers: 0.5 * jnp.sum((product(layers) - best) ** 2)
