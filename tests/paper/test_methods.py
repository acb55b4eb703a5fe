"""The four methods: their settings, and what is kept of them."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest

import sghmc
from sghmc.paper import methods
from sghmc.paper.methods import MethodSettings

SETTINGS = MethodSettings(0.1, 0.2, 0.3, 0.4, momentum_decay=0.05, regularizer=7.0)


def test_each_method_has_its_own_step_size():
    made: list[Any] = [SETTINGS.sampler(name, 3) for name in methods.LABELS]
    kinds = [sghmc.SGD, sghmc.Momentum, sghmc.SGLD, sghmc.SGHMC]
    assert [type(each) for each in made] == kinds
    sgd, momentum, sgld, sampler = made
    assert float(sgd.learning_rate) == pytest.approx(0.1)
    assert float(momentum.learning_rate) == pytest.approx(0.2)
    assert float(momentum.momentum_decay) == pytest.approx(0.05)
    assert float(sgld.step_size) == pytest.approx(0.3)
    # η = ε²/M and α = εC/M.
    step, mass, friction = (
        float(value) for value in (sampler.step_size, sampler.mass, sampler.friction)
    )
    assert (step**2 / mass, step * friction / mass) == pytest.approx((0.4, 0.05))
    for warm in (sgld.temperature, sampler.temperature):
        assert [float(warm(t)) for t in (0, 2, 3, 100)] == [0, 0, 1, 1]


def test_temperatures_other_than_one():
    warm = methods.warm_after(2, 0.1)
    assert [float(warm(t)) for t in (1, 2)] == [0, pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("sgd", {"step": 0.1, "regularizer": 7.0}),
        ("momentum", {"step": 0.2, "momentum_decay": 0.05, "regularizer": 7.0}),
        ("sgld", {"step": 0.3}),
        ("sghmc", {"step": 0.4, "momentum_decay": 0.05}),
    ],
)
def test_what_a_method_uses(name, used):
    assert SETTINGS.of(name) == used


def test_optimizers_are_judged_by_their_last_iterate_and_samplers_by_their_average():
    scores = SimpleNamespace(positions="of iterates", trace="of averages")
    averages = {"mean": len}
    for name in methods.LABELS:
        options = methods.kept(name, abs, averages, max)
        if name in ("sgd", "momentum"):
            assert options == {"keep": abs}
            assert methods.over_time(name, scores) == "of iterates"  # pyright: ignore
        else:
            assert options["keep"]("params", "hyper") == ()
            assert (options["averages"], options["trace"]) == (averages, max)
            assert methods.over_time(name, scores) == "of averages"  # pyright: ignore


def test_a_run_is_cut_where_there_is_no_accelerator(monkeypatch):
    for backend, full, is_cut in (
        ("cpu", False, True),
        ("cpu", True, False),
        ("gpu", False, False),
    ):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        assert methods.is_cut(SimpleNamespace(full=full)) is is_cut
