"""Cycles: their schedules, which draws are kept, and that they find modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc

TARGET = sghmc.Potential(lambda theta: jnp.sum(theta**4) / 4)
START = jnp.array([0.3, 0.6])


def run(target, sampler, start=START, **options):
    return sghmc.sample(jax.random.key(1), target, sampler, start, progress=False, **options)


def test_the_step_size_falls_as_a_cosine_and_noise_comes_late():
    cyclical = sghmc.Cyclical(sghmc.SGLD(0.2, temperature=0.7), cycle_length=8, exploration=0.3)
    steps = np.arange(20)
    expected = 0.1 * (np.cos(np.pi * (steps % 8) / 8) + 1)
    np.testing.assert_allclose(jax.vmap(cyclical.step_size)(steps), expected, rtol=1e-5)
    is_late = np.isin(steps % 8, [3, 4, 5, 6, 7])  # from 0.3 · 8 on
    np.testing.assert_allclose(jax.vmap(cyclical.temperature)(steps), 0.7 * is_late)


def test_draws_of_the_sampling_part_alone_are_kept_also_of_a_cycle_inside():
    inner = sghmc.Cyclical(sghmc.SGLD(lambda t: 0.2 + t, temperature=lambda t: 1.0 + t), 6)
    outer = sghmc.Cyclical(inner, cycle_length=8, exploration=0.25)
    steps = np.arange(24)
    np.testing.assert_array_equal(inner.is_kept(steps), steps % 6 >= 3)
    np.testing.assert_array_equal(outer.is_kept(steps), (steps % 6 >= 3) & (steps % 8 >= 2))
    assert float(inner.step_size(9)) == pytest.approx(9.2 / 2)
    assert float(inner.temperature(9)) == 10.0
    dynamics = inner.dynamics
    assert callable(dynamics.step_size)
    assert callable(dynamics.temperature)
    np.testing.assert_allclose(dynamics.step_size(jnp.asarray(6)), 6.2, rtol=1e-6)
    np.testing.assert_allclose(dynamics.temperature(jnp.asarray(6)), 0.0)


@pytest.mark.slow
def test_only_draws_of_the_sampling_part_are_kept():
    """The draws are those of the same sampler with the schedules written out, at these steps.

    The kernel is that sampler's own, so that all its promises hold here.
    """
    cyclical = sghmc.Cyclical(sghmc.SGHMC(0.1, 2.0), cycle_length=8)
    by_hand = sghmc.SGHMC(cyclical.step_size, 2.0, temperature=cyclical.temperature)
    every = run(TARGET, by_hand, num_samples=54, num_chains=2).positions
    some = run(
        TARGET,
        sghmc.Whitened(cyclical, jnp.zeros(2), 1.0),
        num_samples=8,
        num_burnin=2,
        thinning=3,
        num_chains=2,
        averages={"theta": lambda theta: theta},
    )
    assert some.num_steps == 54
    kept = [14, 20, 23, 29, 38, 44, 47, 53]
    np.testing.assert_allclose(some.positions, every[:, kept], rtol=1e-5)
    np.testing.assert_allclose(some.averages["theta"], some.positions.mean(1), rtol=1e-5)


def test_rescaled_has_another_step_and_the_same_cycle_and_no_law():
    cyclical = sghmc.Cyclical(sghmc.SGLD(0.2, temperature=0.7), 8, exploration=0.3).rescaled(0.5)
    assert (cyclical.settings["step_size"], cyclical.cycle_length) == (0.1, 8)
    with pytest.raises(ValueError, match=r"Cyclical\(SGLD\) is not affine"):
        sghmc.theory.stationary_law(cyclical, 1.0)


@pytest.mark.slow
def test_a_failure_is_told_by_its_step():
    """θ moves by ε_t: after step 5 it is 4.3, beyond the wall, so that step 6 ends nowhere."""
    wall = sghmc.Potential(lambda x: jnp.sum(0 * jnp.sqrt(jnp.maximum(4.1 - x, 0)) - x))
    cyclical = sghmc.Cyclical(sghmc.SGLD(1.0, temperature=0.0), cycle_length=8)
    with pytest.raises(sghmc.DivergenceError, match="step 6 ") as caught:
        run(wall, cyclical, jnp.zeros(1), num_samples=8)
    # How many draws a block has depends on the time they take: it ends here, or later.
    is_finite = caught.value.samples.info.is_finite[0]
    np.testing.assert_array_equal(is_finite[:3], [True, True, False])
    assert not is_finite[3:].any()


@pytest.mark.slow
def test_it_finds_both_modes_where_sghmc_stays():
    """Two normals ten standard deviations apart. All chains start in the left one.

    The gradient's noise is what explores: at the start of a cycle it is worth a temperature of
    εV/2C = 8, where the barrier between the modes is 12 high. Measured over 1,024 chains, 38 % of
    cycles end near each mode: one of 16 chains misses one in all 24 cycles for 3 keys in 10,000.
    """
    centers = np.array([-2.5, 2.5], np.float32)
    target = sghmc.Potential(
        lambda theta: -jax.nn.logsumexp(-0.5 * jnp.square((theta - centers) / 0.5))
    )
    options = {
        "gradient": sghmc.NoisyGradient(160.0),
        "num_samples": 24,
        "thinning": 400,
        "num_chains": 16,
    }
    cyclical = sghmc.Cyclical(sghmc.SGHMC(0.1, 1.0), cycle_length=400)
    found = run(target, cyclical, jnp.array(-2.5), **options).positions
    stayed = run(target, sghmc.SGHMC(0.002, 1.0), jnp.array(-2.5), **options).positions
    assert np.all(stayed < 0)
    is_near = np.abs(found[..., None] - centers) < 1.0
    assert np.all(np.any(is_near, axis=1)), np.mean(is_near, axis=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc.Cyclical(sghmc.HMC(0.1, 3), 10), "a step size and a temperature"),
        (lambda: sghmc.Cyclical(sghmc.SGLD(0.1), 1), "cycle_length must be .* 2, but is 1"),
        (lambda: sghmc.Cyclical(sghmc.SGLD(0.1), 10, 1.0), "from 0 to 0.9, .* but is 1.0"),
        (lambda: sghmc.Cyclical(sghmc.SGLD(0.1), 10, -0.1), "but is -0.1"),
        (lambda: sghmc.Cyclical(sghmc.SGLD(0.1, gradient_noise=1.0), 10), "gradient_noise=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
