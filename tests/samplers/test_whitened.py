"""Samplers in other coordinates: the chain of z by hand, and the exact law of θ."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import laws
import sghmc
from sghmc import theory
from sghmc.core import matrices, tree
from sghmc.samplers.sghmc import SGHMCState

SIZE = 3
PRECISION = laws.positive(0, SIZE, 0.4, 3.0)
NOISE = laws.positive(3, SIZE, 0.3, 1.5)
CENTER = np.array([3.0, -1.0, 0.5])
FACTORS = {
    "number": 0.7,
    "diagonal": np.array([0.6, 1.3, 0.9]),
    "not symmetric": np.array([[1.1, 0.2, 0.0], [-0.3, 0.8, 0.4], [0.5, 0.0, 1.2]]),
}
LOPSIDED = FACTORS["not symmetric"]
LOW_RANK = matrices.LowRankFactor(
    np.array([0.6, 1.3, 0.9]),
    np.array([[0.5], [-0.4], [1.1]]),
    np.array([[0.8], [0.3], [-0.2]]),
    np.array([1.2, 0.7, 1.0]),
)
INERTIAL: Any = sghmc.SGHMC(0.25, 1.3, laws.positive(1, SIZE, 0.6, 2.2), 0.8, 1.7)
LANGEVIN: Any = sghmc.SGLD(0.15, laws.positive(2, SIZE, 0.5, 2.5), 0.8, 1.7)


def judge_law(sampler: Any, factor, excess=0.9):
    """z's law on LᵀAL with noise V̂ + κC (or κP⁻¹) of z, and what that is for θ = θ̂ + Lz.

    With r the momentum of θ, (θ, r) = diag(L, L⁻ᵀ)(z, r_z).
    """
    root = laws.dense(factor, SIZE)
    inverse = np.linalg.inv(root)
    inner, curved = sampler.sampler, root.T @ PRECISION @ root
    temperature = inner.temperature + inner.step_size * excess / 2
    exact = inner.temperature * np.diag(np.linalg.inv(PRECISION))
    subtracted = laws.dense(inner.gradient_noise, SIZE)
    if isinstance(inner, sghmc.SGHMC):
        friction = laws.dense(inner.friction, SIZE)
        of_z = laws.sghmc_covariance(
            curved, inner.step_size, friction, laws.dense(inner.mass, SIZE), temperature
        )
        noise = subtracted + excess * friction
        zero = np.zeros((SIZE, SIZE))
        outward = np.block([[root, zero], [zero, inverse.T]])
    else:
        conditioner = laws.dense(inner.preconditioner, SIZE)
        of_z = laws.sgld_covariance(curved, inner.step_size, conditioner, temperature)
        noise, outward = subtracted + excess * np.linalg.inv(conditioner), root
    law = theory.stationary_law(sampler, PRECISION, inverse.T @ noise @ inverse)
    laws.assert_close(law.state_covariance, outward @ of_z @ outward.T)
    laws.assert_close(law.covariance, (outward @ of_z @ outward.T)[:SIZE, :SIZE])
    laws.assert_close(law.standard_deviation_error, np.sqrt(np.diag(law.covariance) / exact) - 1)


@pytest.mark.slow_cases("sgld-diagonal", "sgld-number")
@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("sampler", [INERTIAL, LANGEVIN], ids=["sghmc", "sgld"])
def test_law(sampler, factor):
    judge_law(sghmc.Whitened(sampler, CENTER, factor), factor)


def test_law_with_a_low_rank():
    """A diagonal and a low rank give the law of the same matrix written out."""
    written_out = LOW_RANK.left[:, None] * (np.eye(SIZE) + LOW_RANK.first @ LOW_RANK.second.T)
    written_out = written_out * LOW_RANK.right
    judge_law(sghmc.Whitened(INERTIAL, CENTER, LOW_RANK), written_out)


def test_law_of_hmc():
    sampler = sghmc.Whitened(sghmc.HMC(0.3, 4, 0.8, metropolis=False), CENTER, LOPSIDED)
    of_z = laws.hmc_covariance(LOPSIDED.T @ PRECISION @ LOPSIDED, 0.3, 0.8 * np.eye(SIZE))
    covariance = theory.stationary_law(sampler, PRECISION).covariance
    laws.assert_close(covariance, LOPSIDED @ of_z @ LOPSIDED.T)


@pytest.mark.parametrize("fault", ["L for Lᵀ", "gradient of θ"])
def test_the_judge_sees_a_wrong_change_of_coordinates(fault):
    class Faulty(sghmc.Whitened):
        def prepare(self, like, num_steps=1):
            kernel = super().prepare(like, num_steps)
            wrong = kernel.factor if fault == "L for Lᵀ" else matrices.Dense(jnp.eye(SIZE))
            return eqx.tree_at(lambda k: k.transposed, kernel, wrong)

    judge_law(sghmc.Whitened(INERTIAL, CENTER, LOPSIDED), LOPSIDED)
    with pytest.raises(AssertionError):
        judge_law(Faulty(INERTIAL, CENTER, LOPSIDED), LOPSIDED)


@pytest.mark.slow
def test_whitening_twice_is_whitening_once():
    other = laws.positive(5, SIZE, 0.5, 1.5)
    twice = sghmc.Whitened(sghmc.Whitened(INERTIAL, CENTER, other), CENTER, LOPSIDED)
    once = sghmc.Whitened(INERTIAL, CENTER, LOPSIDED @ other)
    laws.assert_same_step(
        laws.real_step(twice, PRECISION, NOISE), laws.real_step(once, PRECISION, NOISE)
    )
    laws.assert_close(*(theory.stability_limit(each, PRECISION) for each in (twice, once)))


@pytest.mark.slow
def test_theory_takes_settings_from_inside():
    root = np.linalg.cholesky(np.linalg.inv(PRECISION))
    scheduled = sghmc.SGHMC(lambda t: 0.4 * 0.5**t, 1.3, temperature=lambda t: 1 + t)
    law = theory.stationary_law(sghmc.Whitened(scheduled, CENTER, root), PRECISION, t=2)
    held = sghmc.SGHMC(0.1, 1.3, temperature=3.0)
    variance = laws.sghmc_variance(1.0, 0.1, 1.3, 1.0, 3.0, 0.0)
    laws.assert_close(law.covariance, variance * np.linalg.inv(PRECISION))
    np.testing.assert_allclose(law.standard_deviation_error, np.sqrt(variance / 3) - 1)
    np.testing.assert_allclose(law.autocorrelation_time, laws.sghmc_time(1.0, 0.1, 1.3, 1.0))
    resampling = sghmc.SGHMC(0.1, 1.3, temperature=3.0, resample_every=3)
    laws.assert_close(
        theory.stationary_law(sghmc.Whitened(resampling, CENTER, root), PRECISION).covariance,
        theory.stationary_law(resampling, 1.0).covariance * np.linalg.inv(PRECISION),
    )
    limit = theory.stability_limit(sghmc.Whitened(held, CENTER, root), PRECISION)
    assert limit == pytest.approx(theory.stability_limit(held, 1.0), rel=1e-7)
    exact = sghmc.Whitened(sghmc.HMC(0.1, 3), CENTER, root)
    assert theory.stability_limit(exact, PRECISION) == pytest.approx(2, rel=1e-7)
    with pytest.raises(ValueError, match="accept step is not affine"):
        theory.affine_map(exact, PRECISION)


def test_theory_does_not_mind_how_parameters_are_nested():
    nested = sghmc.Whitened(INERTIAL, {"a": np.ones(2), "b": 2.0}, LOPSIDED)
    laws.assert_same_step(
        laws.real_step(nested, PRECISION),
        laws.real_step(sghmc.Whitened(INERTIAL, CENTER, LOPSIDED), PRECISION),
    )


PARAMS = {"scale": jnp.asarray(0.4), "weights": jnp.array([[0.2, -1.0], [0.5, 1.5]])}
MIDDLE = {"scale": np.asarray(-0.3), "weights": np.array([[1.0, 0.0], [-0.5, 2.0]])}
WIDE = np.eye(5) + 0.3 * np.random.default_rng(0).normal(size=(5, 5))


def potential(params):
    return jnp.sum(params["weights"] ** 4) / 4 + jnp.cosh(params["scale"] + params["weights"][0, 1])


def by_hand(z):
    """U(θ̂ + Lz), by raveled arrays."""
    theta = tree.ravel(MIDDLE) + jnp.asarray(WIDE, jnp.float32) @ z
    return potential(tree.unravel(theta, PARAMS))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        sghmc.SGHMC(0.1, 2.0, laws.positive(1, 5, 0.6, 2.2), 0.3, 0.8),
        sghmc.SGLD(0.02, laws.positive(1, 5, 0.6, 2.2), 0.3, 0.8),
        sghmc.HMC(0.2, 3),
    ],
    ids=["sghmc", "sgld", "hmc"],
)
@pytest.mark.parametrize("chains", [1, 3])
def test_a_run_is_the_run_of_the_target_transformed_by_hand(sampler, chains):
    """The same key gives both the same noise, so that the chains agree, accept steps and all."""
    settings = {"num_samples": 30, "num_chains": chains, "progress": False}
    whitened = sghmc.Whitened(sampler, MIDDLE, WIDE)
    samples = sghmc.sample(
        jax.random.key(0), sghmc.Potential(potential), whitened, PARAMS, **settings
    )
    start = jnp.linalg.solve(WIDE.astype(np.float32), tree.ravel(PARAMS) - tree.ravel(MIDDLE))
    expected = sghmc.sample(jax.random.key(0), sghmc.Potential(by_hand), sampler, start, **settings)
    theta = np.asarray(tree.ravel(MIDDLE)) + expected.positions @ WIDE.T
    np.testing.assert_allclose(samples.positions["scale"], theta[..., 0], rtol=2e-3, atol=2e-3)
    flat = samples.positions["weights"].reshape(chains, 30, 4)
    np.testing.assert_allclose(flat, theta[..., 1:], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(samples.info.potential, expected.info.potential, rtol=1e-2)
    for name in ("kinetic_temperature", "acceptance"):
        seen, wanted = (getattr(each.info, name) for each in (samples, expected))
        assert (seen is None) == (wanted is None)
        if seen is not None:
            np.testing.assert_allclose(seen, wanted, rtol=1e-2)


def test_a_start_is_where_it_was_given():
    kernel = sghmc.Whitened(INERTIAL, CENTER, LOPSIDED).prepare(jnp.zeros(SIZE))
    start = jnp.array([0.3, 4.0, -2.0])
    state = kernel.init([jnp.ones(SIZE)], start)
    np.testing.assert_allclose(kernel.position(state), start, rtol=1e-5)
    np.testing.assert_allclose(CENTER + LOPSIDED @ state.position, start, rtol=1e-5)
    assert not np.allclose(state.position, start)


def test_gibbs_updates_look_half_a_drift_back():
    kernel = sghmc.Whitened(INERTIAL, CENTER, LOPSIDED).prepare(jnp.zeros(SIZE))
    state = SGHMCState(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, -0.2, 0.4]))
    back = CENTER + LOPSIDED @ np.asarray(state.position - state.velocity / 2)
    np.testing.assert_allclose(kernel.mid_drift(0, state), back, rtol=1e-5)


def test_moves_below_the_resolution_of_the_parameters_add_up():
    """At θ = 1000 single precision has steps of 6e-5; here a sampler's steps are of 1e-6."""
    target = sghmc.Potential(lambda theta: jnp.sum(-theta))
    downhill = sghmc.SGD(1e-3)
    start, settings = jnp.full(2, 1000.0), {"num_samples": 500, "progress": False}
    whitened = sghmc.Whitened(downhill, np.full(2, 1000.0), 0.03)
    moved, stuck = (
        sghmc.sample(jax.random.key(0), target, sampler, start, **settings).positions[0, -1]
        for sampler in (whitened, sghmc.SGD(1e-6))
    )
    np.testing.assert_allclose(moved, 1000 + 500 * 0.03**2 * 1e-3, atol=3.1e-5)
    np.testing.assert_array_equal(stuck, start)


