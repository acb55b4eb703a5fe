"""Tuning without hand work: what it chooses, what it promises, and what it refuses."""

import signal
import time
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy.special import digamma, polygamma

import sghmc
from sghmc.engine import driver
from sghmc.posterior.mode import ModeError, find_mode, hessian
from sghmc.tuning import pilots
from sghmc.tuning import tune as tune_file
from sghmc.tuning.other_modes import OtherMode
from sghmc.tuning.whitening import Whitening


def flat(positions):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(positions)]
    return np.concatenate([leaf.reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in leaves], 1)


def logistic(count, size=3, separable=False, prior=1.0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size))
    logits = x @ np.linspace(-0.6, 0.8, size)
    y = logits > 0 if separable else rng.random(count) < 1 / (1 + np.exp(-logits))

    def log_likelihood(weights, row):
        return -jax.nn.softplus(jnp.where(row["y"], -1.0, 1.0) * (row["x"] @ weights))

    data = {"x": x.astype(np.float32), "y": y}
    return sghmc.Posterior(log_likelihood, lambda weights: -0.5 * prior * jnp.sum(weights**2), data)


@pytest.mark.parametrize(
    ("mass", "center", "other", "told"),
    [
        (0.80, 7.0, 3.0, 0.20),  # the second is heavier: pilots start there, and the first is told
        (0.74, 3.0, 7.0, 0.74),
        (0.009, 3.0, None, None),
        (0.995, 7.0, None, None),
        (None, 3.0, None, None),
    ],
)
def test_pilots_start_in_the_heavier_mode_and_the_other_is_told(
    monkeypatch, mass, center, other, told
):
    """Only where it has three quarters of the mass, and told from a hundredth of it on."""
    like = jax.ShapeDtypeStruct((1,), np.float64)

    def whitening(potential, start, goes_on):
        return Whitening(like, np.asarray(start, float), 2 * np.eye(1), 0.0, True)

    def found(potential, at, factor, rng, num_gradients):
        assert (at, factor, num_gradients) == (3.0, 2.0, 41)
        second = None if mass is None else OtherMode(np.array([7.0]), mass, 5.0)
        return second, "searched there"

    monkeypatch.setattr(tune_file, "find_whitening", whitening)
    monkeypatch.setattr(tune_file, "find_other_mode", found)
    allowance = types.SimpleNamespace(goes_on=lambda: True, num_for_walks=41)
    chosen, complaints, searched = tune_file._find_main_mode(
        cast(Any, None), np.array([3.0]), cast(Any, allowance), jax.random.key(0)
    )
    assert (chosen.center, searched) == (center, "searched there")
    if told is None:
        assert complaints == ()
    else:
        wanted = OtherMode(np.array([other]), told, 5.0).complaint(like)
        assert complaints == (wanted,)


@pytest.mark.slow
def test_a_badly_scaled_potential():
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    precision = (rotation * np.geomspace(1e-3, 1e3, 4)) @ rotation.T
    target = sghmc.Potential(
        lambda p: (
            0.5
            * (jnp.append(p["a"], p["b"]) - 2.0)
            @ (jnp.asarray(precision, jnp.float32) @ (jnp.append(p["a"], p["b"]) - 2.0))
        )
    )
    start = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    tuned = sghmc.tune(jax.random.key(0), target, start, num_chains=6)
    assert tuned.report.is_met
    assert tuned.report.distance < 0.01
    assert tuned.init["a"].shape == (6, 3)
    samples = sghmc.sample(
        jax.random.key(1),
        target,
        tuned.sampler,
        tuned.init,
        init_axis=0,
        num_chains=6,
        gradient=tuned.gradient,
        num_samples=700,
        thinning=tuned.thinning,
        progress=False,
    )
    spread = np.sqrt(np.diag(np.linalg.inv(precision)))
    # 4,200 nearly independent draws: errors of 1.1 % of a standard deviation and 0.016 of a mean;
    # 5 of them are one false alarm in 10⁵ for eight numbers.
    draws = flat(samples.positions)
    assert np.max(np.abs(draws.std(0) / spread - 1)) < 0.055
    assert np.max(np.abs(draws.mean(0) - 2.0) / spread) < 0.08


