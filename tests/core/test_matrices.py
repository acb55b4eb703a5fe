import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.core import checks, matrices, tree

LIKE = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(()), "c": (jnp.zeros(3),)}
SIZES = tree.sizes(LIKE)
TOTAL = 8


def spd(seed, size=TOTAL):
    root = np.random.default_rng(seed).normal(size=(size, size))
    return root @ root.T + 0.3 * np.eye(size)


def diagonal(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.uniform(0.3, 2.0, leaf.shape), LIKE)


def parse(value, like=LIKE, definite=True):
    return checks.parse_matrix(value, like, "mass", definite=definite)


def dense_array(matrix):
    return matrix.dense(SIZES).array


def jacobian(linear, like=LIKE):
    """The matrix of a linear map of pytrees, over the raveled parameters."""
    rows = jax.vmap(lambda row: tree.ravel(linear(tree.unravel(row, like))))(
        jnp.eye(tree.size(like))
    )
    return np.asarray(rows, np.float64).T


@pytest.fixture(params=["scalar", "diagonal", "dense", "mixed"])
def pair(request):
    """Two matrices A and B of one kind, or of two."""
    return {
        "scalar": (1.7, 0.4),
        "diagonal": (diagonal(1), diagonal(2)),
        "dense": (spd(1), spd(2)),
        "mixed": (diagonal(1), spd(2)),
    }[request.param]


def test_a_number_is_a_multiple_of_the_identity():
    np.testing.assert_array_equal(dense_array(parse(2.5)), 2.5 * np.eye(TOTAL))


