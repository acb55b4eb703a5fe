# ruff: noqa: E402
"""Networks side by side: each chain is the chain that it would be alone."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGHMC, SGNHT, Chains, Collector, GaussianPrior
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


class Tied(torch.nn.Module):
    """Reads with the weights that it writes with, as language models do."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(self.embedding(words))


def test_weights_that_are_tied_stay_tied():
    models = [Tied() for _ in range(2)]
    chains, words = Chains(models), torch.arange(6)
    assert len(list(chains.parameters())) == 1
    expected = torch.stack([model(words) for model in models]).detach()
    torch.testing.assert_close(chains(words).detach(), expected)
    collector = Collector(chains)
    collector.step()
    with torch.no_grad():
        chains.get_parameter("embedding/weight").zero_()
    seen = collector.predict([words], "softmax").probabilities
    torch.testing.assert_close(seen, torch.softmax(expected, -1).mean(0))
    other = Tied()
    other.head.weight = torch.nn.Parameter(torch.zeros(6, 4))
    with pytest.raises(ValueError, match="differ in which weights they share"):
        Chains([models[0], other])


@pytest.mark.parametrize("is_training", [True, False])
def test_batch_normalization_is_that_of_networks_alone(is_training):
    """Each chain's own averages: they move in training, and are used in evaluation."""
    torch.manual_seed(0)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))  # noqa: E731
    models, (x, _) = [make() for _ in range(2)], data()
    for number, model in enumerate(models):
        model[1].running_mean.fill_(number)
        model[1].running_var.fill_(2.0 + number)
    chains = Chains(models).train(is_training)
    for _ in range(2):
        alone = torch.stack([model.train(is_training)(x) for model in models])
        torch.testing.assert_close(chains(x), alone)
    for number, model in enumerate(models):
        chain = chains.chain(number)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(chain[name], buffer)


def test_dropout_differs_between_chains():
    layer = torch.nn.Linear(1, 200)
    chains = Chains([torch.nn.Sequential(layer, torch.nn.Dropout(0.5))] * 2)
    first, second = chains(torch.ones(1, 1))
    assert not torch.equal(first == 0, second == 0)


def test_draws_of_chains_are_those_of_arviz():
    chains = Chains([network(), network()])
    collector = Collector(chains)
    for _ in range(3):
        collector.step()
    posterior = collector.samples().to_arviz()["posterior"]
    assert posterior["2.weight"].shape == (2, 3, 2, 4)


def test_frozen_parameters_stay_frozen():
    models = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)) for _ in range(2)]
    for model in models:
        model[0].requires_grad_(False)
    moving = [name for name, param in Chains(models).named_parameters() if param.requires_grad]
    assert moving == ["1/weight", "1/bias"]


def test_copies_are_chains_too():
    chains = copy.deepcopy(Chains([torch.nn.Linear(3, 2) for _ in range(2)]))
    with pytest.raises(ValueError, match="One thermostat would tie all chains together"):
        SGNHT(chains.parameters(), 0.1, num_data=1, prior=None, seed=0)


def test_arguments_by_name_reach_the_network():
    chains = Chains([torch.nn.Linear(3, 2) for _ in range(2)])
    x = torch.ones(5, 3)
    assert torch.equal(chains(input=x), chains(x))
