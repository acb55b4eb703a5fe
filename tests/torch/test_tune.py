# ruff: noqa: E402
"""Settings by curvature, gradient noise and held-out rows: exact on quadratics, then in runs."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.data import DataLoader, TensorDataset

from sghmc.torch import tune
from sghmc.torch.curvature import LayerCurvature, mean_loss, num_rows, passes, restart
from sghmc.torch.tune import Layer, Tuned, search
from torch_cases import data, flat, network

CROSS_ENTROPY = torch.nn.functional.cross_entropy


def half_square(outputs, targets):
    return 0.5 * ((outputs[:, 0] - targets) ** 2).mean()


class Quadratic(torch.nn.Module):
    """Two layers of which the loss is a quadratic with curvatures 4 and 25 (of N times it)."""

    def __init__(self):
        super().__init__()
        self.soft = torch.nn.Linear(3, 1, bias=False)
        self.stiff = torch.nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.soft(x[:, :3]) + self.stiff(x[:, 3:])


def quadratic(targets=0.0):
    """One batch of orthogonal rows, so that the Hessian is diagonal, N times the mean's."""
    x = torch.diag(torch.tensor([2.0, 2.0, 2.0, 5.0, 5.0]))
    rows = TensorDataset(x, torch.full((5,), targets))
    torch.manual_seed(0)
    return LayerCurvature(Quadratic(), half_square, DataLoader(rows, batch_size=5), seed=0)


def test_mean_curvatures_of_a_quadratic():
    curvature = quadratic()
    before = flat(curvature.model)
    curvature.measure()
    torch.testing.assert_close(
        curvature.curvatures, torch.tensor([4.0, 25.0]).double(), rtol=1e-4, atol=0
    )
    assert torch.equal(flat(curvature.model), before)
    assert curvature.names == {"soft": ("soft.weight",), "stiff": ("stiff.weight",)}
    assert torch.all(curvature.noises.abs() < 1e-3)  # all batches are the same


def test_the_step_is_that_of_the_stiffest_direction():
    curvature = quadratic()
    curvature.measure()
    masses, precisions = torch.tensor([4.0, 5.0]).double(), torch.tensor([1.0, 5.0]).double()
    # M^{−½} ∇²U M^{−½} has (4 + 1)/4 three times and (25 + 5)/5 twice.
    step = curvature.largest_step(masses, precisions, 0.1)
    assert step == pytest.approx(0.35 / math.sqrt(30 / 5), rel=1e-3)


def test_gradient_noise_is_that_between_batches_and_bounds_the_step():
    rows = TensorDataset(torch.ones(2, 1), torch.tensor([-1.0, 1.0]))
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    curvature = LayerCurvature(model, half_square, DataLoader(rows, batch_size=1), seed=0)
    curvature.measure()
    # N ∇loss is ±2, eight times each.
    assert curvature.noises.item() == pytest.approx(16 * 4 / 15, rel=1e-4)
    mass, prior = torch.tensor([2.0]).double(), torch.tensor([0.0]).double()
    by_noise = math.sqrt(2 * 0.1 * 0.01 * 2 / (16 * 4 / 15))
    assert curvature.largest_step(mass, prior, 0.01) == pytest.approx(by_noise, rel=1e-4)
    assert curvature.largest_step(mass, prior, 10.0) == pytest.approx(0.35, rel=1e-3)


