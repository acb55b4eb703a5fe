"""Data and settings that the estimators' tests share."""

from typing import Any

import numpy as np
from sklearn.datasets import make_blobs

from sghmc.estimators.weighted_rows import Scaling

SMALL: dict[str, Any] = {"num_draws": 20, "num_chains": 2}

NETWORK: dict[str, Any] = {"hidden_layer_sizes": (8,), "num_steps": 200, **SMALL}
"""For networks of classes and of numbers: seconds, not an answer."""


def line(count: int = 30, num_inputs: int = 5):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, num_inputs)) * [1, 10, 0.1, 3, 1][:num_inputs]
    x[:, 1] += 8 * x[:, 0]
    return x, x @ [1, -0.5, 20, 0, 0.3][:num_inputs] + 4 + generator.normal(size=count)


def blobs(spread: float = 6.0) -> tuple[Any, Any]:
    x, y, *_ = make_blobs(60, 3, centers=3, cluster_std=spread, random_state=3)
    return x, y


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


def by_hand(model: Any, draws: dict[str, np.ndarray], **attributes) -> Any:
    """A model with given draws, as if it had been fitted to two standardized inputs."""
    model.draws_ = draws
    model.n_features_in_ = 2
    model.input_scaling_ = Scaling(np.zeros(2), np.ones(2))
    for name, value in attributes.items():
        setattr(model, name, value)
    return model
