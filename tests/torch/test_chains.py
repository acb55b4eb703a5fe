# ruff: noqa: E402
"""Networks side by side: each chain is the chain that it would be alone."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGHMC, SGNHT, Chains, GaussianPrior
from torch_cases import REQUIRED, data, flat, network

FUNCTIONAL = torch.nn.functional


def test_each_chain_has_its_own_gradient():
    """Without noise, against networks that are run alone."""
    x, y = data()
    alone = [network(), network()]
    with torch.no_grad():
        alone[1][0].weight.mul_(2)
    chains = Chains(alone)
    given = {"temperature": 0.0, "prior": GaussianPrior(2.0), **REQUIRED}
    together = SGHMC(chains.parameters(), 0.02, friction=5.0, **given)
    samplers = [SGHMC(model.parameters(), 0.02, friction=5.0, **given) for model in alone]
    for _ in range(3):
        together.zero_grad()
        torch.stack([FUNCTIONAL.cross_entropy(each, y) for each in chains(x)]).sum().backward()
        together.step()
        for model, sampler in zip(alone, samplers, strict=True):
            sampler.zero_grad()
            FUNCTIONAL.cross_entropy(model(x), y).backward()
            sampler.step()
    for number, model in enumerate(alone):
        stacked = torch.cat([each.reshape(-1) for each in chains.chain(number).values()])
        torch.testing.assert_close(stacked, flat(model))


def test_noise_differs_between_chains():
    chains = Chains([torch.nn.Linear(50, 20)] * 2)
    sampler = SGHMC(chains.parameters(), 0.1, friction=1.0, prior=None, **REQUIRED)
    for param in chains.parameters():
        param.grad = torch.zeros_like(param)
    before = chains.chain(0)["weight"].clone()
    sampler.step()
    first, second = (chains.chain(number)["weight"] - before for number in range(2))
    correlation = (first * second).mean() / (first.std() * second.std())
    assert abs(correlation) < 5 / 1000**0.5


def test_modes_reach_the_template():
    layer = torch.nn.Linear(1, 500)
    torch.nn.init.constant_(layer.bias, 2.0)
    chains = Chains([torch.nn.Sequential(layer, torch.nn.Dropout(0.5))])
    x = torch.zeros(3, 1)
    assert torch.any(chains(x) == 0)
    chains.eval()
    assert torch.all(chains(x) == 2)


def test_what_would_tie_chains_together_is_refused():
    chains = Chains([network(), network()])
    with pytest.raises(ValueError, match="tie all chains"):
        SGNHT(chains.parameters(), 0.1, prior=None, **REQUIRED)
    sampler = SGNHT(
        chains.parameters(), 0.1, thermostat="diagonal", prior=GaussianPrior(1.0), **REQUIRED
    )
    for param in chains.parameters():
        param.grad = torch.zeros_like(param)
    sampler.step()
    with pytest.raises(ValueError, match="tie all chains"):
        sampler.gibbs()
    with pytest.raises(ValueError, match="one network"):
        Chains([])
