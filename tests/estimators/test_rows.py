"""Rows as a weighted set, their scales, and the shapes that programs are compiled for."""

import numpy as np
import pytest

from sghmc.estimators import weighted_rows
from sghmc.estimators.weighted_rows import (
    Scaling,
    WeightedRows,
    hides_the_rest,
    padded,
    padded_size,
    rounding,
)


def rows(x, y, weight):
    return WeightedRows(np.array(x, float), np.array(y, float), np.array(weight, float))


def test_equal_rows_are_one_with_their_weights_summed():
    found = rows([[1, 2], [0, 5], [1, 2], [1, 2]], [3, 4, 3, 7], [1, 2, 0.5, 1]).merged()
    columns = (found.x.tolist(), found.y.tolist(), found.weight.tolist())
    table = {(*x, y): weight for x, y, weight in zip(*columns, strict=True)}
    assert table == {(1, 2, 3): 1.5, (0, 5, 4): 2, (1, 2, 7): 1}
    assert found.total_weight == 4.5


def test_neither_order_nor_repetition_nor_weight_0_matter():
    some = rows([[1.0], [-0.0], [2.0]], [0, 1, 0], [1, 3, 0])
    same = rows([[0.0], [0.0], [1.0], [0.0]], [1, 1, 0, 1], [1, 1, 1, 1])
    for one, other in zip(some.merged(), same.merged(), strict=True):
        assert (one + 0.0).tobytes() == (other + 0.0).tobytes()


def test_joined_rows_follow_those_before():
    new, old = rows([[1]], [2], [3]), rows([[4], [5]], [6, 7], [8, 9])
    assert new.joined(None) is new
    both = new.joined(old)
    assert (both.x.tolist(), both.y.tolist()) == ([[4], [5], [1]], [6, 7, 2])
    assert both.weight.tolist() == [8, 9, 3]


def test_scales_are_weighted_moments():
    values, weight = np.array([[1.0, 5.0], [4.0, 5.0], [9.0, 5.0]]), np.array([1.0, 2.0, 3.0])
    repeated = np.repeat(values, [1, 2, 3], axis=0)
    found = Scaling.of(values, weight)
    np.testing.assert_allclose(found.center, repeated.mean(0))
    np.testing.assert_allclose(found.scale, [repeated[:, 0].std(), 1.0])  # a constant stays
    np.testing.assert_allclose(found.apply(repeated).mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found.apply(repeated)[:, 0].std(), 1)


def test_a_constant_that_is_not_one_to_rounding_keeps_its_scale():
    assert Scaling.of(np.full((7, 1), 0.1), np.full(7, 1 / 3)).scale == [1.0]
    assert Scaling.of(np.array([[1e6], [1e6 + 1]]), np.ones(2)).scale == [0.5]


@pytest.mark.parametrize(
    ("size", "steps", "expected"),
    [(1, 2, 1), (2, 2, 2), (3, 2, 3), (5, 2, 6), (7, 2, 8), (9, 2, 12), (1000, 2, 1024),
     (1025, 2, 1536), (9, 4, 10), (0, 2, 0)],
)  # fmt: skip
def test_sizes_are_few(size, steps, expected):
    assert padded_size(size, steps) == expected


def test_there_are_as_many_sizes_in_a_doubling_as_asked_for():
    for steps in (1, 2, 4, 8):
        assert len({padded_size(size, steps) for size in range(513, 1025)}) == steps


def test_padding_is_zeros_at_the_end():
    array = np.arange(1.0, 7).reshape(2, 3)
    assert padded(array, 3).tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert padded(array, 4, axis=1).tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]


def test_rounding_is_seen_where_values_repeat_on_a_grid():
    values = np.random.default_rng(0).normal(size=400)
    rounded = values.round(1)
    assert rounding(rounded) == pytest.approx(0.1 / 12**0.5)
    # What it says: the error of values rounded so; its standard error is 3 %.
    assert rounding(rounded) == pytest.approx((rounded - values).std(), rel=0.15)
    assert rounding(7 + 1e6 * rounded) == pytest.approx(1e5 / 12**0.5)
    assert rounding(rounded.astype(np.float32)) == pytest.approx(0.1 / 12**0.5, rel=1e-4)
    assert rounding(values) == 0
    # Many zeros among numbers, a grid without repetition, one value only.
    assert rounding(np.maximum(values, 0.8)) == 0
    assert rounding(np.arange(40.0)) == 0
    assert rounding(np.ones(9)) == 0


def test_just_as_far_off_a_grid_as_is_allowed_is_too_far(monkeypatch):
    monkeypatch.setattr(weighted_rows, "_ON_GRID", 0.25)
    assert rounding(np.repeat([0.0, 1.0, 3.25], 2)) == 0
    assert rounding(np.repeat([0.0, 1.0, 3.125], 2)) == pytest.approx(1 / 12**0.5)


def test_few_values_far_off_hide_the_rest():
    generator = np.random.default_rng(0)
    normal = generator.normal(size=300)
    coded, rare, heavy = normal.copy(), np.zeros(300), generator.lognormal(0, 3, 300)
    coded[[5, 70, 200]] = 999_999
    rare[7] = 1
    # Four codes in 300 rows are more than a hundredth: they are a level of their own.
    often = np.where(np.arange(300) < 4, 999_999, normal)
    table = np.column_stack([normal, coded, rare, heavy, often, np.ones(300)])
    assert hides_the_rest(table).tolist() == [False, True, False, False, False, False]
    assert hides_the_rest(1e-6 * table[:, 1:2] + 7)[0]
    assert not hides_the_rest(table[:9, 1:2])[0]


def test_units_that_cannot_be_squared_are_refused():
    values = np.random.default_rng(0).normal(size=(20, 2))
    for unit in (1e200, 1e-200):
        with pytest.raises(ValueError, match="choose other units"):
            Scaling.of(values * [1, unit], np.ones(20))
        with pytest.raises(ValueError, match="choose other units"):
            Scaling.of(unit * values[:, 0], np.ones(20))
    for unit in (1e100, 1e-100):
        np.testing.assert_allclose(
            Scaling.of(unit * values, np.ones(20)).scale, unit * values.std(0)
        )
