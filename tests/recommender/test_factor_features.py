"""Side information: weights of features against dense Gaussian algebra and integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sghmc
from feature_cases import GROUPS, NUM_ROWS, feature_matrix, sparse_features
from sghmc.core import random
from sghmc.models import MatrixFactorization
from sghmc.recommender.factor_gibbs import ColumnPrior, Features, SidePrior, solve

WIDTH = 3
HAS_MEAN = np.array([True, True, False])
MATRIX = feature_matrix()
FEATURES = sparse_features(MATRIX)

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(NUM_ROWS, WIDTH)) + 1
PRECISION, SCALE = rng.gamma(3.0, size=WIDTH), rng.gamma(3.0, size=(2, 2))


def f32(values) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def test_products_are_those_of_the_matrix():
    weights = rng.normal(size=(len(GROUPS), WIDTH))
    np.testing.assert_allclose(
        FEATURES.times(f32(weights), NUM_ROWS), MATRIX @ weights, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        FEATURES.transposed_times(f32(ROWS)), MATRIX.T @ ROWS, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_means_and_weights_have_the_regressions_law():
    """The draw is affine in its normals: its mean at 0, its covariance from its derivative.

    By dense algebra with a column of ones, of whose weight the last column's is 0.
    """
    count = NUM_ROWS + 1 + len(GROUPS)

    def drawn(normals):
        found = FEATURES.draw(normals, f32(ROWS), f32(PRECISION), f32(SCALE), HAS_MEAN)
        return jnp.concatenate([found["mean"][None], found["weights"]]), found["center"]

    zero = jnp.zeros((count, WIDTH))
    (mean, center), (root, _) = drawn(zero), jax.jacfwd(drawn)(zero)
    design = np.column_stack([np.ones(NUM_ROWS), MATRIX])
    for k in range(WIDTH):
        used = np.arange(len(GROUPS) + 1) if HAS_MEAN[k] else np.arange(1, len(GROUPS) + 1)
        kind = int(k == WIDTH - 1)
        prior = np.append(1.0, SCALE[GROUPS, kind])[used]
        x = design[:, used]
        precision = PRECISION[k] * (x.T @ x + np.diag(prior))
        expected = np.zeros(len(GROUPS) + 1)
        expected[used] = np.linalg.solve(precision, PRECISION[k] * x.T @ ROWS[:, k])
        np.testing.assert_allclose(mean[:, k], expected, rtol=2e-4, atol=2e-5)
        own = np.asarray(root[:, k, :, k], float)[used]
        np.testing.assert_allclose(own @ own.T, np.linalg.inv(precision), rtol=2e-3, atol=2e-5)
        others = np.delete(np.asarray(root[:, k]), k, axis=-1)
        assert np.all(others == 0)
        np.testing.assert_allclose(center[:, k], design @ expected, rtol=1e-3, atol=1e-4)
    assert np.all(mean[0, ~HAS_MEAN] == 0)


def test_a_sides_hyperparameters_are_drawn_as_the_formulas_say():
    """Evidence of precisions and scales, then one draw of all, number by number.

    Of three columns the first and the last share a precision, and the last has no mean.
    """
    key, count = jax.random.key(3), len(GROUPS)
    prior = SidePrior(ColumnPrior(np.array([1, 0, 1]), HAS_MEAN), FEATURES)
    generator = np.random.default_rng(5)
    hyper = {
        "mean": generator.normal(size=WIDTH) * HAS_MEAN,
        "weights": generator.normal(size=(count, WIDTH)),
        "weight_scale": SCALE,
    }
    hyper["center"] = hyper["mean"] + MATRIX @ hyper["weights"]
    drawn = [np.array([0.7, 2.5]), np.array([1.3, 2.2, 0.4, 3.1])]

    @jax.jit
    def both(rows, hyper, drawn):
        fresh = prior.fresh(key, jnp.zeros(WIDTH), rows, hyper, drawn)
        return prior.evidence(rows, hyper), fresh

    (of_columns, of_scales), fresh = both(
        f32(ROWS), jax.tree.map(f32, hyper), [f32(each) for each in drawn]
    )
    kinds = np.array([0, 0, 1])
    relative = SCALE[GROUPS][:, kinds]
    rest = ROWS - MATRIX @ hyper["weights"]
    average = rest.mean(0)
    share = np.where(HAS_MEAN, NUM_ROWS / (NUM_ROWS + 1), NUM_ROWS)
    squares = ((rest - average) ** 2).sum(0) + share * average**2
    squares += (relative * hyper["weights"] ** 2).sum(0)
    np.testing.assert_allclose(of_columns.squares, [squares[1], squares[0] + squares[2]], rtol=1e-4)
    np.testing.assert_array_equal(of_columns.count, [NUM_ROWS + count, 2 * (NUM_ROWS + count)])
    np.testing.assert_array_equal(of_scales.count, [6, 3, 4, 2])
    assert np.all(np.asarray(of_scales.squares) == 0)
    for each in (of_columns, of_scales):
        assert np.all(np.asarray(each.shape) == 1)
        assert np.all(np.asarray(each.rate) == 1)

    precision = drawn[0][[1, 0, 1]]
    np.testing.assert_allclose(fresh["precision"], precision, rtol=1e-6)
    weighted = precision * hyper["weights"] ** 2
    of_groups = [
        [weighted[group == GROUPS][:, kinds == kind].sum() for kind in (0, 1)] for group in (0, 1)
    ]
    scale = drawn[1].reshape(2, 2) / (1 + np.array(of_groups) / 2)
    np.testing.assert_allclose(fresh["weight_scale"], scale, rtol=1e-4)
    length = NUM_ROWS + 1 + count
    normals = np.asarray(random.normals(random.words(key), 0, 1, length * WIDTH), float)
    noise = normals.reshape(length, WIDTH) / np.sqrt(precision)
    for k in range(WIDTH):
        design = np.column_stack([np.full(NUM_ROWS, HAS_MEAN[k]), MATRIX])
        diagonal = np.append(1.0, scale[GROUPS, kinds[k]])
        right = design.T @ (ROWS[:, k] + noise[:NUM_ROWS, k])
        right += np.sqrt(diagonal) * noise[NUM_ROWS:, k] * np.append(HAS_MEAN[k], np.ones(count))
        expected = np.linalg.solve(design.T @ design + np.diag(diagonal), right)
        np.testing.assert_allclose(fresh["mean"][k], expected[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(fresh["weights"][:, k], expected[1:], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(fresh["center"][:, k], design @ expected, rtol=1e-3, atol=1e-4)


def test_what_a_side_starts_from():
    start = FEATURES.start(NUM_ROWS, WIDTH)
    assert {name: part.shape for name, part in start.items()} == {
        "weights": (5, WIDTH),
        "weight_scale": (2, 2),
        "center": (NUM_ROWS, WIDTH),
    }
    assert np.all(start["weight_scale"] == 1)
    assert not np.any(start["weights"])
    assert not np.any(start["center"])


def test_a_system_is_solved_to_the_digits_of_a_float():
    """Column by column, where one is solved from the start."""
    generator = np.random.default_rng(2)
    root = generator.normal(size=(4, 6))
    matrix = root @ root.T + np.diag([0.1, 1, 10, 100])
    right = generator.normal(size=(4, 2))
    right[:, 1] = 0
    diagonal = np.repeat(np.diag(matrix)[:, None], 2, axis=1)
    found = jax.jit(lambda a, r, d: solve(lambda x: a @ x, r, d))(
        *map(f32, (matrix, right, diagonal))
    )
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-4, atol=1e-7)


def test_squares_are_those_of_entries():
    np.testing.assert_allclose(FEATURES.squares(), exact_squares(), rtol=1e-5)


def exact_squares() -> np.ndarray:
    """Entry by entry: one of them is there in two halves."""
    total = np.zeros(len(GROUPS))
    np.add.at(total, np.asarray(FEATURES.column), np.asarray(FEATURES.value, float) ** 2)
    return total


@pytest.mark.slow
def test_thousands_of_categories_are_solved_to_the_digits_of_a_float():
    """2,000 of them in 8,000 rows, some once, some a thousand times: against scipy's solver."""
    from scipy import sparse
    from scipy.sparse import linalg

    generator = np.random.default_rng(2)
    num_rows, num_columns = 8_000, 2_000
    column = np.append(
        (num_columns * generator.random((3, num_rows)) ** 3).astype(int).ravel(),
        np.arange(num_columns),
    )
    row = np.append(np.tile(np.arange(num_rows), 3), generator.integers(num_rows, size=num_columns))
    matrix = sparse.csr_array((np.ones(len(row)), (row, column)), (num_rows, num_columns))
    features = Features(
        jnp.asarray(row, jnp.int32),
        jnp.asarray(column, jnp.int32),
        jnp.ones(len(row)),
        jnp.zeros(num_columns, jnp.int32),
        jnp.array([float(num_columns)]),
    )
    right = generator.normal(size=(num_columns, 2))

    def multiply(x):
        return features.transposed_times(features.times(x, num_rows)) + 0.5 * x

    diagonal = (features.squares() + 0.5)[:, None] * jnp.ones((1, 2))
    found = jax.jit(lambda right: solve(multiply, right, diagonal))(f32(right))
    whole = matrix.T @ matrix + 0.5 * sparse.eye_array(num_columns)
    expected = linalg.spsolve(whole.tocsc(), right)
    scale = np.sqrt(np.mean(expected**2))
    assert np.abs(np.asarray(found) - expected).max() < 1e-3 * scale


