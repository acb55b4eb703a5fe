# ruff: noqa: E402
"""pSGLD takes the gradient itself; its step is held against JAX's in `test_laws`."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import PSGLD, GaussianPrior
from torch_cases import REQUIRED, flat, make, network, train


def test_a_closure_is_needed_that_does_not_call_backward():
    model = network()
    sampler = make("psgld", model)
    with pytest.raises(TypeError, match=r"step\(closure\)"):
        sampler.step()

    def closure():
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    before = flat(model)
    with pytest.raises(RuntimeError, match="not call backward"):
        sampler.step(closure)
    assert torch.equal(flat(model), before)


def test_groups_that_come_later_begin_with_their_own_squares():
    """Without squares of its own a parameter would move by ε/λ times its gradient."""
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    given = {"damping": 1e-3, "temperature": 0.0, "prior": None, **REQUIRED}
    sampler = PSGLD([first], 0.01, **given)
    loss = lambda: 50 * (first.square().sum() + second.square().sum())  # noqa: E731
    sampler.step(loss)
    sampler.add_param_group({"params": [second]})
    sampler.step(loss)
    assert torch.all((second - 0.99).abs() < 1e-3)


def test_a_loss_without_curvature():
    theta = torch.ones(3, requires_grad=True)
    sampler = PSGLD([theta], 0.1, damping=3.0, temperature=0.0, prior=None, num_data=4, seed=0)
    sampler.step(theta.sum)
    torch.testing.assert_close(theta.detach(), torch.full((3,), 1 - 0.1 * 4 / 5))


def test_settings():
    with pytest.raises(ValueError, match="decay must be"):
        PSGLD(network().parameters(), 0.1, decay=1.0, prior=None, **REQUIRED)
    with pytest.raises(TypeError, match="correction=False"):
        PSGLD(network(torch.bfloat16).parameters(), 0.1, prior=None, **REQUIRED)


def test_half_precision_without_correction():
    model = network(torch.bfloat16)
    train(model, make("psgld uncorrected", model, prior=GaussianPrior(1.0)), 2)
    assert torch.all(torch.isfinite(flat(model)))