def test_a_pytree_is_a_diagonal_in_the_order_of_the_raveled_parameters():
    given = {"a": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": 5.0, "c": (6.0,)}
    np.testing.assert_array_equal(dense_array(parse(given)), np.diag([1, 2, 3, 4, 5, 6, 6, 6]))


def test_products_and_inverses_agree_with_dense_ones(pair):
    first, second = map(parse, pair)
    a, b = dense_array(first), dense_array(second)
    np.testing.assert_allclose(dense_array(first.inverse()) @ a, np.eye(TOTAL), atol=1e-10)
    np.testing.assert_allclose(dense_array(matrices.product(first, second, SIZES)), a @ b)
    np.testing.assert_allclose(dense_array(matrices.scaled(first, 3.0)), 3 * a)
    finished = matrices.finish(first, jnp.float32)
    np.testing.assert_allclose(jacobian(lambda v: finished @ v), a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outer", [None, 2.0, "dense"])
def test_a_pencil_takes_roots_of_combinations(pair, outer):
    first, second = map(parse, pair)
    a, b = dense_array(first), dense_array(second)
    outer = None if outer is None else parse(spd(3) if outer == "dense" else outer)
    pencil = matrices.pencil(first, second, SIZES, "mass", outer)
    limit = 1 / pencil.largest
    assert np.isclose(pencil.largest, np.linalg.eigvals(np.linalg.solve(a, b)).real.max())
    left = np.eye(TOTAL) if outer is None else dense_array(outer)
    finished = matrices.finish(pencil, jnp.float32)
    for x, y in ((1.0, 0.0), (0.7, 0.5 * limit), (2.0, 1.9 * limit)):
        root = jacobian(lambda v, x=x, y=y: finished.sqrt(x, y, v))
        expected = left @ (x * a - y * b) @ left.T
        scale = np.abs(expected).max()
        np.testing.assert_allclose(root @ root.T, expected, atol=2e-5 * scale)


def test_a_pencil_knows_inverse_roots_and_quadratic_forms(pair):
    first, second = map(parse, pair)
    pencil = matrices.pencil(first, second, SIZES, "mass")
    x, y = 1.3, 0.4 / pencil.largest
    combined = x * dense_array(first) - y * dense_array(second)
    finished = matrices.finish(pencil, jnp.float32)
    root = jacobian(lambda v: finished.inverse_sqrt(x, y, v))
    np.testing.assert_allclose(root @ root.T @ combined, np.eye(TOTAL), atol=1e-3)
    vector = np.random.default_rng(5).normal(size=TOTAL)
    value = finished.quadratic(x, y, tree.unravel(jnp.asarray(vector, jnp.float32), LIKE))
    np.testing.assert_allclose(value, vector @ combined @ vector, rtol=1e-4)


def test_a_semi_definite_first_matrix_has_a_root_if_the_second_is_zero():
    vector = np.arange(1.0, TOTAL + 1)
    singular = parse(np.outer(vector, vector), definite=False)
    pencil = matrices.pencil(singular, matrices.scaled(singular, 0.0), SIZES, "variance")
    root = jacobian(lambda v: matrices.finish(pencil, jnp.float32).sqrt(1, 0, v))
    np.testing.assert_allclose(root @ root.T, np.outer(vector, vector), rtol=1e-4)
    with pytest.raises(ValueError, match="variance must be positive definite here"):
        matrices.pencil(singular, parse(1.0), SIZES, "variance")


def test_at_the_edge_rounding_does_not_make_nan():
    pencil = matrices.finish(
        matrices.pencil(parse(spd(1)), parse(spd(1)), SIZES, "mass"), "float32"
    )
    assert tree.all_finite(pencil.sqrt(1, 1, jax.tree.map(jnp.ones_like, LIKE)))


@pytest.mark.parametrize(
    ("like", "value", "kind"),
    [
        (jnp.zeros(3), np.full(3, 2.0), matrices.Diagonal),
        (jnp.zeros(3), 2 * np.eye(3), matrices.Dense),
        (jnp.zeros((3, 3)), np.full((3, 3), 2.0), matrices.Diagonal),  # like the parameters
        (jnp.zeros((3, 3)), 2 * np.eye(9), matrices.Dense),
        (jnp.zeros((1, 1)), np.full((1, 1), 2.0), matrices.Diagonal),
        (jnp.zeros(1), np.full((1, 1), 2.0), matrices.Dense),
        (jnp.zeros(()), np.asarray(2.0), matrices.Diagonal),
        ({"w": jnp.zeros(3)}, 2 * np.eye(3), matrices.Dense),
        ({"w": jnp.zeros(3)}, {"w": np.full(3, 2.0)}, matrices.Diagonal),
        ({"w": jnp.zeros(3)}, {"w": 2.0}, matrices.Diagonal),
    ],
)
def test_what_a_value_means(like, value, kind):
    matrix = parse(value, like)
    assert isinstance(matrix, kind)
    size = tree.size(like)
    np.testing.assert_array_equal(matrix.dense(tree.sizes(like)).array, 2 * np.eye(size))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(TOTAL), r"mass has shape \(8,\).*8 entries.*dense \(8, 8\)"),
        (np.eye(3), r"mass has shape \(3, 3\).*8 entries"),
        ({"a": 1.0, "b": 1.0}, "mass is a pytree .* but the parameters are"),
        ({"a": np.ones(4), "b": 1.0, "c": (1.0,)}, r"leaf of shape \(4,\).*\(2, 2\)"),
        ({"a": 1.0, "b": -1.0, "c": (1.0,)}, "Every entry of mass must be positive.*-1"),
        ({"a": 0.0, "b": 1.0, "c": (1.0,)}, "Every entry of mass must be positive.*0"),
        (np.eye(TOTAL) + np.eye(TOTAL, k=1), "mass must be symmetric.* by up to 1"),
        (np.diag([1.0] * 7 + [-2.0]), "mass must be positive definite.*-2"),
        (np.diag([1.0] * 7 + [0.0]), "mass must be positive definite.*0"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        parse(value)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, TypeError, "mass must be a number, a pytree.* not None"),
        (-1.0, ValueError, "mass must not be negative, but is -1"),
        (np.nan, ValueError, "mass must be finite.*nan"),
        ({"a": np.array([1.0, np.inf])}, ValueError, "mass must be finite.*inf"),
        (np.ones(2, complex), TypeError, "mass must hold real numbers, but holds complex"),
        ("one", TypeError, "mass must hold real numbers"),
    ],
)
def test_what_is_no_matrix_is_refused_on_construction(value, error, message):
    with pytest.raises(error, match=message):
        checks.check_matrix(value, "mass")


