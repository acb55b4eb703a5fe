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


def deep_linear_coefficient(widths: Sequence[int], rank: int) -> float:
    """Return λ of f(x) = W_L … W_1 x where the best product has this rank, to hold `llc` against.

    `widths` are those of the input, the hidden layers and the output. It is the coefficient at
    parameters whose layers have no larger rank than their product; elsewhere it may be larger.

        λ = ½r(H₀ + H_L − r) + ½ Σ_{i<j∈Σ} ΔᵢΔⱼ − ¼(ℓ − 1)S²/ℓ + a(ℓ − a)/(4ℓ)

    with Δᵢ = Hᵢ − r, S = Σ_{i∈Σ} Δᵢ over the ℓ + 1 narrowest layers Σ, for the ℓ with
    max Δ_Σ ≤ S/ℓ < min of the others, and a = S − ℓ(⌈S/ℓ⌉ − 1).

    Aoyagi, Neural Networks 2024.

    >>> deep_linear_coefficient([3, 4], rank=2)  # one layer: half the number of parameters
    6.0
    >>> deep_linear_coefficient([2, 2, 2], rank=0)  # of 8 parameters
    1.5
    """
    if len(widths) < 2 or not 0 <= rank <= min(widths):
        raise ValueError(f"rank must lie between 0 and the widths {widths}, but is {rank}.")
    spare = sorted(width - rank for width in widths)
    for size in range(2, len(spare) + 1):
        inside, beyond = spare[:size], spare[size:]
        total, layers = sum(inside), size - 1
        if max(inside) * layers <= total and (not beyond or total < layers * beyond[0]):
            break
    else:
        raise AssertionError(f"no layers of {widths} fit")
    remainder = total - layers * (-(-total // layers) - 1)
    pairs = (total**2 - sum(each**2 for each in inside)) / 2
    return (
        rank * (widths[0] + widths[-1] - rank) / 2
        + pairs / 2
        - (layers - 1) * total**2 / (4 * layers)
        + remainder * (layers - remainder) / (4 * layers)
    )
