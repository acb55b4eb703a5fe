"""Settings that both networks have, checked before anything runs."""

from typing import Any

import numpy as np

from sghmc.estimators.number_network import ACTIVATIONS


def hidden_sizes(model: Any) -> tuple[int, ...]:
    sizes = model.hidden_layer_sizes
    return (int(sizes),) if isinstance(sizes, int | np.integer) else tuple(map(int, sizes))


def check_network(model: Any) -> None:
    """Of `hidden_layer_sizes`, `activation`, `num_steps` and `batch_size`."""
    if model.activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, but is {model.activation!r}."
        )
    if not isinstance(model.num_steps, int | np.integer) or model.num_steps < 2:
        raise ValueError(f"num_steps must be a whole number from 2, but is {model.num_steps!r}.")
    if model.hidden_layer_sizes != "auto" and any(size < 1 for size in hidden_sizes(model)):
        raise ValueError(
            f"hidden_layer_sizes must be positive, but is {model.hidden_layer_sizes!r}."
        )
    size = model.batch_size
    if size is not None and (not isinstance(size, int | np.integer) or size < 1):
        raise ValueError(f"batch_size must be None or a whole number from 1, but is {size!r}.")
