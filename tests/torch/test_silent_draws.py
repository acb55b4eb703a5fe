# ruff: noqa: E402
"""Draws are of the sampler's own steps, of the model that it moves, and all that a folder has."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGHMC, Chains, Collector
from torch_cases import REQUIRED, data, flat, make, network, train

FUNCTIONAL = torch.nn.functional


def test_accumulated_batches_are_no_draws():
    model = network()
    sampler = make("sghmc", model)
    collector = Collector(model, sampler, every=2, burnin=1)
    x, y = data()
    for batch in range(20):  # a step of four batches
        FUNCTIONAL.cross_entropy(model(x), y).div(4).backward()
        if batch % 4 == 3:
            sampler.step()
            sampler.zero_grad()
        collector.step()
    assert (sampler.num_steps, collector.num_draws) == (5, 2)


def test_steps_that_a_scaler_skips_are_no_draws():
    model = network()
    sampler = make("sghmc", model)
    collector = Collector(model, sampler)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x, y = data()
    for factor in (float("inf"), 1.0, float("inf"), 1.0):
        sampler.zero_grad()
        scaler.scale(factor * FUNCTIONAL.cross_entropy(model(x), y)).backward()
        scaler.step(sampler)
        scaler.update()
        collector.step()
    assert (sampler.num_steps, collector.num_draws) == (2, 2)


def test_steps_before_the_collector_are_not_its_own():
    model = network()
    sampler = make("sghmc", model)
    train(model, sampler, 5)
    collector = Collector(model, sampler, burnin=2)
    for _ in range(3):
        train(model, sampler, 1)
        collector.step()
    assert collector.num_draws == 1
    sampler.load_state_dict(make("sghmc", network()).state_dict())  # back to the beginning
    train(model, sampler, 1)
    collector.step()
    assert collector.num_draws == 2


def test_a_model_that_the_sampler_does_not_move_is_refused():
    model = network()
    with pytest.raises(ValueError, match="moves no parameter of this model"):
        Collector(network(), make("sghmc", model))
    last = SGHMC(model[2].parameters(), 0.1, friction=1.0, prior=None, **REQUIRED)
    Collector(model, last)


def test_a_wrapped_sampler_is_the_sampler():
    model = network()
    sampler = make("sghmc", model)
    wrapper = type("Wrapper", (), {"optimizer": sampler})()
    assert Collector(model, wrapper).sampler is sampler


def test_all_chains_of_a_folder_are_opened_again(tmp_path):
    model = network()
    collector = Collector(model, folder=tmp_path)
    for chain in range(2):
        if chain:
            collector.next_chain()
        for _ in range(3):
            with torch.no_grad():
                model[2].bias.add_(1.0)
            collector.step()
    expected = collector.samples().positions["2.bias"]
    again = Collector(model, folder=tmp_path)
    np.testing.assert_array_equal(again.samples().positions["2.bias"], expected)
    with pytest.raises(ValueError, match="has draws of another run"):
        again.step()
    again.next_chain()
    for _ in range(3):
        again.step()
    assert again.samples().num_chains == 3
    again.load_state_dict(collector.state_dict())  # whose run had no third chain
    assert Collector(model, folder=tmp_path)._stores[2].num_draws == 0


def test_a_half_written_draw_does_not_count(tmp_path):
    """Some files have one draw more, and a part of another: draws after that stay in line."""
    model = network()
    collector = Collector(model, folder=tmp_path)
    collector.step()
    for number in (0, 1):
        file = tmp_path / "chain0" / f"{number}.bin"
        file.write_bytes(2 * file.read_bytes() + b"abc")
    again = Collector(model, folder=tmp_path)
    assert again.num_draws == 1
    again._is_resumed = True
    with torch.no_grad():
        model[0].weight.fill_(7.0)
    again.step()
    assert again.num_draws == 2
    assert np.all(again.samples().positions["0.weight"][0, 1] == 7.0)
    assert not np.any(again.samples().positions["0.weight"][0, 0] == 7.0)


def test_predictions_need_all_that_is_sampled():
    model = network()
    collector = Collector(model, make("sghmc", model), keep=["2.weight", "2.bias"])
    with pytest.raises(ValueError, match=r"keep has not \['0.weight', '0.bias'\]"):
        collector.predict([data()[0]], "softmax")


def test_sampling_the_last_layer():
    """A network that was trained, and a posterior of its last layer: the rest stays."""
    model = network()
    before, x, y = flat(model[0]), *data()
    model[0].requires_grad_(False)
    last = [param for param in model.parameters() if param.requires_grad]
    sampler = SGHMC(last, 0.02, friction=5.0, prior=None, **REQUIRED)
    collector = Collector(model, sampler, keep=["2.weight", "2.bias"])
    for _ in range(5):
        sampler.zero_grad()
        FUNCTIONAL.cross_entropy(model(x), y).backward()
        sampler.step()
        collector.step()
    assert torch.equal(flat(model[0]), before)
    seen = collector.predict([x], "softmax").probabilities
    features = model[:2](x).detach().numpy()
    draws = collector.samples().positions
    logits = np.einsum("ri,doi->dro", features, draws["2.weight"][0]) + draws["2.bias"][0][:, None]
    np.testing.assert_allclose(seen, torch.softmax(torch.tensor(logits), -1).mean(0), rtol=1e-5)


def test_draws_in_memory_are_not_stacked_for_a_batch(monkeypatch):
    model = network()
    collector = Collector(model)
    collector.step()
    monkeypatch.setattr(type(collector._stores[0]), "arrays", None)
    assert collector.predict([data()[0]] * 2, "softmax").probabilities.shape == (80, 2)


def test_chains_in_a_folder_are_predicted_alike(tmp_path):
    chains = Chains([network(), network()])
    stores = [Collector(chains), Collector(chains, folder=tmp_path)]
    for collector in stores:
        collector.step()
    seen = [each.predict([data()[0]], "softmax").probabilities for each in stores]
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    "wrap", [torch.nn.DataParallel, lambda m: torch.compile(m, backend="eager")]
)
def test_wrapped_models_are_collected_and_predicted_as_they_are(wrap):
    model = network()
    collector = Collector(wrap(model), make("sghmc", model), keep=None)
    train(model, collector.sampler, 1)
    collector.step()
    assert list(collector.samples().positions) == [name for name, _ in model.named_parameters()]
    expected = torch.softmax(model(data()[0]), -1)
    torch.testing.assert_close(collector.predict([data()[0]], "softmax").probabilities, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_predict_as_they_do(dtype):
    model, (x, _) = network(dtype), data(dtype)
    collector = Collector(model)
    collector.step()
    seen = collector.predict([x], "softmax").probabilities
    assert torch.equal(seen, torch.softmax(model(x).float(), -1))


@pytest.mark.parametrize("are_chains", [False, True])
def test_predict_leaves_every_module_in_its_mode(are_chains):
    """A BatchNorm that is frozen stays so."""
    layers = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5)
    network = torch.nn.Sequential(*layers)
    network[1].eval()
    model = Chains([network]) if are_chains else network
    collector = Collector(model)
    collector.step()
    seen = [collector.predict([data()[0]], "softmax").probabilities for _ in range(2)]
    assert torch.equal(*seen)
    one: Any = model.template if isinstance(model, Chains) else model
    assert [module.training for module in (model, *one)] == [True, True, False, True]
