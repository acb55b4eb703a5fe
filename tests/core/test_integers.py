import jax
import numpy as np
import pytest

from sghmc.core.checks import as_array, check_fit, held, held_type


def test_masked_entries_are_no_numbers():
    """What stands below a mask would be taken for data."""
    masked = np.ma.masked_array([1.0, -999.0], [False, True])
    with pytest.raises(ValueError, match="The data have masked entries: fill them"):
        as_array(masked, "The data")
    assert as_array(masked[:1], "The data").tolist() == [1.0]


@pytest.mark.parametrize(
    ("kind", "number"),
    [("int64", 2**31), ("int64", -(2**31) - 1), ("uint64", 2**32), ("uint64", 2**64 - 1)],
)
def test_whole_numbers_that_would_wrap_are_refused(kind, number):
    with pytest.raises(ValueError, match=f"The ids hold {number}, which .*int32 cannot: give"):
        held(np.array([1, number], kind), "The ids")


@pytest.mark.parametrize(
    ("kind", "numbers", "found"),
    [
        ("int64", [2**31 - 1, -(2**31)], "int32"),
        ("uint64", [2**32 - 1, 0], "uint32"),
        ("uint32", [2**32 - 1], "uint32"),
        (">i8", [7, -7], "int32"),
        ("int16", [-3], "int16"),
        ("float64", [1e300], "float32"),
        ("bool", [True], "bool"),
        ("int64", [], "int32"),
    ],
)
def test_others_are_held_as_jax_would(kind, numbers, found):
    with np.errstate(over="ignore"):
        array = held(np.array(numbers, kind), "The ids")
    assert array.dtype == found
    if found != "float32":
        assert array.tolist() == numbers


def test_with_64_bits_everything_fits():
    with jax.enable_x64(True):
        assert held_type(np.dtype(">i8")) == np.int64
        assert held(np.array([2**40]), "The ids").tolist() == [2**40]


def test_the_error_is_the_callers_own():
    class Own(ValueError):
        pass

    with pytest.raises(Own):
        check_fit(np.array([300]), np.dtype("int8"), "The ids", Own)
