"""What can be seen of a loss: whether it is one number, and no sum over the batch."""

from typing import Any

import torch

_SUM = 2
"""Torch's number for reduction="sum"."""


def check(loss: Any) -> None:
    """Refuse a loss that is not a mean, where its graph tells.

    Torch's own losses say how they were reduced. A sum that was written out, or a mean over
    something else than the rows of the batch, cannot be told from a mean.
    """
    if not isinstance(loss, torch.Tensor):
        return
    if loss.numel() != 1:
        raise ValueError(
            f"The loss has shape {tuple(loss.shape)}, but must be one number: the mean over the "
            f"batch of −log p(y | x, θ)."
        )
    if getattr(loss.grad_fn, "_saved_reduction", None) == _SUM:
        raise ValueError(
            'The loss has reduction="sum", but must be the mean over the batch: num_data is what '
            'it is multiplied by. Take reduction="mean".'
        )
