"""A NumPyro model's arguments and sites: rows, plates and axes, without compiling anything."""

import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.interop.numpyro import _differ
from sghmc.interop.numpyro_arguments import GivenArguments, Rows, Whole
from sghmc.interop.numpyro_model import INFER, Site, Structure, _by_example

MATRIX = np.arange(8.0, dtype=np.float32).reshape(4, 2)


def test_arguments_are_split_into_rows_and_what_is_left_whole():
    given = GivenArguments(
        (MATRIX, Rows(MATRIX.T, axis=1)), {"k": Whole(np.ones(4, np.float32)), "n": 4}
    )
    assert given.row_names(4) == ["args[0]", "args[1]"]
    arguments, rows = given.split(4)
    assert arguments.axes == (0, 1, None, None)
    assert [row.shape for row in rows] == [(4, 2), (4, 2)]
    np.testing.assert_array_equal(rows[1], MATRIX)
    args, kwargs = arguments.filled([rows[0][1:3], rows[1][1:3]])
    np.testing.assert_array_equal(args[0], MATRIX[1:3])
    np.testing.assert_array_equal(args[1], MATRIX.T[:, 1:3])
    assert (kwargs["k"].shape, kwargs["n"]) == ((4,), 4)
    whole, _ = given.whole().filled([])
    np.testing.assert_array_equal(whole[1], MATRIX.T)


def test_marks_that_do_not_fit_and_lists_are_named():
    with pytest.raises(ValueError, match=r"axis=1\) and has shape \(4, 2\), but there are 4"):
        GivenArguments((Rows(MATRIX, axis=1),), {}).split(4)
    assert GivenArguments(([1, 2.5], [3], (MATRIX, 1)), {"y": (1, 2)}).number_lists() == [
        "args[0]",
        "kwargs['y']",
    ]
    assert GivenArguments((np.array(3),), {}).leaves == [3]


def structure(observed, plates, subsampled=()):
    sites = {f"y{i}": Site("observed", around) for i, around in enumerate(observed)}
    sites["z"] = Site("latent", {"a": -2, "b": -1}, num_batch_axes=3)
    return Structure(sites, plates, dict.fromkeys(subsampled, 1), {})


def test_the_plate_that_counts_examples():
    given = GivenArguments((MATRIX,), {})
    plates = {"a": 4, "b": 7}
    assert structure([{"a": -1}, {}], plates).example_plate(INFER, given) == "a"
    both = structure([{"a": -2, "b": -1}], plates)
    assert both.example_plate(INFER, given) == "a"  # whose size an argument has
    assert both.example_plate("b", given) == "b"
    assert both.example_plate(None, given) is None
    chosen = structure([{"a": -2, "b": -1}], plates, ["b"])
    assert chosen.example_plate(INFER, given) == "b"  # which the model subsamples
    assert structure([{}], plates).example_plate(INFER, given) is None
    with pytest.raises(ValueError, match="different plates"):
        structure([{"a": -1}, {"b": -1}], plates).example_plate(INFER, given)
    with pytest.raises(ValueError, match="plate is 'c'"):
        both.example_plate("c", given)
    with pytest.raises(ValueError, match="both subsampled"):
        structure([{"a": -1}], plates, ["a", "b"]).example_plate(INFER, given)
    assert both.local_axes("a") == {"z": 1}
    assert both.local_axes("b") == {"z": 2}
    assert Site("latent", {"b": -1, "a": -2}, event_dims=("e",)).dims == ["a", "b", "e"]


def test_log_densities_are_summed_over_all_axes_but_that_of_examples():
    densities = jnp.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(_by_example("y", densities, -2, 3), densities.sum((0, 2)))
    for dim, count in ((-2, 4), (-4, 2)):
        with pytest.raises(ValueError, match=rf"On {count} example\(s\), site 'y' has .*\(2, 3, 4"):
            _by_example("y", densities, dim, count)


def test_log_densities_that_differ_by_more_than_rounding():
    infinity = np.float32(-np.inf)
    for x, y, expected in (
        (100.0, 100.09, False),
        (100.0, 100.12, True),
        (0.0, 0.0009, False),
        (0.0, -0.0011, True),
        (infinity, infinity, False),
        (np.nan, np.nan, False),
        (np.nan, 1.0, True),
        (infinity, 1.0, True),
    ):
        assert _differ(np.asarray(x, np.float32), np.asarray(y, np.float32)) is expected


def test_examples_along_the_last_of_three_axes():
    """Where an axis moved to the front and the front moved to an axis are not the same."""
    cube = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    arguments, (rows,) = GivenArguments((Rows(cube, axis=2),), {}).split(4)
    np.testing.assert_array_equal(rows, np.stack([cube[..., i] for i in range(4)]))
    (back,), _ = arguments.filled([rows[1:3]])
    np.testing.assert_array_equal(back, cube[..., 1:3])
