"""Stochastic gradient Langevin dynamics, plain and with the preconditioner of RMSprop."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import torch

from sghmc.torch import gradients as losses
from sghmc.torch import gradients as noise
from sghmc.torch import priors
from sghmc.torch.base import Common, Sampler
from sghmc.torch.pieces import Piece, StepPlan
from sghmc.torch.settings import gradients, half_precision, moving, number


class SGLD(Sampler):
    """Langevin dynamics with a stochastic gradient, corrected for the gradient's own noise.

        θ ← θ − ε P ∇Ũ(θ) + N(0, 2ετP − ε² P V̂ P)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | the factor before the gradient of U, not of the mean loss |
    | `preconditioner` | P | positive |
    | `gradient_noise` | V̂ | variance of ∇Ũ's error, taken off the injected noise; "estimate": \
from microbatches |
    | `temperature` | τ | samples exp(−U/τ) |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    All are numbers, and may differ by parameter group.

    Law: that of `sghmc.SGLD`, covariance τ(A − ½εAPA)⁻¹ on U = ½θᵀAθ with V̂ right.

    Welling & Teh, ICML 2011. Their ε is twice ours.

    >>> import torch
    >>> from sghmc.torch import SGLD
    >>> theta = torch.zeros(3, requires_grad=True)
    >>> sampler = SGLD([theta], 0.01, num_data=1, prior=None, seed=0)
    >>> (theta**2).sum().backward()
    >>> sampler.step()
    """

    def __init__(
        self,
        params: Iterable,
        step_size: float,
        preconditioner: float = 1.0,
        gradient_noise: float | str = 0.0,
        **common: Unpack[Common],
    ):
        settings = {"preconditioner": preconditioner, "gradient_noise": gradient_noise}
        super().__init__(params, step_size, settings, **common)

    def _check(self, group: dict[str, Any]) -> None:
        step = group["lr"] * number(group["preconditioner"], "preconditioner", positive=True)
        noise.check_gradient_noise(
            group,
            noise.estimates(group, self.state),
            share=step**2,
            room=2 * step * group["temperature"],
            remedy="Take a smaller step_size, or larger batches.",
        )

    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def _move_all(self, group: dict[str, Any], plan: StepPlan) -> None:
        plan.run(functools.partial(self._move, group))

    def _move(self, group: dict[str, Any], piece: Piece) -> None:
        step = group["lr"] * group["preconditioner"]
        priors.add_gradient(piece.positions, piece, group["prior"], -step, self.num_data)
        heat = 2 * step * group["temperature"]
        noise.inject(group, piece, piece.positions, heat, step**2)


# Langevin dynamics with the preconditioner of RMSprop.

# pyright: reportPrivateImportUsage=false


_SQUARES, _SLOPES, _TURNED = "squares", "slopes", "turned"
_FIRST = "first_step"


class PSGLD(Sampler):
    """SGLD preconditioned by running squares of the gradient, all products entry by entry.

        θ ← θ − ε G ∇Ũ(θ) + ετ Γ + N(0, 2ετG),  G = (λ² + s)^−½,  Γ = −½ G³ d
        s ← βs + (1 − β) ∇Ũ²,  d ← βd + (1 − β) 2∇Ũ z (∇²Ũ z),  z = ±1 at random

    G is that of earlier steps: one that saw this step's batch would not be independent of its
    gradient. (The first step has no other.)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | θ moves by about ε a step |
    | `decay` | β | how much of the old squares stays in a step; below 1 |
    | `damping` | λ | in units of the gradient of the whole potential: G is at most 1/λ |
    | `correction` | | False leaves Γ out, as the field does: another law, for every ε |
    | `temperature` | τ | samples exp(−U/τ) |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    All but `correction` may differ by parameter group. Γ takes a product with the Hessian, so with
    `correction` a step needs a closure that returns the loss and does *not* call backward(): the
    gradient is taken here, and what is left in `.grad` is ∇Ũ.

    Law: that of `sghmc.PSGLD`.

    Li, Chen, Carlson & Carin, AAAI 2016; see `sghmc.PSGLD` for what differs from them.

    >>> import torch
    >>> from sghmc.torch import PSGLD
    >>> theta = torch.ones(3, requires_grad=True)
    >>> sampler = PSGLD([theta], 0.01, num_data=1, prior=None, seed=0)
    >>> round(sampler.step(lambda: (theta**2).sum()).item(), 3)
    3.0
    """

    _OPTIONS = ("correction",)

    def __init__(
        self,
        params: Iterable,
        step_size: float,
        decay: float = 0.99,
        damping: float = 1.0,
        correction: bool = True,
        **common: Unpack[Common],
    ):
        self.correction = correction
        settings = {"decay": decay, "damping": damping}
        super().__init__(params, step_size, settings, **common)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self.param_groups[-1][_FIRST] = self.num_steps
        low = half_precision(self.param_groups[-1]["params"])
        if self.correction and low:
            raise TypeError(
                f"PSGLD with correction differentiates twice, which {low[0].dtype} has too few "
                f"digits for: give correction=False, or weights in single precision."
            )

    def _check(self, group: dict[str, Any]) -> None:
        number(group["damping"], "damping", positive=True)
        if not 0 <= group["decay"] < 1:
            raise ValueError(f"decay must be from 0 and below 1, but is {group['decay']!r}.")

    def _fresh(self, group: dict[str, Any], position: torch.Tensor) -> dict[str, torch.Tensor]:
        names = (_SQUARES, _SLOPES, _TURNED) if self.correction else (_SQUARES,)
        return {name: torch.zeros_like(position) for name in names}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """Move by the gradient of the loss that `closure` returns (see above)."""
        if not self.correction or (closure is None and self._is_asked_for_states()):
            return super().step(closure)
        if closure is None:
            raise TypeError(
                "PSGLD with correction takes a product with the Hessian: call step(closure) with a "
                "closure that returns the loss and does not call backward(), or give "
                "correction=False."
            )
        with torch.enable_grad():
            loss = closure()
            losses.check_loss(loss, self.num_data)
            self._differentiate(loss)
        self._advance()
        return loss

    def _differentiate(self, loss: Any) -> None:
        """Write ∇Ũ to the gradients, and 2z(∇²Ũ z) to the state."""
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            shown = "a detached tensor" if isinstance(loss, torch.Tensor) else repr(loss)
            raise TypeError(
                f"PSGLD's closure returned {shown}, which has no graph: the prior alone would be "
                f"sampled. Return the loss itself, without item(), detach() and backward(). "
                f"Lightning's automatic optimization detaches it: set automatic_optimization="
                f"False and call step(closure), or give correction=False."
            )
        groups = [moving(group) for group in self.param_groups]
        params = [param for members in groups for param in members]
        potential = self.num_data * loss
        for group, members in zip(self.param_groups, groups, strict=True):
            if group["prior"] is not None and members:
                potential = potential - group["prior"](members)
        try:
            if self.num_steps == 0:  # a prior would hide that the loss does not depend on one
                of_loss = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
                for param, grad in zip(params, of_loss, strict=True):
                    param.grad = grad
                for group, members in zip(self.param_groups, groups, strict=True):
                    gradients(group, members)
            grads = torch.autograd.grad(potential, params, create_graph=True, allow_unused=True)
        except RuntimeError as error:
            raise RuntimeError(
                f"PSGLD could not differentiate the loss: its closure must return it with its "
                f"graph, and not call backward(). ({error})"
            ) from error
        for param, grad in zip(params, grads, strict=True):
            param.grad = None if grad is None else grad.detach()
        for group, members in zip(self.param_groups, groups, strict=True):
            if members:
                gradients(group, members)
                self._planned(group, members).run(_toss)
        signs = [self.state[param][_TURNED] for param in params]
        curved = [i for i, grad in enumerate(grads) if grad is not None and grad.requires_grad]
        products = (
            torch.autograd.grad(
                [grads[i] for i in curved], params, [signs[i] for i in curved], allow_unused=True
            )
            if curved
            else [None] * len(params)
        )
        with torch.no_grad():
            for sign, product in zip(signs, products, strict=True):
                sign.mul_(0.0 if product is None else 2 * product)

    def _move_all(self, group: dict[str, Any], plan: StepPlan) -> None:
        plan.run(functools.partial(self._move, group))

    def _move(self, group: dict[str, Any], piece: Piece) -> None:
        epsilon, tau, forgotten = group["lr"], group["temperature"], 1 - group["decay"]
        grads = piece.grads
        if not self.correction:  # ∇Ũ(θ)
            grads = [torch.zeros_like(position) for position in piece.positions]
            priors.add_gradient(grads, piece, group["prior"], 1.0, self.num_data)
        averages = {_SQUARES: torch._foreach_mul(grads, grads)}
        if self.correction:
            averages[_SLOPES] = torch._foreach_mul(grads, piece.state[_TURNED])
        if self.num_steps == group[_FIRST]:  # there is nothing but what this step sees
            for name, seen in averages.items():
                torch._foreach_copy_(piece.state[name], seen)
        root = torch._foreach_add(piece.state[_SQUARES], group["damping"] ** 2)
        root = torch._foreach_pow(root, -0.5)
        torch._foreach_addcmul_(piece.positions, root, grads, value=-epsilon)
        if self.correction:
            cubes = torch._foreach_pow(root, 3)
            slopes = piece.state[_SLOPES]
            torch._foreach_addcmul_(piece.positions, cubes, slopes, value=-epsilon * tau / 2)
        if tau:
            scale = torch._foreach_sqrt(torch._foreach_mul(root, 2 * epsilon * tau))
            piece.add_noise(piece.positions, list(scale))
        for name, seen in averages.items():
            torch._foreach_lerp_(piece.state[name], seen, forgotten)


def _toss(piece: Piece) -> None:
    """Draw z = ±1 for every entry."""
    for sign, drawn in zip(piece.state[_TURNED], piece.normals(), strict=True):
        torch.sign(drawn, out=sign)