def test_semi_definite_is_enough_where_asked():
    assert isinstance(parse(0.0, definite=False), matrices.Diagonal)
    assert isinstance(parse(np.diag([0.0] * 7 + [1.0]), definite=False), matrices.Dense)


def test_single_precision_rounding_of_a_singular_matrix_is_forgiven():
    vectors = np.random.default_rng(8).normal(size=(TOTAL, 2)).astype(np.float32)
    assert isinstance(parse(vectors @ vectors.T, definite=False), matrices.Dense)


def test_an_empty_leaf_has_an_empty_diagonal():
    like = {"a": np.ones(2), "empty": np.ones((0, 3))}
    mass = parse(jax.tree.map(lambda leaf: 2 * leaf, like), like)
    np.testing.assert_array_equal(mass.dense(tree.sizes(like)).array, 2 * np.eye(2))


@pytest.mark.slow_cases("scalar")
@pytest.mark.parametrize("kind", ["scalar", "diagonal", "dense"])
def test_every_leaf_keeps_its_dtype(kind):
    with jax.enable_x64(True):
        like = {
            "single": jnp.ones(2, jnp.float32),
            "double": jnp.ones(2, jnp.float64),
            "low": (jnp.ones(2, jnp.bfloat16), jnp.ones((), jnp.float16)),
        }
        value = {
            "scalar": 2.0,
            "diagonal": jax.tree.map(lambda leaf: 2 * leaf, like),
            "dense": 2 * np.eye(7),
        }[kind]
        checks.check_matrix(value, "mass")
        dtype = tree.float_type(like)
        assert dtype == jnp.float64
        matrix = parse(value, like)
        pencil = matrices.pencil(matrix, matrices.scaled(matrix, 0.5), tree.sizes(like), "mass")
        matrix, pencil = (matrices.finish(part, dtype) for part in (matrix, pencil))
        for result, expected in (
            (matrix @ like, 2.0),
            (pencil.sqrt(1, 1, like), 1.0),
            (pencil.inverse_sqrt(1, 1, like), 1.0),
        ):
            for leaf, model in zip(jax.tree.leaves(result), jax.tree.leaves(like), strict=True):
                assert leaf.dtype == model.dtype
                np.testing.assert_allclose(np.asarray(leaf, float), expected, rtol=1e-2)
        assert np.isclose(pencil.quadratic(1, 1, like), 7)


def test_a_dense_matrix_that_would_take_minutes_is_refused_at_once():
    size = checks.MAX_DENSE_PARAMETERS + 1
    matrix = np.broadcast_to(np.float64(1.0), (size, size))
    for parsed in (parse, lambda value, like: checks.parse_factor(value, like, "factor")):
        with pytest.raises(ValueError, match=r"dense matrix over 2,001 parameters.*diagonal"):
            parsed(matrix, np.zeros(size))


SKEW = np.array([[1.0, 0.5, -2.0], [0.3, 2.0, 0.7], [0.1, -0.4, 1.5]])
SMALL = {"a": jnp.zeros(2), "b": jnp.zeros(())}


def array_of(matrix):
    """Of one that must be dense."""
    assert isinstance(matrix, matrices.Dense)
    return matrix.array


def test_a_factor_need_not_be_symmetric_but_invertible():
    found = checks.parse_factor(SKEW, SMALL, "factor")
    assert isinstance(found, matrices.Dense)
    np.testing.assert_array_equal(found.array, SKEW)
    np.testing.assert_allclose(found.inverse().array @ SKEW, np.eye(3), atol=1e-12)
    singular = np.stack([SKEW[0], SKEW[1], SKEW[0] + SKEW[1]])
    with pytest.raises(ValueError, match=r"factor must be invertible, but its singular values"):
        checks.parse_factor(singular, SMALL, "factor")
    assert isinstance(checks.parse_factor(2.0, SMALL, "factor"), matrices.Diagonal)
    with pytest.raises(ValueError, match="must be positive"):
        checks.parse_factor(-np.eye(1), {"a": jnp.zeros(1)}, "factor")


