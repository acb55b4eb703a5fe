"""The mixture over draws against scipy's laws and against its own draws."""

import numpy as np
import pytest
from scipy import integrate, stats

from sghmc.estimators.predictive import Predictive

LOCATION = np.array([[0.0, 1.0], [2.0, 1.5], [-1.0, 0.0]])
SCALE = np.array([[1.0, 0.5], [0.3, 2.0], [1.5, 1.0]])
LAWS = {
    "gaussian": Predictive(LOCATION, SCALE, np.full((3, 1), np.inf)),
    "student": Predictive(LOCATION, SCALE, np.array([[3.0], [8.0], [50.0]])),
}


@pytest.fixture(params=LAWS)
def law(request):
    return LAWS[request.param]


def density(law: Predictive, y: float, row: int) -> float:
    parts = stats.t.pdf(y, law.degrees[:, 0], law.location[:, row], law.scale[:, row])
    return float(parts.mean())


def test_densities_are_averaged_and_not_their_logarithms(law):
    y = np.array([0.3, -2.0])
    expected = [np.log(density(law, y[row], row)) for row in range(2)]
    np.testing.assert_allclose(law.log_density(y), expected)


def integral(function, end: float = np.inf) -> float:
    return float(integrate.quad(function, -np.inf, end, limit=500)[0])


@pytest.mark.parametrize("row", [0, 1])
def test_moments_are_those_of_the_density(law, row):
    mean = integral(lambda y: y * density(law, y, row))
    second = integral(lambda y: y**2 * density(law, y, row))
    assert law.mean()[row] == pytest.approx(mean, abs=1e-5)
    parts = law.uncertainty()
    assert parts.std[row] == pytest.approx(np.sqrt(second - mean**2), rel=1e-4)
    assert parts.epistemic[row] == pytest.approx(LOCATION[:, row].std())
    assert parts.std[row] == pytest.approx(np.hypot(parts.epistemic[row], parts.aleatoric[row]))


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.95])
def test_quantiles_have_their_level(law, level, row):
    end = float(law.quantile(level)[row])
    assert integral(lambda y: density(law, y, row), end) == pytest.approx(level, abs=1e-5)
    assert law.cdf(law.quantile(level))[row] == pytest.approx(level, abs=1e-5)


@pytest.mark.parametrize("noise", LAWS)
def test_quantiles_lie_between_modes_however_far_they_are(noise):
    """Two of five draws at −50 and three at 50, of scales from 0.01 to 10: few rows are easy."""
    generator = np.random.default_rng(0)
    location = np.tile(np.array([[-50.0], [-50], [50], [50], [50]]), (1, 60))
    scale = 10 ** generator.uniform(-2, 1, location.shape)
    degrees = np.array([[3.0], [4], [9], [30], [1e4]])
    law = Predictive(location, scale, degrees if noise == "student" else 0 * degrees + np.inf)
    for level in (0.01, 0.2, 0.4, 0.41, 0.99):
        np.testing.assert_allclose(law.cdf(law.quantile(level)), level, atol=1e-5)


def test_crps_is_the_integral_of_squared_differences_of_cdfs(law):
    """Estimated from 20,000 observations: within 2 %."""
    y = np.array([0.3, -2.0])
    found = law.crps(y, np.random.default_rng(0), 20_000)
    grid = np.linspace(-400, 400, 400_001)
    for row in range(2):
        cdf = stats.t.cdf(
            grid[:, None], law.degrees[:, 0], law.location[:, row], law.scale[:, row]
        ).mean(1)
        wanted = np.sum((cdf - (grid >= y[row])) ** 2) * (grid[1] - grid[0])
        assert found[row] == pytest.approx(wanted, rel=0.02)


def test_crps_of_two_observations_by_hand(law):
    """Unbiased: ½|Y − Y'| for each pair, none of an observation with itself."""
    y = np.array([0.3, -2.0])
    one, other = law.sample(np.random.default_rng(3), 2)
    wanted = (np.abs(one - y) + np.abs(other - y)) / 2 - np.abs(one - other) / 2
    np.testing.assert_allclose(law.crps(y, np.random.default_rng(3), 2), wanted, rtol=1e-12)


def test_samples_follow_the_law(law):
    """20,000 of each row: Kolmogorov's statistic fails once in 10⁵ seeds at 2.5 / √n."""
    drawn = law.sample(np.random.default_rng(0), 20_000)
    for row in range(2):
        values = np.sort(drawn[:, row])
        cdf = stats.t.cdf(
            values[:, None], law.degrees[:, 0], law.location[:, row], law.scale[:, row]
        )
        gap = np.abs(cdf.mean(1) - (np.arange(len(values)) + 0.5) / len(values)).max()
        assert gap < 2.5 / np.sqrt(len(values))
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.05
