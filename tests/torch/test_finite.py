# ruff: noqa: E402
"""On an accelerator a look at the gradients is read one step later; on a CPU at once."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch.gradients import FiniteCheck
from torch_cases import make, network, train

BAD = torch.tensor([torch.inf, 1.0, 1.0])


class Past:
    def synchronize(self):
        pass


def test_a_look_is_read_with_the_next_one():
    check: Any = FiniteCheck()
    check._pending = (7, torch.ones(3), Past())
    check.settle()
    check._pending = (8, BAD, Past())
    with pytest.raises(FloatingPointError, match="step 8 was not finite, and the parameters have"):
        check.check([torch.zeros(1)], 9)
    check.check([torch.zeros(1)], 9)  # it is told once


def test_a_draw_waits_for_the_look():
    model = network()
    sampler: Any = make("sghmc", model)
    train(model, sampler, 1)
    sampler._finite._pending = (0, BAD, Past())
    with pytest.raises(FloatingPointError, match="step 0"):
        sampler.settle()


def test_large_numbers_are_finite():
    """Their squares need not be, in half precision."""
    check = FiniteCheck()
    check.check([torch.full((100,), 6e4, dtype=torch.float16)], 0)
    check.check([torch.full((100,), 1e30, dtype=torch.bfloat16), torch.ones(2).double()], 0)
    check.check([], 0)
    with pytest.raises(FloatingPointError, match="in 1 of 2 parameters"):
        check.check([torch.ones(2), torch.tensor([1.0, -float("inf")])], 0)
