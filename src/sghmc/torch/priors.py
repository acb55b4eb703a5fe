"""Priors of parameters, and the copies of them that several parameter groups share.

A prior is a term of the potential, never weight decay.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from sghmc.torch import settings
from sghmc.torch.draws import are_chains
from sghmc.torch.pieces import Piece
from sghmc.torch.settings import number

# pyright: reportPrivateImportUsage=false


Prior = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""The log density of a group's parameters, up to a constant."""


class GaussianPrior:
    """A normal prior θ ~ N(0, λ⁻¹) of every parameter of a group; λ is fixed, or drawn.

        log p(θ | λ) = ½ n log λ − ½ λ‖θ‖²  (up to a constant)
        λ | θ ~ Gamma(1 + (a − 1 + n/2)/τ, (b + ‖θ‖²/2)/τ)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `precision` | λ | the precision, 1/variance |
    | `shape`, `rate` | a, b | of a gamma prior of λ: what `Sampler.gibbs` draws it under |

    A `weight_decay` of w beside a mean loss over N rows is the precision wN.

    >>> from sghmc.torch import GaussianPrior
    >>> GaussianPrior(4.0).precision
    4.0
    """

    def __init__(self, precision: float, shape: float = 1.0, rate: float = 1.0):
        self.precision = number(precision, "precision")
        self.shape = number(shape, "shape", positive=True)
        self.rate = number(rate, "rate", positive=True)

    def __call__(self, params: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the log density −½ λ‖θ‖², up to a constant."""
        squares = [whole(torch.sum(param.to(wide(param)) ** 2)) for param in params]
        return -0.5 * self.precision * torch.stack(squares).sum()

    def __repr__(self) -> str:
        return f"GaussianPrior({self.precision!r}, shape={self.shape!r}, rate={self.rate!r})"

    def draw(
        self, params: Sequence[torch.Tensor], temperature: float, generator: torch.Generator
    ) -> None:
        """Let λ become a draw of its conditional; at τ ≠ 1 that is tempered, too."""
        if temperature == 0:
            raise ValueError(
                "At temperature 0 a precision has no law to be drawn from: call gibbs() once the "
                "sampler is warm."
            )
        count = sum(param.numel() for param in params)
        shape = 1 + (self.shape - 1 + count / 2) / temperature
        rate = (self.rate + sum_of_squares(params).item() / 2) / temperature
        drawn = torch._standard_gamma(torch.tensor(shape, dtype=torch.float64), generator)
        self.precision = drawn.item() / rate


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum over all tensors and all of their shards, in single precision at least."""
    norms = [whole(torch.linalg.vector_norm(each, dtype=wide(each))) for each in tensors]
    return torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with all of its shards (`DTensor`), on every rank."""
    if type(tensor) is torch.Tensor:
        return tensor
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore


def wide(tensor: torch.Tensor) -> torch.dtype:
    """Return the type in which sums of a tensor are computed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def check_prior(prior: object) -> None:
    if prior is not None and not callable(prior):
        raise TypeError(
            f"prior must be GaussianPrior(precision), a function of a group's parameters that "
            f"returns their log density, or None (flat), but is {prior!r}."
        )


def gradient(
    positions: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    params: list[torch.Tensor],
    prior: Prior | None,
) -> list[torch.Tensor] | None:
    """Return ∇ log p(θ) of a prior that is a function, at the positions of `params`."""
    if prior is None or isinstance(prior, GaussianPrior):
        return None
    with torch.enable_grad():
        leaves = [position.detach().requires_grad_() for position in positions(params)]
        value = log_density(leaves, prior)
        grads = torch.autograd.grad(value, leaves, allow_unused=True)
    pairs = zip(grads, leaves, strict=True)
    return [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in pairs]


def add_gradient(
    target: list[torch.Tensor], piece: Piece, prior: Prior | None, factor: float, num_data: int
) -> None:
    """Add factor · ∇Ũ(θ) to `target` in place, which may be θ itself."""
    if piece.prior_grads is not None:
        torch._foreach_add_(target, piece.prior_grads, alpha=-factor)
    elif isinstance(prior, GaussianPrior) and prior.precision:
        torch._foreach_add_(target, piece.positions, alpha=factor * prior.precision)
    torch._foreach_add_(target, piece.grads, alpha=factor * num_data)


def log_density(leaves: list[torch.Tensor], prior: Prior) -> torch.Tensor:
    value = prior(leaves)
    if not isinstance(value, torch.Tensor) or value.ndim or not value.requires_grad:
        shown = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else value
        raise TypeError(
            f"prior must return the log density of the parameters it is given, a number that "
            f"depends on them, but returned {shown!r}."
        )
    if not math.isfinite(value.item()):
        raise ValueError(f"The log density of the prior is {value.item()} at the parameters.")
    return value


# Priors that several parameter groups share.


class Copies:
    """A sampler's own copy of each prior that it was given: `gibbs` changes them."""

    def __init__(self):
        self._known: dict[int, tuple[Any, Any]] = {}

    def own(self, prior: Any) -> Any:
        """Return one copy of a prior for all groups that share it."""
        check_prior(prior)
        if id(prior) not in self._known:
            self._known[id(prior)] = (prior, copy.copy(prior))  # holds on to what has this id
        return self._known[id(prior)][1]


def sharing(groups: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the groups that move, by the `GaussianPrior` that they share."""
    found: dict[int, list[dict[str, Any]]] = {}
    for group in groups:
        if isinstance(group["prior"], GaussianPrior) and settings.moving(group):
            found.setdefault(id(group["prior"]), []).append(group)
    if any(are_chains(group["params"]) for each in found.values() for group in each):
        raise ValueError(
            "One precision would tie all chains together: with gibbs() run chains one "
            "after the other, each with its own sampler."
        )
    return list(found.values())
