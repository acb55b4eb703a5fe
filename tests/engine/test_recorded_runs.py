"""Results are those that were recorded, to rounding: on every machine, for every kind of run."""

import json
import pathlib
import runpy

import numpy as np
import pytest

import recorded_runs
from recorded_runs import QUICK, differences, stored

RECORDED = json.loads(recorded_runs.PATH.read_text("utf-8"))
RUNS = recorded_runs.by_name()


def named(is_quick: bool, num_devices: int = 1) -> list[str]:
    return [
        name
        for name, run in RUNS.items()
        if (name in QUICK) == is_quick and run.num_devices == num_devices
    ]


def check(name, found):
    assert not isinstance(found, str), found
    assert differences(RECORDED[name], found, RUNS[name].tolerance) == []


@pytest.mark.parametrize("name", named(is_quick=True))
def test_results_are_those_that_were_recorded(name):
    check(name, RUNS[name].results())


@pytest.mark.slow
@pytest.mark.parametrize("name", named(is_quick=False))
def test_results_are_those_that_were_recorded_slowly(name):
    check(name, RUNS[name].results())


@pytest.fixture(scope="module")
def on_two_devices():
    names = named(is_quick=False, num_devices=2)
    return recorded_runs.results_elsewhere(names, num_devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", named(is_quick=False, num_devices=2))
def test_results_on_two_devices_are_those_that_were_recorded(name, on_two_devices):
    """`on_two_devices` has arrays by their path already."""
    found = on_two_devices[name]
    assert not isinstance(found, str), found
    recorded = {f"[{path!r}]": array for path, array in RECORDED[name].items()}
    assert differences(recorded, found, RUNS[name].tolerance) == []


def test_all_runs_are_recorded_and_none_besides():
    assert {name for name in RECORDED if not name.startswith("torch ")} == RUNS.keys()
    assert RUNS.keys() >= QUICK


def test_a_difference_beyond_the_tolerance_is_found():
    """Relative to the root mean square, 2; what is not a real number must be equal."""
    array, flags = np.full((2, 30), 2.0), np.array([True, False])
    recorded = {"[0]": stored(array), "[1]": stored(flags)}
    assert differences(recorded, (array * (1 + 0.9e-4), flags), 1e-4) == []
    assert len(differences(recorded, (array * (1 + 1.1e-4), flags), 1e-4)) == 2
    last = array.copy()
    last[-1, -1] += 0.1
    assert any("some[23] is 2.1" in words for words in differences(recorded, (last, flags), 1e-3))
    assert differences(recorded, (array, ~flags), 1.0)
    assert "shape" in differences(recorded, (array[:1], flags), 1.0)[0]
    assert "type" in differences(recorded, (array.astype(np.float32), flags), 1.0)[0]
    assert "arrays are" in differences(recorded, (array,), 1.0)[0]
    array[0, 0] = np.nan
    assert differences(recorded, (array, flags), 1.0)
    assert differences({"[0]": stored(array)}, (array,), 0.0) == []


def test_the_script_for_bits_finds_the_last_bit():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "same_bits.py"
    compared = runpy.run_path(str(path))["compared"]
    ones = np.ones((2, 3), np.float32)
    other = ones.copy()
    other[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    assert compared({"a": ones, "b": ones}, {"a": ones.copy(), "b": ones}) == "equal"
    assert compared({"a": ones, "b": ones}, {"a": ones, "b": other}) == "1.19e-07 in b"
    assert compared({"a": ones}, {"a": ones * np.nan}) == "inf in a"
    assert compared({"a": 0 * ones}, {"a": -0 * ones}) == "equal"
    assert compared({"a": 0 * ones}, {"a": 0 * -ones}) == "0 in a"
    assert "float64" in compared({"a": ones}, {"a": ones.astype(np.float64)})
    assert compared({"a": ones}, {"a": ones, "b": ones}) == "other arrays: b"
    assert compared("ValueError: no", "ValueError: no").startswith("error")