def test_rescaled_has_another_step_in_the_same_coordinates():
    smaller = sghmc.Whitened(INERTIAL, CENTER, LOPSIDED).rescaled(0.5)
    assert isinstance(smaller.sampler, sghmc.SGHMC)
    assert smaller.sampler.step_size == 0.125
    assert smaller.sampler.friction == INERTIAL.friction
    assert smaller.center is CENTER
    assert smaller.factor is LOPSIDED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((INERTIAL, CENTER, np.ones((SIZE, SIZE))), "factor must be invertible"),
        ((INERTIAL, CENTER, np.array([1.0, 0.0, 2.0])), "factor must be positive"),
        ((INERTIAL, CENTER, np.eye(2)), r"factor has shape \(2, 2\), but .* 3 entries"),
        ((INERTIAL, np.zeros(2), 1.0), r"center must be .*\(3,\), but is \(2,\)"),
        ((INERTIAL, {"a": CENTER}, 1.0), r"center must be a pytree like the parameters, \(3,\)"),
    ],
)
def test_what_does_not_fit_the_parameters_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        sghmc.Whitened(*settings).prepare(jnp.zeros(SIZE))


def test_what_cannot_be_is_refused_on_construction():
    with pytest.raises(TypeError, match=r"needs a sampler such as SGHMC\(…\), not 'sghmc'"):
        sghmc.Whitened("sghmc", CENTER, 1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="center must be finite"):
        sghmc.Whitened(INERTIAL, np.array([np.nan, 0, 0]), 1.0)
    with pytest.raises(ValueError, match="factor must be finite"):
        sghmc.Whitened(INERTIAL, CENTER, np.inf)


def test_shuffled_epochs_are_refused_inside_too():
    posterior = sghmc.Posterior(lambda p, x: jnp.sum(p * x), lambda p: -p @ p, np.ones((4, 3)))
    sampler = sghmc.Whitened(INERTIAL, CENTER, 1.0)
    epochs = sghmc.Minibatch(2, replacement="epochs")
    with pytest.raises(ValueError, match="shuffled epochs"):
        sghmc.sample(jax.random.key(0), posterior, sampler, jnp.zeros(SIZE), gradient=epochs)


def test_growing_data_are_followed_by_the_sampler_inside():
    inner = sghmc.SGHMC(0.1, 2.0, gradient_noise=3.0)
    grown = sghmc.Whitened(inner, jnp.zeros(2), 0.5).for_growth(4.0)
    assert grown.settings == inner.for_growth(4.0).settings
    assert grown.factor == 0.5
