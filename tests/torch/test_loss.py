# ruff: noqa: E402
"""A sum is told from a mean where torch tells; what it does not tell is documented."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import gradients as losses
from torch_cases import data, flat, make, network

FUNCTIONAL = torch.nn.functional
LOSSES = {
    "cross entropy": lambda out, y, r: FUNCTIONAL.cross_entropy(out, y, reduction=r),
    "squares": lambda out, y, r: FUNCTIONAL.mse_loss(out[:, 0], y.float(), reduction=r),
    "binary": lambda out, y, r: FUNCTIONAL.binary_cross_entropy_with_logits(
        out[:, 0], y.float(), reduction=r
    ),
    "absolute": lambda out, y, r: FUNCTIONAL.huber_loss(out[:, 0], y.float(), reduction=r),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_sum_is_refused_and_a_mean_is_not(name):
    x, y = data()
    out = network()(x)
    losses.check_loss(LOSSES[name](out, y, "mean"))
    losses.check_loss(LOSSES[name](out, y, "sum") / len(y))
    with pytest.raises(ValueError, match='reduction="sum"'):
        losses.check_loss(LOSSES[name](out, y, "sum"))
    with pytest.raises(ValueError, match=r"shape \(40,\), but must be one number"):
        losses.check_loss(LOSSES[name](out, y, "none"))


def test_a_closure_with_a_sum_moves_nothing():
    model = network()
    sampler, before = make("sghmc", model), flat(model)
    x, y = data()

    def closure():
        sampler.zero_grad()
        loss = FUNCTIONAL.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        return loss

    with pytest.raises(ValueError, match='Take reduction="mean"'):
        sampler.step(closure)
    assert torch.equal(flat(model), before)


def test_numbers_say_nothing():
    losses.check_loss(0.7)
    losses.check_loss(None)
    losses.check_loss(torch.tensor(3.0))
