"""Which noise: by rows that were not seen."""

from typing import Any

import jax
import numpy as np
import pytest

from sghmc.estimators import regression_chains
from sghmc.estimators.regression_chains import ChainPlan, HeldOutScores
from sghmc.estimators.regression_network import RegressionNetwork
from sghmc.estimators.weighted_rows import WeightedRows

NETWORK = RegressionNetwork(1, (8,), "silu")
PLAN = ChainPlan.of(100, 1)


def rows(count: int, kind: str) -> WeightedRows:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 1))
    noise = generator.normal(size=count)
    if kind == "input":
        noise *= np.exp(1.5 * x[:, 0])
    if kind == "student":
        noise = generator.standard_t(2.2, count)
    y = np.sin(x[:, 0]) + 0.3 * noise
    return WeightedRows(x, y / y.std(), np.ones(count))


@pytest.fixture
def told(monkeypatch):
    """Scores by kind of noise, which a test sets, and the rows that they are asked for."""
    told: dict[str, Any] = {"crps": {"constant": 1.0, "student": 1.0}}

    def scores(key, network, train, held, num_chains, plan):
        told.update(train=train, held=held)
        return {
            name: HeldOutScores(
                np.full(50, log), np.full(50, told["crps"][name]), np.full(50, 0.25)
            )
            for name, log in told["likely"].items()
        }

    monkeypatch.setattr(regression_chains, "held_out_scores", scores)
    return told


def chosen(data: WeightedRows) -> str:
    return regression_chains.choose(jax.random.key(0), NETWORK, data, 8, PLAN).noise


def test_held_out_rows_are_not_seen(told):
    data = rows(200, "constant")
    told["likely"] = {"constant": -1.0, "student": -1.0}
    assert chosen(data) == "student"
    train, held = (set(told[part].x[:, 0]) for part in ("train", "held"))
    assert train | held == set(data.x[:, 0])
    assert not train & held
    assert len(held) == 30
    told["likely"] = {"constant": -0.9, "student": -1.0}
    assert chosen(data) == "constant"
    told["likely"] = {"constant": -0.999, "student": -1.0}
    assert chosen(data) == "student"
    assert chosen(rows(39, "constant")) == "constant"
    chosen(rows(3000, "constant"))
    assert len(told["train"].x) + len(told["held"].x) == 2048


def test_a_mean_that_is_far_off_outweighs_a_good_likelihood(told):
    """By CRPS, and by a quarter: less is no reason."""
    told["likely"] = {"constant": -2.0, "student": -1.0}
    for ratio, wanted in ((0.7, "constant"), (0.8, "student")):
        told["crps"] = {"constant": ratio, "student": 1.0}
        assert chosen(rows(200, "constant")) == wanted


@pytest.mark.parametrize(("spread", "wanted"), [(1.0, "constant"), (1.12, "student")])
def test_a_gain_by_crps_must_be_two_of_its_errors(told, spread, wanted):
    """The mean of 50 gains is 0.3, the error of their sum `spread` times √50."""
    told["likely"] = {"constant": -2.0, "student": -1.0}
    told["crps"] = {"constant": 0.7 + spread * np.tile([1.0, -1.0], 25), "student": 1.0}
    assert chosen(rows(200, "constant")) == wanted


def test_a_trial_is_compared_with_a_constant(told):
    told["likely"] = {"constant": -1.0, "student": -1.0}
    data = rows(200, "constant")
    found = regression_chains.choose(jax.random.key(0), NETWORK, data, 8, PLAN)
    errors = told["held"].y - told["train"].y.mean()
    assert found.error_ratio == pytest.approx(50 * 0.25 / np.sum(errors**2))
    few = regression_chains.choose(jax.random.key(0), NETWORK, rows(39, "constant"), 8, PLAN)
    assert few.error_ratio is None


@pytest.mark.slow
@pytest.mark.parametrize("num_chains", [1, 8])
def test_the_noise_that_is_there_is_likeliest(num_chains):
    """Of 300 held-out rows each, and by more than 0.02 a row against the wrong ones."""
    for kind in ("input", "student"):
        data = rows(1000, kind)
        train, held = (
            WeightedRows(*(c[part] for c in data)) for part in (slice(300, None), slice(300))
        )
        scores = regression_chains.held_out_scores(
            jax.random.key(0), NETWORK, train, held, num_chains, ChainPlan.of(1500, 1)
        )
        assert set(scores) == {"constant", "student"}
        assert scores["student"].log.mean() > scores["constant"].log.mean() + 0.02
