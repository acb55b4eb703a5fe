"""Steps below the last digit of the parameters are seen, and others are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results import health
from sghmc.results.prediction import Origin
from sghmc.samplers.rounding import last_digit, rounding_variance

TARGET = sghmc.Potential(lambda x: 0.5 * jnp.sum(x.astype(jnp.float32) ** 2))


def verdict(sampler, start):
    samples = sghmc.sample(
        jax.random.key(0), TARGET, sampler, start, num_samples=4, num_chains=2, progress=False
    )
    return samples.health().verdict


@pytest.mark.slow_cases("sampler0-1.0-bfloat16-True")
@pytest.mark.parametrize(
    ("sampler", "size", "dtype", "is_lost"),
    [
        (sghmc.SGHMC(0.003, 1.0), 1.0, jnp.bfloat16, True),  # its spread is 5 % off
        (sghmc.SGHMC(0.03, 1.0), 1.0, jnp.bfloat16, False),
        (sghmc.SGHMC(0.03, 1.0, mass=400.0), 1.0, jnp.bfloat16, True),
        (sghmc.SGHMC(0.003, 1.0), 1.0, jnp.float32, False),
        (sghmc.SGLD(1e-6), 1.0, jnp.bfloat16, True),
        (sghmc.SGLD(1e-3), 1.0, jnp.bfloat16, False),
        (sghmc.SGHMC(0.003, 1.0), 1e5, jnp.float32, True),
    ],
)
def test_moves_lost_in_rounding(sampler, size, dtype, is_lost):
    start = jnp.full(3, size, dtype)
    assert ("lost in rounding" in verdict(sampler, start)) == is_lost


@pytest.mark.slow
def test_settings_that_differ_by_parameter_are_not_judged():
    found = verdict(sghmc.SGHMC(0.003, 1.0, mass=np.ones(3)), jnp.ones(3, jnp.bfloat16))
    assert "lost in rounding" not in found


# By hand, without runs


def origin(sampler, temperature=1.0):
    return Origin(TARGET, sampler, sghmc.FullBatch(), None, temperature)  # pyright: ignore


def test_a_step_moves_parameters_by_its_noise():
    """ε√(τ/m) with momentum, √(2ετP) without; where these are numbers."""
    move = health._typical_move
    assert move(sghmc.SGHMC(0.03, 1.0, mass=4.0), 2.5) == pytest.approx(0.03 * np.sqrt(2.5 / 4))
    assert move(sghmc.SGLD(0.03, 5.0), 2.5) == pytest.approx(np.sqrt(2 * 0.03 * 2.5 * 5))
    assert move(sghmc.SGHMC(0.03, 1.0, mass=np.ones(3)), 1.0) is None
    assert move(sghmc.SGHMC(lambda t: 0.03, 1.0), 1.0) is None
    assert move(sghmc.SGHMC(0.03, 1.0, mass=jnp.asarray(4.0)), 1.0) == pytest.approx(0.015)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_move_below_the_last_digit_is_lost(dtype):
    """The digit is ε_mach times the root mean square: here 5 of (3, 4, …) doubled."""
    leaf = jnp.asarray(np.array([[[3.0, 4.0]], [[4.0, 3.0]]]) * np.sqrt(2), dtype)
    positions = {"small": jnp.full((2, 1, 2), 1e-3, dtype), "large": leaf}
    size = float(np.sqrt(np.mean(np.asarray(leaf, np.float64) ** 2)))
    digit = float(jnp.finfo(dtype).eps) * size
    assert size == pytest.approx(5, rel=0.01)
    above, below = (sghmc.SGHMC(digit * share, 1.0) for share in (1.001, 0.999))
    assert health.resolution_complaint(origin(above), positions) is None
    complaint = health.resolution_complaint(origin(below), positions)
    assert complaint is not None
    assert f"the last digit of {np.dtype(dtype)} numbers of their size is {digit:.1g}" in complaint
    unknown = sghmc.SGHMC(1e-9, 1.0, mass=np.ones(2))
    assert health.resolution_complaint(origin(unknown), positions) is None


DRAWS = np.random.default_rng(0).normal(size=(3, 5, 2)) * [1.0, 3.0] + [0.0, 9.0]


def test_the_variance_that_rounding_adds_is_that_of_its_formula():
    """(1/(2γσ²) + γ/(2τ)) s/ε with momentum, of rates γ = C/m and τ/m; s/(2ετP) without."""
    step, friction, mass, temperature = 0.05, 0.6, 1.5, 1.7
    added = rounding_variance(step * np.sqrt(temperature / mass), last_digit(DRAWS)).mean((0, 1))
    rate, heat = friction / mass, temperature / mass
    expected = added / step * (1 / (2 * rate * DRAWS.var((0, 1))) + rate / (2 * heat))
    sampler = sghmc.SGHMC(step, friction, mass=mass)
    found = health.rounding_excess(sampler, temperature, DRAWS)
    assert found == pytest.approx(expected.mean())
    move = np.sqrt(2 * step * temperature * 3.0)
    added = rounding_variance(move, last_digit(DRAWS)).mean()
    found = health.rounding_excess(sghmc.SGLD(step, 3.0), temperature, DRAWS)
    assert found == pytest.approx(added / move**2)


def test_what_never_moved_has_no_variance_to_add_to():
    sampler = sghmc.SGHMC(0.05, 0.6)
    held = DRAWS.copy()
    held[..., 0] = 7.0
    alone = health.rounding_excess(sampler, 1.0, DRAWS[..., 1:])
    assert health.rounding_excess(sampler, 1.0, held) == pytest.approx(alone)
    assert health.rounding_excess(sampler, 1.0, np.ones((3, 5, 2))) is None
    assert health.rounding_excess(sghmc.SGHMC(0.05, np.ones(2)), 1.0, DRAWS) is None
    assert health.rounding_excess(sghmc.SGHMC(0.05, 1.0, mass=np.ones(2)), 1.0, DRAWS) is None


@pytest.mark.parametrize(("heat", "is_told"), [(0.1, False), (0.101, True), (None, False)])
def test_a_tenth_of_a_variance_is_told(heat, is_told, monkeypatch):
    seen = []

    def known(sampler, temperature, draws):
        seen.append((temperature, draws.dtype))
        return heat

    monkeypatch.setattr(health, "rounding_excess", known)
    run = origin(sghmc.StochasticRounding(sghmc.SGHMC(0.05, 0.6)), temperature=1.7)
    positions = {"wide": np.ones((1, 2), np.float32), "few": jnp.ones((1, 2), jnp.bfloat16)}
    complaint = health.resolution_complaint(run, positions)
    assert (complaint is not None) == is_told
    assert seen == [(1.7, np.float64)], "arrays of more digits are not rounded"
    if complaint is not None:
        assert "rounding to bfloat16 adds 10% to the variance" in complaint
