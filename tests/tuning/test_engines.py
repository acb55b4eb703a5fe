"""The engine that failed in pilot runs gives way to the other one, and the reason says so."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sghmc
from sghmc.tuning import engines
from sghmc.tuning.budget import Budget, BudgetError, Costs
from sghmc.tuning.choices import EngineChoice


@pytest.fixture
def searched(monkeypatch):
    """Search with stubs in place of engines; `met` says which of them meet the tolerance."""

    def search(engine="auto", first="minibatch", met=(), too_dear=False):
        def stub(name):
            def make(pilots, *rest):
                whitening, starts = rest[1:3] if name == "minibatch" else rest[:2]
                begun.append((name, whitening, starts))
                report = SimpleNamespace(is_met=name in met)
                found = SimpleNamespace(report=report, engine=name)
                return SimpleNamespace(whitening=f"{name}'s", starts="ends", search=lambda: found)

            return make

        def check(*_):
            if too_dear:
                raise BudgetError("too dear")

        begun: list[Any] = []
        monkeypatch.setattr(engines, "MinibatchSearch", stub("minibatch"))
        monkeypatch.setattr(engines, "ExactSearch", stub("exact"))
        monkeypatch.setattr(engines, "check_first_pilot", check)
        monkeypatch.setattr(engines, "choose_engine", lambda *_, **__: EngineChoice(first, "cheap"))
        target = sghmc.Posterior(
            lambda t, x: -((x - t) ** 2), lambda t: -(t**2), np.zeros(9, np.float32)
        )
        pilots: Any = SimpleNamespace(target=target, budget=Budget(), gibbs=None, costs=Costs())
        candidates: Any = SimpleNamespace(batch_size=2, tolerance=0.05)
        given: Any = (engine, pilots, "U", "first", "starts", candidates, 100)
        found: Any
        _, found, reason = engines.search_settings(*given)
        return found.engine, reason, begun

    return search


def test_what_settles_is_taken(searched):
    engine, reason, begun = searched(met={"minibatch"})
    assert (engine, reason, len(begun)) == ("minibatch", "cheap", 1)


def test_exact_goes_on_where_minibatches_failed(searched):
    engine, reason, begun = searched()
    assert engine == "exact"
    assert "pilot runs of minibatches failed or did not settle, so exact was taken" in reason
    assert begun[1] == ("exact", "minibatch's", "ends")


def test_an_engine_that_was_asked_for_is_kept(searched):
    assert searched("minibatch")[0] == "minibatch"
    assert searched(first="exact")[0] == "exact"


def test_what_the_budget_does_not_allow_is_said(searched):
    engine, reason, _ = searched(too_dear=True)
    assert engine == "minibatch"
    assert "one of exact exceeds the budget" in reason
    engine, reason, _ = searched(first="exact", too_dear=True)
    assert (engine, reason) == ("minibatch", "a first pilot run over all data exceeds the budget")
    with pytest.raises(BudgetError):
        searched("exact", first="exact", too_dear=True)
