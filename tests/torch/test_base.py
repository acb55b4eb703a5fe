# ruff: noqa: E402
"""What all samplers share: resuming, precision, schedules, other tools of torch, refusals."""

import copy
import io
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGHMC, SGLD, GaussianPrior
from torch_cases import REQUIRED, SAMPLERS, data, flat, make, network, train

FUNCTIONAL = torch.nn.functional


def gradients(model, value=0.0) -> None:
    for param in model.parameters():
        param.grad = torch.full_like(param, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_resumes_bit_for_bit(name, dtype):
    """Through a file that torch calls safe, in two halves and in one, Gibbs draws in between."""
    if name == "psgld" and dtype == torch.bfloat16:
        pytest.skip("refused: see test_psgld")
    model = network(dtype)
    sampler = make(name, model)
    train(model, sampler, 3)
    sampler.gibbs()
    file = io.BytesIO()
    torch.save([model.state_dict(), sampler.state_dict()], file)
    train(model, sampler, 3)
    sampler.gibbs()
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    resumed = network(dtype)
    resumed.load_state_dict(weights)
    other = make(name, resumed)
    other.load_state_dict(state)
    train(resumed, other, 3)
    other.gibbs()
    assert torch.equal(flat(model), flat(resumed))
    assert other.num_steps == 6
    precisions = [each.param_groups[0]["prior"].precision for each in (sampler, other)]
    assert precisions[0] == precisions[1] != 2.0


def test_seeds_make_the_noise():
    paths = {}
    for seed in (3, 4):
        model = network()
        train(model, make("sghmc", model, seed=seed), 2)
        paths[seed] = flat(model)
    again = network()
    torch.manual_seed(123)  # no concern of a sampler
    train(again, make("sghmc", again, seed=3), 2)
    assert torch.equal(paths[3], flat(again))
    assert not torch.allclose(paths[3], paths[4])


def test_a_state_of_something_else_is_refused():
    model = network()
    sampler = make("sghmc", model)
    for name, given, message in (
        ("baoab", {}, "sampler='BAOAB', but this sampler has sampler='SGHMC': load it into"),
        ("sghmc", {"num_data": 5}, "num_data=5, but this sampler has num_data=40: another number"),
        ("sghmc", {"seed": 9}, "seed=9, but this sampler has seed=3: the noise goes on"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.load_state_dict(make(name, model, **given).state_dict())
    corrected, uncorrected = make("psgld", model), make("psgld uncorrected", model)
    with pytest.raises(ValueError, match=r"options={'correction': True}.*give the same ones"):
        uncorrected.load_state_dict(corrected.state_dict())
    with pytest.raises(ValueError, match="no state of a sampler"):
        sampler.load_state_dict(torch.optim.SGD(model.parameters()).state_dict())
    flat_prior = make("sghmc", model, prior=None)
    with pytest.raises(ValueError, match="another prior"):
        sampler.load_state_dict(flat_prior.state_dict())
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(sampler)


@pytest.mark.parametrize("missing", ["num_data", "prior", "seed"])
def test_what_must_be_given_is_asked_for(missing):
    given = {"prior": None, **REQUIRED}
    del given[missing]
    with pytest.raises(TypeError, match=f"{missing} is missing: give "):
        SGHMC(network().parameters(), 0.1, friction=1.0, **given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_data": 0}, "num_data must be a whole number from 1, but is 0"),
        ({"num_data": 2.5}, "num_data must be a whole number"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"prior": 1.0}, "prior must be GaussianPrior"),
        ({"step_size": 0.0}, "step_size must be positive"),
        ({"step_size": float("nan")}, "step_size must be positive"),
        ({"friction": "high"}, "friction must be a number"),
        ({"mass": -1.0}, "mass must be positive"),
        ({"temperature": -0.1}, "temperature must be zero or more"),
        ({"friction": 30.0}, "momentum decay εC/M reaches 3, but every chain diverges from 2"),
        ({"gradient_noise": 21.0}, "ε²V̂ = 0.21, but the law has room for 0.2 only"),
        ({"gradient_noise": "guess"}, 'must be a number or "estimate"'),
    ],
)
def test_settings_are_checked(settings, message):
    given = {"step_size": 0.1, "friction": 1.0, "prior": None, **REQUIRED, **settings}
    with pytest.raises((ValueError, TypeError), match=message):
        SGHMC(network().parameters(), **given)


def test_settings_by_group_are_checked_too_and_again_at_a_step():
    model = network()
    groups = [{"params": list(model.parameters()), "friction": 25.0}]
    with pytest.raises(ValueError, match="momentum decay"):
        SGHMC(groups, 0.1, friction=1.0, prior=None, **REQUIRED)
    sampler = make("sghmc", model)
    before = flat(model)
    gradients(model)
    sampler.param_groups[0]["lr"] = 1.0
    with pytest.raises(ValueError, match="momentum decay"):
        sampler.step()
    assert torch.equal(flat(model), before)


def test_a_gradient_that_is_not_finite_moves_nothing():
    model, other = network(), network()
    sampler, undisturbed = make("sghmc", model), make("sghmc", other)
    for each in (model, other):
        train(each, sampler if each is model else undisturbed, 2)
    before = flat(model)
    for bad in (float("nan"), float("inf")):
        gradients(model)
        model[2].bias.grad[1] = bad
        with pytest.raises(FloatingPointError, match="step 2 is not finite, in 1 of 4 parameters"):
            sampler.step()
    assert torch.equal(flat(model), before)
    train(model, sampler, 1)  # the noise has not moved on either
    train(other, undisturbed, 1)
    assert torch.equal(flat(model), flat(other))


def test_parameters_without_gradient_are_named_and_frozen_ones_stay():
    model = network()
    sampler = SGHMC(model.named_parameters(), 0.02, friction=5.0, prior=None, **REQUIRED)
    named = r"The parameter 0.weight, of shape \(4, 3\), has no gradient, nor have 3 others"
    with pytest.raises(ValueError, match=named):
        sampler.step()
    model[0].requires_grad_(False)
    gradients(model)
    before = flat(model)
    sampler.step()
    moved = flat(model) != before
    assert not torch.any(moved[:16])
    assert torch.all(moved[16:])
    model[2].bias.grad = None
    before = flat(model)
    with pytest.raises(ValueError, match=r"2\.bias"):
        sampler.step()
    assert torch.equal(flat(model), before)


def test_sparse_gradients_and_whole_numbers_are_refused():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    sampler = make("sgld", embedding)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="sparse gradient"):
        sampler.step()
    with pytest.raises(TypeError, match=r"torch\.int64"):
        SGLD([torch.zeros(2, dtype=torch.int64)], 0.1, prior=None, **REQUIRED)


