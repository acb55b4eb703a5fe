"""Runs over the devices of a mesh: tests of two other files, in a process that has four."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SUPPORT = pathlib.Path(__file__).parents[1] / "support"
FILES = {
    each.name: path
    for path in (SUPPORT / "on_four_devices.py", SUPPORT / "rules_on_four_devices.py")
    for each in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
}
SLOW = [name for name in FILES if name.startswith("test_slow_")]


def run(names: list[str]) -> dict[str, str]:
    """What became of these tests, by name, with all that was said of them."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    # Slow samplers too, which the usual options leave out.
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-o", "addopts="]
    done = subprocess.run(
        [
            *command,
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-p",
            "no:benchmark",
            *(f"{FILES[name]}::{name}" for name in names),
        ],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=SUPPORT.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes: dict[str, str] = {}
    for word, name in re.findall(r"^([A-Z]+) \S*::(\w+)", done.stdout, re.MULTILINE):
        is_good = word == "PASSED" and outcomes.get(name, word) == word
        outcomes[name] = word if is_good else done.stdout
    return {name: outcomes.get(name, done.stdout + done.stderr) for name in names}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run([name for name in FILES if name not in SLOW])


@pytest.fixture(scope="module")
def slow_outcomes() -> dict[str, str]:
    return run(SLOW)


@pytest.mark.slow_cases("test_chains_spread_over_devices_are_the_same_bit_for_bit")
@pytest.mark.parametrize("name", [name for name in FILES if name not in SLOW])
def test_on_four_devices(name, outcomes):
    assert outcomes[name] == "PASSED", outcomes[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_on_four_devices_slowly(name, slow_outcomes):
    assert slow_outcomes[name] == "PASSED", slow_outcomes[name]