def test_random_modules_and_buffers_are_as_they_were():
    """Dropout draws the same in both gradients of a difference; averages of batches stay."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)
    model = torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    curvature = LayerCurvature(model, CROSS_ENTROPY, DataLoader(TensorDataset(*data()), 40), seed=0)
    vector = torch.randn(curvature._sizes.sum(), generator=torch.Generator().manual_seed(0))
    batch = data()
    product, gradient = curvature._product(batch, vector)
    assert torch.equal(torch.get_rng_state(), state)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        grads = torch.autograd.grad(
            40 * mean_loss(model, CROSS_ENTROPY, batch), curvature.params, create_graph=True
        )
    exact = torch.cat([grad.reshape(-1) for grad in grads])
    torch.testing.assert_close(gradient, exact.detach(), rtol=0.02, atol=0.02)
    products = torch.autograd.grad(exact @ vector, curvature.params)
    exact = torch.cat([each.reshape(-1) for each in products])
    assert (product - exact).norm() < 0.02 * exact.norm()


def test_a_search_moves_one_setting_for_as_long_as_that_helps():
    seen = []

    def score(a, b):
        seen.append((a, b))
        return math.nan if a > 8 else abs(math.log2(a) - 2) + abs(math.log2(b) + 1)

    moves = (("a", 2.0), ("b", 2.0), ("b", 0.5), ("a", 4.0))
    found = search(score, {"a": 1.0, "b": 1.0}, moves, 20)
    assert seen == [
        (1, 1),
        (2, 1),
        (4, 1),
        (8, 1),
        (4, 2),
        (4, 0.5),
        (4, 0.25),
        (16, 0.5),
        (8, 0.5),
    ]
    assert found[0] == (0.0, {"a": 4.0, "b": 0.5})
    assert found[-1] == (math.inf, {"a": 16.0, "b": 0.5})
    assert len(search(score, {"a": 1.0, "b": 1.0}, moves, 3)) == 3


def loader(rows=slice(None), batch_size=8):
    x, y = data()
    return DataLoader(TensorDataset(x[rows], y[rows]), batch_size=batch_size)


def test_without_held_out_rows_precisions_are_drawn():
    model = network()
    tuned = tune(model, CROSS_ENTROPY, loader(), seed=0, num_gradients=500)
    assert tuned.is_gibbs
    assert (tuned.temperature, tuned.num_starts, tuned.trials) == (1.0, 1, ())
    assert list(tuned.layers) == ["0", "2"]
    # Ten times as wide as fresh weights, which the seed alone determines.
    fresh = network()
    restart(fresh, 0)
    for name, layer in tuned.layers.items():
        width = fresh.get_parameter(f"{name}.weight").square().mean().item() ** 0.5
        assert layer.precision == pytest.approx((10 * width) ** -2, rel=1e-5)
        assert layer.mass > layer.precision
    sampler = tuned.sampler(model, 40, 0)
    for group, layer in zip(sampler.param_groups, tuned.layers.values(), strict=True):
        assert group["lr"] * group["friction"] / group["mass"] == pytest.approx(0.1)
        assert (group["mass"], group["prior"].precision) == (layer.mass, layer.precision)
    draws = tuned.run(model, CROSS_ENTROPY, loader(), seed=0)
    assert draws.num_draws == (500 - tuned.burnin) // tuned.every
    hyper = draws.samples().hyper
    assert hyper is not None
    assert len(set(hyper["precision"][0, :, 0])) > 30
    assert "drawn from" in str(tuned)


def test_held_out_rows_choose_among_trials():
    model = network()
    rows, held_out = loader(slice(10, None)), loader(slice(10))
    tuned = tune(
        model, CROSS_ENTROPY, rows, held_out, "softmax", seed=0, num_gradients=500, num_trials=3
    )
    assert len(tuned.trials) == 3
    assert [trial.nll for trial in tuned.trials] == sorted(trial.nll for trial in tuned.trials)
    best = tuned.trials[0]
    assert (tuned.temperature, tuned.num_starts) == (best.temperature, best.num_starts)
    assert not tuned.is_gibbs
    assert "3 trials: held-out nll" in str(tuned)
    first = tuned.layers["0"]
    assert tuned.layers["2"].precision != first.precision
    draws = tuned.run(model, CROSS_ENTROPY, loader(), seed=1)
    assert draws.sampler is not None
    assert draws.sampler.num_data == 40  # all rows, after the choice


def settings(**given) -> Tuned:
    model = network()
    names = {"0": ("0.weight", "0.bias"), "2": ("2.weight", "2.bias")}
    layers = {layer: Layer(own, 20.0, 1.0, 1.0) for layer, own in names.items()}
    assert {name for own in names.values() for name in own} == dict(model.named_parameters()).keys()
    return Tuned(layers, 0.05, 1.0, **{"num_starts": 1, "num_gradients": 80, **given})


def test_starts_are_chains_from_fresh_weights():
    model = network()
    tuned = settings(num_starts=2)
    samples = tuned.run(model, CROSS_ENTROPY, loader(), seed=3).samples()
    assert samples.positions["0.weight"].shape[:2] == (2, 30)
    first, second = samples.positions["2.bias"][:, 0]
    assert abs(first - second).min() > 1e-3
    one = settings(num_gradients=40).run(model, CROSS_ENTROPY, loader(), seed=3)
    assert one.samples().num_chains == 1


def test_a_pass_is_counted_and_an_empty_loader_is_an_error():
    numbered = passes([10, 20])
    assert [next(numbered) for _ in range(5)] == [(0, 10), (0, 20), (1, 10), (1, 20), (2, 10)]
    with pytest.raises(ValueError, match="no batches, or can be read only once"):
        list(passes(iter([])))


def test_batches_may_be_dicts():
    x, y = data()

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, values):
            return {"logits": self.inner(values)}

    batch = {"values": x, "labels": y}
    seen = mean_loss(Named(), CROSS_ENTROPY, batch)
    assert torch.equal(seen, CROSS_ENTROPY(network()(x), y))
    with pytest.raises(ValueError, match='or have "labels"'):
        mean_loss(network(), CROSS_ENTROPY, x)


def test_what_cannot_be_tuned_is_refused():
    with pytest.raises(TypeError, match="held_out and link belong together"):
        tune(network(), CROSS_ENTROPY, loader(), loader(), seed=0)
    with pytest.raises(TypeError, match="has too few digits: tune in single precision"):
        tune(network(torch.bfloat16), CROSS_ENTROPY, loader(), seed=0)
    with pytest.raises(ValueError, match="All parameters of the model are frozen"):
        tune(network().requires_grad_(False), CROSS_ENTROPY, loader(), seed=0)
    with pytest.raises(ValueError, match=r"The loss has shape .*, but must be one number"):
        tune(network(), torch.nn.CrossEntropyLoss(reduction="none"), loader(), seed=0)
    with pytest.raises(TypeError, match="must have a dataset with a length"):
        num_rows([data()])
    with pytest.raises(FloatingPointError, match=r"The curvatures of \['0', '2'\] are \[nan"):
        tune(network(), lambda *_: CROSS_ENTROPY(*_) * math.nan, loader(), seed=0)


def test_trials_that_all_diverge_are_an_error(monkeypatch):
    """The run that leads to where curvature is measured does not."""
    run = Tuned.run

    def diverge(tuned, *given, **named):
        if tuned.temperature:
            raise FloatingPointError
        return run(tuned, *given, **named)

    monkeypatch.setattr(Tuned, "run", diverge)
    with pytest.raises(FloatingPointError, match="All 2 trials diverged"):
        tune(network(), CROSS_ENTROPY, loader(), loader(), "softmax", seed=0, num_trials=2)
