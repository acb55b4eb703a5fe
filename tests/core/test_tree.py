import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.core import tree

MIXED = {
    "scalar": jnp.asarray(1.5),
    "nested": (jnp.arange(6.0).reshape(2, 3), [jnp.asarray([7.0, 8.0], jnp.bfloat16)]),
}


def test_sizes_follow_the_leaves():
    assert tree.sizes(MIXED) == [6, 2, 1]
    assert tree.size(MIXED) == 9


def test_unravel_undoes_ravel_with_shapes_and_dtypes():
    vector = tree.ravel(MIXED)
    np.testing.assert_array_equal(vector, [0, 1, 2, 3, 4, 5, 7, 8, 1.5])
    back = tree.unravel(vector, MIXED)
    assert jax.tree.structure(back) == jax.tree.structure(MIXED)
    for leaf, original in zip(jax.tree.leaves(back), jax.tree.leaves(MIXED), strict=True):
        assert leaf.dtype == original.dtype
        np.testing.assert_array_equal(leaf, original)


def test_float_type_is_at_least_single_precision():
    assert tree.float_type(MIXED) == jnp.float32
    assert tree.float_type(jnp.zeros(2, jnp.float16)) == jnp.float32
    with jax.enable_x64(True):
        assert tree.float_type((jnp.zeros(2, jnp.float32), jnp.zeros(1))) == jnp.float64


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_sees_one_bad_number_in_any_leaf(bad):
    assert tree.all_finite(MIXED)
    assert tree.all_finite(())
    assert tree.all_finite((jnp.arange(3), None))
    assert not tree.all_finite(MIXED | {"scalar": jnp.asarray(bad)})
    assert not tree.all_finite((MIXED, jnp.zeros(5, jnp.bfloat16).at[3].set(bad)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_finite_numbers_are_seen_to_be_though_their_sum_is_not(dtype):
    largest = jnp.full(100_000, jnp.finfo(dtype).max)
    assert jax.jit(tree.all_finite)(largest)
    assert not jax.jit(tree.all_finite)(largest.at[-1].set(np.nan))


MANY = [jnp.full(3 + i % 2, float(i)) for i in range(50)]
"""More than fit into one group of equal shape."""


def test_a_total_is_over_all_entries_of_few_and_of_many():
    for terms in (MANY[:5], MANY):
        assert tree.total(terms) == sum(float(jnp.sum(term)) for term in terms)
    assert tree.total([]) == 0


@pytest.mark.parametrize("place", [0, 1, 37, 49])
def test_one_bad_number_among_many_leaves_is_seen(place):
    assert tree.all_finite(MANY)
    bad = [leaf.at[-1].set(jnp.inf) if i == place else leaf for i, leaf in enumerate(MANY)]
    assert not jax.jit(tree.all_finite)(bad)


def test_add_scaled_keeps_dtypes():
    total = tree.add_scaled(MIXED, jnp.asarray(2.0), jax.tree.map(jnp.ones_like, MIXED))
    for leaf, original in zip(jax.tree.leaves(total), jax.tree.leaves(MIXED), strict=True):
        assert leaf.dtype == original.dtype
        np.testing.assert_array_equal(leaf, original + 2)


def test_leaves_are_many_from_seventeen_on():
    leaves = [jnp.ones(2)] * 17
    assert len(tree._gathered(leaves[:16])) == 16
    assert len(tree._gathered(leaves)) == 2  # of 16 and of 1


def test_terms_of_equal_shape_are_gathered_where_they_are_many():
    few = MANY[:16]
    assert tree._gathered(few) is few
    gathered = tree._gathered(MANY)  # 25 of each of two shapes: groups of 16 and of 9
    assert [leaf.shape for leaf in gathered] == [(3,), (3,), (4,), (4,)]
    assert float(gathered[0][0]) == sum(range(0, 32, 2))
    assert float(gathered[3][0]) == sum(range(33, 50, 2))


def test_entries_are_named_as_a_user_would_write_them():
    names = [tree.entry_name(MIXED, index) for index in (0, 4, 7, 8)]
    assert names == [
        "params['nested'][0][0][0]",
        "params['nested'][0][1][1]",
        "params['nested'][1][0][1]",
        "params['scalar']",
    ]
    with pytest.raises(IndexError, match="no entry"):
        tree.entry_name(MIXED, 9)


def test_add_scaled_is_a_sum():
    found = tree.add_scaled({"x": jnp.array([1.0, 2.0])}, -3.0, {"x": jnp.array([0.5, 4.0])})
    np.testing.assert_array_equal(found["x"], [-0.5, -10.0])
