"""Chains of the network for classes."""

import numpy as np

from sghmc.estimators.mlp.curvature import activate
from sghmc.estimators.mlp.network import rescaled
from sghmc.estimators.rows import Scaling


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
