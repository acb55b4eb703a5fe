"""Modes that a search has missed: found, weighed and reported; and none if there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.host_potential import HostPotential
from sghmc.tuning import other_modes
from sghmc.tuning.other_modes import find_other_mode, is_spike
from sghmc.tuning.whitening import find_whitening


def two_gaussians(share, width, distance):
    """`share` of N(−distance, width²) and the rest of N(distance, 1), in two dimensions."""

    def potential(theta):
        left = jnp.log(share) - 0.5 * jnp.sum((theta + distance) ** 2) / width**2
        right = jnp.log1p(-share) - 0.5 * jnp.sum((theta - distance) ** 2)
        return -jnp.logaddexp(left - 2 * jnp.log(width), right)

    return sghmc.Potential(potential)


def other_of(target, start):
    surface = HostPotential(target, start)
    whitening = find_whitening(surface, start)
    rng, factor = np.random.default_rng(0), whitening.factor
    assert isinstance(factor, np.ndarray)
    return find_other_mode(surface, whitening.center, factor, rng)[0]


@pytest.mark.parametrize(("share", "width"), [(0.3, 1.0), (0.8, 0.4), (0.02, 2.0)])
def test_another_peak_is_found_with_its_share(share, width):
    """Laplace's approximation is exact here, whatever the width of the peak."""
    found = other_of(two_gaussians(share, width, 5.0), jnp.full(2, 4.0))
    assert found is not None
    np.testing.assert_allclose(found.position, -5, atol=1e-2)
    assert found.mass == pytest.approx(share, rel=0.02)
    if width == 1:  # half-way both have ½·50, and the higher of the two peaks log 0.3
        assert found.barrier == pytest.approx(25 + np.log(0.3), rel=0.01)


@pytest.mark.parametrize(
    "target",
    [
        two_gaussians(1e-3, 1.0, 5.0),
        two_gaussians(0.5, 1.0, 1.1),
        sghmc.Potential(lambda t: jnp.sum(jnp.exp(t) - t) + jnp.sum(t**2) / 200),
        sghmc.Potential(lambda t: jnp.sum(2.5 * jnp.log1p((1e4 * t - 3) ** 2))),
    ],
    ids=["negligible", "low barrier", "skewed", "heavy tails, small scale"],
)
def test_what_does_not_matter_is_not_told(target):
    assert other_of(target, jnp.full(2, 1.0)) is None


def test_no_part_of_a_ridge_is_a_mode():
    """Of a ring the rest was said to be another mode, with 96 % of the posterior."""
    ring = sghmc.Potential(lambda t: 8 * (jnp.sqrt(jnp.sum(t**2)) - 3) ** 2)
    surface = HostPotential(ring, jnp.array([3.0, 0.0]))
    rng = np.random.default_rng(0)
    found, _ = find_other_mode(surface, np.array([3.0, 0.0]), np.diag([0.25, 0.5]), rng)
    assert found is None


def test_some_rows_of_many_know_no_other_peak(monkeypatch):
    """The peak of 50 of 4,000 rows is nine standard deviations off: that is no other one."""
    monkeypatch.setattr(other_modes, "MAX_QUICK_ROWS", 50)
    rows = np.random.default_rng(0).normal(size=(4_000, 2)).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: 0.0 * theta[0], rows
    )
    assert other_of(target, jnp.ones(2)) is None
    mirrored = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x + 1 - theta**2) ** 2), lambda theta: 0.0, rows
    )
    found = other_of(mirrored, jnp.full(2, 0.9))
    assert found is not None
    assert found.mass == pytest.approx(0.5, abs=0.01)


def test_labels_that_can_be_exchanged():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2, 1, 100), rng.normal(3, 1, 100)]).astype(np.float32)

    def log_likelihood(p, row):
        return jnp.logaddexp(*(-0.5 * (row - mean) ** 2 for mean in p["means"]))

    target = sghmc.Posterior(log_likelihood, lambda p: -jnp.sum(p["means"] ** 2) / 200, y)
    start = {"means": jnp.array([-1.0, 1.0])}
    found = other_of(target, start)
    assert found is not None
    np.testing.assert_allclose(found.position, [3, -2], atol=0.4)
    assert found.mass == pytest.approx(0.5, abs=0.01)
    assert "params['means'][0] = " in found.complaint(start)
    assert "Ordered" in found.complaint(start)


def effects_of_groups(spread_prior):
    """Effects of eight groups and their log spread: without bound where that goes to −∞."""

    def potential(p):
        width = jnp.exp(p[0])
        return 8 * p[0] + jnp.sum((p[1:] / width) ** 2) / 2 - spread_prior * p[0] + p[0] ** 2 / 2e3

    return sghmc.Potential(potential)