def exact_marginals(rows: np.ndarray, matrix: np.ndarray, has_mean: bool):
    """Distribution functions of λ and γ given a column of rows; μ and the weights integrated out.

    w ~ N(0, (I + 1 1ᵀ + FFᵀ/γ)/λ), without the ones where there is no mean; λ and γ ~ Gamma(1, 1).
    """
    precisions, scales = np.geomspace(1e-3, 60, 300), np.geomspace(1e-3, 30, 301)
    log_density = np.empty((len(precisions), len(scales)))
    for j, scale in enumerate(scales):
        covariance = np.eye(len(rows)) + has_mean + matrix @ matrix.T / scale
        square = rows @ np.linalg.solve(covariance, rows)
        log_density[:, j] = len(rows) / 2 * np.log(precisions) - precisions * square / 2
        log_density[:, j] -= np.linalg.slogdet(covariance)[1] / 2
    log_density += stats.gamma.logpdf(precisions, 1)[:, None] + stats.gamma.logpdf(scales, 1)[None]
    density = np.exp(log_density - log_density.max())
    widths = np.gradient(precisions)[:, None] * np.gradient(scales)[None]
    mass = density * widths
    return [
        (grid, np.cumsum(mass.sum(axis)) / mass.sum())
        for grid, axis in ((precisions, 1), (scales, 0))
    ]


