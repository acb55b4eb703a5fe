# ruff: noqa: E402
"""Draws are what the model was, in memory or on disk; predictions are averages over them."""

import io
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGHMC, SGLD, Chains, Collector, GaussianPrior
from torch_cases import REQUIRED, data, make, network

FUNCTIONAL = torch.nn.functional


def run(model, sampler, collector, num_steps: int) -> list:
    """An ordinary loop; the weights of the last layer after every step."""
    x, y = data()
    seen = []
    for _ in range(num_steps):
        sampler.zero_grad()
        loss = FUNCTIONAL.cross_entropy(model(x), y)
        loss.backward()
        sampler.step()
        collector.step(loss)
        seen.append(model[2].weight.detach().numpy().copy())
    return seen


def last_layer(model: Any) -> Any:
    return model[2].weight


def collected(num_steps=25, **given):
    model = network()
    sampler = make("sghmc", model)
    collector = Collector(model, sampler, **given)
    return model, collector, run(model, sampler, collector, num_steps)


@pytest.mark.parametrize("on_disk", [False, True])
def test_draws_are_every_so_many_after_burnin(on_disk, tmp_path):
    folder = tmp_path / "draws" if on_disk else None
    _, collector, seen = collected(every=3, burnin=10, folder=folder)
    samples = collector.samples()
    assert list(samples.positions) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    np.testing.assert_array_equal(samples.positions["2.weight"], np.stack(seen[12::3])[None])
    assert samples.num_draws == 5
    assert samples.num_chains == 1
    assert samples.num_steps == 25
    assert np.all(samples.info.is_finite)
    is_mapped = isinstance(collector._stores[0].arrays()["0.bias"], np.memmap)
    assert is_mapped == on_disk


def test_samples_have_health_summary_arviz_and_report(tmp_path):
    """Four chains on a Gaussian, one after the other: its spread is √(1/3), to within 5 %."""
    theta = torch.nn.ParameterDict({"theta": torch.nn.Parameter(torch.zeros(2))})
    collector = None
    for chain in range(4):
        prior = GaussianPrior(2.0)
        sampler = SGHMC(theta.parameters(), 0.2, friction=1.0, num_data=1, prior=prior, seed=chain)
        if collector is None:
            collector = Collector(theta, sampler, every=10, burnin=40)
        else:
            collector.sampler = sampler
            collector.next_chain()
        for _ in range(1040):
            sampler.zero_grad()
            loss = (theta["theta"] ** 2).sum() / 2
            loss.backward()
            sampler.step()
            collector.step(loss)
    assert collector is not None
    samples = collector.samples()
    assert samples.positions["theta"].shape == (4, 100, 2)
    assert samples.positions["theta"].std() == pytest.approx(3**-0.5, rel=0.25)
    heat = samples.info.kinetic_temperature
    assert heat is not None
    assert heat.mean() == pytest.approx(1, rel=0.25)
    expected = (1 + 2) / 2 * np.sum(samples.positions["theta"] ** 2, axis=-1)
    assert np.corrcoef(expected.ravel(), samples.info.potential.ravel())[0, 1] > 0.7
    health = samples.health()
    assert health.r_hat < 1.1
    assert health.kinetic_temperature == pytest.approx(1, rel=0.25)
    assert "mean" in samples.summary().columns
    assert samples.to_arviz()["posterior"].sizes["chain"] == 4
    assert "SGHMC" in samples.report(tmp_path).read_text("utf-8")


def test_some_parameters_or_a_function_of_the_model():
    _, collector, seen = collected(keep=["2.weight"])
    assert list(collector.samples().positions) == ["2.weight"]
    _, collector, _ = collected(keep=lambda model: {"size": last_layer(model).norm()})
    sizes = collector.samples().positions["size"]
    np.testing.assert_allclose(sizes, [[np.linalg.norm(each) for each in seen]], rtol=1e-6)
    with pytest.raises(TypeError, match="keep is a function"):
        collector.predict([data()[0]], "softmax")


def test_names_and_returns_of_keep_are_checked():
    for keep in (["weight"], "0.weight"):
        with pytest.raises(ValueError, match="must be a list of names among"):
            Collector(network(), keep=keep)
    collector = Collector(network(), keep=last_layer)
    with pytest.raises(TypeError, match="tensors by name"):
        collector.step()
    with pytest.raises(TypeError, match="one of sghmc"):
        Collector(network(), torch.optim.SGD(network().parameters()))  # pyright: ignore


