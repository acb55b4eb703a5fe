# ruff: noqa: E402
"""V̂ from microbatches is unbiased, and is what a step takes off its noise."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import BAOAB, SGHMC, SGLD, GaussianPrior
from sghmc.torch.gradients import VARIANCE
from torch_steps import scripted

NUM_DATA, NUM_PARTS, PART_SIZE = 30, 4, 5
GIVEN = {"num_data": NUM_DATA, "prior": GaussianPrior(0.5), "seed": 0}
KINDS = {
    "sghmc": lambda theta: SGHMC([theta], 0.1, 60.0, 5.0, "estimate", temperature=1.5, **GIVEN),
    "baoab": lambda theta: BAOAB([theta], 0.1, 60.0, 5.0, "estimate", temperature=1.5, **GIVEN),
    "sgld": lambda theta: SGLD([theta], 0.003, 1.3, "estimate", temperature=1.5, **GIVEN),
}


def backward(theta, rows: np.ndarray, parts: int = NUM_PARTS) -> None:
    """Microbatches of a loss whose gradient is the mean of the rows."""
    theta.grad = None
    for part in np.split(rows, parts):
        ((torch.as_tensor(part) @ theta).mean() / parts).backward()


def drawn(generator, size: int) -> np.ndarray:
    scales = np.linspace(0.5, 2.0, size)
    return 0.7 + scales * generator.normal(size=(NUM_PARTS * PART_SIZE, size))


def test_the_estimate_is_unbiased():
    """Over 60 steps of 4 microbatches and 200 entries: an error of 0.75 %; 5 of them."""
    theta = torch.zeros(200, dtype=torch.float64, requires_grad=True)
    sampler, generator = KINDS["sghmc"](theta), np.random.default_rng(0)
    for _ in range(60):
        backward(theta, drawn(generator, 200))
        sampler.step()
    exact = NUM_DATA**2 * np.linspace(0.5, 2.0, 200) ** 2 / (NUM_PARTS * PART_SIZE)
    ratio = sampler.state[theta][VARIANCE].numpy() / exact
    assert ratio.mean() == pytest.approx(1, abs=0.0375)
    assert np.all((ratio > 0.5) & (ratio < 1.7))


def test_one_estimate_is_that_of_the_formula():
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    sampler = KINDS["sghmc"](theta)
    rows = drawn(np.random.default_rng(1), 3)
    backward(theta, rows)
    sampler.step()
    means = rows.reshape(NUM_PARTS, PART_SIZE, 3).mean(1)
    expected = NUM_DATA**2 * means.var(0, ddof=1) / NUM_PARTS
    np.testing.assert_allclose(sampler.state[theta][VARIANCE], expected, rtol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_a_step_takes_off_what_earlier_steps_saw(name):
    """Against the same step with V̂ given, parameter by parameter."""
    generator, size = np.random.default_rng(2), 3
    theta = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    sampler = KINDS[name](theta)
    for _ in range(2):
        backward(theta, drawn(generator, size))
        sampler.step()
    variance = sampler.state[theta][VARIANCE].clone()
    state = {n: t.clone() for n, t in sampler.state[theta].items()}
    start, normals = theta.detach().clone(), generator.normal(size=size)
    backward(theta, drawn(generator, size))
    gradient = theta.grad.clone()
    with scripted(normals):
        sampler.step()
    expected = []
    for i in range(size):
        alone = start[i : i + 1].clone().requires_grad_()
        other = KINDS[name](alone)
        other.param_groups[0]["gradient_noise"] = variance[i].item()
        alone.grad = torch.zeros_like(alone)
        other.step()
        with torch.no_grad():
            alone.copy_(start[i : i + 1])
            for key, tensor in other.state[alone].items():
                tensor.copy_(state[key][i : i + 1])
        alone.grad = gradient[i : i + 1].clone()
        with scripted(normals[i : i + 1]):
            other.step()
        expected.append(alone.item())
    np.testing.assert_allclose(theta.detach(), expected, rtol=1e-12)
    assert torch.all(variance > 0)


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_that_no_step_took_are_forgotten(in_place):
    """A batch that was given up, by zero_grad or by zeros in place, is no part of the next one."""
    theta, other = (torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    sampler, plain = KINDS["sgld"](theta), KINDS["sgld"](other)
    generator = np.random.default_rng(4)
    backward(theta, drawn(generator, 3))
    rows = drawn(generator, 3)
    if not in_place:
        backward(theta, rows)
    else:
        assert theta.grad is not None
        theta.grad.zero_()
        for part in np.split(rows, NUM_PARTS):
            ((torch.as_tensor(part) @ theta).mean() / NUM_PARTS).backward()
    backward(other, rows)
    sampler.step()
    plain.step()
    np.testing.assert_allclose(
        sampler.state[theta][VARIANCE], plain.state[other][VARIANCE], rtol=1e-12
    )


def test_every_group_has_the_whole_of_its_estimate():
    """Two groups with the same rows: one estimate, not a half of it in the second."""
    params = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    groups = [{"params": [param]} for param in params]
    sampler = SGLD(groups, 0.003, gradient_noise="estimate", **GIVEN)
    for seed in range(2):
        for param in params:
            backward(param, drawn(np.random.default_rng(seed), 3))
        sampler.step()
    first, second = (sampler.state[param][VARIANCE] for param in params)
    assert torch.equal(first, second)


def test_an_estimate_resumes():
    theta, other = (torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    sampler, resumed = KINDS["sghmc"](theta), KINDS["sghmc"](other)
    generator = np.random.default_rng(5)
    for _ in range(2):
        backward(theta, drawn(generator, 3))
        sampler.step()
    with torch.no_grad():
        other.copy_(theta)
    resumed.load_state_dict(sampler.state_dict())
    rows = drawn(generator, 3)
    for param, each in ((theta, sampler), (other, resumed)):
        backward(param, rows)
        each.step()
    assert torch.equal(theta, other)
    assert torch.equal(sampler.state[theta][VARIANCE], resumed.state[other][VARIANCE])


def test_one_microbatch_is_too_few():
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    sampler = KINDS["sgld"](theta)
    backward(theta, drawn(np.random.default_rng(0), 3), parts=1)
    with pytest.raises(ValueError, match="backward\\(\\) was called 1 times"):
        sampler.step()
    assert not torch.any(theta)


def test_a_gradient_that_was_changed_is_refused():
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    sampler = KINDS["sgld"](theta)
    backward(theta, drawn(np.random.default_rng(0), 3))
    torch.nn.utils.clip_grad_norm_([theta], 0.01)
    with pytest.raises(ValueError, match="changed between backward"):
        sampler.step()
    assert not torch.any(theta)


def test_an_estimate_that_leaves_no_room_is_an_error_and_nothing_moves():
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    sampler = SGHMC([theta], 0.1, friction=0.5, gradient_noise="estimate", **GIVEN)
    generator = np.random.default_rng(0)
    backward(theta, drawn(generator, 3))
    sampler.step()
    before = theta.detach().clone()
    backward(theta, drawn(generator, 3))
    with pytest.raises(ValueError, match=r"but the law has room for 0\.1 only"):
        sampler.step()
    assert torch.equal(theta.detach(), before)


def test_sgld_has_room_for_gradient_noise_up_to_what_it_injects():
    """2ετP ⪰ (εP)²V̂: at εP = 0.2 and τ = 1.5 up to V̂ = 15, given or estimated."""
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    SGLD([theta], 0.1, 2.0, 14.9, temperature=1.5, **GIVEN)
    with pytest.raises(ValueError, match="smaller step_size, or larger batches"):
        SGLD([theta], 0.1, 2.0, 15.1, temperature=1.5, **GIVEN)
    sampler = SGLD([theta], 0.1, 2.0, gradient_noise="estimate", **GIVEN)
    generator = np.random.default_rng(0)
    backward(theta, drawn(generator, 3))
    sampler.step()
    before = theta.detach().clone()
    backward(theta, drawn(generator, 3))
    with pytest.raises(ValueError, match="smaller step_size, or larger batches"):
        sampler.step()
    assert torch.equal(theta.detach(), before)