@pytest.mark.slow
def test_all_hyperparameters_of_a_side_have_their_joint_law():
    """Given rows: λ and γ of a factor that has a mean (0) and of the bias (1), against integrals.

    4,000 independent chains of 30 sweeps; Kolmogorov–Smirnov at 10⁻⁵, for each of four.
    """
    group, rows = np.zeros(2, int), ROWS[:, :2] * np.array([1.0, 2.0])
    matrix = MATRIX[:, :2]
    prior = SidePrior(ColumnPrior.by_dimension(1), sparse_features(matrix, group))
    assert prior.features is not None
    start = {"mean": jnp.zeros(2), "precision": jnp.ones(2), **prior.features.start(NUM_ROWS, 2)}

    def sweep(i, state):
        key, hyper = state
        key, of_gamma, of_rest = jax.random.split(key, 3)
        parts = prior.evidence(f32(rows), hyper)
        of_gammas = jax.random.split(of_gamma, len(parts))
        drawn = [
            jax.random.gamma(each, part.shape + part.count / 2) / (part.rate + part.squares / 2)
            for each, part in zip(of_gammas, parts, strict=True)
        ]
        return key, prior.fresh(of_rest, jnp.zeros(2), f32(rows), hyper, drawn)

    def chain(key):
        return jax.lax.fori_loop(0, 30, sweep, (key, start))[1]

    found = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), 4000))
    for column in (0, 1):
        laws = exact_marginals(rows[:, column], matrix, has_mean=column == 0)
        samples = found["precision"][:, column], found["weight_scale"][:, 0, column]
        for (grid, distribution), sample in zip(laws, samples, strict=True):
            uniform = np.interp(np.asarray(sample), grid, distribution)
            assert stats.kstest(uniform, "uniform").pvalue > 1e-5


def test_the_prior_is_around_what_features_say():
    """The model's log-prior against scipy's, with features of items only."""
    model = MatrixFactorization(4, NUM_ROWS, 2, "dimension", "user", features={"item": FEATURES})
    posterior = model.posterior([0], [0], [0.0])
    hyper = posterior.hyper
    assert set(hyper["item"]) == {"mean", "precision", "weights", "weight_scale", "center"}
    assert set(hyper["user"]) == {"mean", "precision"}
    center = rng.normal(size=(NUM_ROWS, WIDTH))
    for side in ("user", "item"):
        hyper[side] |= {"mean": f32(rng.normal(size=WIDTH)), "precision": f32(PRECISION)}
    hyper["item"]["center"] = f32(center)
    params = jax.random.normal(jax.random.key(0), (4 + NUM_ROWS, WIDTH))
    means = np.concatenate([np.tile(hyper["user"]["mean"], (4, 1)), center])
    expected = stats.norm.logpdf(params, means, PRECISION**-0.5).sum()
    constant = params.size * np.log(2 * np.pi) / 2
    assert float(model.log_prior(params, hyper)) == pytest.approx(expected + constant, rel=1e-5)


@pytest.mark.slow
def test_a_run_with_features_is_compiled_once_for_other_values(caplog):
    """Features are numbers to the program, not part of it."""

    def run(features):
        model = MatrixFactorization(4, NUM_ROWS, 2, "dimension", "user", features=features)
        sghmc.sample(
            jax.random.key(0),
            model.posterior([0, 1], [0, 2], [0.0, 1.0]),
            sghmc.SGHMC(0.1, friction=1.0),
            model.init(jax.random.key(1)),
            num_samples=4,
            gibbs=model.gibbs(2),
            progress=False,
        )

    run({"item": FEATURES})
    with jax.log_compiles():
        run({"item": FEATURES._replace(value=2 * FEATURES.value)})
    assert not [each for each in caplog.messages if "Compiling" in each and "draws" in each]


def test_features_are_of_users_and_items():
    with pytest.raises(ValueError, match="features must be of"):
        MatrixFactorization(4, NUM_ROWS, 2, features={"movie": FEATURES})
