# ruff: noqa: E402
"""Thermostats: their steps are held against JAX's in `test_laws`; here they find the noise."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGNHT, GaussianPrior
from torch_cases import REQUIRED, network


@pytest.mark.parametrize("thermostat", ["scalar", "diagonal"])
def test_a_thermostat_finds_gradient_noise(thermostat):
    """2,000 parameters with V = 16: ξ̄ = A + ½εV/τM, variance τ/h; errors of 3 %, 5 of them."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.zeros(2000, requires_grad=True)
    given = {"num_data": 10, "prior": GaussianPrior(0.5), "seed": 0}
    sampler = SGNHT([theta], 0.1, 1.0, 1.2, temperature=0.7, thermostat=thermostat, **given)
    squares = []
    for step in range(900):
        noise = 4 * torch.randn(2000, generator=generator)
        theta.grad = (1.5 * theta.detach() + noise) / 10
        sampler.step()
        if step >= 300 and step % 20 == 0:
            squares.append(theta.detach().square().mean().item())
    assert sum(squares) / len(squares) == pytest.approx(0.7 / 2.0, rel=0.15)
    if thermostat == "scalar":
        friction = sampler.param_groups[0]["thermostat_value"].item()
    else:
        friction = sampler.state[theta]["thermostat"].mean().item()
    assert friction == pytest.approx(1 + 0.05 * 16 / (0.7 * 1.2), rel=0.15)


def test_each_group_has_its_thermostat():
    params = [torch.zeros(50, requires_grad=True) for _ in range(2)]
    groups = [{"params": [params[0]], "friction": 3.0}, {"params": [params[1]]}]
    sampler = SGNHT(groups, 0.1, prior=None, **REQUIRED)
    for param in params:
        param.grad = torch.zeros_like(param)
    sampler.step()
    values = [group["thermostat_value"].item() for group in sampler.param_groups]
    assert values[0] == pytest.approx(3, abs=0.1)
    assert values[1] == pytest.approx(1, abs=0.1)


def test_choices():
    other: Any = "other"
    with pytest.raises(ValueError, match='thermostat must be "scalar" or "diagonal"'):
        SGNHT(network().parameters(), 0.1, thermostat=other, prior=None, **REQUIRED)
    with pytest.raises(ValueError, match="thermostat_mass must be positive"):
        SGNHT(network().parameters(), 0.1, thermostat_mass=0.0, prior=None, **REQUIRED)
