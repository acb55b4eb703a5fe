"""The verdict on a run: it sees runs made to fail, and leaves sound ones alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.mode import find_mode, hessian

NUM_EXAMPLES = 4_000
TOLERANCE = 0.05


def make_posterior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 3))
    x[:, 1] += x[:, 0]
    y = rng.random(NUM_EXAMPLES) < 1 / (1 + np.exp(-x @ [0.5, -0.3, 0.8]))

    def log_likelihood(weights, row):
        return -jax.nn.softplus(jnp.where(row["y"], -1.0, 1.0) * (row["x"] @ weights))

    data = {"x": x.astype(np.float32), "y": y}
    return sghmc.Posterior(log_likelihood, lambda weights: -0.5 * jnp.sum(weights**2), data)


POSTERIOR = make_posterior()
MODE = find_mode(POSTERIOR, jnp.zeros(3))
COVARIANCE = np.linalg.inv(hessian(POSTERIOR, MODE.position))
SPREAD = np.sqrt(np.diag(COVARIANCE))
FACTOR = np.linalg.cholesky(COVARIANCE)


def whitened(sampler):
    return sghmc.Whitened(sampler, MODE.position, FACTOR)


def learned(decay, rate=0.1, **settings):
    return sghmc.SGHMC.from_learning_rate(rate / NUM_EXAMPLES, decay, **settings)


def draw(sampler, gradient, *, init=None, num_samples=400, thinning=10, num_burnin=40):
    return sghmc.sample(
        jax.random.key(7),
        POSTERIOR,
        sampler,
        MODE.position if init is None else init,
        gradient=gradient,
        num_samples=num_samples,
        num_burnin=num_burnin,
        thinning=thinning,
        num_chains=8,
        progress=False,
        throw=False,
    )


SOUND = {
    "control variate": lambda: draw(whitened(sghmc.SGHMC(0.2, 1.5)), sghmc.ControlVariate(200)),
    "all data": lambda: draw(whitened(sghmc.SGHMC(0.2, 1.5)), sghmc.FullBatch()),
    "noise subtracted": lambda: draw(
        learned(0.5, rate=0.05, gradient_noise=sghmc.EmpiricalFisher(diagonal=False)),
        sghmc.Minibatch(500),
        thinning=40,
    ),
    "langevin": lambda: draw(whitened(sghmc.SGLD(0.05)), sghmc.ControlVariate(200)),
    "accept step": lambda: draw(whitened(sghmc.HMC(0.5, 3)), sghmc.FullBatch(), thinning=2),
}

FAILING = {
    "batch too small": lambda: draw(learned(0.1), sghmc.Minibatch(10)),
    "batch small": lambda: draw(learned(0.1), sghmc.Minibatch(100)),
    "batch small, little friction": lambda: draw(learned(0.01), sghmc.Minibatch(500)),
    "langevin, batch small": lambda: draw(whitened(sghmc.SGLD(0.1)), sghmc.Minibatch(50)),
    "step too large": lambda: draw(whitened(sghmc.SGHMC(1.2, 1.0)), sghmc.FullBatch()),
    "langevin, step too large": lambda: draw(whitened(sghmc.SGLD(0.5)), sghmc.FullBatch()),
    "step beyond stability": lambda: draw(whitened(sghmc.SGHMC(2.5, 0.3)), sghmc.FullBatch()),
    "mode wrong": lambda: draw(
        whitened(sghmc.SGHMC(0.3, 1.0)), sghmc.ControlVariate(20, MODE.position + 1.0)
    ),
    "no friction": lambda: draw(
        whitened(sghmc.HMC(0.3, 5, metropolis=False)), sghmc.Minibatch(20), thinning=2
    ),
    "run too short": lambda: draw(
        sghmc.SGHMC(1e-4, 10.0),
        sghmc.FullBatch(),
        init=MODE.position + jnp.asarray(5 * SPREAD, jnp.float32),
    ),
}


def worst_error(samples) -> float:
    draws = samples.positions[samples.info.is_finite]
    return float(np.max(np.abs(draws.std(0) / SPREAD - 1)))


@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_are_left_alone(name):
    samples = SOUND[name]()
    health = samples.health(TOLERANCE)
    assert health.is_sound, str(health)
    assert health.verdict == "no sign of trouble"
    # Over 1,000 effective draws: an error of 2.3 % or less in each of three, so below one false
    # alarm in 10⁴ for each name.
    assert worst_error(samples) < TOLERANCE + 4 * 0.023


@pytest.mark.slow
def test_runs_made_to_fail_are_seen():
    """Nine of ten at least; and each of these did fail."""
    seen = {}
    for name, make in FAILING.items():
        samples = make()
        assert worst_error(samples) > TOLERANCE or not samples.info.is_finite.all(), name
        seen[name] = not samples.health(TOLERANCE).is_sound
    assert sum(seen.values()) >= 9, seen


def test_the_predicted_error_is_the_one_that_happens():
    samples = FAILING["batch small"]()
    health = samples.health()
    # 3,200 draws, about 1,000 of them independent: 2.3 % of Monte Carlo error in each of three.
    assert health.predicted_error is not None
    assert abs(health.predicted_error - worst_error(samples)) < 0.1
    assert "gradient noise adds" in health.verdict
    assert "ControlVariate or batches of" in health.verdict


def test_the_verdict_names_the_step_size():
    health = FAILING["step too large"]().health()
    assert "step size is too large" in health.verdict
    assert "too wide" in str(health)


def test_a_summary_says_it_aloud():
    samples = FAILING["step too large"]()
    with pytest.warns(sghmc.HealthWarning, match="step size is too large"):
        table = samples.summary()
    assert "too wide" in table.attrs["verdict"]
    assert table.attrs["predicted_error"] > TOLERANCE
    sound = SOUND["all data"]().summary()
    assert sound.attrs["verdict"] == "no sign of trouble"


def test_what_cannot_be_looked_at_is_said():
    samples = sghmc.sample(
        jax.random.key(0),
        POSTERIOR,
        learned(0.1),
        MODE.position,
        gradient=sghmc.Minibatch(100),
        num_samples=50,
        num_chains=2,
        keep=jnp.sum,
        progress=False,
    )
    health = samples.health()
    assert health.predicted_error is None
    assert any("not the parameters" in each for each in health.skipped)


def test_many_parameters_get_the_share_of_gradient_noise():
    rng = np.random.default_rng(0)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        rng.normal(size=(100, 200)).astype(np.float32),
    )
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        sghmc.SGHMC(0.01, friction=5.0),
        jnp.zeros(200),
        gradient=sghmc.Minibatch(10),
        num_samples=100,
        num_burnin=20,
        thinning=20,
        num_chains=4,
        progress=False,
    )
    # Examples scatter by 1 in each coordinate: V = N²/n, so the share is εN²/(2nC) = 1.
    assert samples.health().noise_share == pytest.approx(1.0, rel=0.05)
