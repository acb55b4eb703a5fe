"""Fig. 4: what each method is asked to run, what is made of it, and the verdict both ways."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from recorded_draw import RecordedDraw
from sghmc.data.archives import Images
from sghmc.paper import figure4, reproduce
from sghmc.paper.figure4 import Length
from sghmc.results.scores import ClassScores, class_scores
from shown_tables import cells, fits

RNG = np.random.default_rng(0)


def images(count):
    x = RNG.random((count, 6)).astype(np.float32)
    return Images(x, RNG.integers(0, 10, count).astype(np.int32))


TRAIN, TEST = images(40), images(9)
CONFIG = figure4.Figure4Config(
    full=True, num_hidden=3, batch_size=10, num_quiet_epochs=3, length=Length(12, 5, 2)
)


@pytest.fixture
def recorded(monkeypatch):
    draw = RecordedDraw()
    monkeypatch.setattr(figure4, "draw", draw)
    return draw


def run_method(name, config=CONFIG):
    return figure4._run_method(config, name, TRAIN, TEST, jax.random.key(0), False)


@pytest.mark.slow_cases("sgd", "sgld")
@pytest.mark.parametrize("name", figure4.LABELS)
def test_a_method_runs_for_its_epochs_on_its_batches(recorded, name):
    run_method(name)
    call = recorded.call
    # 40 rows in batches of 10: four steps an epoch, a draw an epoch.
    assert (call.thinning, call.num_burnin, call.num_samples, call.num_chains) == (4, 5, 7, 2)
    assert (call.gradient.batch_size, call.gradient.replacement) == (10, "epochs")
    assert call.init_axis == 0
    weights = call.init[0]["weight"]
    assert weights.shape == (2, 6, 3)
    assert not np.array_equal(weights[0], weights[1])
    if name in ("sgld", "sghmc"):
        assert (call.gibbs.every, call.gibbs.start) == (4, 8)
    else:
        assert call.gibbs is None


def test_methods_share_starts_and_batches(recorded):
    for name in figure4.LABELS:
        run_method(name)
    first, *others = recorded.calls
    for other in others:
        assert other.key == first.key
        for one, two in zip(jax.tree.leaves(other.init), jax.tree.leaves(first.init), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.slow_cases("sgd-3.0")
@pytest.mark.parametrize(
    ("name", "regularizer"), [("sgd", 3.0), ("momentum", 3.0), ("sghmc_ours", 5.0), ("sgld", None)]
)
def test_priors_are_fixed_where_precisions_are_not_learned(recorded, name, regularizer):
    """−½λ‖θ‖² and the likelihood of the network, from scipy's softmax of its own outputs."""
    config = dataclasses.replace(
        CONFIG,
        settings=dataclasses.replace(CONFIG.settings, regularizer=3.0),
        ours=dataclasses.replace(CONFIG.ours, regularizer=5.0),
    )
    run_method(name, config)
    posterior = recorded.call.posterior
    params = jax.tree.map(lambda leaf: leaf[0] + 0.3, recorded.call.init)
    squares = sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(params))
    # Learned precisions start from 1.
    expected = -0.5 * (regularizer or 1.0) * squares
    assert float(posterior.log_prior(params, posterior.hyper)) == pytest.approx(expected, rel=1e-5)
    outputs = 1 / (1 + np.exp(-(TRAIN.x @ params[0]["weight"] + params[0]["bias"][None])))
    outputs = outputs @ params[1]["weight"] + params[1]["bias"][None]
    chosen = outputs[np.arange(40), TRAIN.y] - np.log(np.exp(outputs).sum(1))
    total = float(-posterior.potential(params))
    assert total == pytest.approx(expected + float(chosen.sum()), rel=1e-5)


def test_samplers_have_their_own_temperature(recorded):
    run_method("sghmc_ours")
    ours = recorded.call.sampler
    # 3 quiet epochs of 4 steps.
    assert [float(ours.temperature(t)) for t in (11, 12)] == [0, pytest.approx(0.1)]
    assert float(ours.step_size**2 / ours.mass) == pytest.approx(0.4e-5)
    run_method("sghmc")
    paper = recorded.call.sampler
    assert [float(paper.temperature(t)) for t in (11, 12)] == [0, 1]
    assert float(paper.step_size**2 / paper.mass) == pytest.approx(0.2e-5)


