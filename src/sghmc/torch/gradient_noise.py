"""V̂, the variance that the gradient's error has: taken off what is injected, given or estimated."""

# pyright: reportPrivateImportUsage=false

from typing import Any

import torch

from sghmc.torch.pieces import Piece
from sghmc.torch.priors import wide
from sghmc.torch.settings import number

ESTIMATE = "estimate"
VARIANCE = "gradient_noise"
_WINDOW = 100
"""An average of V̂ is a mean of the first so many estimates, then forgets at that rate."""
_ROUNDING = 1 + 1e-5


def is_estimated(group: dict[str, Any]) -> bool:
    return group.get("gradient_noise") == ESTIMATE


def check(
    group: dict[str, Any],
    estimates: list[torch.Tensor],
    *,
    share: float,
    room: float,
    remedy: str,
) -> None:
    """Refuse a V̂ of which `share` · V̂ is more than there is room for."""
    value = group["gradient_noise"]
    if is_estimated(group):
        largest = max((each.max().item() for each in estimates), default=0.0)
    elif isinstance(value, str):
        raise ValueError(f'gradient_noise must be a number or "estimate", but is {value!r}.')
    else:
        largest = number(value, "gradient_noise")
    if share * largest > room * _ROUNDING:
        raise ValueError(
            f"gradient_noise is too large: the gradient brings noise ε²V̂ = {share * largest:g}, "
            f"but the law has room for {room:g} only. {remedy}"
        )


def inject(
    group: dict[str, Any], piece: Piece, targets: list[torch.Tensor], heat: float, share: float
) -> None:
    """target ← target + N(0, heat − share · V̂), in place."""
    if not is_estimated(group):
        variance = heat - share * group["gradient_noise"]
        if variance > 0:
            piece.add_noise(targets, variance**0.5)
        return
    scale = list(torch._foreach_mul(piece.state[VARIANCE], -share))
    torch._foreach_add_(scale, heat)
    torch._foreach_clamp_min_(scale, 0.0)  # what `check` lets pass as rounding
    torch._foreach_sqrt_(scale)
    piece.add_noise(targets, scale)


class Microbatches:
    """The variance between the microbatches of a step, parameter by parameter.

    A step's gradient is the sum of K calls of backward(), each of a loss that was divided by K.
    With d_k what the k-th adds to the gradient,

        V̂ = N² K s²,  s² = Σ (d_k − d̄)² / (K − 1):

    unbiased where rows are drawn independently. A step takes off the average over earlier steps,
    which does not know its batch; the first step takes off nothing.
    """

    def __init__(self):
        self._seen: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor, int]] = {}
        self.num_estimates = 0

    def watch(self, param: torch.Tensor) -> None:
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(self._look)

    @torch.no_grad()
    def _look(self, param: torch.Tensor) -> None:
        grad = param.grad
        assert grad is not None
        if param not in self._seen:
            self._seen[param] = (grad.clone(), grad.to(wide(grad)) ** 2, 1)
            return
        before, squares, count = self._seen[param]
        squares.add_((grad - before).to(wide(grad)) ** 2)
        self._seen[param] = (before.copy_(grad), squares, count + 1)

    def update(self, params: list[torch.Tensor], states: list[dict], num_data: int) -> None:
        """Let the averages follow what was seen since the last step."""
        self.num_estimates += 1
        weight = 1 / min(self.num_estimates, _WINDOW)
        for param, state in zip(params, states, strict=True):
            grad = param.grad
            seen, squares, count = self._seen.pop(param, (None, None, 0))
            if count < 2 or seen is None or squares is None:
                raise ValueError(
                    f'gradient_noise="estimate" needs two microbatches or more in a step, but '
                    f"backward() was called {count} times: for each of K parts of the batch call "
                    f"(loss / K).backward(), then step()."
                )
            if grad is None or not torch.equal(grad, seen):
                raise ValueError(
                    'The gradient was changed between backward() and step(): gradient_noise="'
                    'estimate" goes neither with GradScaler nor with DDP nor with clipping. Give '
                    "gradient_noise as a number."
                )
            spread = (squares - grad.to(wide(grad)) ** 2 / count).clamp_min_(0) / (count - 1)
            state[VARIANCE].lerp_((num_data**2 * count * spread).to(state[VARIANCE]), weight)
