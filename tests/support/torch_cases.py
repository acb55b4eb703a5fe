"""Samplers of `sghmc.torch` on a small network, for the tests that all of them must pass."""

from collections.abc import Callable
from typing import Any

import torch

from sghmc.torch import BAOAB, PSGLD, SGHMC, SGLD, SGNHT, GaussianPrior

REQUIRED: dict[str, Any] = {"num_data": 40, "seed": 3}
SAMPLERS: dict[str, Callable] = {
    "sghmc": lambda params, **given: SGHMC(params, 0.02, friction=5.0, **given),
    "baoab": lambda params, **given: BAOAB(params, 0.02, friction=5.0, **given),
    "sgld": lambda params, **given: SGLD(params, 0.001, **given),
    "psgld": lambda params, **given: PSGLD(params, 0.001, **given),
    "psgld uncorrected": lambda params, **given: PSGLD(params, 0.001, correction=False, **given),
    "sgnht": lambda params, **given: SGNHT(params, 0.02, friction=5.0, **given),
    "sgnht diagonal": lambda params, **given: SGNHT(
        params, 0.02, friction=5.0, thermostat="diagonal", **given
    ),
}


def network(dtype=torch.float32) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    return torch.nn.Sequential(*layers).to(dtype)


def data(dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator)
    return x.to(dtype), (x[:, 0] > 0).long()


def make(name: str, model: Any, **given: Any):
    given = {"prior": GaussianPrior(2.0), **REQUIRED, **given}
    return SAMPLERS[name](model.parameters(), **given)


def train(model, sampler, num_steps: int, rows=slice(None)) -> None:
    """An ordinary loop, with a closure where the sampler takes the gradient itself."""
    x, y = data(next(model.parameters()).dtype)

    def closure():
        sampler.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
        if not getattr(sampler, "correction", False):
            loss.backward()
        return loss

    for _ in range(num_steps):
        sampler.step(closure)


def flat(model) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([param.detach().reshape(-1) for param in model.parameters()])