@pytest.mark.slow
def test_optimizers_keep_scores_and_samplers_average_probabilities(recorded):
    run_method("sgd")
    model = sghmc.models.MLP((6, 3, 10))
    draws = [model.init(key, scale=2.0) for key in jax.random.split(jax.random.key(3))]
    probabilities = [jax.nn.softmax(model.apply(each, jnp.asarray(TEST.x))) for each in draws]
    labels = jnp.asarray(TEST.y)
    kept = recorded.call.keep(draws[0], None)
    np.testing.assert_allclose(kept, class_scores(probabilities[0], labels), rtol=1e-6)
    run_method("sgld")
    averaged = np.mean([recorded.call.averages["probability"](each, None) for each in draws], 0)
    np.testing.assert_allclose(averaged, np.mean(probabilities, 0), rtol=1e-6)
    scores = recorded.call.trace({"probability": jnp.asarray(averaged)})
    expected = class_scores(jnp.mean(jnp.stack(probabilities), axis=0), labels)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert recorded.call.keep(draws[0], None) == ()


def fake_scores(errors) -> ClassScores:
    """Of two seeds over three epochs."""
    values = np.array(errors)
    return ClassScores(values, 2 * values, 3 * values, 4 * values)


def fake_samples():
    scores = fake_scores([[0.5, 0.3, 0.2], [0.6, 0.5, 0.4]])
    probability = np.stack([np.eye(10)[TEST.y], np.full((9, 10), 0.1)])
    return RecordedDraw(
        positions=scores,
        trace=fake_scores([[0.9, 0.8, 0.1], [0.9, 0.8, 0.301]]),
        averages={"probability": probability},
        hyper={"prior": {"0.weight": np.array([[1.0, 9.0, 2.0], [3.0, 8.0, 6.0]])}},
        seconds=10.0,
        startup_seconds=4.0,
    ).samples


def test_a_summary_is_of_the_last_epoch():
    samples = fake_samples()
    optimizer = figure4._summary(CONFIG, "sgd", samples, TEST)  # pyright: ignore
    assert optimizer["test_error"] == {
        "mean": pytest.approx(0.3),
        "sd": pytest.approx(np.std([0.2, 0.4], ddof=1)),
        "seeds": [0.2, 0.4],
    }
    assert optimizer["nll"]["mean"] == pytest.approx(0.6)
    assert optimizer["setting"]["step"] == CONFIG.settings.sgd
    assert optimizer["seconds_after_compilation"] == 6
    assert "all_chains_together" not in optimizer
    sampler = figure4._summary(CONFIG, "sghmc", samples, TEST)  # pyright: ignore
    assert sampler["test_error"]["seeds"] == [0.1, 0.301]
    assert sampler["precisions"] == {"0.weight": {"mean": 4.0, "sd": pytest.approx(8**0.5)}}
    # Chains together: the mean of their probabilities, 0.55 for the right class.
    assert sampler["all_chains_together"]["error"] == 0
    assert sampler["all_chains_together"]["nll"] == pytest.approx(-np.log(0.55), rel=1e-5)
    ours = figure4._summary(CONFIG, "sghmc_ours", samples, TEST)  # pyright: ignore
    assert "precisions" not in ours
    assert ours["setting"]["temperature"] == 0.1


@pytest.fixture
def result(monkeypatch):
    """A whole run of nothing."""
    monkeypatch.setattr(figure4, "draw", lambda *_, **__: fake_samples())
    monkeypatch.setattr(figure4, "load", lambda *_: (TRAIN, TEST))
    return figure4.run(CONFIG, jax.random.key(0), progress=False)