def test_a_shard_that_does_not_say_which_is_refused():
    param = torch.zeros(3, requires_grad=True)
    param._fsdp_flattened = True
    with pytest.raises(TypeError, match="fully_shard"):
        SGLD([param], 0.1, prior=None, **REQUIRED)


def test_weights_of_low_precision_move_by_less_than_their_digits():
    """1 + N(0, 2εT) in bfloat16, whose numbers are 2⁻⁷ apart there, by steps of 2⁻¹¹."""
    theta = torch.ones(4000, dtype=torch.bfloat16, requires_grad=True)
    sampler = SGLD([theta], 0.5 * 2.0**-22, prior=None, **REQUIRED)
    for _ in range(256):
        theta.grad = torch.zeros_like(theta)
        sampler.step()
    position = sampler.state[theta]["position"]
    assert position.dtype == torch.float32
    assert torch.equal(position.bfloat16(), theta)
    spread = (position - 1).std().item()
    assert spread == pytest.approx(2.0**-11 * 16, rel=0.06)  # 5 standard errors


def test_momenta_of_low_precision_weights_are_single():
    model = network(torch.bfloat16)
    sampler = make("sghmc", model)
    train(model, sampler, 2)
    assert {sampler.state[p]["momentum"].dtype for p in model.parameters()} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_schedulers_of_torch_move_the_step_size():
    """Half the step size is the step size of another sampler."""
    model, other = network(), network()
    sampler, half = make("sgld", model), make("sgld", other)
    for group in half.param_groups:
        group["lr"] = 0.001
    schedule = torch.optim.lr_scheduler.LambdaLR(sampler, lambda t: 0.5**t)
    for t in range(3):
        train(model, sampler, 1)
        schedule.step()
        half.param_groups[0]["lr"] = 0.001 * 0.5**t
        train(other, half, 1)
    assert torch.equal(flat(model), flat(other))


def test_gradients_are_let_go_of():
    """A sampler that held on to them would need their memory twice."""
    model = network()
    train(model, sampler := make("sghmc", model), 2)
    held = weakref.ref(model[0].weight.grad)
    sampler.zero_grad()
    assert held() is None


def test_a_closure_is_a_call_of_backward():
    model, other = network(), network()
    sampler, by_hand = make("sghmc", model), make("sghmc", other)
    x, y = data()
    train(model, sampler, 2)
    for _ in range(2):
        by_hand.zero_grad()
        FUNCTIONAL.cross_entropy(other(x), y).backward()
        assert by_hand.step() is None
    assert torch.equal(flat(model), flat(other))


def test_a_gradient_scaler_changes_nothing():
    """Its factor is a power of 2; a step that it leaves out is left out."""
    model, other = network(), network()
    sampler, plain = make("sghmc", model), make("sghmc", other)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = data()
    for _ in range(3):
        sampler.zero_grad()
        scaler.scale(FUNCTIONAL.cross_entropy(model(x), y)).backward()
        scaler.step(sampler)
        scaler.update()
    train(other, plain, 3)
    assert torch.equal(flat(model), flat(other))
    sampler.zero_grad()
    scaler.scale(float("inf") * FUNCTIONAL.cross_entropy(model(x), y)).backward()
    scaler.step(sampler)
    assert sampler.num_steps == 3


