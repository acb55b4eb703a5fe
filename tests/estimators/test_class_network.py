"""Chains of the network for classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.estimators import class_network
from sghmc.estimators.class_network import RoundPlan, rescaled
from sghmc.estimators.networks import activate
from sghmc.estimators.weighted_rows import Scaling, WeightedRows
from sghmc.results.samples import DivergenceError


def test_new_scalings_leave_a_chains_function_as_it_was():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(7, 3))
    sizes = [(4, 5), (5, 1)]
    layers = [
        {"weight": generator.normal(size=(2, *size)), "bias": generator.normal(size=(2, size[1]))}
        for size in sizes
    ]

    def function(layers, inputs):
        rows = np.column_stack([inputs.apply(x) / np.sqrt(3), np.zeros(7)])
        hidden, _ = activate("relu", rows @ layers[0]["weight"] + layers[0]["bias"][:, None])
        return hidden @ layers[1]["weight"] + layers[1]["bias"][:, None]

    old = Scaling(np.zeros(3), np.ones(3))
    new = Scaling(np.array([1, 2, 3.0]), np.array([2, 1, 4.0]))
    moved = rescaled(layers, old, new)
    np.testing.assert_allclose(function(moved, new), function(layers, old), rtol=1e-5)


def test_half_of_the_steps_warm_up():
    assert RoundPlan.of(50, 2000, 7, False) == RoundPlan(10, 20, 5, 5, 7, False)
    assert RoundPlan.of(25, 2000, 7, True) == RoundPlan(9, 37, 4, 3, 7, True)
    assert RoundPlan.of(50, 10, 7, False) == RoundPlan(10, 1, 1, 5, 7, False)
    assert RoundPlan.of(50, 2000, 7, False).trial() == RoundPlan(10, 20, 5, 2, 7, False)
    assert RoundPlan.of(50, 2000, 7, False).settling() == RoundPlan(10, 20, 3, 5, 7, False)


@pytest.mark.parametrize(("name", "gain"), [("relu", 2.0), ("tanh", 1.0), ("silu", 2.8)])
def test_activations_keep_sizes(name, gain):
    """On the device and on the host: gain / width inside the root."""
    z = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    plain = {"relu": np.maximum(z, 0), "tanh": np.tanh(z), "silu": z / (1 + np.exp(-z))}[name]
    wanted = plain * np.sqrt(gain / 3)
    np.testing.assert_allclose(class_network._ACTIVATIONS[name](jnp.asarray(z)), wanted, rtol=1e-5)
    np.testing.assert_allclose(activate(name, z)[0], wanted, rtol=1e-5)


def test_rows_are_padded_and_scaled_to_a_sum_of_squares_of_one():
    of = class_network.Network.__new__(class_network.Network)
    of.num_inputs = 5
    x, weight = np.arange(15.0).reshape(3, 5), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = of._prepared(WeightedRows(x, np.array([0, 2, 1]), weight), 6)
    np.testing.assert_allclose(found.x[:3, :5], x / np.sqrt(5), rtol=1e-6)
    assert found.x.shape == (4, 6)
    assert (found.x[3].tolist(), found.x[:, 5].tolist()) == ([0] * 6, [0] * 4)
    assert found.y.tolist() == [0, 2, 1, 0]
    assert found.weight.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0]]


def test_masses_are_the_largest_curvatures_and_fall_by_half_at_most(monkeypatch):
    """Of likelihood and prior, over chains; weights of some rows count for all."""
    seen = []

    def largest(params, rows, activation):
        seen.append((params[0]["bias"], rows.weight.sum()))
        return [{"weight": float(params[0]["bias"][0]), "bias": 3.0}]

    monkeypatch.setattr(class_network, "largest_curvatures", largest)
    monkeypatch.setattr(class_network, "_NUM_CURVATURE_ROWS", 2)
    of = class_network.Network.__new__(class_network.Network)
    of.activation = "relu"
    of.rows = WeightedRows(np.ones((4, 2)), np.zeros(4), np.array([[1.0] * 4, [2.0] * 4]))
    prior = {"0.weight": np.array([0.5, 0.25]), "0.bias": np.array([2.0, 4.0])}
    chains = class_network.ClassChains([{"bias": np.array([[7.0], [9.0]])}], {"prior": prior})
    assert of._masses(chains, None) == [{"weight": 9.5, "bias": 7.0}]
    # Two of four rows, with the weight of all.
    assert [total for _, total in seen] == [4, 8]
    before = [{"weight": 100.0, "bias": 8.0}]
    assert of._masses(chains, before) == [{"weight": 50.0, "bias": 7.0}]


def test_a_run_that_diverges_is_done_again_with_half_the_step():
    of, steps = class_network.Network.__new__(class_network.Network), []

    def attempt(key, chains, plan, step_size):
        steps.append(step_size)
        if len(steps) < enough:
            raise DivergenceError("away", samples=None)  # pyright: ignore[reportArgumentType]
        return "found"

    of._attempt = attempt  # pyright: ignore[reportAttributeAccessIssue]
    enough = 3
    assert of.run(jax.random.key(0), None, None) == "found"  # pyright: ignore
    assert steps == [0.3, 0.15, 0.075]
    steps.clear()
    enough = 99
    with pytest.raises(DivergenceError):
        of.run(jax.random.key(0), None, None)  # pyright: ignore[reportArgumentType]
    assert len(steps) == 8
