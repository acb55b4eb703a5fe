"""Fresh hyperparameters against their law by brute force: the joint density on a grid, summed up.

No conditional is written down here. Each density is the product of the model's own parts, as its
docstring has them, from scipy; 20,000 draws are held against its distribution function.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from exact_factorization import Ratings, predictions
from sghmc.models import MatrixFactorization
from sghmc.recommender.factor_gibbs import (
    ColumnPrior,
    Features,
    SharedNoise,
    SidePrior,
    UserNoise,
)

NUM_DRAWS = 20_000
DATA = Ratings(
    user=np.array([0, 0, 1, 1, 1, 1]),  # user 2 has rated nothing
    item=np.array([0, 1, 0, 1, 2, 3]),
    rating=np.array([0.9, -0.4, 1.3, 0.2, -0.8, 0.5], np.float32),
    num_users=3,
    num_items=4,
)
RANK, RATE, RESOLUTION = 2, 0.7, 2.0
PRECISIONS = np.geomspace(1e-5, 60, 4000)


def is_law(uniform: np.ndarray) -> bool:
    """Whether values of a distribution function are uniform.

    A false alarm once in 10⁷ tests, of which there are 20; the key is fixed.
    """
    return stats.kstest(uniform, "uniform").pvalue > 1e-7


def distribution(log_density: np.ndarray, grid: np.ndarray, values) -> np.ndarray:
    """The distribution function of a density on a grid, at some values."""
    density = np.exp(log_density - log_density.max())
    total = np.cumsum(np.diff(grid) * (density[1:] + density[:-1]) / 2)
    return np.interp(values, grid, np.append(0, total / total[-1]))


@pytest.fixture(scope="module", params=[("shared", "shared"), ("dimension", "user")])
def drawn(request):
    """(prior, noise), the parameters, and many draws of all hyperparameters given them."""
    prior, noise = request.param
    model = MatrixFactorization(DATA.num_users, DATA.num_items, RANK, prior, noise, RESOLUTION)
    posterior = model.posterior(DATA.user, DATA.item, DATA.rating, fold=jnp.array(3))
    if noise == "user":
        posterior = posterior.with_hyper({**posterior.hyper, "noise_rate": jnp.array(RATE)})
    # Far from 0, so that it matters whether means are integrated out.
    params = model.init(jax.random.key(0), scale=1.0) + 1.5
    update = model.gibbs(every=1).update
    keys = jax.random.split(jax.random.key(1), NUM_DRAWS)
    draws = jax.jit(jax.vmap(lambda key: update(key, params, posterior)))(keys)
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    return request.param, sides, jax.tree.map(np.asarray, draws)


def test_precisions_without_means(drawn):
    """Biases, and with the shared prior all factors of a side, whose precision is one."""
    (prior, _), sides, draws = drawn
    grid = PRECISIONS
    for side, rows in sides.items():
        found = draws[side]
        centered = {RANK: rows[:, -1]} | ({0: rows[:, :-1].ravel()} if prior == "shared" else {})
        for column, x in centered.items():
            density = stats.norm.logpdf(x, scale=grid[:, None] ** -0.5).sum(1)
            density += stats.gamma.logpdf(grid, 1)
            assert is_law(distribution(density, grid, found["precision"][:, column]))
            assert np.all(found["mean"][:, column] == 0)
        if prior == "shared":
            assert np.all(found["precision"][:, :1] == found["precision"][:, :-1])
            assert np.all(found["mean"] == 0)


def test_precisions_and_means_of_dimensions(drawn):
    (prior, _), sides, draws = drawn
    if prior == "shared":
        return
    for side, rows in sides.items():
        for column in range(RANK):
            of_precision, of_mean = factor_laws(rows[:, column])
            precision, mean = (draws[side][name][:, column] for name in ("precision", "mean"))
            assert is_law(distribution(*of_precision, precision))
            assert is_law(distribution(*of_mean, mean))
            # The scale of μ follows λ: with a fixed one the marginal law could still be right.
            is_high = precision > np.median(precision)
            assert mean[is_high].std() < 0.8 * mean[~is_high].std()


def factor_laws(x: np.ndarray):
    """Log-densities of λ and of μ on grids, for x ~ N(μ, 1/λ), μ ~ N(0, 1/λ), λ ~ Gamma(1, 1)."""
    grid, means = PRECISIONS[::2], np.linspace(-6, 8, 701)
    scale = grid[:, None] ** -0.5
    joint = stats.norm.logpdf(means[None], scale=scale) + stats.gamma.logpdf(grid, 1)[:, None]
    for each in x:
        joint += stats.norm.logpdf(each, loc=means[None], scale=scale)
    density = np.exp(joint - joint.max())
    widths = np.gradient(grid)[:, None]
    return (np.log(density.sum(1)), grid), (np.log((widths * density).sum(0)), means)


def rating_density(users: list[int], sides, grid: np.ndarray) -> np.ndarray:
    """Σ log N(y | …, 1/τ) over the ratings of some users, each blurred by the resolution."""
    mine = np.isin(DATA.user, users)
    errors = predictions(sides["user"][DATA.user[mine]], sides["item"][DATA.item[mine]])
    errors -= DATA.rating[mine]
    exact = stats.norm.logpdf(errors, scale=grid[:, None] ** -0.5)
    return np.sum(exact - grid[:, None] * RESOLUTION**2 / 2, axis=1)


def test_rating_precisions(drawn):
    (_, noise), sides, draws = drawn
    grid = PRECISIONS
    if noise == "shared":
        density = rating_density([0, 1, 2], sides, grid) + stats.gamma.logpdf(grid, 1)
        assert is_law(distribution(density, grid, draws["noise"]))
        return
    for user in range(DATA.num_users):
        prior = stats.gamma.logpdf(grid, 3, scale=1 / RATE)
        density = rating_density([user], sides, grid) + prior
        assert is_law(distribution(density, grid, draws["noise"][:, user]))
    # ρ given those precisions: a density of its own for each draw.
    rates = PRECISIONS
    uniform = []
    for tau, rate in zip(draws["noise"][:1000], draws["noise_rate"], strict=False):
        density = stats.gamma.logpdf(tau[:, None], 3, scale=1 / rates).sum(0)
        uniform.append(distribution(density + stats.gamma.logpdf(rates, 1), rates, rate))
    assert is_law(np.array(uniform))


def test_constants_stay_and_shapes_are_those_of_the_posterior(drawn):
    (_, noise), _, draws = drawn
    assert np.all(draws["fold"] == 3)
    assert draws["noise"].shape == (NUM_DRAWS, DATA.num_users)[: 1 + (noise == "user")]
    assert ("noise_rate" in draws) == (noise == "user")


def test_the_average_precision_is_that_of_ratings_not_of_users():
    counts = jnp.array([1.0, 3.0])
    hyper = {"noise": jnp.array([2.0, 6.0])}
    assert float(UserNoise(2).average(hyper, counts)) == pytest.approx((2 + 3 * 6) / 4)
    assert float(SharedNoise().average({"noise": jnp.array(2.0)}, counts)) == 2


def test_the_rate_of_rating_precisions_is_scaled_by_their_sum():
    """A draw from Gamma(a, 1) over 1 + Σ τ is one from Gamma(a, 1 + Σ τ)."""
    found = UserNoise(2).fresh(jnp.array([2.0, 3.0, 5.0]))
    np.testing.assert_array_equal(found["noise"], [2.0, 3.0])
    assert found["noise_rate"] == pytest.approx(5 / 6)


def test_weights_of_features_count_by_their_relative_precision():
    """Σ(x − x̄)² + n x̄²/(n + 1) of what features leave unexplained, and Σγ B²."""
    features = Features(
        row=np.array([0, 1, 2]),
        column=np.array([0, 1, 1]),
        value=np.array([1.0, 1.0, 1.0], np.float32),
        group=np.array([0, 1]),
        group_size=np.array([1.0, 1.0], np.float32),
    )
    prior = SidePrior(ColumnPrior.by_dimension(1), features)
    rows, weights = np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]]), np.array([[1.0, 2], [-3, 0.5]])
    center, mean = np.array([[0.2, 0.1], [0.4, 0.3], [0.1, -0.2]]), np.array([0.7, 0.0])
    scale = np.array([[2.0, 5.0], [3.0, 7.0]])
    hyper = {"weights": weights, "weight_scale": scale, "center": center, "mean": mean}
    columns, scales = prior.evidence(*jax.tree.map(jnp.asarray, (rows, hyper)))
    rest = rows - center + mean
    of_rows = ((rest - rest.mean(0)) ** 2).sum(0) + np.array([3 / 4, 3]) * rest.mean(0) ** 2
    np.testing.assert_allclose(columns.squares, of_rows + (scale * weights**2).sum(0), rtol=1e-6)
    np.testing.assert_array_equal(columns.count, [5, 5])
    np.testing.assert_array_equal(scales.count, [1, 1, 1, 1])
    np.testing.assert_array_equal(scales.squares, np.zeros(4))
