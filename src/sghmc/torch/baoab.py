"""SGHMC by a splitting: the friction solved exactly, between two halves of the drift."""

# pyright: reportPrivateImportUsage=false

import math
from typing import Any

import torch

from sghmc.torch.gradient_noise import inject
from sghmc.torch.momentum import MOMENTUM, FrictionSampler
from sghmc.torch.pieces import Piece


class BAOAB(FrictionSampler):
    """SGHMC by the splitting kick, half drift, friction, half drift: unbiased on a Gaussian.

        r ← r − ε ∇Ũ(θ)                                       (B, a half and a half)
        θ ← θ + ½ε M⁻¹ r                                      (A)
        r ← e^{−x} r + N(0, τM(1 − e^{−2x}) − ε² e^{−x} V̂)    (O, exact),  x = εC/M
        θ ← θ + ½ε M⁻¹ r                                      (A, the new r)

    | argument | symbol | meaning |
    | --- | --- | --- |
    | `step_size`, `friction`, `mass` | ε, C, M | as in `SGHMC` |
    | `gradient_noise`, `temperature` | V̂, τ | as in `SGHMC` |
    | `num_data`, `prior`, `seed` | N, p(θ) | what every `Sampler` must be given |

    Law: that of `sghmc.BAOAB`, covariance τA⁻¹ on U = ½θᵀAθ with an exact gradient, for every step
    size; stable for M > ¼ε²A at every friction. Gradient noise that V̂ describes adds a bias of
    order ε³. Needs τC ≥ ½εV̂.

    Leimkuhler & Matthews, Applied Mathematics Research eXpress 2013. The correction is ours.

    >>> import torch
    >>> from sghmc.torch import BAOAB
    >>> theta = torch.zeros(3, requires_grad=True)
    >>> sampler = BAOAB([theta], 0.5, friction=1.0, num_data=1, prior=None, seed=0)
    >>> (theta**2).sum().backward()
    >>> sampler.step()
    """

    def _begin_step(self, group: dict[str, Any], piece: Piece) -> None:
        self._kick_and_drift(group, piece, 1.0, 0.5)

    def _heat(self, group: dict[str, Any], piece: Piece) -> None:
        momenta = piece.state[MOMENTUM]
        damping = group["lr"] * group["friction"] / group["mass"]
        torch._foreach_mul_(momenta, math.exp(-damping))
        heat = -group["temperature"] * group["mass"] * math.expm1(-2 * damping)
        inject(group, piece, momenta, heat, group["lr"] ** 2 * math.exp(-damping))

    def _finish(self, group: dict[str, Any], piece: Piece) -> None:
        self._drift(group, piece, 0.5)