@pytest.mark.parametrize(("spread_prior", "is_narrower"), [(1.0, True), (-1.0, False)])
def test_a_spike_holds_less_the_farther_one_goes(spread_prior, is_narrower):
    """Given its log spread s, such a density holds e^{s·prior}: less and less, or more and more."""
    surface = HostPotential(effects_of_groups(spread_prior), jnp.zeros(9))
    start, end = np.zeros(9), np.zeros(9)
    end[0] = -10
    assert is_spike(surface, start, end, surface.hessian(end)) == is_narrower


def test_a_spike_is_left_to_pilot_runs_from_the_start():
    """And what is no spike but improper is refused, as ever."""

    def log_prior(p):
        spread = jnp.exp(p["log_sd"])
        effects = -8 * p["log_sd"] - jnp.sum((p["effects"] - p["mean"]) ** 2) / 2 / spread**2
        return effects + p["log_sd"] - jnp.log1p((spread / 5) ** 2) - p["mean"] ** 2 / 50

    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
    target = sghmc.Posterior(
        lambda p, row: -((row["y"] - p["effects"][row["group"]]) ** 2) / 200,
        log_prior,
        {"y": y, "group": np.arange(8)},
    )
    start = {"log_sd": jnp.zeros(()), "effects": jnp.zeros(8), "mean": jnp.zeros(())}
    found = find_whitening(HostPotential(target, start), jax.tree.map(np.asarray, start))
    assert not found.is_gaussian
    np.testing.assert_array_equal(found.center, 0)


def five_dimensions(theta):
    """0.7 N(0, I) + 0.3 N(5, ½² I): of random directions from the first 1 in 70 finds it."""
    narrow = jnp.log(0.3) - 2 * jnp.sum((theta - 5) ** 2) + 5 * jnp.log(2.0)
    return -jnp.logaddexp(jnp.log(0.7) - jnp.sum(theta**2) / 2, narrow)


@pytest.mark.parametrize(
    "num_keys", [1, pytest.param(20, marks=pytest.mark.slow)], ids=["one key", "20 keys"]
)
def test_walkers_find_a_narrow_mode_in_five_dimensions(num_keys):
    """It was missed, and the answer called exact though its sds were × 0.40."""
    surface = HostPotential(sghmc.Potential(five_dimensions), jnp.zeros(5))
    for key in range(num_keys):
        rng = np.random.default_rng(key)
        found, words = find_other_mode(surface, np.zeros(5), np.eye(5), rng)
        assert found is not None
        assert found.mass == pytest.approx(0.3, abs=1e-3)
        assert "another mode with 1%" in words
        assert "cannot be excluded" in words


def test_walkers_take_no_more_gradients_than_allowed():
    counts = []
    surface = HostPotential(sghmc.Potential(five_dimensions), jnp.zeros(5), check=counts.append)
    center, factor = np.zeros(5), np.eye(5)
    seen = other_modes._wander(surface, center, factor, np.random.default_rng(0), 10)
    assert len(seen) <= other_modes._NUM_DESCENTS
    assert sum(counts) == 1 + other_modes._NUM_WALKERS * 11
    rng = np.random.default_rng(0)
    _, words = find_other_mode(surface, center, factor, rng, num_gradients=0)
    assert words.startswith("descents from 7 places")


@pytest.mark.slow
def test_auto_tells_of_a_mode_that_its_chains_miss():
    """By report and by health, though all draws agree; and goes where most of the posterior is."""

    def run(share):
        return sghmc.sample(
            jax.random.key(0), two_gaussians(share, 1.0, 5.0), "auto", jnp.full(2, 4.0),
            num_samples=100, num_chains=4, progress=False,
        )  # fmt: skip

    samples = run(0.3)
    assert samples.positions.min() > 0
    assert not samples.tuning.is_met
    assert "another mode, with about 30% of the posterior" in samples.tuning.notes[0]
    assert "another mode" in samples.health().reasons[-1]
    samples = run(0.995)
    assert samples.positions.max() < 0
    assert not samples.tuning.complaints


def test_a_constant_of_the_potential_says_nothing():
    target = two_gaussians(0.3, 1.0, 5.0)
    raised = sghmc.Potential(lambda theta: target.potential(theta) + 1e3)
    start = jnp.full(2, 4.0)
    ends = []
    for each in (target, raised):
        surface = HostPotential(each, start)
        starts = np.array([[-4.0, -4.5], [4.5, 5.5]])
        ends.append(other_modes._descend(surface, np.full(2, 5.0), np.eye(2), starts))
    np.testing.assert_allclose(*ends, atol=1e-6)
    assert len(ends[0]) == 1  # the other start is in the basin
