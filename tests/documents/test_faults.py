"""The lists of planted faults do not rot: each can still be planted, and its tests are there."""

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
mutants = runpy.run_path(str(ROOT / "benchmarks" / "mutants.py"))


def test_every_fault_can_be_planted():
    faults = mutants["read"]()
    mutants["check"](faults)
    assert len(faults) >= 150
    source = ROOT / "src" / "sghmc"
    folders = {path.relative_to(source).parts[0] for path in source.glob("*/**/*.py")}
    without = {"display"}  # it has no mathematics
    assert folders - {fault.file.partition("/")[0] for fault in faults} <= without


def test_one_that_was_mended_meanwhile_is_told():
    fault = mutants["read"]()[0]
    gone = type(fault)("gone", fault.file, "a line that is not there", "")
    with pytest.raises(SystemExit, match="stands 0 times"):
        mutants["check"]([gone])
