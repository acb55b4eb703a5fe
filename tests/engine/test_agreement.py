"""Processes that were given different arguments refuse to run, and name the difference."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.engine import agreement
from sghmc.engine.options import RunOptions

X = np.arange(12.0, dtype=np.float32).reshape(6, 2)
KEY, INIT = jax.random.key(0), jnp.zeros(2)


def log_likelihood(theta, row):
    return -0.5 * jnp.sum((row - theta) ** 2)


def posterior(data, scale=1.0):
    return sghmc.Posterior(log_likelihood, lambda theta: -scale * jnp.sum(theta**2), data)


def mapped(folder, rows):
    folder.mkdir()
    np.save(folder / "x.npy", rows)
    return sghmc.data.MemoryMapped(folder / "x.npy")


def arguments(target, sampler=None, init: Any = INIT, **options):
    sampler = sghmc.SGHMC(0.1, 1.0) if sampler is None else sampler
    return KEY, target, sampler, init, RunOptions(**options)


@pytest.fixture
def check(monkeypatch):
    """Check what process 1 has against what process 0 has, both of them described here."""
    monkeypatch.setattr(runtime, "is_multiprocess", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)

    def check(first, second):
        sent = []

        def gather(text):
            sent.append(text)
            return [sent[0], text]

        monkeypatch.setattr(runtime, "gather_texts", gather)
        agreement.check_agreement(*first)
        agreement.check_agreement(*second)

    return check


def test_equal_arguments_pass(check, tmp_path):
    check(arguments(posterior(X)), arguments(posterior(X.copy())))
    rows = mapped(tmp_path / "0", X), mapped(tmp_path / "1", X)
    check(*(arguments(posterior(each), gradient=sghmc.Minibatch(2)) for each in rows))
    check(arguments(posterior(X), progress=True), arguments(posterior(X), progress=False))


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (lambda: arguments(posterior(X[:5])), r"float32\[6, 2\] .* float32\[5, 2\]"),
        (lambda: arguments(posterior(X[::-1].copy())), "target.data is"),
        (lambda: arguments(posterior(X, scale=2.0)), "target.log_prior is"),
        (lambda: arguments(posterior(X), sghmc.SGHMC(0.2, 1.0)), "sampler.step_size is"),
        (lambda: arguments(posterior(X), init=INIT + 1), "init is"),
        (lambda: arguments(posterior(X), num_samples=3), "num_samples is 1000 in process 0, 3 in"),
        (lambda: arguments(posterior(X), throw=False), "throw is True in process 0, False in"),
        (lambda: arguments(posterior(X), init="no array"), "the error is not there in process 0"),
    ],
)
def test_a_difference_is_named(check, second, named):
    with pytest.raises(runtime.ProcessError, match=f"Processes 0 and 1 of 2 .*{named}"):
        check(arguments(posterior(X)), second())


@pytest.mark.parametrize("rows", [X[:5], X[::-1].copy()], ids=["fewer", "others"])
def test_files_with_other_rows_are_named(check, tmp_path, rows):
    files = mapped(tmp_path / "0", X), mapped(tmp_path / "1", rows)
    with pytest.raises(runtime.ProcessError, match=r"target.data\['rows'\] is"):
        check(*(arguments(posterior(each), gradient=sghmc.Minibatch(2)) for each in files))


def test_sample_asks_before_anything_else(monkeypatch):
    monkeypatch.setattr(runtime, "is_multiprocess", lambda: True)
    monkeypatch.setattr(runtime, "gather_texts", lambda text: [json.dumps({"N": "5"}), text])
    with pytest.raises(runtime.ProcessError, match="N is 5 in process 0, gone in process 1"):
        sghmc.sample(*arguments(posterior(X))[:4], num_samples=2, progress=False)
