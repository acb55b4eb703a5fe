# ruff: noqa: E402
"""What a trainer would do to a posterior is refused; real runs are in `test_trainer_runs`."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.data import DataLoader, TensorDataset

from sghmc.torch.trainers import DrawsOfTrainer
from torch_cases import data, make, network, train


def begun(num_data=40, clip=None, optimizers=None, **given):
    model = network()
    sampler = make("sghmc", model, num_data=num_data)
    draws = DrawsOfTrainer(given)
    loader = DataLoader(TensorDataset(*data()), batch_size=5)
    draws.begin(model, [sampler] if optimizers is None else optimizers, loader, clip)
    return model, sampler, draws


def test_clipping_is_refused():
    with pytest.raises(ValueError, match=r"clips gradients at 1, .*max_grad_norm=0\.0"):
        begun(clip=1.0)


def test_the_number_of_batches_is_refused():
    with pytest.raises(ValueError, match=r"num_data=8 is the number of batches.*num_data=40"):
        begun(num_data=8)


def test_one_sampler_is_wanted():
    for optimizers in ([], [torch.optim.SGD(network().parameters())]):
        with pytest.raises(TypeError, match="must have one optimizer, a sampler"):
            begun(optimizers=optimizers)


def test_draws_go_on_where_they_were_saved():
    model, sampler, draws = begun(every=2)
    for _ in range(4):
        train(model, sampler, 1)
        draws.step()
    resumed = DrawsOfTrainer({"every": 2})
    assert resumed.state_dict() == {}
    resumed.load_state_dict(draws.state_dict())
    resumed.begin(model, [sampler], None, 0.0)
    assert resumed.collector is not None
    assert resumed.collector.num_draws == 2
    resumed.step()  # of a batch without a step
    assert resumed.collector.num_draws == 2
