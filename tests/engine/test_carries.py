"""Which parts of a carry are like parameters, and how they are saved where these keep shapes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import marked
from marked import MarkedState
from sghmc.engine import devices
from sghmc.engine.layout import Layout, LoopState
from sghmc.types import StepInfo

MESH = AbstractMesh((2,), ("model",))
NUM_CHAINS = 3


def layout(like=marked.LIKE):
    where = NamedSharding(MESH, P())
    return Layout.of(like, NUM_CHAINS, (where,) * len(jax.tree.leaves(like)))


def chains(tree=marked.LIKE, *lead):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=(NUM_CHAINS, *lead, *leaf.shape)), tree)


def marks(part, is_like):
    return "like" if is_like else "other"


def test_a_part_is_like_parameters_in_structure_and_in_shape():
    state = MarkedState(chains(), chains(marked.LIKE, 5))
    assert devices.by_parts(layout(), state, marks) == MarkedState("like", "like")
    other = chains() | {"a": np.zeros((NUM_CHAINS, 3, 2))}
    found = devices.by_parts(layout(), {"x": other, "y": np.zeros(NUM_CHAINS)}, marks)
    assert found == {"x": {"a": "other", "b": "other"}, "y": "other"}


def test_a_number_of_each_chain_is_no_vector_of_parameters():
    """Where there are as many chains as parameters, their shapes are the same."""
    vector = jnp.zeros(NUM_CHAINS)
    found = devices.by_parts(
        layout(vector), {"x": chains(vector), "failed_at": np.zeros(NUM_CHAINS)}, marks
    )
    assert found == {"x": "like", "failed_at": "other"}


def test_nothing_is_like_parameters_that_are_raveled_anyway():
    whole = dataclasses.replace(layout(), shardings=None)
    assert devices.by_parts(whole, chains(), marks) == {"a": "other", "b": "other"}


def carry():
    state = MarkedState(chains(), np.arange(NUM_CHAINS))
    sums, failed = chains(), np.zeros(NUM_CHAINS)
    return LoopState(None, state, None, (), None, sums, StepInfo(None), failed)  # pyright: ignore


@pytest.mark.parametrize("lead", [(), (5,)])
def test_a_state_is_saved_raveled_and_comes_back(lead):
    given = carry()._replace(state=MarkedState(chains(marked.LIKE, *lead), np.arange(NUM_CHAINS)))
    saved = devices.raveled(layout(), given)
    assert saved.state.position["a"].shape == (NUM_CHAINS, *lead, 6)
    assert saved.state.position["b"].shape == (NUM_CHAINS, *lead, 1)
    wanted = given.state.position["a"].reshape(NUM_CHAINS, *lead, 6)
    np.testing.assert_array_equal(saved.state.position["a"], wanted)
    assert saved.state.momentum.shape == (NUM_CHAINS,)
    assert saved.sums["a"].shape == (NUM_CHAINS, 2, 3)  # the state alone is turned
    back = devices.in_shape(layout(), saved)
    jax.tree.map(np.testing.assert_array_equal, back.state, given.state)


def test_what_is_no_carry_or_raveled_anyway_stays():
    whole, given = dataclasses.replace(layout(), shardings=None), carry()
    assert devices.raveled(whole, given) is given
    assert devices.in_shape(layout(), given.state) is given.state
