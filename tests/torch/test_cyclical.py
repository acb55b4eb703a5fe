# ruff: noqa: E402
"""Cycles: the schedule of JAX's `Cyclical`, as a scheduler of torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import sghmc
from sghmc.torch import Cyclical
from torch_cases import make, network


def test_step_sizes_and_temperatures_are_those_of_jax():
    model = network()
    sampler = make("sghmc", model, temperature=0.7)
    schedule = Cyclical(sampler, cycle_length=7, exploration=0.3)
    twin = sghmc.Cyclical(sghmc.SGHMC(0.02, 5.0, temperature=0.7), 7, 0.3)
    for t in range(20):
        group = sampler.param_groups[0]
        assert group["lr"] == pytest.approx(float(twin.step_size(t)), rel=1e-5, abs=1e-9)
        assert group["temperature"] == pytest.approx(float(twin.temperature(t)), rel=1e-6)
        assert schedule.is_sampling == bool(twin.is_kept(np.array(t)))
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        sampler.step()
        schedule.step()


def test_a_schedule_resumes():
    model = network()
    sampler = make("sghmc", model)
    schedule = Cyclical(sampler, cycle_length=7)
    for _ in range(3):
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        sampler.step()
        schedule.step()
    other = make("sghmc", network())
    again = Cyclical(other, cycle_length=7)
    other.load_state_dict(sampler.state_dict())
    again.load_state_dict(schedule.state_dict())
    again.step()
    schedule.step()
    for name in ("lr", "temperature"):
        assert other.param_groups[0][name] == sampler.param_groups[0][name]
    assert again.is_sampling
    assert other.param_groups[0]["temperature"] == 1.0


def test_settings():
    sampler = make("sghmc", network())
    with pytest.raises(ValueError, match="cycle_length must be a whole number from 2"):
        Cyclical(sampler, 1)
    with pytest.raises(ValueError, match=r"exploration must be from 0 to 0\.75"):
        Cyclical(sampler, 4, exploration=0.8)
    with pytest.raises(TypeError, match="needs a sampler"):
        Cyclical(torch.optim.SGD(network().parameters()), 4)  # pyright: ignore
    with pytest.raises(ValueError, match="gradient_noise=0"):
        Cyclical(make("sghmc", network(), gradient_noise=0.1), 4)
