"""Silent broadcasting between ranks and reused random keys are errors in every test.

A test that needs a package which is not installed is skipped, and says so.
"""

import importlib.util
import os
import pathlib
import resource

import jax
import pytest

import type_checks

if "SGHMC_CHECK_TYPES" in os.environ:  # before anything imports sghmc
    type_checks.install()

from cases import SLOW_SAMPLERS

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

_MOST_BYTES = 1_500_000_000
"""Of a process, before the compiled programs of a file's tests are dropped."""


def pytest_addoption(parser):
    parser.addoption(
        "--soak", type=float, default=0, help="Seconds of random runs; 0: a fixed few."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases that `slow_cases` names as slow, and contract tests of some samplers."""
    named, found = {}, {}
    for item in items:
        call = getattr(item, "callspec", None)
        if call is None:
            continue
        if any(str(value) in SLOW_SAMPLERS for value in call.params.values()):
            item.add_marker(pytest.mark.slow)
        for marker in item.iter_markers("slow_cases"):
            test = item.nodeid.partition("[")[0]
            named.setdefault(test, set()).update(marker.args)
            found.setdefault(test, set()).add(call.id)
            if call.id in marker.args:
                item.add_marker(pytest.mark.slow)
    for test, cases in named.items():
        # One case that was asked for by its name is not the whole list.
        if len(found[test]) > 1 and not cases <= found[test]:
            raise pytest.UsageError(f"{test} has no cases {sorted(cases - found[test])}.")


@pytest.fixture(autouse=True, scope="module")
def not_all_programs_at_once():
    """Compiled programs of all tests together would be gigabytes.

    `benchmarks/random_faults.py` has them dropped after every file: what is traced again runs its
    lines again, and coverage then sees which files test them.
    """
    yield
    if _resident_bytes() > _MOST_BYTES or "SGHMC_TESTS_FORGET" in os.environ:
        jax.clear_caches()


def _resident_bytes() -> int:
    try:
        pages = pathlib.Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:  # not Linux: at its most, which comes to the same
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(pages) * resource.getpagesize()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from _skipped_without_packages())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from _skipped_without_packages())


def _skipped_without_packages():
    try:
        return (yield)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not library or importlib.util.find_spec(library) is not None:
            raise
        pytest.skip(f"{library} is not installed")
