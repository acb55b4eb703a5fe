"""Whether gradients are finite: a step by one that is not would be the end of a chain."""

# pyright: reportPrivateImportUsage=false

import math

import torch

from sghmc.torch.priors import whole


class FiniteCheck:
    """Looks at every gradient. On a CPU at once: the step is not taken.

    An accelerator runs ahead of the program, and to wait for it would cost what that gains. There
    a look at step t is read at step t + 1, and at every draw of a `Collector`.
    """

    def __init__(self):
        self._pending: tuple[int, torch.Tensor, torch.Event] | None = None

    def check(self, grads: list[torch.Tensor], step: int) -> None:
        self.settle()
        if not grads:
            return
        # The norm of half-precision numbers may be more than they can hold.
        grads = [grad.float() if grad.dtype == torch.float16 else grad for grad in grads]
        norms = [whole(norm) for norm in torch._foreach_norm(grads)]
        if grads[0].is_cpu:
            if not math.isfinite(sum([norm.item() for norm in norms])):
                _refuse(grads, step)
            return
        total = torch.stack([norm.to(norms[0].device) for norm in norms]).sum()
        event = torch.Event(total.device.type)
        looked = torch.isfinite(total).to("cpu", non_blocking=True)
        event.record()
        self._pending = (step, looked, event)

    def settle(self) -> None:
        if self._pending is None:
            return
        step, looked, event = self._pending
        self._pending = None
        event.synchronize()
        if not looked:
            raise FloatingPointError(
                f"The gradient of step {step} was not finite, and the parameters have moved by it: "
                f"go on from the last draw or checkpoint, with a smaller step_size."
            )


def _refuse(grads: list[torch.Tensor], step: int) -> None:
    bad = sum(not torch.isfinite(grad).all() for grad in grads)
    if bad:  # a norm may be infinite where no entry is
        raise FloatingPointError(
            f"The gradient of step {step} is not finite, in {bad} of {len(grads)} parameters: "
            f"nothing was moved. Look at the loss of this batch; a chain that diverges needs a "
            f"smaller step_size."
        )
