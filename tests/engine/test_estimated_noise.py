"""V̂ estimated inside a run: what is estimated, what the steps make of it, the law that comes out.

That the estimate of one batch is unbiased is judged in `test_noise.py`, over all batches.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import laws
import sghmc
from cases import GRADIENTS, params, posterior
from sghmc import theory
from sghmc.core import tree
from sghmc.engine.chain import GRADIENT, NEVER
from sghmc.engine.driver import OneDevice
from sghmc.gradients import BatchEstimator, noise
from sghmc.gradients.noise import gradient_noise, no_noise
from sghmc.interop.optax import transformation
from sghmc.samplers import Sampler

EmpiricalFisher = sghmc.EmpiricalFisher

SIZE = 3
PRECISION = laws.positive(0, SIZE, 0.4, 3.0)
MATRICES = {  # friction, mass
    "number": (1.3, 0.8),
    "diagonal": (np.array([0.8, 2.3, 1.4]), np.array([0.7, 1.9, 1.2])),
    "dense": (laws.positive(2, SIZE, 0.5, 2.5), laws.positive(1, SIZE, 0.6, 2.2)),
    "dense mass": (1.3, laws.positive(1, SIZE, 0.6, 2.2)),
}
NOISES = {True: np.array([1.6, 0.4, 1.3]), False: laws.positive(3, SIZE, 0.3, 1.5)}
"""V̂: a diagonal, and dense."""
COMBINATIONS = [
    ("number", True),
    ("diagonal", True),
    ("number", False),
    ("dense", True),
    ("dense", False),
    ("dense mass", True),
]


class Estimated(Sampler):
    """A sampler whose estimate has just given V̂ at step `t`, twice: the first must not matter."""

    sampler: Any
    estimate: np.ndarray
    t: int = 0

    @property
    def mass(self):
        return getattr(self.sampler, "mass", 1.0)

    def prepare(self, like, num_steps=1):
        kernel = self.sampler.prepare(like, num_steps)
        for estimate in (self.estimate / 3 + 0.1, self.estimate):
            kernel, _ = kernel.with_gradient_noise(self.t, jnp.asarray(estimate), like)
        return kernel

    def rescaled(self, factor):
        return dataclasses.replace(self, sampler=self.sampler.rescaled(factor))


@pytest.mark.slow_cases("dense-False", "dense-True", "diagonal-True", "number-False", "number-True")
@pytest.mark.parametrize(("name", "diagonal"), COMBINATIONS)
def test_a_step_with_an_estimate_is_the_step_with_that_gradient_noise(name, diagonal):
    friction, mass = MATRICES[name]
    estimate, brought = NOISES[diagonal], laws.positive(7, SIZE, 0.2, 1.1)
    fisher = EmpiricalFisher(diagonal)
    c, m, v = (laws.dense(value, SIZE) for value in (friction, mass, estimate))
    sampler = sghmc.SGHMC(0.25, friction, mass, fisher, 1.7)
    laws.assert_same_step(
        laws.real_step(Estimated(sampler, estimate), PRECISION, brought),
        laws.sghmc_step(PRECISION, 0.25, c, m, 1.7, brought, v),
    )
    langevin = sghmc.SGLD(0.15, friction, fisher, 1.7)
    laws.assert_same_step(
        laws.real_step(Estimated(langevin, estimate), PRECISION, brought),
        laws.sgld_step(PRECISION, 0.15, c, 1.7, brought, v),
    )


@pytest.mark.slow
def test_an_estimate_follows_the_schedule_of_the_step_size():
    sampler: Any = sghmc.SGHMC(
        lambda t: 0.4 * 0.8**t, lambda t: 1.3 + 0.2 * t, 0.8, EmpiricalFisher(False), 1.7
    )
    for t in (0, 3):
        seen = laws.real_step(
            Estimated(sampler, NOISES[False], t), PRECISION, 0.7, t=t, num_steps=4
        )
        identity = np.eye(SIZE)
        settings = (sampler.friction(t) * identity, 0.8 * identity, 1.7, 0.7 * identity)
        expected = laws.sghmc_step(PRECISION, sampler.step_size(t), *settings, NOISES[False])
        laws.assert_same_step(seen, expected)


def raised(friction, gradient_noise, limit):
    """C′: in a basis of C-unit vectors where V̂ is diag(λ), max(1, λ/limit)."""
    values, basis = scipy.linalg.eigh(gradient_noise, friction)
    root = friction @ basis
    return (root * np.maximum(1, values / limit)) @ root.T


@pytest.mark.slow_cases("number-False")
@pytest.mark.parametrize(("name", "diagonal"), COMBINATIONS)
def test_friction_is_raised_where_the_noise_needs_it(name, diagonal):
    """2τC′ ⪰ εV̂ with equality in some directions, C′ = C in the others; then the law of C′."""
    friction, mass = MATRICES[name]
    estimate, limit = NOISES[diagonal], 2 * 0.6 / 0.25
    c, m, v = (laws.dense(value, SIZE) for value in (friction, mass, estimate))
    v = v * 1.5 * limit / scipy.linalg.eigh(v, c, eigvals_only=True)[-1]
    expected = raised(c, v, limit)
    room = scipy.linalg.eigh(v, expected, eigvals_only=True)
    assert room[-1] == pytest.approx(limit)
    assert room[0] < 0.9 * limit
    assert scipy.linalg.eigh(expected, c, eigvals_only=True)[0] == pytest.approx(1)
    fisher = EmpiricalFisher(diagonal, raise_friction=True)
    sampler = sghmc.SGHMC(0.25, friction, mass, fisher, 0.6)
    step = laws.real_step(Estimated(sampler, v.diagonal() if diagonal else v), PRECISION, v)
    laws.assert_same_step(step, laws.sghmc_step(PRECISION, 0.25, expected, m, 0.6, v, v))
    exact = laws.sghmc_covariance(PRECISION, 0.25, expected, m, 0.6)
    laws.assert_close(step.covariance, exact)


def room_of(sampler, estimate, t=0):
    with jax.enable_x64(True):
        kernel = sampler.prepare(jnp.zeros(SIZE), 100)
        _, room = kernel.with_gradient_noise(t, jnp.asarray(estimate), jnp.zeros(SIZE))
        return float(room.needed), float(room.allowed)


@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "dense noise"])
def test_both_numbers_of_an_estimate_that_is_too_large(diagonal):
    friction, mass = MATRICES["dense"]
    estimate = NOISES[diagonal]
    v, fisher = laws.dense(estimate, SIZE), EmpiricalFisher(diagonal)
    worst = scipy.linalg.eigh(v, friction, eigvals_only=True)[-1]
    inertial: Any = sghmc.SGHMC(0.25, friction, mass, fisher, 1.7)
    assert room_of(inertial, estimate) == pytest.approx((worst, 2 * 1.7 / 0.25))
    langevin = sghmc.SGLD(0.25, np.linalg.inv(friction), fisher, 1.7)
    assert room_of(langevin, estimate) == pytest.approx((worst, 2 * 1.7 / 0.25))
    raising = dataclasses.replace(inertial, gradient_noise=EmpiricalFisher(diagonal, 100, 20, True))
    for factor in (1, 20):  # without any need to raise the friction, and with one
        higher = raised(friction, factor * v, 13.6)
        decay = scipy.linalg.eigh(0.25 * higher, mass, eigvals_only=True)[-1]
        assert room_of(raising, factor * estimate) == pytest.approx((decay, 2))


@pytest.mark.parametrize("kind", [sghmc.SGHMC, sghmc.SGLD])
def test_an_estimate_is_judged_by_the_steps_that_it_is_for(kind):
    """Steps 6 to 9 of a rising step size: the last is the largest."""
    fisher = EmpiricalFisher(every=4)
    friction: dict[str, Any] = {"friction": 1.0} if kind is sghmc.SGHMC else {}
    rising = kind(lambda t: 0.01 * (t + 1), gradient_noise=fisher, temperature=0.5, **friction)
    assert room_of(rising, NOISES[True], t=6)[1] == pytest.approx(2 * 0.5 / 0.1)
    ending = kind(lambda t: 0.1 * (t < 3), gradient_noise=fisher, **friction)
    assert room_of(ending, NOISES[True], t=2)[1] == pytest.approx(2 / 0.1)


@pytest.mark.slow
def test_a_mass_that_adapts_keeps_its_estimate():
    start, mass = jnp.zeros(SIZE), np.array([0.5, 1.5, 2.0])
    for fisher in (EmpiricalFisher(), EmpiricalFisher(raise_friction=True)):
        kernel = sghmc.SGHMC(0.25, 1.3, 0.8, fisher).prepare(start)
        state = kernel.init([jnp.ones(SIZE)], start)
        adapted, _ = kernel.adaptable(state).with_mass(state, mass)
        seen, _ = adapted.with_gradient_noise(0, jnp.asarray(20 * NOISES[True]), start)
        fresh = sghmc.SGHMC(0.25, 1.3 * mass / 0.8, mass, fisher).prepare(start)
        expected, _ = fresh.with_gradient_noise(0, jnp.asarray(20 * NOISES[True]), start)
        oracle = sghmc.FullBatch().prepare(FLAT, start).oracle(FLAT, ())
        ends = (each.step(0, [jnp.ones(SIZE)], state, oracle)[0] for each in (seen, expected))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), *ends)


FLAT = sghmc.Potential(jnp.sum)


def test_running_average():
    """The mean of the first three, then a third of what is new."""
    running = no_noise(1, EmpiricalFisher(), jnp.float32, NEVER)
    seen = []
    for value in (3.0, 6.0, 0.0, 9.0, 12.0):
        running = running.with_estimate(jnp.array([value]), window=3)
        seen.append(float(running.mean[0]))
    np.testing.assert_allclose(seen, [3, 4.5, 3, 5, 5 + 7 / 3], rtol=1e-6)


def test_the_first_estimate_that_is_too_large_is_remembered():
    running = no_noise(1, EmpiricalFisher(), jnp.float32, NEVER)
    for t, needed in ((0, 1.0), (5, 1.000001), (10, 3.0), (15, 7.0)):
        running = running.judged(t, jnp.asarray(needed), jnp.asarray(1.0))
    assert (running.failed_at, running.needed, running.allowed) == (10, 3.0, 1.0)


N, BATCH = 20, 5
ROWS = (2 + np.random.default_rng(0).normal(size=(N, 2)) @ [[1.0, 0.6], [0.0, 0.8]]).astype("f4")


def log_likelihood(theta, x, hyper):
    return -0.5 * hyper * jnp.sum((x - theta["mean"]) ** 2)


def log_prior(theta, hyper):
    """So strong that the gradients of the rows do not cancel where the chain is."""
    return -0.5 * N * jnp.sum(theta["mean"] ** 2)


def uneven(theta, x, hyper):
    """Rows of different curvatures: a control variate has noise too."""
    return (1 + x[0] ** 2) * log_likelihood(theta, x, hyper) / 4


def model(rows=ROWS, hyper: Any = 1.0, log_likelihood=log_likelihood):
    return sghmc.Posterior(log_likelihood, log_prior, rows, hyper)


START = {"mean": jnp.ones(2)}
SKEW = np.array([[0.2, 0.1], [-0.05, 0.15]])
RUNS = {
    "plain": (sghmc.Minibatch(BATCH), None),
    "without replacement": (sghmc.Minibatch(BATCH, False), None),
    "control variate": (sghmc.ControlVariate(BATCH, {"mean": np.zeros(2)}), None),
    "whitened": (sghmc.Minibatch(BATCH), SKEW),
}


def recorded(monkeypatch):
    """What the compiled loop was given and what it gave, call by call."""
    calls, advance = [], OneDevice.advance

    def spy(self, spec, carry, *args, **settings):
        carry, records = advance(self, spec, carry, *args, **settings)
        calls.append((spec, jax.tree.map(np.array, carry.noise)))
        return carry, records

    monkeypatch.setattr(OneDevice, "advance", spy)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "diagonal"),
    [
        ("plain", True),
        ("without replacement", False),
        ("control variate", True),
        ("whitened", True),
    ],
)
def test_a_run_estimates_from_the_rows_of_the_coming_step(name, diagonal, monkeypatch):
    calls = recorded(monkeypatch)
    gradient, factor = RUNS[name]
    fisher = EmpiricalFisher(diagonal, every=4, window=2)
    sampler = sghmc.SGHMC(0.02, friction=30.0, gradient_noise=fisher)
    if factor is not None:
        inner = sghmc.SGHMC(0.1, friction=3.0, gradient_noise=fisher)
        sampler = sghmc.Whitened(inner, {"mean": np.zeros(2)}, factor)
    gibbs = sghmc.Gibbs(lambda key, theta, posterior: posterior.hyper + 0.01, every=3)
    samples = sghmc.sample(
        jax.random.key(1),
        model(log_likelihood=uneven),
        sampler,
        START,
        gradient=gradient,
        num_samples=10,
        num_chains=2,
        gibbs=gibbs,
        progress=False,
    )
    program, seen = calls[-1]
    estimator = program.estimator
    for chain in range(2):
        running = no_noise(2, fisher, jnp.float32, NEVER)
        for t in (-1, 3, 7):
            hyper, position = jnp.float32(1.0), START
            if t >= 0:
                hyper = jnp.asarray(samples.hyper[chain, t])
                position = {"mean": jnp.asarray(samples.positions["mean"][chain, t])}
            target = model(hyper=hyper, log_likelihood=uneven)
            rows = estimator.draw(program.keys[chain, GRADIENT], t + 1, 1, 1, START)
            estimate = gradient_noise(
                estimator,
                target,
                estimator.init_anchor(target),
                position,
                target.rows(rows),
                diagonal=False,
            )
            if factor is not None:
                estimate = factor.T @ np.asarray(estimate) @ factor
            estimate = np.diag(estimate) if diagonal else estimate
            running = running.with_estimate(jnp.asarray(estimate, jnp.float32), 2)
        np.testing.assert_allclose(seen.mean[..., chain], running.mean, rtol=2e-4)
        assert seen.num_estimates[chain] == 3
        assert seen.failed_at[chain] == NEVER


def judge_law(fisher, make: Any = sghmc.SGHMC, **settings: float):
    """Variances of a long run, against the exact law with V̂ = V, in standard errors of 64 chains.

    V is the same for all θ: the rows' gradients differ by the rows alone.
    """
    exact = N**2 / BATCH * np.cov(ROWS.T, ddof=0)
    curvature = 2 * N * np.eye(2)
    subtracted = np.diag(exact.diagonal()) if fisher.diagonal else exact
    sampler = make(gradient_noise=fisher, **settings)
    law = theory.stationary_law(make(gradient_noise=subtracted, **settings), curvature, exact)
    samples = sghmc.sample(
        jax.random.key(0),
        model(log_likelihood=functools.partial(log_likelihood)),  # compiled anew, faults and all
        sampler,
        START,
        gradient=sghmc.Minibatch(BATCH),
        num_samples=5000,
        num_burnin=200,
        num_chains=64,
        progress=False,
    )
    drawn = samples.positions["mean"].astype(float)
    drawn = drawn - ROWS.mean(0) / 2  # the mean of the posterior
    moments = np.stack([drawn[..., 0] ** 2, drawn[..., 1] ** 2, drawn[..., 0] * drawn[..., 1]], -1)
    means = moments.mean(1)
    errors = means.std(0, ddof=1) / 8
    expected = law.covariance[[0, 1, 0], [0, 1, 1]]
    if np.any(errors[:2] > 0.01 * expected[:2]):
        raise RuntimeError(f"The run is too short to judge: {errors}")
    # Three z-scores of 63 degrees of freedom, |z| < 5: one false alarm in 70,000 keys.
    assert np.abs((means.mean(0) - expected) / errors).max() < 5


INERTIAL = {"step_size": 0.05, "friction": 5.0}


@pytest.mark.slow
@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "dense noise"])
def test_law_with_an_estimate(diagonal):
    """The friction is raised in burn-in only, where the average is still one of a few estimates."""
    judge_law(EmpiricalFisher(diagonal, every=5, raise_friction=True), **INERTIAL)


@pytest.mark.slow
def test_law_of_sgld_with_an_estimate():
    judge_law(EmpiricalFisher(False, every=5), sghmc.SGLD, step_size=0.003)


def wrong_scatter(fault):
    def scatter(terms, *, diagonal):
        rows = jax.vmap(tree.ravel)(terms)
        if fault != "not centered":
            rows = rows - jnp.mean(rows, 0, keepdims=True)
        return jnp.sum(rows**2, 0) / (BATCH if fault == "divisor n" else BATCH - 1)

    return scatter


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["N/n for N²/n", "not centered", "divisor n"])
def test_a_wrong_estimate_is_seen_in_the_law(fault, monkeypatch):
    if fault == "N/n for N²/n":
        scale = property(lambda self: self.num_examples / self.batch_size)
        monkeypatch.setattr(BatchEstimator, "noise_scale", scale)
    else:
        monkeypatch.setattr(noise, "scatter", wrong_scatter(fault))
    with pytest.raises(AssertionError):
        judge_law(EmpiricalFisher(every=5, raise_friction=True), **INERTIAL)


def run(fisher, friction=1.0, gradient=None, make: Any = sghmc.SGHMC, **settings):
    options: dict[str, Any] = {"num_samples": 10, "progress": False} | settings
    return sghmc.sample(
        jax.random.key(0),
        options.pop("target", model()),
        make(0.05, friction, gradient_noise=fisher),
        START,
        gradient=gradient or sghmc.Minibatch(BATCH),
        **options,
    )


TOO_LARGE = (
    r"too large in chain 0 from step 0 on \(1 of 1 chains\): .* V̂ is [\d.]+ times the friction"
    r".*2τ/ε leaves room for 40 times only.*raise_friction=True.*ControlVariate"
)


@pytest.mark.slow
def test_too_much_noise_is_an_error_with_both_numbers():
    with pytest.raises(sghmc.GradientNoiseError, match=TOO_LARGE) as caught:
        run(EmpiricalFisher())
    assert caught.value.samples.num_draws == 1
    with pytest.raises(sghmc.GradientNoiseError, match="too large in chain 0 from step 0"):
        run(EmpiricalFisher(False), 1.0, make=sghmc.SGLD)


@pytest.mark.slow
def test_it_is_a_warning_on_request_and_the_run_goes_on():
    with pytest.warns(UserWarning, match=TOO_LARGE) as caught:
        samples = run(EmpiricalFisher(), num_samples=50, throw=False)
    assert samples.info.is_finite.all()
    assert samples.num_draws == 50
    assert len(caught) == 1


@pytest.mark.slow
def test_noise_that_becomes_too_large_is_seen_then():
    """Far from the center the noise of a control variate grows: step 16 is the first to see it."""
    rows = np.stack([np.linspace(1, 3, N), np.ones(N)], 1).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x: -0.05 * jnp.sum((x * theta["mean"]) ** 2),
        lambda theta: 100 * jnp.sum(theta["mean"]),
        rows,
    )
    gradient = sghmc.ControlVariate(BATCH, {"mean": np.full(2, 1.0)})
    with pytest.raises(sghmc.GradientNoiseError, match="chain 0 from step 16 on"):
        run(EmpiricalFisher(every=8, window=1), 2.0, gradient, target=target, num_samples=20)


@pytest.mark.slow
def test_raised_friction_gives_the_law_where_all_noise_is_the_gradient():
    """C = 0.5 where ½εV̂ is about 3; uncorrected, variances would be about six times too large.

    V̂ of 20 estimates is 10 % off at a time, and the temperature is that of V/V̂ on average.
    """
    samples = run(
        EmpiricalFisher(every=2, window=60, raise_friction=True),
        0.5,
        num_samples=2000,
        num_burnin=500,
        num_chains=16,
    )
    variances = samples.positions["mean"].astype(float).var(axis=1).mean(0)
    np.testing.assert_allclose(variances, 1 / (2 * N), rtol=0.1)
    kinetic = samples.info.kinetic_temperature
    assert kinetic is not None
    assert abs(kinetic.mean() - 1) < 0.1


@pytest.mark.slow
def test_a_friction_that_would_have_to_be_too_large_is_an_error():
    message = r"momentum decay εC/M [\d.]+, but every chain diverges from 2 on.*step_size at most"
    with pytest.raises(sghmc.GradientNoiseError, match=message):
        run(
            EmpiricalFisher(raise_friction=True),
            gradient=sghmc.Minibatch(2),
            target=model(30 * ROWS),
        )


@pytest.mark.slow
def test_every_stacked_posterior_has_its_own_estimate():
    others = [model(), model(np.float32(0.5) * ROWS[:12])]
    settings: dict[str, Any] = {"num_chains": 2, "friction": 30.0}
    together = run(
        EmpiricalFisher(False, every=3),
        target=sghmc.Posterior.stack(others),
        posterior_axis=0,
        **settings,
    ).positions["mean"]
    for i, each in enumerate(others):
        alone = run(EmpiricalFisher(False, every=3), target=each, **settings).positions["mean"]
        np.testing.assert_allclose(together[i], alone[i], rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("diagonal", [True, False], ids=["diagonal", "dense noise"])
def test_any_pytree(diagonal):
    """Of many shapes, one leaf in low precision; with a mass that adapts where that is diagonal."""
    fisher = EmpiricalFisher(diagonal, every=2, raise_friction=True)
    mass = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 2.0), params())
    adapt = sghmc.Adapt(lambda kernel, state, hyper: kernel.with_mass(state, mass), 3, 6)
    samples = sghmc.sample(
        jax.random.key(0),
        posterior(),
        sghmc.SGHMC(0.02, friction=2.0, gradient_noise=fisher),
        params(),
        gradient=GRADIENTS["control variate"],
        num_samples=4,
        num_burnin=6,
        num_chains=2,
        adapt=adapt if diagonal else None,
        progress=False,
    )
    kinds = jax.tree.map(lambda leaf: (leaf.shape[2:], leaf.dtype), samples.positions)
    assert kinds == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params())
    assert samples.info.is_finite.all()


def test_many_rows_do_not_overflow():
    estimator = BatchEstimator(2, True, False, jnp.asarray(100_000, jnp.int32))
    assert float(estimator.noise_scale) == pytest.approx(5e9)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"every": 0}, ValueError, "every must be a whole number from 1, but is 0"),
        ({"window": 2.5}, ValueError, "window must be a whole number from 1, but is 2.5"),
        ({"diagonal": 1}, ValueError, "diagonal must be True or False, but is 1"),
        ({"raise_friction": None}, ValueError, "raise_friction must be True or False"),
    ],
)
def test_what_cannot_be_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        EmpiricalFisher(**settings)


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (sghmc.FullBatch(), r"gradient is FullBatch\(\): the exact gradient has none.*noise=0"),
        (sghmc.NoisyGradient(2.0), r"NoisyGradient.*is known, so take gradient_noise=variance"),
        (sghmc.Minibatch(1), "two examples or more, but batch_size is 1"),
        (sghmc.Minibatch(5, "epochs"), "shuffled epochs"),
        (sghmc.ControlVariate(5, START, "epochs"), "shuffled epochs"),
        (sghmc.Minibatch(5, "palindrome"), "palindromes"),
    ],
)
def test_gradients_without_such_an_estimate_are_refused(gradient, message):
    with pytest.raises(ValueError, match=message):
        run(EmpiricalFisher(), 30.0, gradient)


@pytest.mark.slow
def test_samplers_that_cannot_are_refused():
    with pytest.raises(ValueError, match="SGLD has no friction to raise"):
        sghmc.SGLD(0.1, gradient_noise=EmpiricalFisher(raise_friction=True))
    with pytest.raises(ValueError, match="Every entry of friction must be positive"):
        run(EmpiricalFisher(), 0.0)
    with pytest.raises(ValueError, match="EmpiricalFisher has no V̂ before it runs"):
        theory.stationary_law(sghmc.SGLD(0.1, gradient_noise=EmpiricalFisher()), 1.0)
    sampler = sghmc.SGHMC(0.1, 1.0, gradient_noise=EmpiricalFisher())
    step = transformation(sampler, jax.random.key(0), size=N)
    with pytest.raises(ValueError, match="needs those of single examples"):
        step.init(START)
    assert theory.stability_limit(sampler, 1.0) < 2
