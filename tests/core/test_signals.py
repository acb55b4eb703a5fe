"""Ctrl-C and SIGTERM: noted, waited for where a run is on, and never lost."""

import contextlib
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.core.signals import Interruption, whole_or_nothing
from sghmc.engine import driver
from sghmc.engine.driver import Bar
from sghmc.estimators import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    MatrixFactorization,
)

TARGET = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)


def ctrl_c():
    signal.raise_signal(signal.SIGINT)


def swallowed():
    """Ctrl-C inside of a library that goes on whatever is raised."""
    with contextlib.suppress(BaseException):
        ctrl_c()


@pytest.fixture(autouse=True)
def handlers_stay():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert Interruption._open == []


def test_a_patient_one_waits_and_the_second_signal_raises():
    with Interruption() as interruption:
        ctrl_c()
        assert interruption.happened
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()


def within(manager, *steps):
    """Take these steps, one after another, inside of a context."""
    with manager:
        for step in steps:
            step()


def failed():
    raise RuntimeError("a callback failed")


def test_work_that_is_whole_is_left_at_once():
    with pytest.raises(KeyboardInterrupt):
        within(whole_or_nothing(), ctrl_c, lambda: pytest.fail("went on"))


def test_a_swallowed_signal_is_raised_in_the_end():
    with pytest.raises(KeyboardInterrupt):
        within(whole_or_nothing(), swallowed)


def test_an_error_that_a_callback_made_of_it_is_no_error():
    with pytest.raises(KeyboardInterrupt) as caught:
        within(whole_or_nothing(), swallowed, failed)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_errors_of_other_causes_stay():
    with pytest.raises(RuntimeError, match="callback"):
        within(Interruption(), ctrl_c, failed)


def test_a_run_inside_of_a_fit_is_not_cut_short():
    def run():
        within(Interruption(), ctrl_c)  # which waits for the end of its block
        pytest.fail("went on with a part of the draws")

    with pytest.raises(KeyboardInterrupt):
        within(whole_or_nothing(), run)


def test_what_was_swallowed_before_a_run_ends_the_run():
    with Interruption(is_patient=False):
        swallowed()
        with Interruption() as run:
            assert run.happened


def test_sigterm_ends_a_run_in_the_end():
    with pytest.raises(SystemExit) as caught:
        within(Interruption(takes_sigterm=True), lambda: signal.raise_signal(signal.SIGTERM))
    assert caught.value.code == 143


def test_a_handler_of_the_users_own_for_sigterm_stays():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("user"))
    try:
        with Interruption(takes_sigterm=True) as run:
            signal.raise_signal(signal.SIGTERM)
            assert not run.happened
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["user"]


def test_threads_have_no_signals_but_work():
    def work():
        with whole_or_nothing(), Interruption() as run:
            assert not run.happened

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_run_on_a_thread_hears_of_a_signal_to_the_main_one():
    """A fit with two threads waits for both: they end with the block that they are at."""
    found = []

    def work():
        with Interruption() as interruption:
            found.append(interruption.happened)

    with Interruption():
        for step in (work, ctrl_c, work):
            thread = threading.Thread(target=step) if step is work else None
            if thread is None:
                step()
            else:
                thread.start()
                thread.join()
    assert found == [False, True]


