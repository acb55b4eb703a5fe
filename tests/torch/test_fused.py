# ruff: noqa: E402
"""The fused pass does what the operations one by one do, and takes only what it can take."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import pieces

NUMBERS = {"inertia": 0.9, "force": -2.5, "pull": -0.3, "drift": 0.7}


def tensors(dtype=torch.float64, layout=lambda x: x):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(4, 6, dtype=torch.float64, generator=generator) for _ in range(3)]
    return [layout(each.to(dtype)) for each in drawn]


def by_hand(position, momentum, grad, inertia, force, pull, drift):
    momentum = inertia * momentum + force * grad.to(position.dtype) + pull * position
    return position + drift * momentum, momentum


def count_calls(monkeypatch):
    calls, kernel = [], torch._fused_sgd_

    def counted(*arguments, **settings):
        calls.append(settings)
        return kernel(*arguments, **settings)

    monkeypatch.setattr(torch, "_fused_sgd_", counted)
    return calls


def move(position, momentum, grad, **changed):
    numbers = NUMBERS | changed
    wanted = by_hand(position, momentum, grad, **numbers)
    pieces.kick_and_drift([position], [momentum], [grad], **numbers, is_fused=True)
    return wanted


@pytest.mark.parametrize("force", [-2.5, -0.01, 3e4])
def test_one_pass_is_the_operations_one_by_one(force, monkeypatch):
    calls = count_calls(monkeypatch)
    position, momentum, grad = tensors()
    wanted = move(position, momentum, grad, force=force)
    torch.testing.assert_close((position, momentum), wanted, rtol=1e-13, atol=1e-13)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "changed",
    [{"force": 0.0}, {"force": -1e-9}],
    ids=["no force", "a force whose digits would be lost"],
)
def test_numbers_that_the_kernel_cannot_take(changed, monkeypatch):
    calls = count_calls(monkeypatch)
    position, momentum, grad = tensors()
    wanted = move(position, momentum, grad, **changed)
    torch.testing.assert_close((position, momentum), wanted, rtol=1e-15, atol=1e-15)
    assert not calls


@pytest.mark.parametrize("odd", [0, 1, 2], ids=["positions", "momenta", "gradients"])
@pytest.mark.parametrize(
    "layout",
    [lambda x: x.t().contiguous().t(), lambda x: torch.stack([x, x], -1)[..., 0]],
    ids=["transposed", "every second number"],
)
def test_memory_in_another_order(odd, layout, monkeypatch):
    calls = count_calls(monkeypatch)
    given = tensors()
    given[odd] = layout(given[odd])
    wanted = move(*given)
    torch.testing.assert_close(tuple(given[:2]), wanted, rtol=1e-14, atol=1e-14)
    assert not calls


def test_gradients_of_few_digits_move_positions_of_more():
    position, momentum, grad = tensors(torch.float32)
    wanted = move(position, momentum, grad.bfloat16())
    torch.testing.assert_close((position, momentum), wanted)
