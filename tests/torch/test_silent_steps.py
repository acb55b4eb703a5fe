# ruff: noqa: E402
"""What an engineer may get wrong with an optimizer is right here, or an error with its remedy."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import BAOAB, PSGLD, SGHMC, SGLD, GaussianPrior
from sghmc.torch.base import unwrapped
from torch_cases import REQUIRED, data, flat, make, network, train

FUNCTIONAL = torch.nn.functional


@pytest.mark.parametrize("end", [lambda loss: loss.detach(), lambda loss: loss.item()])
def test_psgld_refuses_a_loss_without_a_graph(end):
    """It would sample the prior."""
    model = network()
    sampler, before = make("psgld", model), flat(model)
    x, y = data()
    with pytest.raises(TypeError, match="no graph: the prior alone would be sampled"):
        sampler.step(lambda: end(FUNCTIONAL.cross_entropy(model(x), y)))
    assert torch.equal(flat(model), before)


def test_psgld_refuses_a_parameter_that_only_the_prior_moves():
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    sampler = PSGLD([first, second], 0.1, prior=GaussianPrior(1.0), **REQUIRED)
    with pytest.raises(ValueError, match=r"number 1 of its group.*has no gradient"):
        sampler.step((first**2).mean)


@pytest.mark.parametrize("name", ["sghmc", "sgld", "psgld", "sgnht diagonal"])
def test_a_state_from_before_the_first_step_is_no_state(name):
    """As accelerate moves it: saved and loaded before anything has happened."""
    model, other = network(), network()
    sampler, moved = make(name, model), make(name, other)
    moved.load_state_dict(moved.state_dict())
    train(model, sampler, 2)
    train(other, moved, 2)
    assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize("name", ["sghmc", "psgld", "sgnht"])
def test_a_step_of_no_size_makes_states_and_nothing_else(name):
    """`torch.distributed.checkpoint` asks for states to load into in this way."""
    model = network()
    sampler, before = make(name, model), flat(model)
    group = sampler.param_groups[0]
    group["lr"], step_size = 0.0, group["lr"]
    sampler.step()
    group["lr"] = step_size
    assert len(sampler.state) == 4
    assert sampler.num_steps == 0
    assert torch.equal(flat(model), before)
    train(model, sampler, 1)


def test_unknown_keys_of_groups_are_errors():
    params = list(network().parameters())
    for key, remedy in {
        "weight_decay": r"prior=GaussianPrior\(w \* N\)",
        "momentum": "from_learning_rate",
        "seed": "the sampler's, for all groups alike",
        "fraction": "it takes friction, gradient_noise, learning_rate, mass, momentum_decay, prior",
    }.items():
        with pytest.raises(TypeError, match=f"has '{key}', which SGHMC does not know: .*{remedy}"):
            SGHMC([{"params": params, key: 0.1}], 0.1, friction=1.0, prior=None, **REQUIRED)
    with pytest.raises(TypeError, match="BAOAB does not know"):
        BAOAB([{"params": params, "learning_rate": 0.1}], 0.1, 1.0, prior=None, **REQUIRED)
    named = [{"params": params, "name": "all of them"}]
    SGHMC(named, 0.1, friction=1.0, prior=None, **REQUIRED)


def test_arguments_of_optimizers_are_errors_that_name_ours():
    params = list(network().parameters())
    for name, remedy in {
        "lr": "SGHMC has no argument lr: give step_size=ε, or SGHMC.from_learning_rate",
        "weight_decay": "prior=GaussianPrior",
        "betas": "Leave it out",
    }.items():
        given: dict = {name: 0.1}
        with pytest.raises(TypeError, match=remedy):
            SGHMC(params, friction=1.0, prior=None, **REQUIRED, **given)


def test_groups_take_both_parametrizations():
    """ε and C or η and α, in a sampler that was made by the other pair: the same chain."""
    physical = {"step_size": 0.02, "friction": 5.0}
    of_sgd = {"learning_rate": 0.02**2, "momentum_decay": 0.02 * 5.0}
    paths = []
    for given, make_sampler in (
        (physical, lambda p: SGHMC(p, 0.5, friction=1.0, prior=None, **REQUIRED)),
        (of_sgd, lambda p: SGHMC(p, 0.5, friction=1.0, prior=None, **REQUIRED)),
        (physical, lambda p: SGHMC.from_learning_rate(p, 0.1, 0.3, prior=None, **REQUIRED)),
        (of_sgd, lambda p: SGHMC.from_learning_rate(p, 0.1, 0.3, prior=None, **REQUIRED)),
    ):
        model = network()
        train(model, make_sampler([{"params": list(model.parameters()), **given}]), 3)
        paths.append(flat(model))
    for path in paths[1:]:
        torch.testing.assert_close(path, paths[0])
    group = {"params": list(network().parameters()), "step_size": 0.1, "momentum_decay": 0.1}
    with pytest.raises(TypeError, match="give one pair"):
        SGHMC([group], 0.1, friction=1.0, prior=None, **REQUIRED)


def test_half_of_a_pair_leaves_the_other_half():
    theta = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    given = {"prior": None, **REQUIRED}
    groups = [{"params": [theta[0]], "learning_rate": 0.04}, {"params": [theta[1]], "mass": 4.0}]
    sampler = SGHMC(groups, 0.1, friction=1.0, **given)
    settings = [sampler._settings(group) for group in sampler.param_groups]
    assert settings[0]["lr"] * settings[0]["friction"] == pytest.approx(0.1 * 1.0)
    assert settings[0]["lr"] == pytest.approx(0.2)
    assert (settings[1]["lr"], settings[1]["friction"]) == (0.1, 1.0)
    groups = [{"params": [theta[0]], "friction": 3.0}]
    settings = SGHMC.from_learning_rate(groups, 0.04, 0.1, **given).param_groups[0]
    assert (settings["lr"], settings["friction"]) == (pytest.approx(0.2), 3.0)


def test_schedulers_move_the_learning_rate_and_leave_the_momentum_decay():
    """Of a sampler that was made by from_learning_rate; a rate of zero moves nothing."""
    model = network()
    given = {"prior": GaussianPrior(2.0), **REQUIRED}
    sampler = SGHMC.from_learning_rate(model.parameters(), 4e-4, 0.1, **given)
    schedule = torch.optim.lr_scheduler.StepLR(sampler, 1, gamma=0.1)
    train(model, sampler, 1)
    schedule.step()
    settings = sampler._settings(sampler.param_groups[0])
    assert settings["lr"] ** 2 == pytest.approx(4e-5)
    assert settings["lr"] * settings["friction"] == pytest.approx(0.1)
    sampler.param_groups[0]["lr"], before = 0.0, flat(model)
    train(model, sampler, 1)
    assert torch.equal(flat(model), before)
    assert sampler.num_steps == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_low_precision_that_were_changed_stay_changed(dtype):
    model = network(dtype)
    sampler = make("sgld", model)
    train(model, sampler, 2)
    kept = sampler.state[model[2].weight]["position"].clone()
    with torch.no_grad():
        model[0].weight.fill_(3.0)
        model[2].bias.data.zero_()
    train(model, sampler, 1)
    assert torch.all((model[0].weight - 3).abs() < 0.5)
    assert torch.all(model[2].bias.abs() < 0.5)
    moved = sampler.state[model[2].weight]["position"] - kept
    assert 0 < moved.abs().max() < 0.5  # the digits of the others are not lost


def test_weights_that_change_their_type_in_a_run_are_refused():
    for first, second in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        model = network(first)
        sampler = make("sghmc", model)
        train(model, sampler, 1)
        model.to(second)
        with pytest.raises(TypeError, match=r"call model\.to\(\) before the sampler's first step"):
            train(model, sampler, 1)


def test_num_data_is_not_the_number_of_batches():
    """A batch of more rows than the whole set: said by the closure's loss, or by a draw's."""
    model = network()
    sampler, before = make("sghmc", model, num_data=4), flat(model)
    x, y = data()

    def closure():
        sampler.zero_grad()
        loss = FUNCTIONAL.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with pytest.raises(ValueError, match=r"is of 40 rows, but num_data is 4: give .* len"):
        sampler.step(closure)
    assert torch.equal(flat(model), before)
    sampler.num_data = 40
    sampler.step(closure)


def test_clipping_is_warned_of():
    model = network()
    sampler = make("sghmc", model)
    x, y = data()

    def steps(clip: bool):
        for t in range(60):
            sampler.zero_grad()
            rows = torch.arange(5) + 5 * t % 35
            FUNCTIONAL.cross_entropy(10 * model(x[rows]), y[rows]).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            sampler.step()

    steps(clip=False)
    with pytest.warns(UserWarning, match="have the norm 0.1, as after clipping"):
        steps(clip=True)
    steps(clip=True)  # it is told once


def test_gradients_that_stay_the_same_are_no_clipping():
    theta = [torch.ones(2, requires_grad=True) for _ in range(2)]
    sampler = SGLD(theta, 1e-12, prior=None, **REQUIRED)
    for t in range(60):
        theta[0].grad = torch.full_like(theta[0], 1e-9 * t)  # of which rounding is left
        theta[1].grad = torch.ones_like(theta[1])
        sampler.step()


def test_wrappers_are_taken_off():
    sampler = make("sghmc", network())
    wrapper = type("Wrapper", (), {"optimizer": sampler})()
    assert unwrapped(type("Outer", (), {"optimizer": wrapper})()) is not sampler
    assert unwrapped(wrapper) is unwrapped(sampler) is sampler


def test_noise_of_the_low_precision_copy_is_that_of_the_law():
    """What follows changes of weights does not change the chain where there are none."""
    theta = torch.ones(2000, dtype=torch.bfloat16, requires_grad=True)
    sampler = SGLD([theta], 2.0**-10, prior=None, **REQUIRED)
    for _ in range(50):
        theta.grad = torch.zeros_like(theta)
        sampler.step()
    spread = (sampler.state[theta]["position"] - 1).std().item()
    assert spread == pytest.approx(math.sqrt(50 * 2 * 2.0**-10), rel=0.08)


@pytest.mark.parametrize("name", ["sghmc", "baoab", "psgld", "sgnht diagonal"])
def test_a_state_of_another_shape_is_refused(name):
    """The fused kernel would write past the end of what is too small."""
    model = network()
    sampler = make(name, model)
    train(model, sampler, 1)
    other = torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))
    loaded = make(name, other)
    loaded.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match=r"has shape \(7, 3\), but its state \(4, 3\)"):
        train(other, loaded, 1)


def test_settings_that_a_state_would_replace_are_refused():
    model = network()
    sampler = make("sghmc", model)
    torch.optim.lr_scheduler.LambdaLR(sampler, lambda step: 0.5)  # of what was given, not of this
    train(model, sampler, 1)
    sampler.gibbs()
    saved = sampler.state_dict()
    make("sghmc", network()).load_state_dict(saved)
    params, prior = list(network().parameters()), GaussianPrior(2.0)
    other = SGHMC(params, 0.02, friction=4.0, prior=prior, **REQUIRED)
    with pytest.raises(ValueError, match=r"given friction=5\.0 .*, but this one was given 4\.0"):
        other.load_state_dict(saved)
    other = SGHMC(params, 0.02, friction=5.0, prior=GaussianPrior(1.0), **REQUIRED)
    with pytest.raises(ValueError, match=r"given prior's precision=2\.0"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("key", ["weight_decay", "step_size", "learning_rate", "seed"])
def test_settings_that_no_step_reads_are_refused_in_a_run(key):
    model = network()
    sampler = make("sghmc", model)
    train(model, sampler, 1)
    sampler.param_groups[0][key] = 0.1
    with pytest.raises(TypeError, match=f"was given '{key}' in a run, which no step reads"):
        train(model, sampler, 1)


def test_both_parametrizations_in_one_group_are_refused_in_a_run():
    model = network()
    sampler = make("sghmc", model)
    sampler.param_groups[0]["momentum_decay"] = 0.1
    with pytest.raises(ValueError, match="has friction and momentum_decay"):
        train(model, sampler, 1)


def test_a_model_whose_parameters_are_all_frozen_makes_no_steps():
    model = network().requires_grad_(False)
    sampler = make("sghmc", model)
    with pytest.raises(ValueError, match="All parameters are frozen"):
        sampler.step()
    assert sampler.num_steps == 0


def test_parameters_without_storage_are_refused():
    with pytest.raises(TypeError, match="is on the device meta: build the sampler once"):
        make("sghmc", network().to("meta"))


def test_weights_of_several_types_move_in_one_group():
    """As norms in single precision do in a network of bfloat16."""
    model = network()
    model[0].bfloat16()
    sampler, before = make("sghmc", model), flat(model)
    x, y = data()
    for _ in range(2):
        sampler.zero_grad()
        hidden = torch.tanh(model[0](x.bfloat16())).float()
        FUNCTIONAL.cross_entropy(model[2](hidden), y).backward()
        sampler.step()
    assert torch.all(flat(model) != before)
    assert sampler.state[model[0].weight]["position"].dtype == torch.float32


def test_states_follow_the_memory_format_of_their_parameters(monkeypatch):
    """A piece of a state in another format was a copy, whose steps were lost."""
    monkeypatch.setattr("sghmc.torch.pieces._MAX_CACHED_NUMBERS", 100)
    monkeypatch.setattr("sghmc.torch.pieces._MAX_CPU_PIECE_NUMBERS", 100)
    weight = torch.ones(4, 8, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    sampler = SGHMC([weight], 0.1, friction=1.0, prior=None, **REQUIRED)
    for layout in (torch.channels_last, torch.contiguous_format):
        weight.data = weight.data.contiguous(memory_format=layout)
        weight.grad = torch.ones_like(weight)
        before = sampler.state[weight]["momentum"].clone() if sampler.state else 0.0
        sampler.step()
        assert torch.all(sampler.state[weight]["momentum"] != before)