def test_the_inverse_of_a_symmetric_matrix_is_exactly_symmetric():
    inverse = matrices.Dense(spd(4)).inverse().array
    np.testing.assert_array_equal(inverse, inverse.T)
    np.testing.assert_allclose(inverse @ spd(4), np.eye(TOTAL), atol=1e-9)


def low_rank(seed=0, rank=2):
    rng = np.random.default_rng(seed)
    first, second = 0.5 * rng.normal(size=(2, TOTAL, rank))
    left, right = rng.uniform(0.5, 2, (2, TOTAL))
    return matrices.LowRankFactor(left, first, second, right)


def test_a_low_rank_beside_a_diagonal_is_the_matrix_written_out():
    matrix = low_rank()
    full = matrix.left[:, None] * (np.eye(TOTAL) + matrix.first @ matrix.second.T) * matrix.right
    np.testing.assert_allclose(dense_array(matrix), full, rtol=1e-12)
    np.testing.assert_allclose(dense_array(matrix.inverse()) @ full, np.eye(TOTAL), atol=1e-10)
    np.testing.assert_allclose(dense_array(matrices.transpose(matrix)), full.T, rtol=1e-12)
    np.testing.assert_allclose(matrix.row_squares, np.sum(full**2, 1), rtol=1e-12)
    finished = matrices.finish(matrix, jnp.float32)
    np.testing.assert_allclose(jacobian(lambda v: finished @ v), full, rtol=1e-5, atol=1e-6)


def test_a_low_rank_is_stretched_along_axes_and_directions():
    matrix, rng = low_rank(), np.random.default_rng(1)
    scales, gains = rng.uniform(0.5, 2, TOTAL), np.array([0.1, 7.0])
    basis = np.linalg.qr(rng.normal(size=(TOTAL, 2)))[0]
    full = dense_array(matrix) * scales @ (np.eye(TOTAL) + (basis * (gains - 1)) @ basis.T)
    np.testing.assert_allclose(
        dense_array(matrix.stretched(scales, basis, gains)), full, rtol=1e-10
    )


def test_a_low_rank_over_other_parameters_is_refused():
    with pytest.raises(ValueError, match=r"factor is a matrix over 8 .* there are 3\."):
        checks.parse_factor(low_rank(), jnp.zeros(3), "factor")


def test_covariances_in_other_coordinates():
    """LᵀAL of θ = Lz."""
    a, factor = spd(5, 3), matrices.Dense(SKEW)
    found = array_of(matrices.congruent(factor, matrices.Dense(a), [2, 1]))
    np.testing.assert_allclose(found, SKEW.T @ a @ SKEW, rtol=1e-12)
    diagonal = matrices.Diagonal([np.array([2.0, 3.0]), np.asarray(5.0)])
    found = array_of(matrices.congruent(diagonal, matrices.Dense(a), [2, 1]))
    np.testing.assert_allclose(found, np.diag([2, 3, 5]) @ a @ np.diag([2, 3, 5]), rtol=1e-12)
    found = matrices.congruent(diagonal, diagonal, [2, 1])
    assert isinstance(found, matrices.Diagonal)
    np.testing.assert_allclose(found.vector([2, 1]), [8, 27, 125])
    np.testing.assert_array_equal(array_of(matrices.transpose(factor)), SKEW.T)


def test_products_between_two_others_inside_of_a_program():
    outer, inner = spd(6, 3), spd(7, 3)
    found = array_of(matrices.between(matrices.Dense(outer), matrices.Dense(inner)))
    np.testing.assert_allclose(found, outer @ inner @ outer, rtol=1e-5)
    diagonal = matrices.from_entries(jnp.asarray([2.0, 3.0, 5.0]), [2, 1])
    assert isinstance(diagonal, matrices.Diagonal)
    assert [value.shape for value in diagonal.values] == [(2,), (1,)]
    found = array_of(matrices.between(diagonal, matrices.Dense(inner)))
    np.testing.assert_allclose(found, np.diag([2, 3, 5]) @ inner @ np.diag([2, 3, 5]), rtol=1e-5)
    squares = matrices.between(diagonal, diagonal)
    assert isinstance(squares, matrices.Diagonal)
    np.testing.assert_allclose(jnp.concatenate(squares.values), [8, 27, 125])


