"""Which noise: by rows that were not seen."""

import jax
import numpy as np
import pytest

from sghmc.estimators import regression_chains
from sghmc.estimators.regression_chains import Plan
from sghmc.estimators.regression_network import RegressionNetwork
from sghmc.estimators.weighted_rows import Rows

NETWORK = RegressionNetwork(1, (8,), "silu")
PLAN = Plan.of(100, 1)


def rows(count: int, kind: str) -> Rows:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, 1))
    noise = generator.normal(size=count)
    if kind == "input":
        noise *= np.exp(1.5 * x[:, 0])
    if kind == "student":
        noise = generator.standard_t(2.2, count)
    y = np.sin(x[:, 0]) + 0.3 * noise
    return Rows(x, y / y.std(), np.ones(count))


def test_held_out_rows_are_not_seen(monkeypatch):
    seen = {}

    def logs(key, network, train, held, num_chains, plan):
        seen.update(train=train, held=held)
        return {name: np.full(50, value) for name, value in likely.items()}

    monkeypatch.setattr(regression_chains, "held_out_logs", logs)
    data, key = rows(200, "constant"), jax.random.key(0)
    likely = {"constant": -1.0, "student": -1.0}
    assert regression_chains.choose(key, NETWORK, data, 8, PLAN) == "student"
    train, held = (set(seen[part].x[:, 0]) for part in ("train", "held"))
    assert train | held == set(data.x[:, 0])
    assert not train & held
    assert len(held) == 30
    likely = {"constant": -0.9, "student": -1.0}
    assert regression_chains.choose(key, NETWORK, data, 8, PLAN) == "constant"
    likely = {"constant": -0.999, "student": -1.0}
    assert regression_chains.choose(key, NETWORK, data, 8, PLAN) == "student"
    assert regression_chains.choose(key, NETWORK, rows(39, "constant"), 8, PLAN) == "constant"
    many = rows(3000, "constant")
    regression_chains.choose(key, NETWORK, many, 8, PLAN)
    assert len(seen["train"].x) + len(seen["held"].x) == 2048


@pytest.mark.slow
@pytest.mark.parametrize("num_chains", [1, 8])
def test_the_noise_that_is_there_is_likeliest(num_chains):
    """Of 300 held-out rows each, and by more than 0.02 a row against the wrong ones."""
    for kind in ("input", "student"):
        data = rows(1000, kind)
        train, held = (Rows(*(c[part] for c in data)) for part in (slice(300, None), slice(300)))
        logs = regression_chains.held_out_logs(
            jax.random.key(0), NETWORK, train, held, num_chains, Plan.of(1500, 1)
        )
        assert set(logs) == {"constant", "student"}
        assert logs["student"].mean() > logs["constant"].mean() + 0.02
