"""Which engine: by what is predicted of both."""

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.surface import _TOGETHER, Surface
from sghmc.tuning import choice
from sghmc.tuning.budget import Budget, BudgetError
from sghmc.tuning.choice import check_pilots, choose_engine, predicted_seconds
from sghmc.tuning.region import Region

REGION = Region(jnp.zeros(3), np.zeros(3), np.eye(3), 0.0, True)


class Measured(Surface):
    """What a search has measured."""

    def __init__(self, target, seconds, compile_seconds=0.5):
        self.target, self.is_short = target, False
        self.clock = [_TOGETHER * seconds + compile_seconds, _TOGETHER * seconds]


def posterior(count):
    return sghmc.Posterior(
        lambda theta, x: -0.5 * (x - theta[0]) ** 2,
        lambda theta: -0.5 * jnp.sum(theta**2),
        np.zeros(count, np.float32),
    )


def choose(surface, engine="auto", region=REGION, num_draws=4_000, gibbs=None):
    return choose_engine(
        engine, surface, region, batch_size=500, num_draws=num_draws, num_chains=4, gibbs=gibbs
    )


def predicted(pass_seconds, num_examples, **settings):
    options = {"num_gradients": 4, "batch_size": 500, "num_draws": 4_000} | settings
    return predicted_seconds(0.2, pass_seconds, num_examples, **options)


def test_predictions_grow_with_what_they_are_of():
    base = predicted(1e-3, 100_000)
    # Twice the rows at the same cost of a row: twice the passes of one engine, none of the other.
    larger = predicted(2e-3, 200_000)
    assert larger["minibatch"] == pytest.approx(base["minibatch"])
    assert larger["exact"] - 12 * 0.2 == pytest.approx(
        2 * (base["exact"] - 12 * 0.2),
        rel=0.01,  # a step costs a little besides its rows
    )
    assert predicted(1e-3, 100_000, num_gradients=8)["exact"] > 1.5 * base["exact"]
    assert predicted(1e-3, 100_000, batch_size=5_000)["minibatch"] > base["minibatch"]
    longer = predicted(1e-3, 100_000, num_draws=40_000)
    assert longer["exact"] > base["exact"]
    assert longer["minibatch"] > base["minibatch"]


def test_cheap_passes_are_made_exactly_and_dear_ones_are_not():
    cheap = choose(Measured(posterior(20_000), 1e-4))
    assert cheap.engine == "exact"
    dear = choose(Measured(posterior(100_000), 1e-1))
    assert dear.engine == "minibatch"
    for chosen in (cheap, dear):
        assert "predicted: exact" in chosen.reason
        assert "minibatch" in chosen.reason


def test_an_accelerator_has_steps_of_all_chains_launched_one_by_one(monkeypatch):
    surface = Measured(posterior(100_000), 4e-4, compile_seconds=0.0)
    assert choose(surface).engine == "minibatch"
    monkeypatch.setattr(choice.xla, "has_accelerator", lambda: True)
    assert choose(surface).engine == "exact"


def test_dear_compilation_speaks_for_the_engine_with_fewer_programs():
    many = posterior(200_000)
    assert choose(Measured(many, 1e-2)).engine == "minibatch"
    assert choose(Measured(many, 1e-2, compile_seconds=50.0)).engine == "exact"


def test_pilots_that_would_outlast_the_budget_are_refused():
    check_pilots(Measured(posterior(20_000), 1e-2), REGION, Budget(60.0))
    with pytest.raises(BudgetError, match=r"would take about .*budget=.*minibatch"):
        check_pilots(Measured(posterior(20_000), 10.0), REGION, Budget(60.0))


def test_what_is_asked_for_is_done():
    surface = Measured(posterior(20_000), 1e-4)
    for engine in ("exact", "minibatch"):
        assert choose(surface, engine) == (engine, "as asked for")


def test_what_needs_no_prediction():
    potential = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    assert choose(Measured(potential, 1.0)).engine == "exact"
    assert choose(Measured(posterior(1_000), 1.0)).engine == "exact"
    gibbs = sghmc.Gibbs(lambda key, theta, posterior: posterior.hyper, every=5)
    assert choose(Measured(posterior(1_000), 1e-6), gibbs=gibbs).engine == "minibatch"
    many = Region(jnp.zeros(3), np.zeros(3), np.ones(3), 0.0, False)
    assert choose(Measured(posterior(20_000), 1e-6), region=many).engine == "minibatch"