def test_entries_of_a_diagonal_in_the_shapes_of_parameters_and_back():
    like = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(3)}
    diagonal = matrices.Diagonal([jnp.arange(4.0), jnp.asarray(7.0)])
    found = matrices.entries(diagonal, like)
    np.testing.assert_array_equal(found["a"], [[0, 1], [2, 3]])
    np.testing.assert_array_equal(found["b"], [7, 7, 7])
    back = matrices.raveled(found)
    np.testing.assert_array_equal(back.vector([4, 3]), [0, 1, 2, 3, 7, 7, 7])


def test_a_number_that_many_leaves_have_is_held_once():
    many = [jnp.zeros(2)] * 17
    number = matrices.Diagonal([np.asarray(3.0)], len(many))
    assert (len(number.given), len(number.values), number.num_leaves) == (1, 17, 17)
    assert len(matrices.Diagonal([np.asarray(3.0)], 3).given) == 3
    product = matrices.by_entries(operator.mul, number, number)
    assert (len(product.given), product.num_leaves, product.given[0]) == (1, 17, 9.0)
    others = matrices.Diagonal([np.asarray(float(i)) for i in range(17)])
    product = matrices.by_entries(operator.mul, number, others)
    assert product.values == tuple(3.0 * i for i in range(17))
    assert number.inverse().given[0] == pytest.approx(1 / 3)


def test_zero_is_seen_for_what_it_is():
    assert matrices.Diagonal([np.zeros(2), np.asarray(0.0)]).is_zero
    assert not matrices.Diagonal([np.zeros(2), np.asarray(0.1)]).is_zero
    assert matrices.Dense(np.zeros((2, 2))).is_zero
    assert not matrices.Dense(np.eye(2)).is_zero


def test_arrays_take_the_place_of_those_of_a_module():
    """A number that all leaves had may become an entry of each; what is None stays."""
    fixed = {"mass": matrices.Diagonal([jnp.asarray(2.0)], 2), "name": "mine", "step": 0.5}
    own = {"mass": matrices.Diagonal([jnp.ones(2), jnp.ones(3)]), "name": None, "step": 0.7}
    found = matrices.combine(own, fixed)
    assert len(found["mass"].given) == 2
    assert (found["name"], found["step"]) == ("mine", 0.7)


def test_a_matrix_may_be_off_by_single_precision_and_no_more():
    skew = np.eye(TOTAL)
    skew[0, 1] = 0.9e-5
    assert array_of(parse(skew))[1, 0] == pytest.approx(0.45e-5)
    skew[0, 1] = 1.1e-5
    with pytest.raises(ValueError, match="must be symmetric"):
        parse(skew)
    for lowest, is_good in ((-0.9e-6, True), (-1.1e-6, False)):
        value = np.diag([1.0] * 7 + [lowest])
        if is_good:
            assert isinstance(parse(value, definite=False), matrices.Dense)
        else:
            with pytest.raises(ValueError, match="positive semi-definite, but its smallest"):
                parse(value, definite=False)
    with pytest.raises(ValueError, match="Every entry of mass must be not negative"):
        parse({"a": 1.0, "b": -1.0, "c": (1.0,)}, definite=False)


def test_the_largest_dense_matrix_is_of_two_thousand_parameters():
    checks._check_size(2000, "mass")
    with pytest.raises(ValueError, match="one of more than 2,000 takes minutes"):
        checks._check_size(2001, "mass")


def test_a_matrix_has_its_arrays_as_leaves_and_no_counts():
    one = checks.parse_matrix(2.0, {"a": jnp.zeros(3), "b": jnp.zeros(2)}, "mass", definite=True)
    for matrix in (one, one.inverse()):
        assert not any(isinstance(leaf, int) for leaf in jax.tree.leaves(matrix))
