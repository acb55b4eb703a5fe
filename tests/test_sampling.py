"""What "auto" asks of tuning and of its runs, which are written by the test."""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import sampling
from sghmc.engine.options import RunOptions
from sghmc.tuning.result import Tuned

KEY = jax.random.key(5)
TARGET = sghmc.Potential(lambda theta: jnp.sum(theta**2))


def same_key(one, other):
    return np.array_equal(jax.random.key_data(one), jax.random.key_data(other))


@pytest.fixture
def calls(monkeypatch):
    """What `run` was called with, and by how much its draws were thinned."""
    seen: list[Any] = []

    def run(key, target, sampler, init, options):
        seen.append(types.SimpleNamespace(key=key, sampler=sampler, init=init, options=options))
        return "samples"

    monkeypatch.setattr(sampling, "run", run)
    monkeypatch.setattr(sampling, "thinned", lambda samples, every: (samples, every))
    return seen


def tuned(engine="minibatch", thinning=7) -> Any:
    report = types.SimpleNamespace(engine=engine)
    return types.SimpleNamespace(
        sampler="tuned", init="starts", gradient="gradient", thinning=thinning, report=report
    )


OPTIONS = RunOptions(num_samples=30, num_burnin=4, num_chains=2)


def test_a_tuned_run_is_thinned_as_it_was_tuned(calls):
    samples = sampling._drawn(KEY, TARGET, tuned(), OPTIONS, None)
    assert samples == ("samples", 1)
    (call,) = calls
    assert (call.sampler, call.init) == ("tuned", "starts")
    options = call.options
    assert (options.thinning, options.num_samples, options.num_burnin) == (7, 30, 4)
    assert (options.gradient, options.init_axis) == ("gradient", 0)


def test_an_exact_run_keeps_every_trajectory_and_is_thinned_after_it(calls):
    samples = sampling._drawn(KEY, TARGET, tuned("exact"), OPTIONS, None)
    assert samples == ("samples", 7)
    options = calls[0].options
    assert (options.thinning, options.num_samples, options.num_burnin) == (1, 210, 28)


@pytest.mark.parametrize("engine", ["exact", "minibatch"])
def test_a_thinning_that_is_given_is_taken(engine, calls):
    options = RunOptions(num_samples=30, num_burnin=4, thinning=3)
    assert sampling._drawn(KEY, TARGET, tuned(engine), options, 3) == ("samples", 1)
    found = calls[0].options
    assert (found.thinning, found.num_samples, found.num_burnin) == (3, 30, 4)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Samples of the run of this number."""

    number: int
    tuning: Any = None
    continuation: Any = None


def auto(monkeypatch, factors, **given):
    """A run of "auto": its keys and thinnings, and what came out."""
    seen, asked = [], []
    left = iter(factors)

    def drawn(key, target, chosen, options, thinning):
        seen.append((key, chosen.thinning, thinning))
        return Drawn(len(seen))

    def tune(key, target, init, **settings):
        asked.append((key, settings))
        parts: dict[str, Any] = dict.fromkeys(Tuned.__dataclass_fields__)
        return Tuned(**parts | {"thinning": 7, "report": "r"})

    monkeypatch.setattr(sampling, "_drawn", drawn)
    monkeypatch.setattr(sampling, "tune", tune)
    monkeypatch.setattr(sampling.result, "precision", lambda samples: f"of {samples.number}")
    monkeypatch.setattr(sampling.result, "extension_factor", lambda *_: next(left))
    monkeypatch.setattr(sampling.result, "with_precision", lambda *args: args)
    name = given.pop("name", "auto")
    settings: dict[str, Any] = {"progress": False} | given
    found = sghmc.sample(KEY, TARGET, name, jnp.zeros(2), **settings)
    return found, seen, asked


def test_draws_that_know_too_little_are_made_again_longer_twice_at_the_most(monkeypatch):
    found, seen, asked = auto(monkeypatch, [1.5, 2.0, 9.0])
    assert found == Drawn(3, ("r", "of 3", Drawn(3)))
    assert [thinning for _, thinning, _ in seen] == [7, 11, 22]  # ⌈1.5 · 7⌉, ⌈2 · 11⌉
    for i, (key, _, _) in enumerate(seen):
        assert same_key(key, jax.random.fold_in(KEY, 1 + i))
    assert same_key(asked[0][0], jax.random.fold_in(KEY, 0))


def test_draws_that_know_enough_or_are_told_how_long_to_be_are_made_once(monkeypatch):
    assert len(auto(monkeypatch, [None])[1]) == 1
    _, seen, _ = auto(monkeypatch, [2.0], thinning=4)
    assert [given for _, _, given in seen] == [4]


@pytest.mark.parametrize(
    ("name", "engine"),
    [("auto", "auto"), ("auto:exact", "exact"), ("auto:minibatch", "minibatch")],
)
def test_tuning_is_asked_for_what_the_run_will_be(name, engine, monkeypatch):
    _, _, asked = auto(monkeypatch, [None], name=name, num_samples=40, num_chains=3)
    _, settings = asked[0]
    assert settings["engine"] == engine
    assert settings["batch_size"] == 500
    assert (settings["num_samples"], settings["num_chains"]) == (40, 3)
    assert settings["progress"] is False
    assert settings["gibbs"] is None


def test_batches_of_a_gradient_that_is_given_are_those_of_tuning(monkeypatch):
    _, _, asked = auto(monkeypatch, [None], gradient=sghmc.Minibatch(20))
    assert asked[0][1]["batch_size"] == 20


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"sampler": "fast"}, TypeError, r'such as sghmc.SGHMC\(…\), or "auto", not \'fast\''),
        ({"init_axis": 0}, ValueError, "chooses starts and settings itself"),
        ({"adapt": sghmc.AdaptMass(until=500)}, ValueError, "chooses starts and settings itself"),
        ({"posterior_axis": 0}, ValueError, "chooses starts and settings itself"),
        ({"num_samples": 0}, ValueError, "num_samples must be"),
        (
            {"target": sghmc.Potential(lambda x, key: jnp.sum(x), stochastic=True)},
            TypeError,
            "exact values of the potential, and a stochastic one",
        ),
    ],
)
def test_what_auto_cannot_do_is_refused(given, error, message):
    given = {"target": TARGET, "sampler": "auto", "init": jnp.zeros(2)} | given
    with pytest.raises(error, match=message):
        sghmc.sample(KEY, **given)


def test_auto_takes_no_stack():
    stack = sghmc.Posterior.stack(
        [sghmc.Posterior(lambda p, x: p * x, lambda p: p, np.ones(3, np.float32))] * 2
    )
    with pytest.raises(TypeError, match="takes one posterior at a time, not a stack"):
        sghmc.sample(KEY, stack, "auto", jnp.zeros(()), posterior_axis=0, num_chains=2)