def test_a_signal_to_one_process_ends_the_run_in_all(monkeypatch):
    monkeypatch.setattr(runtime, "is_multiprocess", lambda: True)
    monkeypatch.setattr(runtime, "gather_texts", lambda text: [text, str(int(signal.SIGTERM))])
    run = Interruption()
    with pytest.raises(SystemExit):
        within(run, run.agreed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_ends_one_process_at_once_does_not_wait_for_the_others(
    number, code, monkeypatch
):
    """jax would wait for them at the end of the process; SIGTERM would not even end it."""
    codes = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(runtime, "leave_at_exit", codes.append)
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        within(whole_or_nothing(), lambda: signal.raise_signal(number))
    assert isinstance(caught.value, KeyboardInterrupt | SystemExit)
    assert codes == [code]


def test_a_run_waits_for_its_block_though_what_is_around_it_does_not():
    def run():
        with Interruption(takes_sigterm=True) as inner:
            signal.raise_signal(signal.SIGTERM)
            assert inner.happened

    with pytest.raises(SystemExit):
        within(Interruption(is_patient=False, takes_sigterm=True), run, failed)


class AtFirst(Bar):
    """A progress bar at which a signal comes with the first draws."""

    number = signal.SIGINT

    def update(self, num_done, failed_at):
        signal.raise_signal(self.number)


def test_ctrl_c_in_a_fit_leaves_the_model_as_it_was(monkeypatch):
    """Also where the fit would have gone on with what there was."""
    x = np.arange(20.0)[:, None]
    monkeypatch.setattr(BayesianLinearRegression, "_sample", lambda self, key: swallowed())
    model = BayesianLinearRegression(num_draws=20, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, x[:, 0])
    assert not hasattr(model, "input_scaling_")


def sample(path, num_samples=8):
    saved = None if path is None else sghmc.Checkpoint(path)
    options = {"num_samples": num_samples, "progress": False, "checkpoint": saved}
    return sghmc.sample(jax.random.key(0), TARGET, sghmc.SGHMC(0.1, 1.0), jnp.zeros(2), **options)


@pytest.mark.parametrize("resumes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sigterm_saves_and_ends_and_the_run_goes_on(resumes, monkeypatch, tmp_path):
    monkeypatch.setattr(AtFirst, "number", signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "Bar", AtFirst)
        with pytest.raises(SystemExit) as caught:
            sample(tmp_path / "run")
    assert caught.value.code == 143
    assert [each.name for each in (tmp_path / "run" / "saves").iterdir()] == ["000000000001"]
    if resumes:
        np.testing.assert_array_equal(sample(tmp_path / "run").positions, sample(None).positions)


# The attack in small: signals at random times, over every kind of work that must be whole.

ROWS = np.random.default_rng(0).normal(size=(60, 3))


def network():
    model = BayesianMLPRegressor(num_draws=8, num_chains=2, hidden_layer_sizes=(4,), random_state=0)
    return model, lambda: model.fit(ROWS, ROWS[:, 0])


def classes():
    model = BayesianMLPClassifier(
        num_draws=8, num_chains=2, hidden_layer_sizes=(4,), random_state=0
    )
    return model, lambda: model.fit(ROWS, ROWS[:, 0] > 0)


def linear():
    model = BayesianLinearRegression(num_draws=2000, random_state=0)
    return model, lambda: model.fit(ROWS, ROWS[:, 0])


def logistic():
    model = BayesianLogisticRegression(num_draws=2000, random_state=0)
    return model, lambda: model.fit(ROWS, ROWS[:, 0] > 0)


def ratings():
    model = MatrixFactorization(rank=2, num_draws=10, progress=False)
    numbers = np.arange(200)
    table = {"user": numbers % 17, "item": numbers % 13, "rating": 1.0 + numbers % 5}
    return model, lambda: model.fit(table)


class Holder:
    """Holds what a function returned, as a model holds its draws."""


def tuned():
    holder = Holder()
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: 0.0 * theta.sum(), ROWS
    )
    key = jax.random.key(0)
    return holder, lambda: setattr(holder, "draws_", sghmc.tune(key, target, jnp.zeros(3)))


def coefficient():
    holder, key = Holder(), jax.random.key(0)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: 0.0 * theta.sum(), ROWS
    )
    return holder, lambda: setattr(holder, "draws_", sghmc.llc(key, target, jnp.zeros(3)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.parametrize("kind", [network, classes, linear, logistic, ratings, tuned, coefficient])
def test_signals_at_random_times_leave_all_or_nothing(kind):
    def timed(fit):
        began = time.monotonic()
        fit()
        return time.monotonic() - began

    timed(kind()[1])  # compiles
    seconds = timed(kind()[1])
    rng, num_interrupted = np.random.default_rng(3), 0
    for _ in range(60):
        model, fit = kind()
        timer = threading.Timer(rng.uniform(0, seconds), os.kill, (os.getpid(), signal.SIGINT))
        is_done = False
        timer.start()
        try:
            seconds = timed(fit)
            is_done = True
            timer.cancel()
            timer.join()
        except KeyboardInterrupt:
            num_interrupted += not is_done
        assert hasattr(model, "draws_") == is_done
        if num_interrupted == 6:
            break
    assert num_interrupted > 0
