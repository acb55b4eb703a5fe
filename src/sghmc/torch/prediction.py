"""Predictions averaged over draws, and what they say of their own uncertainty."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

_SMALLEST = 1e-30


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the draws together say of each row.

    | field | formula | meaning |
    | --- | --- | --- |
    | `probabilities` | p̄ = mean of p(y \\| x, θ) over draws | of each class |
    | `entropy` | H(p̄) = −Σ p̄ log p̄ | all uncertainty of a row's class, in nats |
    | `mutual_information` | H(p̄) − mean of H(p) | the part of it that more data would remove |
    """

    probabilities: torch.Tensor
    entropy: torch.Tensor
    mutual_information: torch.Tensor


def softmax(outputs: torch.Tensor) -> torch.Tensor:
    return torch.softmax(outputs.float(), dim=-1)


@torch.no_grad()
def predict(
    apply: Callable[[dict[str, torch.Tensor], Any], torch.Tensor],
    draws: Callable[[], Iterator[dict[str, torch.Tensor]]],
    inputs: Iterable[Any],
    link: Callable[[torch.Tensor], torch.Tensor],
) -> Prediction:
    """Batch by batch; `apply(draw, x)` are the outputs that `link` takes to probabilities."""
    found: list[tuple[torch.Tensor, ...]] = []
    for batch in inputs:
        x = batch[0] if isinstance(batch, tuple | list) else batch
        total = torch.zeros(())
        doubt = torch.zeros(())
        count = 0
        for draw in draws():
            probabilities = link(apply(draw, x)).cpu()
            total, doubt = total + probabilities, doubt + entropy(probabilities)
            count += 1
        mean = total / count
        found.append((mean, entropy(mean), entropy(mean) - doubt / count))
    if not found:
        raise ValueError("There is nothing to predict: the loader has no batches.")
    return Prediction(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def entropy(probabilities: torch.Tensor) -> torch.Tensor:
    return -(probabilities * probabilities.clamp_min(_SMALLEST).log()).sum(-1)
