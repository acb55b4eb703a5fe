"""A new sampler, added by the four moves of CONTRIBUTING.md alone, keeps the contract of all."""

import importlib.util
import pathlib
import re
from typing import Any

import pytest

import cases

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def contract(monkeypatch):
    """The contract tests, with the sampler of docs/extend.md among those that they draw from."""
    page = (ROOT / "docs" / "extend.md").read_text("utf-8")
    settings, kernel, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "four_moves"}
    exec(settings + kernel, names)  # moves 1 and 2; test_docs.py makes the third
    toy = names["LeimkuhlerMatthews"](0.05, temperature=0.8)
    for samplers in (cases.SAMPLERS, cases.RANDOM_SAMPLERS):  # move 4
        monkeypatch.setitem(samplers, "toy", toy)
    spec = importlib.util.spec_from_file_location("contract", HERE / "test_base.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow_cases("control variate")
@pytest.mark.parametrize("gradient", ["full", "minibatch", "epochs", "control variate"])
def test_it_keeps_structure_shapes_and_dtypes_with_every_gradient(contract, gradient):
    contract.test_any_pytree_keeps_its_structure_shapes_and_dtypes("toy", gradient)


@pytest.mark.slow_cases(
    "test_a_random_sampler_has_noise_of_its_own_in_every_step", "test_no_leaf_leaks_into_another"
)
@pytest.mark.parametrize(
    "name",
    [
        "test_a_random_sampler_has_noise_of_its_own_in_every_step",
        "test_no_leaf_leaks_into_another",
        "test_nothing_hides_a_gradient_that_is_not_a_number",
        pytest.param(
            "test_a_step_is_the_same_compiled_or_not_alone_or_among_chains", marks=pytest.mark.slow
        ),
    ],
)
def test_it_keeps_the_contract_of_all_samplers(contract, name):
    getattr(contract, name)("toy")


def test_the_moves_name_files_that_are_there():
    """Every path in the four moves exists: the instructions can be followed."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    moves = re.search(r"## How to add a sampler, in four moves\n(.*?)\n## ", text, re.DOTALL)
    assert moves is not None
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", moves[1])
    assert len(paths) >= 2
    for path in paths:
        assert any((root / path).exists() for root in (ROOT, ROOT / "src" / "sghmc")), path
