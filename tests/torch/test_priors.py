# ruff: noqa: E402
"""Priors: their gradients, their refusals, and the law that precisions are drawn from."""

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGLD, GaussianPrior
from sghmc.torch.priors import gradient, sharing
from torch_cases import REQUIRED


def test_precisions_come_from_the_tempered_conditional():
    """Gamma(1 + (a − 1 + n/2)/τ, (b + ‖θ‖²/2)/τ), by 1,000 draws: a false alarm in 10⁴ seeds."""
    prior = GaussianPrior(1.0, shape=1.5, rate=2.0)
    params = [torch.tensor([1.0, -2.0]), torch.tensor([[0.5]])]
    generator, drawn = torch.Generator().manual_seed(0), []
    for _ in range(1000):
        prior.draw(params, 0.7, generator)
        drawn.append(prior.precision)
    exact = stats.gamma(1 + (0.5 + 1.5) / 0.7, scale=0.7 / (2.0 + 5.25 / 2))
    assert stats.kstest(drawn, exact.cdf).pvalue > 1e-4


def test_a_function_is_differentiated_by_group():
    def heavy_tails(params):
        return -2 * torch.cat([torch.log1p(param**2).reshape(-1) for param in params]).sum()

    positions = [torch.tensor([0.5, -1.0]), torch.tensor([[2.0]])]
    grads = gradient(list, positions, heavy_tails)
    assert grads is not None
    for grad, x in zip(grads, positions, strict=True):
        torch.testing.assert_close(grad, -4 * x / (1 + x**2))
    grads = gradient(
        list, positions, lambda params: params[0].sum()
    )  # the rest does not matter to it
    assert grads is not None
    assert torch.equal(grads[1], torch.zeros(1, 1))
    assert gradient(list, positions, GaussianPrior(1.0)) is gradient(list, positions, None) is None


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda params: -0.5, "must return the log density"),
        (lambda params: params[0] ** 2, "must return the log density"),
        (lambda params: torch.tensor(1.0), "must return the log density"),
        (lambda params: params[0].sum() * float("nan"), "log density of the prior is nan"),
    ],
)
def test_a_function_that_is_no_density_is_refused_and_nothing_moves(prior, message):
    theta = torch.ones(3, requires_grad=True)
    sampler = SGLD([theta], 0.1, prior=prior, **REQUIRED)
    theta.grad = torch.zeros(3)
    with pytest.raises((TypeError, ValueError), match=message):
        sampler.step()
    assert torch.equal(theta.detach(), torch.ones(3))


def test_settings_and_text():
    with pytest.raises(ValueError, match="precision must be zero or more"):
        GaussianPrior(-1.0)
    with pytest.raises(ValueError, match="rate must be positive"):
        GaussianPrior(1.0, rate=0.0)
    assert repr(GaussianPrior(2.0)) == "GaussianPrior(2.0, shape=1.0, rate=1.0)"
    density = GaussianPrior(2.0)([torch.tensor([1.0, 2.0]), torch.ones(3, dtype=torch.bfloat16)])
    np.testing.assert_allclose(density, -8.0)


def test_groups_that_share_a_prior_are_those_that_move():
    shared, other = GaussianPrior(1.0), GaussianPrior(2.0)

    def group(prior, moves=True):
        return {"params": [torch.zeros(2, requires_grad=moves)], "prior": prior}

    groups = [group(shared), group(other), group(shared), group(shared, False), group(sum)]
    found = sharing(groups)
    assert [[id(each) for each in part] for part in found] == [
        [id(groups[0]), id(groups[2])],
        [id(groups[1])],
    ]
    assert sharing([group(shared, False), group(None)]) == []
