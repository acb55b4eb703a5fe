"""Python goes through a model once, and nothing is compiled twice."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import sghmc
from sghmc.engine import driver

KEY = jax.random.key(5)
ROWS = np.random.default_rng(2).normal(size=(12, 2)).astype(np.float32)
COMPILED = "/jax/core/compile/backend_compile_duration"


def log_likelihood(theta, row, *hyper):
    return -0.5 * jnp.sum((row - theta[:2]) ** 2)


def log_prior(theta, *hyper):
    return -0.5 * jnp.sum(theta**2)


def update(key, theta, posterior):
    return 1.0 + jax.random.uniform(key)


class Case:
    """A kind of run, and what one may change of it."""

    def __init__(self, size=3, hyper=None, **options):
        posterior = sghmc.Posterior(functools.partial(log_likelihood), log_prior, ROWS, hyper)
        self.run = functools.partial(
            sghmc.sample,
            KEY,
            posterior,
            sghmc.SGHMC(0.01, 1.0),
            jnp.zeros(size),
            gradient=sghmc.Minibatch(4),
            progress=False,
            **options,
        )


@pytest.fixture
def compiled():
    """Names of what XLA compiles."""
    names = []

    def listen(event, duration_secs, **details):
        if event == COMPILED:
            names.append(details.get("fun_name"))

    monitoring.register_event_duration_secs_listener(listen)
    yield names
    monitoring.unregister_event_duration_listener(listen)


LARGE = 20_000
"""Parameters of a model that makes its normals step by step."""
CASES = {
    "one chain": {},
    "several chains": {"num_chains": 3},
    "averages": {"averages": {"mean": lambda theta, *hyper: theta}},
    "gibbs": {"hyper": 1.0, "gibbs": sghmc.Gibbs(update, every=2)},
    "large": {"size": LARGE},
    "large, averages": {"size": LARGE, "averages": {"first": lambda theta: theta[0]}},
    "large, adapted": {"size": LARGE, "adapt": sghmc.AdaptMass(until=2, first_window=2)},
}


SAVED = ("averages", "large")
"""Cases that are saved by default; the others are slow."""


@pytest.mark.slow_cases(
    "averages-False",
    "averages-True",
    "gibbs-False",
    "large, adapted-False",
    "large-True",
    "one chain-False",
    "several chains-False",
)
@pytest.mark.parametrize(
    ("name", "is_saved"),
    [(name, False) for name in CASES]
    + [pytest.param(name, True, marks=[] if name in SAVED else pytest.mark.slow) for name in CASES],
)
def test_other_numbers_of_draws_compile_nothing(name, is_saved, compiled, tmp_path):
    """Neither another num_samples, nor num_burnin, nor interval of a checkpoint."""
    case = Case(**CASES[name])

    def run(folder, num_samples, num_burnin, every):
        saved = sghmc.Checkpoint(tmp_path / folder, every=every) if is_saved else None
        return case.run(num_samples=num_samples, num_burnin=num_burnin, checkpoint=saved)

    first = run("a", 4, 3, 2)
    assert "jit(make_draws)" in compiled
    compiled.clear()
    second = run("b", 9, 5, 4)
    assert compiled == []
    np.testing.assert_array_equal(first.positions[:, 2:], second.positions[:, :2])


@pytest.mark.parametrize("name", ["one chain", "several chains", "large", "large, averages"])
def test_burnin_runs_the_program_that_keeps_draws(name, compiled):
    case = Case(**CASES[name])
    whole = case.run(num_samples=7)
    assert compiled.count("jit(make_draws)") == 1
    compiled.clear()
    part = case.run(num_samples=4, num_burnin=3)
    assert compiled == []
    np.testing.assert_array_equal(part.positions, whole.positions[:, 3:])


@pytest.mark.slow
def test_a_record_that_fills_its_room_is_made_after_the_loop(compiled, monkeypatch):
    """The averages are over kept draws alone, though burn-in's last ones were looked at."""
    options = {"size": LARGE, "averages": {"mean": lambda theta: theta}, "num_chains": 2}
    usual = Case(**options).run(num_samples=4, num_burnin=3)
    monkeypatch.setattr(driver, "_BLOCK_BYTES", 1)
    compiled.clear()
    single = Case(**options).run(num_samples=4, num_burnin=3)
    assert compiled.count("jit(make_draws)") == 1
    for one, other in ((single.positions, usual.positions), (single.averages, usual.averages)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), one, other)


@pytest.mark.slow
def test_python_goes_through_a_model_once():
    """Once for one row, to check what it returns, and once for a batch."""
    calls = []

    def counted(theta, row):
        calls.append(1)
        return log_likelihood(theta, row)

    target = sghmc.Posterior(counted, log_prior, ROWS)
    sampler, gradient = sghmc.SGHMC(0.01, 1.0), sghmc.Minibatch(4)
    for size in (3, LARGE):
        calls.clear()
        sghmc.sample(
            KEY, target, sampler, jnp.zeros(size), gradient=gradient, num_samples=2, num_burnin=2,
            progress=False,
        )  # fmt: skip
        assert len(calls) == 2