def test_precisions_that_are_drawn_are_hyperparameters():
    model = network()
    groups = [{"params": [p], "prior": GaussianPrior(1.0)} for p in model.parameters()]
    sampler = SGHMC(groups, 0.02, friction=5.0, prior=None, **REQUIRED)
    collector = Collector(model, sampler)
    for _ in range(3):
        run(model, sampler, collector, 1)
        sampler.gibbs()
    precision = collector.samples().hyper["precision"]
    assert precision.shape == (1, 3, 4)
    assert np.all(precision[0, 0] == 1)
    assert len(np.unique(precision[0, 1:])) == 8


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_collector_goes_on_where_it_was(on_disk, tmp_path):
    """Draws made after the state was saved are forgotten, and made again."""
    given = {"every": 2, "burnin": 3, "folder": tmp_path if on_disk else None}
    model = network()
    sampler = make("sghmc", model)
    collector = Collector(model, sampler, **given)
    run(model, sampler, collector, 8)
    file = io.BytesIO()
    torch.save([each.state_dict() for each in (model, sampler, collector)], file)
    run(model, sampler, collector, 8)
    expected = {n: np.array(a) for n, a in collector.samples().positions.items()}
    file.seek(0)
    states = torch.load(file, weights_only=True)
    again = network()
    other = make("sghmc", again)
    resumed = Collector(again, other, **given)
    for each, state in zip((again, other, resumed), states, strict=True):
        each.load_state_dict(state)
    run(again, other, resumed, 8)
    for name, array in resumed.samples().positions.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_folder_with_other_draws_is_refused(tmp_path):
    collected(folder=tmp_path)
    with pytest.raises(ValueError, match="draws of another run"):
        collected(folder=tmp_path)


def test_no_draws_and_unequal_chains_are_told():
    _, collector, _ = collected(num_steps=3, burnin=10)
    with pytest.raises(ValueError, match="no draws yet, after 3 steps with burnin=10"):
        collector.samples()
    model, collector, _ = collected(num_steps=3)
    collector.next_chain()
    collector.sampler = make("sghmc", model)
    run(model, collector.sampler, collector, 2)
    with pytest.raises(ValueError, match=r"have \[3, 2\] draws"):
        collector.samples()


def test_a_sum_is_refused():
    collector = Collector(network())
    x, y = data()
    with pytest.raises(ValueError, match='reduction="sum"'):
        collector.step(FUNCTIONAL.cross_entropy(network()(x), y, reduction="sum"))


def test_predictions_are_averages_over_draws():
    x, y = data()
    model, collector, _ = collected(every=5)
    model.train()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=15)
    seen = collector.predict(loader, "softmax")
    assert model.training
    positions = collector.samples().positions
    each = []
    for draw in range(5):
        other = network()
        other.load_state_dict({n: torch.tensor(a[0, draw]) for n, a in positions.items()})
        each.append(torch.softmax(other(x), -1).detach().numpy())
    each = np.stack(each)
    mean = each.mean(0)
    np.testing.assert_allclose(seen.probabilities, mean, rtol=1e-5)
    entropy = -(mean * np.log(mean)).sum(-1)
    np.testing.assert_allclose(seen.entropy, entropy, rtol=1e-5)
    within = -(each * np.log(each)).sum(-1).mean(0)
    np.testing.assert_allclose(seen.mutual_information, entropy - within, atol=1e-6)
    assert torch.all(seen.mutual_information > 0)
    with pytest.raises(ValueError, match="no batches"):
        collector.predict([], "softmax")


def test_buffers_belong_to_a_draw():
    """Batch normalization: a prediction uses the averages that the draw had."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    sampler = SGLD(model.parameters(), 1e-3, prior=None, **REQUIRED)
    collector = Collector(model, sampler)
    x, y = data()
    for _ in range(2):
        sampler.zero_grad()
        FUNCTIONAL.cross_entropy(model(x), y).backward()
        sampler.step()
        collector.step()
    model.eval()
    last = torch.softmax(model(x), -1)
    assert set(collector.samples().positions) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    store: Any = collector._stores[0]
    store._draws.pop(0)
    model[1].running_mean.zero_()
    torch.testing.assert_close(collector.predict([x], "softmax").probabilities, last.detach())


def test_chains_are_one_module_and_several_draws():
    x, y = data()
    models = [network() for _ in range(3)]
    chains = Chains(models)
    sampler = make("sghmc", chains)
    collector = Collector(chains, sampler, burnin=1)
    for _ in range(3):
        sampler.zero_grad()
        loss = torch.stack([FUNCTIONAL.cross_entropy(each, y) for each in chains(x)]).sum()
        loss.backward()
        sampler.step()
        collector.step(loss)
    samples = collector.samples()
    assert samples.positions["2.weight"].shape == (3, 2, 2, 4)
    assert samples.num_chains == 3
    outputs = torch.softmax(chains(x), -1).detach()
    last = Collector(chains)
    last.step()
    torch.testing.assert_close(last.predict([x], "softmax").probabilities, outputs.mean(0))
    assert not torch.allclose(outputs[0], outputs[1])