@pytest.mark.slow
def test_a_run_compares_every_method_with_sghmc(result):
    assert set(result["methods"]) == set(result["curves"]) == set(figure4.LABELS)
    assert set(result["comparisons"]) == set(figure4.LABELS) - {"sghmc"}
    # Errors (0.2, 0.4) against SGHMC's (0.1, 0.301): worse by 0.0995.
    assert result["comparisons"]["sgd"]["difference"] == pytest.approx(0.0995)
    curve = {"mean": [0.55, 0.4, 0.3], "low": [0.5, 0.3, 0.2], "high": [0.6, 0.5, 0.4]}
    assert result["curves"]["sgd"] == {name: pytest.approx(row) for name, row in curve.items()}
    assert (result["first_epoch"], result["num_epochs"], result["num_seeds"]) == (6, 12, 2)
    assert fits(figure4.table(result))
    rows = cells(figure4.table(result))
    assert (rows[0][1], rows[3][1]) == ("30.00 ± 14.14", "20.05 ± 14.21")
    assert len(figure4.plot(result).axes) == 1


@pytest.mark.parametrize("full", [True, False])
def test_without_an_accelerator_a_run_is_short_unless_asked(monkeypatch, full):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    config, note = figure4._sized(dataclasses.replace(figure4.Figure4Config(), full=full))
    assert config.length == (Length(800, 50, 16) if full else Length(30, 5, 2))
    assert note.startswith("800 epochs" if full else "no accelerator: 30 epochs and 2 seeds")


def test_curves_are_over_seeds_and_drawn_in_percent():
    curve = figure4._curve(np.array([[0.5, 0.3, 0.2], [0.6, 0.5, 0.4]]))
    assert curve["mean"] == pytest.approx([0.55, 0.4, 0.3])
    assert (curve["low"], curve["high"]) == ([0.5, 0.3, 0.2], [0.6, 0.5, 0.4])
    curves = dict.fromkeys(figure4.LABELS, curve)
    (axis,) = figure4.plot({"curves": curves, "first_epoch": 6, "num_seeds": 2}).axes
    line: Any = axis.lines[0]
    np.testing.assert_allclose(line.get_xydata(), [(6, 55), (7, 40), (8, 30)])
    corners: Any = axis.collections[0].get_paths()[0].vertices
    assert {(6, 50), (6, 60), (8, 20), (8, 40)} <= {tuple(c) for c in corners.round(9).tolist()}
    assert axis.get_ylim() == pytest.approx((0.85 * 30, 2 * 30))
    assert axis.get_title() == "Mean and range over 2 seeds"
    assert axis.get_ylabel() == "test error (%)"


def made_up(along=(), final=()):
    usual = {"sgd": 0.05, "momentum": 0.04, "sgld": 0.06, "sghmc": 0.03, "sghmc_ours": 0.02}
    ends = {"sgd": 0.02, "momentum": 0.019, "sgld": 0.018, "sghmc": 0.017, "sghmc_ours": 0.016}
    return {
        "curves": {n: {"mean": [e + 0.1, e - 0.1]} for n, e in (usual | dict(along)).items()},
        "methods": {n: {"test_error": {"mean": e}} for n, e in (ends | dict(final)).items()},
    }


@pytest.mark.parametrize(
    ("along", "final", "agrees"),
    [
        ({}, {}, [True, True, True]),
        ({"momentum": 0.051}, {}, [False, True, True]),
        ({"sgd": 0.039}, {}, [False, True, True]),
        ({"sghmc": 0.061}, {}, [True, False, True]),
        ({}, {"sgld": 0.0195}, [True, True, False]),
        ({}, {"sghmc": 0.0195}, [True, True, False]),
        ({}, {"momentum": 0.0175}, [True, True, False]),
        # Ours is not the paper's: it is no part of its claims.
        ({"sghmc_ours": 0.9}, {"sghmc_ours": 0.9}, [True, True, True]),
    ],
)
def test_the_verdict_can_be_no(along, final, agrees):
    claims = figure4.claims({}, made_up(along, final))
    assert [claim.agrees for claim in claims] == agrees


@pytest.mark.slow
def test_every_method_learns_digits(tmp_path):
    """Guessing has 90 %; a run of twice the length and three seeds had 3 to 4 %."""
    length = Length(num_epochs=24, num_burnin=16, num_seeds=2)
    result = reproduce("figure4", tmp_path, quick=True, progress=False, length=length)
    for name, method in result["methods"].items():
        assert method["test_error"]["mean"] < 0.15, name
    layers = {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert set(result["methods"]["sghmc"]["precisions"]) == layers
