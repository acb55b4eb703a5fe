"""Checks of losses and gradients, and the variance of the gradient's error."""

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from sghmc.torch.pieces import Piece
from sghmc.torch.priors import whole, wide
from sghmc.torch.settings import number

_SUM_REDUCTION = 2
"""Number that torch saves for reduction="sum"."""


def check_loss(loss: Any, num_data: int | None = None) -> None:
    """Refuse a loss that is not a mean, or of more rows than `num_data`, where its graph tells.

    Torch's own losses say how they were reduced, and over how many rows. A sum that was written
    out, or a mean over something else than the rows of the batch, cannot be told from a mean.
    """
    if not isinstance(loss, torch.Tensor):
        return
    if loss.numel() != 1:
        raise ValueError(
            f"The loss has shape {tuple(loss.shape)}, but must be one number: the mean over the "
            f"batch of −log p(y | x, θ)."
        )
    if getattr(loss.grad_fn, "_saved_reduction", None) == _SUM_REDUCTION:
        raise ValueError(
            'The loss has reduction="sum", but must be the mean over the batch: num_data is what '
            'it is multiplied by. Take reduction="mean".'
        )
    num_rows = _num_rows(loss.grad_fn)
    if num_data is not None and num_rows > num_data:
        raise ValueError(
            f"The loss is of {num_rows} rows, but num_data is {num_data}: give the number of rows "
            f"of the whole training set, len(dataset), not the number of batches, len(loader)."
        )


def _num_rows(node: Any) -> int:
    """Return over how many rows one of torch's own losses is, or 0: saved tensors may be gone."""
    if not hasattr(node, "_saved_reduction"):
        return 0
    outputs = node.next_functions[0][0]
    metadata = getattr(outputs, "_input_metadata", None)
    is_computed = metadata and not hasattr(outputs, "variable")
    shape = list(metadata[0].shape) if metadata and is_computed else []
    return shape[0] if shape else 0


# Whether gradients are finite: a step by one that is not would be the end of a chain.

# pyright: reportPrivateImportUsage=false


class FiniteCheck:
    """Check that every gradient is finite; on a CPU before the step is taken.

    An accelerator runs ahead of the program, and to wait for it would cost what that gains. There
    the check of step t is read at step t + 1, and at every draw of a `Collector`.
    """

    def __init__(self):
        self._pending: tuple[int, torch.Tensor, torch.Event] | None = None
        self._clipping = _ClippingCheck()

    def check(self, grads: list[torch.Tensor], step: int) -> None:
        self.settle()
        if not grads:
            return
        # The norm of half-precision numbers may be more than they can hold.
        grads = [grad.float() if grad.dtype == torch.float16 else grad for grad in grads]
        norms = [whole(norm) for norm in torch._foreach_norm(grads)]
        if grads[0].is_cpu:
            values = [norm.item() for norm in norms]
            if not math.isfinite(sum(values)):
                _refuse(grads, step)
            self._clipping.add(math.hypot(*values), values[0])
            return
        together = torch.stack([norm.to(norms[0].device) for norm in norms])
        total = torch.stack([together.sum(), torch.linalg.vector_norm(together), together[0]])
        event = torch.Event(total.device.type)
        looked = total.to("cpu", non_blocking=True)
        event.record()
        self._pending = (step, looked, event)

    def settle(self) -> None:
        if self._pending is None:
            return
        step, looked, event = self._pending
        self._pending = None
        event.synchronize()
        total, norm, first = looked.tolist()
        if not math.isfinite(total):
            raise FloatingPointError(
                f"The gradient of step {step} was not finite, and the parameters have moved by it: "
                f"go on from the last draw or checkpoint, with a smaller step_size."
            )
        self._clipping.add(norm, first)


_WATCHED_STEPS, _MIN_CLIPPED_STEPS = 50, 10
_CLIPPED_ROUNDING, _MIN_CHANGE = 3e-6, 1e-3
"""Largest relative difference of norms clipped to one value, and smallest difference of one
parameter's part of them: where gradients come again and again, it is nothing but rounding."""


class _ClippingCheck:
    """Warn once where norms of gradients pile up at one value, as clipping leaves them."""

    def __init__(self):
        self._norms: list[tuple[float, float]] = []
        self._is_done = False

    def add(self, norm: float, first: float) -> None:
        """Add the norm of all gradients of a step, and that of the first parameter's."""
        if self._is_done:
            return
        self._norms.append((norm, first))
        if len(self._norms) < _WATCHED_STEPS:
            return
        ordered, self._norms = sorted(self._norms), []
        for least, most in zip(ordered, ordered[_MIN_CLIPPED_STEPS - 1 :], strict=False):
            if most[0] > least[0] * (1 + _CLIPPED_ROUNDING):
                continue
            parts = [part for norm, part in ordered if least[0] <= norm <= most[0]]
            # Where nothing moves, norms are equal too; but then so are those of each parameter.
            if max(parts) - min(parts) > _MIN_CHANGE * most[0]:
                self._is_done = True
                warnings.warn(
                    f"The gradients of {len(parts)} of {_WATCHED_STEPS} steps have the norm "
                    f"{most[0]:.3g}, as after clipping: the posterior of clipped gradients is "
                    f"another one. Do not clip; where a chain diverges, take a smaller step_size.",
                    stacklevel=2,
                )
                return


def _refuse(grads: list[torch.Tensor], step: int) -> None:
    bad = sum(not torch.isfinite(grad).all() for grad in grads)
    if bad:  # a norm may be infinite where no entry is
        raise FloatingPointError(
            f"The gradient of step {step} is not finite, in {bad} of {len(grads)} parameters: "
            f"nothing was moved. Look at the loss of this batch; a chain that diverges needs a "
            f"smaller step_size."
        )