def test_autocast_leaves_parameters_and_momenta_alone():
    model = network()
    sampler = make("sghmc", model)
    x, y = data()
    with torch.autocast("cpu", torch.bfloat16):
        loss = FUNCTIONAL.cross_entropy(model(x), y)
    loss.backward()
    sampler.step()
    dtypes = {state["momentum"].dtype for state in sampler.state.values()}
    assert dtypes == {param.dtype for param in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["sghmc", "baoab", "sgld"])
def test_a_prior_may_be_any_function(name):
    """A Gaussian one written out moves by the same gradient."""
    model, other = network(torch.float64), network(torch.float64)
    written = lambda params: sum(-0.5 * 2.0 * (p**2).sum() for p in params)  # noqa: E731
    train(model, make(name, model), 3)
    train(other, make(name, other, prior=written), 3)
    np.testing.assert_allclose(flat(model), flat(other), rtol=1e-12)


def test_the_potential_is_that_of_the_whole_posterior():
    model = network()
    sampler = make("sghmc", model)
    expected = 40 * 0.7 + 0.5 * 2.0 * (flat(model) ** 2).sum().item()
    assert sampler.potential(torch.tensor(0.7)) == pytest.approx(expected)


def test_the_kinetic_temperature_is_that_of_the_momenta():
    """In equilibrium on a flat target, at three settings: 1, with an error of 0.016; 5 of them."""
    params = [torch.zeros(4000, requires_grad=True) for _ in range(2)]
    groups = [
        {"params": [params[0]], "mass": 0.5, "friction": 3.0},
        {"params": [params[1]], "temperature": 0.3, "friction": 20.0},
    ]
    sampler = SGHMC(groups, 0.06, friction=1.0, prior=None, **REQUIRED)
    assert sampler.kinetic_temperature() is None
    for _ in range(60):
        for param in params:
            param.grad = torch.zeros_like(param)
        sampler.step()
    assert sampler.kinetic_temperature() == pytest.approx(1, abs=0.08)


def test_gibbs_draws_the_precision_of_each_prior():
    """Weights of known size: Gamma(1 + n/2, 1 + n/2λ₀), so λ₀ with an error of √(2/n)."""
    params = [torch.full((5000,), scale, requires_grad=True) for scale in (0.5, 0.5, 2.0)]
    shared, own = GaussianPrior(1.0), GaussianPrior(7.0)
    groups = [
        {"params": [params[0]], "prior": shared},
        {"params": [params[1]], "prior": shared},
        {"params": [params[2]], "prior": own},
    ]
    sampler = SGLD(groups, 1e-12, prior=None, **REQUIRED)
    with pytest.raises(ValueError, match="after the first"):
        sampler.gibbs()
    for param in params:
        param.grad = torch.zeros_like(param)
    sampler.step()
    sampler.gibbs()
    drawn = [group["prior"].precision for group in sampler.param_groups]
    assert drawn[0] == drawn[1]
    assert drawn[0] == pytest.approx(4.0, rel=5 * 0.015)
    assert drawn[2] == pytest.approx(0.25, rel=5 * 0.02)
    assert (shared.precision, own.precision) == (1.0, 7.0)  # others may have been given them
    for group in sampler.param_groups:
        group["temperature"] = 0.0
    with pytest.raises(ValueError, match="temperature 0"):
        sampler.gibbs()


def test_gibbs_looks_half_a_drift_back():
    theta = torch.full((5000,), 1.0, requires_grad=True)
    sampler = SGHMC([theta], 0.1, friction=1.0, mass=0.5, prior=GaussianPrior(1.0), **REQUIRED)
    theta.grad = torch.zeros_like(theta)
    sampler.step()
    with torch.no_grad():  # θ − ½εM⁻¹r = 0.2
        sampler.state[theta]["momentum"].copy_((theta - 0.2) / 0.1)
    sampler.gibbs()
    assert sampler.param_groups[0]["prior"].precision == pytest.approx(25.0, rel=5 * 0.02)


@pytest.mark.slow  # torch.compile alone takes 10 seconds to import and trace
def test_a_compiled_loop_is_the_loop():
    """`aot_eager`: what torch.compile does, without a compiler of C++."""
    model, other = network(), network()
    sampler, plain = make("sghmc", model), make("sghmc", other)
    x, y = data()

    @torch.compile(backend="aot_eager")
    def step():
        sampler.zero_grad()
        FUNCTIONAL.cross_entropy(model(x), y).backward()
        sampler.step()

    for _ in range(3):
        step()
    train(other, plain, 3)
    np.testing.assert_allclose(flat(model), flat(other), rtol=1e-5, atol=1e-6)
