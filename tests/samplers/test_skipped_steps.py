"""Many steps at once are these steps: against each of them, and in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.core import runtime
from sghmc.samplers.lazy_rows import Power, PriorStep, make_steps, num_digits, steps_power

CRITICAL = (1 - np.sqrt(1 - 0.19)) ** 2
DAMPED = {
    "under": (0.02, 0.01),
    "far under": (0.001, 0.3),
    "critical": (0.19, CRITICAL),
    "over": (0.5, 0.001),
    "SGLD": (1.0, 0.3),
    "past SGLD": (1.6, 0.4),
    "no prior": (0.1, 0.0),
}
"""α and h."""


def one_by_one(count, decay, stiffness):
    """Fᵏ and Q_k of every number of steps up to `count`, by the step itself."""
    step = np.array([[1 - stiffness, 1 - decay], [-stiffness, 1 - decay]])
    transition, noise = np.eye(2), np.zeros((2, 2))
    for _ in range(count + 1):
        yield transition, noise
        transition, noise = step @ transition, step @ noise @ step.T + np.ones((2, 2))


def by_doubling(count, decay, stiffness):
    """Fᵏ and Q_k in extended precision."""
    step = np.array([[1 - stiffness, 1 - decay], [-stiffness, 1 - decay]], np.longdouble)
    noise = np.ones((2, 2), np.longdouble)
    total, spread = np.eye(2, dtype=np.longdouble), np.zeros((2, 2), np.longdouble)
    while count:
        if count & 1:
            total, spread = total @ step, spread + total @ noise @ total.T
        step, noise, count = step @ step, noise + step @ noise @ step.T, count >> 1
    return total.astype(float), spread.astype(float)


def as_matrices(power, decay, stiffness):
    a, b, xx, vv, xv = (np.asarray(x, float) for x in (*power, power.xv))
    pull = stiffness * b
    rows = [[1 - stiffness * a - pull, (1 - decay) * a], [-stiffness * a, 1 - decay * a - pull]]
    return np.array(rows), np.array([[xx, xv], [xv, vv]])


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_every_number_of_steps_is_so_many_steps(backend, monkeypatch):
    monkeypatch.setattr(runtime, "has_accelerator", lambda: backend == "gpu")
    with jax.enable_x64(True):
        settings = jnp.asarray([*DAMPED.values()], jnp.float64).T[:, :, None]
        counts = jnp.arange(40, dtype=jnp.int32)[None]
        found = jax.jit(lambda k, d, s: steps_power(k, d, s, 6))(counts, *settings)
        found = jax.tree.map(np.asarray, found)
    for i, (decay, stiffness) in enumerate(DAMPED.values()):
        for k, expected in enumerate(one_by_one(39, decay, stiffness)):
            power = Power(*(part[i, k] for part in found))
            for a, b in zip(as_matrices(power, decay, stiffness), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def test_single_precision_is_enough_from_one_step_to_a_hundred_thousand():
    """Relative to the spread that k steps give; the phase of an oscillation adds up rounding."""
    cases = [
        (k, decay, stiffness)
        for k in (1, 2, 3, 10, 100, 4097, 100_000)
        for decay in (1e-3, 0.0125, 0.1, 0.5, 1.0, 1.5)
        for stiffness in (1e-8, 1e-5, 2.5e-3, 0.1, (decay / 2) ** 2)
        if stiffness < 0.9 * (4 - 2 * decay)
    ]
    counts, *settings = (np.array(column) for column in zip(*cases, strict=True))
    decays, stiffnesses = (each.astype(np.float32) for each in settings)
    powers = jax.jit(steps_power, static_argnums=3)(
        jnp.asarray(counts, jnp.int32), jnp.asarray(decays), jnp.asarray(stiffnesses), 17
    )
    powers = jax.tree.map(np.asarray, powers)
    for i, k in enumerate(counts):
        decay, stiffness = float(decays[i]), float(stiffnesses[i])
        transition, noise = by_doubling(int(k), decay, stiffness)
        seen = as_matrices(Power(*(part[i] for part in powers)), decay, stiffness)
        units = np.sqrt([1.0, stiffness])  # of x, and of v where the energies are equal
        rounding = 1e-6 * (1 + np.sqrt(stiffness) / decay)
        assert np.max(np.abs(seen[0] - transition) / units[:, None] * units) < rounding, cases[i]
        spread = np.sqrt(np.diag(noise))
        error = np.abs(seen[1] - noise) / np.outer(spread, spread)
        assert np.max(error) < 2 * rounding, cases[i]


def test_what_is_made_of_two_normals_has_the_law_of_all_steps():
    decay, stiffness, spread, mean = 0.07, 0.02, 0.3, 1.7
    with jax.enable_x64(True):
        prior = PriorStep(*(jnp.asarray(x) for x in (decay, stiffness, spread, mean)))

        def made(z, n, count):
            return jnp.stack(make_steps(count, prior, z[0], z[1], (n[0], n[1]), 17))

        @jax.jit
        @jax.vmap
        def facts(count):
            zero = jnp.zeros(2)
            return *jax.jacfwd(made, (0, 1))(zero, zero, count), made(
                jnp.array([mean, 0.0]), zero, count
            )

        found = jax.tree.map(np.asarray, facts(jnp.arange(14, dtype=jnp.int32)))
    expected = one_by_one(13, decay, stiffness)
    for transition, root, at_mean, (power, noise) in zip(*found, expected, strict=True):
        np.testing.assert_allclose(transition, power, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(root @ root.T, spread**2 * noise, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(at_mean, [mean, 0.0], atol=1e-12)


def test_no_steps_change_no_bit():
    x, v, n = jnp.array([0.1, 1e-30, 3.3]), jnp.array([1e8, -0.7, 1e-8]), jnp.ones(3)
    prior = PriorStep(jnp.float32(0.1), jnp.full(3, 0.2), jnp.full(3, 5.0), jnp.full(3, 1e9))
    now = jax.jit(make_steps, static_argnums=5)(jnp.zeros(3, jnp.int32), prior, x, v, (n, n), 17)
    np.testing.assert_array_equal(now[0], x)
    np.testing.assert_array_equal(now[1], v)


@pytest.mark.slow
def test_long_runs_have_more_digits():
    assert num_digits(100_000) == num_digits(10) == 17
    assert num_digits(2**17) == 31