# V̂, the variance that the gradient's error has: taken off what is injected, given or estimated.

ESTIMATE = "estimate"
VARIANCE, NUM_ESTIMATES = "gradient_noise", "num_estimates"
_WINDOW_STEPS = 100
"""Steps over which V̂ is a plain mean; later the average forgets at that rate."""
_ROUNDING_FACTOR = 1 + 1e-5


def is_estimated(group: dict[str, Any]) -> bool:
    return group.get("gradient_noise") == ESTIMATE


def estimates(group: dict[str, Any], state: Mapping[torch.Tensor, Any]) -> list[torch.Tensor]:
    """Return V̂ of every parameter, where it is estimated."""
    if not is_estimated(group):
        return []
    return [state[param][VARIANCE] for param in group["params"] if param in state]


def check_gradient_noise(
    group: dict[str, Any],
    estimates: list[torch.Tensor],
    *,
    share: float,
    room: float,
    remedy: str,
) -> None:
    """Refuse a V̂ whose heat `share` · V̂ is more than what the sampler injects, `room`."""
    value = group["gradient_noise"]
    if is_estimated(group):
        largest = max((each.max().item() for each in estimates), default=0.0)
    elif isinstance(value, str):
        raise ValueError(f'gradient_noise must be a number or "estimate", but is {value!r}.')
    else:
        largest = number(value, "gradient_noise")
    if share * largest > room * _ROUNDING_FACTOR:
        raise ValueError(
            f"gradient_noise is too large: the gradient brings noise ε²V̂ = {share * largest:g}, "
            f"but the law has room for {room:g} only. {remedy}"
        )


def inject(
    group: dict[str, Any],
    piece: Piece,
    targets: list[torch.Tensor],
    heat: float,
    share: float,
    factor: float = 1.0,
) -> None:
    """Add factor · N(0, heat − share · V̂) to `targets`, in place."""
    if not is_estimated(group):
        variance = heat - share * group["gradient_noise"]
        if variance > 0:
            piece.add_noise(targets, factor * variance**0.5)
        return
    scale = list(torch._foreach_mul(piece.state[VARIANCE], -share))
    torch._foreach_add_(scale, heat)
    torch._foreach_clamp_min_(scale, 0.0)  # what `check` lets pass as rounding
    torch._foreach_sqrt_(scale)
    torch._foreach_mul_(scale, factor)
    piece.add_noise(targets, scale)


class GradientParts(NamedTuple):
    """Sums over the microbatches of a step until now."""

    total: torch.Tensor
    squares: torch.Tensor
    num_parts: int
    version: int
    """Number of changes to the gradient that torch has counted."""


class Microbatches:
    """The variance between the microbatches of a step, parameter by parameter.

    A step's gradient is the sum of K calls of backward(), each of a loss that was divided by K.
    With d_k what the k-th adds to the gradient,

        V̂ = N² K s²,  s² = Σ (d_k − d̄)² / (K − 1):

    unbiased where rows are drawn independently. A step takes off the average over earlier steps,
    which does not know its batch; the first step takes off nothing.
    """

    def __init__(self):
        self._seen: dict[torch.Tensor, GradientParts] = {}

    def watch(self, param: torch.Tensor) -> None:
        if param.requires_grad:
            param.register_post_accumulate_grad_hook(self._look)

    @torch.no_grad()
    def _look(self, param: torch.Tensor) -> None:
        grad, seen = param.grad, self._seen.get(param)
        assert grad is not None
        # One change since the last look is a sum that goes on; else it was zeroed, and begins anew.
        if seen is None or grad._version != seen.version + 1:
            squares = grad.to(wide(grad)) ** 2
            self._seen[param] = GradientParts(grad.clone(), squares, 1, grad._version)
            return
        seen.squares.add_((grad - seen.total).to(wide(grad)) ** 2)
        total = seen.total.copy_(grad)
        self._seen[param] = GradientParts(total, seen.squares, seen.num_parts + 1, grad._version)

    def check(self, params: list[torch.Tensor]) -> None:
        """Refuse what no variance can be taken from, before anything has moved."""
        for param in params:
            grad, seen = param.grad, self._seen.get(param)
            if seen is None or seen.num_parts < 2:
                count = 0 if seen is None else seen.num_parts
                raise ValueError(
                    f'gradient_noise="estimate" needs two microbatches or more in a step, but '
                    f"backward() was called {count} times: for each of K parts of the batch call "
                    f"(loss / K).backward(), then step()."
                )
            if grad is None or not torch.equal(grad, seen.total):
                raise ValueError(
                    'The gradient was changed between backward() and step(): gradient_noise="'
                    'estimate" goes neither with GradScaler nor with DDP nor with clipping. Give '
                    "gradient_noise as a number."
                )

    def update(
        self,
        group: dict[str, Any],
        params: list[torch.Tensor],
        states: list[dict[str, torch.Tensor]],
        num_data: int,
    ) -> None:
        """Let the averages follow what was seen since the last step."""
        group[NUM_ESTIMATES] = group.get(NUM_ESTIMATES, 0) + 1
        weight = 1 / min(group[NUM_ESTIMATES], _WINDOW_STEPS)
        for param, state in zip(params, states, strict=True):
            total, squares, count, _ = self._seen.pop(param)
            spread = (squares - total.to(squares) ** 2 / count).clamp_min_(0) / (count - 1)
            state[VARIANCE].lerp_((num_data**2 * count * spread).to(state[VARIANCE]), weight)
