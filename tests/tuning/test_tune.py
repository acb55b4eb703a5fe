"""Tuning without hand work: what it chooses, what it promises, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy.special import digamma, polygamma

import sghmc
from sghmc.posterior.mode import ModeError, find_mode, hessian
from sghmc.tuning import tuner
from sghmc.tuning.pilot import Settings, Trial
from sghmc.tuning.region import find_region


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


def test_settings_keep_the_error_of_gradient_noise_within_its_share():
    for noise in (0.0, 0.1, 1.0, 10.0, 70.0):
        settings = Settings.for_noise(noise, 0.05, 0.3)
        assert settings.law.standard_deviation_error <= 0.4 * 0.05 + 1e-9
        assert settings.step_size <= 0.3
        assert settings.step_size * settings.friction <= 0.5 + 1e-9
    assert Settings.for_noise(1e4, 0.05, 0.3).law.standard_deviation_error > 0.05


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


@pytest.mark.parametrize("is_cured", [pytest.param(True, marks=pytest.mark.slow), False])
def test_momenta_that_are_too_hot_halve_the_step_size(monkeypatch, is_cured):
    """Draws agree at all step sizes here: only the temperature, planted in the pilots, objects."""
    measure, seen = tuner.Tuner.measure, []

    def hot(self, settings):
        trial = measure(self, settings)
        seen.append(settings.step_size)
        is_hot = settings.step_size == seen[0] or not is_cured
        return Trial(trial.draws, trial.heat + 0.5 * is_hot)

    monkeypatch.setattr(tuner.Tuner, "measure", hot)
    monkeypatch.setattr(tuner, "_NUM_HALVINGS", 2)
    target = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
    report = sghmc.tune(jax.random.key(0), target, jnp.ones(2)).report
    assert report.is_met == is_cured
    assert report.step_size == seen[0] / (2 if is_cured else 4)
    assert any("hotter than they should be by 5" in note for note in report.notes) != is_cured


@pytest.mark.slow
def test_pilots_that_boil_teach_the_region_nothing(monkeypatch):
    """Steps beyond 0.1 are planted to be hot, with draws far out though finite."""
    run_pilot = tuner.run_pilot

    def boiling(*args, **options):
        trial = run_pilot(*args, **options)
        is_hot = args[4].step_size > 0.1
        return Trial(1e3 * trial.draws, trial.heat + 5) if is_hot else trial

    monkeypatch.setattr(tuner, "run_pilot", boiling)
    target = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
    tuned = sghmc.tune(jax.random.key(0), target, jnp.ones(2))
    assert tuned.report.is_met
    assert tuned.report.step_size <= 0.1
    factor = np.asarray(tuned.sampler.factor)
    np.testing.assert_allclose(factor @ factor.T, np.eye(2), atol=0.5)


@pytest.mark.slow
def test_a_mode_far_from_the_draws():
    """A hierarchical model: its joint mode has a spread between groups that no draw has."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 12, 6_000)
    y = (1 + 0.6 * rng.normal(size=12))[group] + 0.8 * rng.normal(size=6_000)

    def log_likelihood(p, row):
        return norm.logpdf(row["y"], p["mean"] + jnp.exp(p["log_spread"]) * p["raw"][row["g"]], 0.8)

    def log_prior(p):
        return -0.5 * (p["mean"] ** 2 + p["log_spread"] ** 2) / 4 - 0.5 * jnp.sum(p["raw"] ** 2)

    posterior = sghmc.Posterior(
        log_likelihood, log_prior, {"y": y.astype(np.float32), "g": group.astype(np.int32)}
    )
    start = {"mean": jnp.zeros(()), "log_spread": jnp.zeros(()), "raw": jnp.zeros(12)}
    mode = find_mode(posterior, start).position
    tuned = sghmc.tune(jax.random.key(0), posterior, start, batch_size=200)
    assert tuned.report.is_met
    # The effects are known to 0.036, so the log of their spread has a posterior of about 0.2.
    assert mode["log_spread"] > 0.5
    assert np.all(tuned.init["log_spread"] < 0.5)


@pytest.mark.slow
def test_much_data_gets_a_control_variate():
    posterior = logistic(20_000)
    tuned = sghmc.tune(jax.random.key(0), posterior, jnp.zeros(3), batch_size=100)
    report = tuned.report
    assert isinstance(tuned.gradient, sghmc.ControlVariate)
    assert tuned.gradient.batch_size == 100
    assert report.gradient_noise["control variate"] < 0.01 * report.gradient_noise["minibatch"]
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
    # 8,000 draws, at least 5,000 independent: 0.014 of a mean, 1.2 % of a standard deviation.
    assert abs(samples.positions.mean() - (digamma(3) - np.log(2))) / spread < 0.07 + 0.03
    assert abs(samples.positions.std() / spread - 1) < 0.05 + 0.03


def test_the_same_key_gives_the_same_settings():
    target = sghmc.Potential(lambda theta: jnp.sum(jnp.cosh(theta)))
    first, second = (sghmc.tune(jax.random.key(3), target, jnp.ones(2)) for _ in range(2))
    np.testing.assert_array_equal(first.init, second.init)
    assert first.report.step_size == second.report.step_size


@pytest.mark.slow
def test_a_tolerance_out_of_reach_is_said():
    posterior = logistic(20_000)
    tuned = sghmc.tune(jax.random.key(0), posterior, jnp.zeros(3), batch_size=1, tolerance=0.0005)
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
    assert any("no single mode" in note for note in tuned.report.notes)


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
    assert samples.tuning.is_met
    assert np.std(samples.hyper) > 0.05


BAD_POSTERIORS = {
    "flat": sghmc.Potential(lambda theta: 0.5 * theta[0] ** 2),
    "improper": sghmc.Potential(lambda theta: jnp.sum(jnp.exp(-theta))),
    "separable": logistic(50, separable=True, prior=0.0),
    "collinear": sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta) ** 2),
}


@pytest.mark.parametrize("name", BAD_POSTERIORS)
def test_a_posterior_that_does_not_fall_off_is_refused(name):
    size = 3 if name == "separable" else 2
    with pytest.raises(ModeError, match=r"does not fall off along .*params.*prior"):
        find_region(BAD_POSTERIORS[name], jnp.zeros(size))


def test_bad_input_is_refused():
    target, key = sghmc.Potential(lambda theta: jnp.sum(theta**2)), jax.random.key(0)
    start = jnp.zeros(2)
    with pytest.raises(ValueError, match="batch_size"):
        sghmc.tune(key, target, start, batch_size=0)
    with pytest.raises(ValueError, match="tolerance"):
        sghmc.tune(key, target, start, tolerance=2.0)
    with pytest.raises(TypeError, match="one typed jax key"):
        sghmc.tune(0, target, start)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="one init"):
        sghmc.sample(key, target, "auto", start[None], init_axis=0)
    with pytest.raises(TypeError, match='or "auto"'):
        sghmc.sample(key, target, "automatic", start)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModeError, match="ran away"):
        sghmc.tune(key, sghmc.Potential(lambda theta: -jnp.sum(theta**4)), jnp.ones(2))


def test_a_batch_larger_than_the_data_is_said():
    tuned = sghmc.tune(jax.random.key(0), logistic(60), jnp.zeros(3))
    assert isinstance(tuned.gradient, sghmc.FullBatch)
    assert any("room for all 60 examples" in note for note in tuned.report.notes)