@pytest.mark.slow
def test_a_mode_far_from_the_draws():
    """A hierarchical model: its joint mode has a spread between groups that no draw has."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 12, 6_000)
    y = (1 + 0.6 * rng.normal(size=12))[group] + 0.8 * rng.normal(size=6_000)

    def log_likelihood(p, row):
        return norm.logpdf(row["y"], p["mean"] + jnp.exp(p["log_sd"]) * p["raw"][row["g"]], 0.8)

    def log_prior(p):
        return -0.5 * (p["mean"] ** 2 + p["log_sd"] ** 2) / 4 - 0.5 * jnp.sum(p["raw"] ** 2)

    posterior = sghmc.Posterior(
        log_likelihood, log_prior, {"y": y.astype(np.float32), "g": group.astype(np.int32)}
    )
    start = {"mean": jnp.zeros(()), "log_sd": jnp.zeros(()), "raw": jnp.zeros(12)}
    mode = find_mode(posterior, start).position
    tuned = sghmc.tune(jax.random.key(0), posterior, start, batch_size=200)
    assert tuned.report.is_met
    # The effects are known to 0.036, so the log of their spread has a posterior of about 0.2.
    assert mode["log_sd"] > 0.5
    assert np.all(tuned.init["log_sd"] < 0.5)


@pytest.mark.slow
def test_much_data_gets_a_control_variate():
    posterior = logistic(20_000)
    tuned = sghmc.tune(
        jax.random.key(0), posterior, jnp.zeros(3), batch_size=100, engine="minibatch"
    )
    report = tuned.report
    assert isinstance(tuned.gradient, sghmc.ControlVariate)
    assert tuned.gradient.batch_size == 100
    assert report.engine == "minibatch"
    # Plain batches of a hundredth of the data have about that much: N/n, in units of the spread.
    assert report.gradient_noise["control variate"] < 0.01 * 200
    assert report.is_met
    assert "to be expected" in str(report)
    samples = sghmc.sample(
        jax.random.key(1),
        posterior,
        tuned.sampler,
        tuned.init,
        init_axis=0,
        num_chains=4,
        gradient=tuned.gradient,
        num_samples=1000,
        thinning=tuned.thinning,
        progress=False,
    )
    mode = find_mode(posterior, jnp.zeros(3))
    spread = np.sqrt(np.diag(np.linalg.inv(hessian(posterior, mode.position))))
    draws = flat(samples.positions)
    # As above, and the posterior is Gaussian to a percent.
    assert np.max(np.abs(draws.std(0) / spread - 1)) < 0.07
    assert np.max(np.abs(draws.mean(0) - mode.position) / spread) < 0.1


@pytest.mark.slow
def test_auto_on_a_skewed_posterior():
    """The log of a Gamma(3, 2) variable: mean and variance are known."""
    target = sghmc.Potential(lambda x: 2 * jnp.exp(x) - 3 * x)
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        "auto",
        jnp.zeros(()),
        num_samples=2000,
        num_chains=4,
        progress=False,
    )
    assert samples.tuning.is_met
    spread = np.sqrt(polygamma(1, 3))
    # 8,000 draws, at least 4,000 independent for the spread, which is that of a skewed law: errors
    # of 0.016 of a mean and 1.4 % of a standard deviation; 4.5 of them are a false alarm in 10⁵.
    assert abs(samples.positions.mean() - (digamma(3) - np.log(2))) / spread < 0.07
    assert abs(samples.positions.std() / spread - 1) < 0.063
    assert samples.tuning.engine == "exact"
    assert samples.tuning.is_met, str(samples.tuning)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["auto", "auto:minibatch"])
def test_the_same_key_gives_the_same_bits_in_twenty_calls(engine, monkeypatch):
    """Whatever the clock says: on a busy machine seconds are long, and chose another engine."""
    clock, found, target = [0.0], [], logistic(3_000)
    for pace in np.geomspace(1e-6, 1e4, 20):

        def counter(pace=pace):
            clock[0] += pace
            return clock[0]

        monkeypatch.setattr(time, "perf_counter", counter)
        samples = sghmc.sample(
            jax.random.key(3), target, engine, jnp.zeros(3),
            num_samples=50, num_chains=2, progress=False,
        )  # fmt: skip
        found.append((np.asarray(samples.positions).tobytes(), samples.verdict.verdict))
    assert len(set(found)) == 1


@pytest.mark.slow
def test_a_tolerance_out_of_reach_is_said():
    posterior = logistic(20_000)
    tuned = sghmc.tune(
        jax.random.key(0),
        posterior,
        jnp.zeros(3),
        batch_size=1,
        tolerance=0.00001,
        engine="minibatch",
    )
    assert not tuned.report.is_met
    assert "NOT" in tuned.report.verdict
    assert any("batches of about" in note for note in tuned.report.notes)


@pytest.mark.slow
def test_more_parameters_than_a_matrix_is_kept_for():
    rng = np.random.default_rng(0)
    scales = np.geomspace(0.1, 10, 600).astype(np.float32)
    data = (scales * rng.normal(size=(300, 600))).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x: jnp.sum(norm.logpdf(x, theta, scales)),
        lambda theta: -0.5 * jnp.sum(theta**2) / 1e4,
        data,
    )
    tuned = sghmc.tune(jax.random.key(0), target, jnp.zeros(600))
    samples = sghmc.sample(
        jax.random.key(1),
        target,
        tuned.sampler,
        tuned.init,
        init_axis=0,
        num_chains=4,
        gradient=tuned.gradient,
        num_samples=250,
        thinning=tuned.thinning,
        progress=False,
    )
    ratio = flat(samples.positions).std(0) / (scales / np.sqrt(300))
    # A mean over 600 parameters: Monte Carlo error below 0.2 %.
    assert abs(ratio.mean() - 1) < 0.05
    assert not any("no single mode" in note for note in tuned.report.notes)


@pytest.mark.slow
def test_gibbs_updates_run_in_the_pilots_too():
    data = np.random.default_rng(0).normal(2.0, 1.0, size=50).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x, hyper: norm.logpdf(x, theta, 1.0),
        lambda theta, hyper: norm.logpdf(theta, 0.0, hyper),
        data,
        hyper=jnp.asarray(1.0),
    )
    gibbs = sghmc.Gibbs(
        lambda key, theta, posterior: jnp.exp(0.1 * jax.random.normal(key)), every=5
    )
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        "auto",
        jnp.zeros(()),
        gibbs=gibbs,
        num_samples=200,
        num_chains=2,
        progress=False,
    )
    assert "400 draws determine" in samples.tuning.notes[0]
    assert np.std(samples.hyper) > 0.05


def test_bad_input_is_refused():
    target, key = sghmc.Potential(lambda theta: jnp.sum(theta**2)), jax.random.key(0)
    start = jnp.zeros(2)
    with pytest.raises(ValueError, match="batch_size"):
        sghmc.tune(key, target, start, batch_size=0)
    with pytest.raises(ValueError, match="tolerance"):
        sghmc.tune(key, target, start, tolerance=2.0)
    with pytest.raises(ValueError, match="engine must be one of auto, exact, minibatch"):
        sghmc.tune(key, target, start, engine="nuts")  # pyright: ignore[reportArgumentType]
    for until in (60, sghmc.Until(ess=400), sghmc.Until(seconds=1, gradients=5)):
        with pytest.raises(ValueError, match=r"tune takes until=sghmc.Until\(seconds=…\) alone"):
            sghmc.tune(key, target, start, until=until)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"50,001 parameters.*estimators.*Minibatch"):
        sghmc.tune(key, target, jnp.zeros(50_001))
    with pytest.raises(TypeError, match="one typed jax key"):
        sghmc.tune(0, target, start)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="one init"):
        sghmc.sample(key, target, "auto", start[None], init_axis=0)
    with pytest.raises(TypeError, match='or "auto"'):
        sghmc.sample(key, target, "automatic", start)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModeError, match=r"ran away|does not fall off"):
        sghmc.tune(key, sghmc.Potential(lambda theta: -jnp.sum(theta**4)), jnp.ones(2))


def few_and_many():
    """A thousand rows of a mean, whose posterior is N(ȳ·N/(N+1), 1/(N+1)) exactly."""
    y = np.random.default_rng(0).normal(2.0, 1.0, size=8_000).astype(np.float32)
    target = sghmc.Posterior(lambda theta, y: norm.logpdf(y, theta, 1.0), norm.logpdf, y)
    return target, y.mean() * 8_000 / 8_001, 8_001**-0.5


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["exact", "minibatch"])
def test_both_engines_find_a_posterior_that_is_known(engine):
    target, mean, spread = few_and_many()
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        f"auto:{engine}",  # pyright: ignore[reportArgumentType]
        jnp.zeros(()),
        num_samples=1000,
        num_chains=4,
        progress=False,
    )
    assert samples.tuning.engine == engine
    assert samples.tuning.is_met
    assert samples.positions.shape == (4, 1000)
    # 4,000 draws, at least 2,500 independent: 4.5 errors of 0.02 and of 1.4 %, a false alarm in
    # 10⁵; batches may add half of the tolerance.
    assert abs(samples.positions.mean() - mean) / spread < 0.09
    assert abs(samples.positions.std() / spread - 1) < 0.065 + 0.025 * (engine == "minibatch")


def test_what_is_printed_says_engine_choice_and_stages():
    target, *_ = few_and_many()
    report = sghmc.tune(jax.random.key(0), target, jnp.zeros(())).report
    shown = str(report)
    assert "engine: exact (counted cost in nominal seconds: exact " in shown
    assert "minibatch " in shown
    assert "mode " in shown
    assert "pilot runs " in shown
    assert report.acceptance > 0.7
    assert report.num_steps * report.step_size == pytest.approx(1.9, rel=0.01)
    assert 0 < sum(report.stages.values()) <= report.seconds


@pytest.mark.slow
def test_draws_are_thinned_to_what_the_tuner_says():
    """A narrow and a wide Gaussian on top of each other: trajectories remember the wide one."""

    def potential(theta):
        return -jnp.logaddexp(
            norm.logpdf(theta[0], 0, 1) + norm.logpdf(theta[1], 0, 1),
            norm.logpdf(theta[0], 0, 6) + norm.logpdf(theta[1], 0, 6),
        )

    samples = sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(potential),
        "auto",
        jnp.zeros(2),
        num_samples=150,
        num_burnin=10,
        num_chains=4,
        progress=False,
    )
    assert samples.positions.shape == (4, 150, 2)
    assert samples.info.acceptance is not None
    assert samples.info.acceptance.shape == (4, 150)
    trajectories = samples.num_steps
    assert trajectories % 160 == 0
    assert trajectories > 160


def test_a_budget_too_small_is_an_error_with_a_remedy():
    target, *_ = few_and_many()
    with pytest.raises(sghmc.BudgetError, match="budget"):
        sghmc.tune(jax.random.key(0), target, jnp.zeros(()), until=sghmc.Until(seconds=1e-6))


def test_control_c_while_tuning_is_no_reshape_error(monkeypatch):
    """A real signal, sent when the first pilot has begun."""
    target, *_ = few_and_many()
    whole = pilots.run

    def interrupted(*args, **options):
        advance = driver.OneDevice.advance

        def after_signal(self, *args, **options):
            signal.raise_signal(signal.SIGINT)
            return advance(self, *args, **options)

        monkeypatch.setattr(driver.OneDevice, "advance", after_signal)
        return whole(*args, **options)

    monkeypatch.setattr(pilots, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sghmc.sample(jax.random.key(0), target, "auto", jnp.zeros(()), num_chains=4, progress=False)
