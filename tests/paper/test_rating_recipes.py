"""How each row of Table 1 is asked to run; nothing runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recorded_draw import RecordedDraw
from sghmc.paper import methods
from sghmc.paper.methods import MethodSettings, Problem, Schedule
from sghmc.recommender.ratings import synthetic_ratings

PROBLEM = Problem.of(synthetic_ratings(0, 7, 6), 3)
SETTINGS = MethodSettings(0.1, 0.2, 0.3, 0.4, momentum_decay=0.05, regularizer=7.0)
SCHEDULE = Schedule(8, 1000, 400, average_every=50, gibbs_every=20, num_quiet=60)


@pytest.fixture
def asked(monkeypatch):
    """The arguments of a run, by the name of its method."""

    def of(name):
        recorded = RecordedDraw()
        monkeypatch.setattr(methods, "draw", recorded)
        if name == "best":
            recipe = methods.ours(PROBLEM, 2, SCHEDULE, 0.06, 0.1)
        else:
            recipe = methods.papers(PROBLEM, 2, SCHEDULE, name, SETTINGS)
        methods.sample_folds(recipe, name, PROBLEM, 7.0, jax.random.key(0), False)
        return recorded.call

    return of


@pytest.mark.slow_cases("sgd", "sgld")
@pytest.mark.parametrize("name", ["sgd", "momentum", "sgld", "sghmc", "best"])
def test_a_run_has_its_schedule(asked, name):
    call = asked(name)
    # 400 steps of burn-in are 8 averages of 50; 1,000 steps are 20.
    assert (call.thinning, call.num_burnin, call.num_samples) == (50, 8, 12)
    assert (call.num_chains, call.init_axis, call.posterior_axis) == (3, 0, 0)
    assert (call.gradient.batch_size, call.gradient.replacement) == (8, "epochs")
    assert call.init.shape == (3, 13, 3)
    assert not np.array_equal(call.init[0], call.init[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_optimizers_have_unit_noise_and_one_regularizer(asked, name):
    call = asked(name)
    assert not hasattr(call, "gibbs")
    hyper = call.posterior.chains.hyper
    assert np.all(hyper["noise"] == 1)
    for side in ("user", "item"):
        assert np.all(hyper[side]["precision"] == 7)
        assert np.all(hyper[side]["mean"] == 0)
    params = jnp.ones((13, 3))
    squares = float(jnp.sum(params**2))
    posterior = call.posterior[1]
    expected = -0.5 * 7 * squares + 0.5 * 13 * 3 * np.log(7)
    assert float(posterior.log_prior(params, posterior.hyper)) == pytest.approx(expected, rel=1e-5)


def test_the_papers_samplers_draw_precisions_after_the_quiet_steps(asked):
    for name in ("sgld", "sghmc"):
        call = asked(name)
        assert (call.gibbs.every, call.gibbs.start) == (20, 60)
        assert not hasattr(call, "adapt")
        assert [float(call.sampler.temperature(t)) for t in (59, 60)] == [0, 1]
        assert set(call.averages) == {"mean", "square", "noise", "fold"}


def test_our_recipe_adapts_masses_in_burnin(asked):
    call = asked("best")
    assert (call.gibbs.every, call.gibbs.start) == (20, 0)
    assert (call.adapt.every, call.adapt.start, call.adapt.until) == (20, 60, 400)
    # Until then one learning rate ε²/M of 1e-10 a rating of the batch, and α = εC/M.
    step, mass, friction = (
        float(getattr(call.sampler, name)) for name in ("step_size", "mass", "friction")
    )
    assert step == pytest.approx(0.06)
    assert step**2 / mass == pytest.approx(8e-10, rel=1e-5)
    assert step * friction / mass == pytest.approx(0.1, rel=1e-5)
    means = call.posterior.chains.hyper["user"]["mean"]
    assert means.shape == (3, 3)
