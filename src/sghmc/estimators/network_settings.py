"""Settings that both networks have, checked before anything runs."""

from typing import Any

import numpy as np

from sghmc.estimators.number_network import ACTIVATIONS


def hidden_sizes(model: Any) -> tuple[int, ...]:
    sizes = model.hidden_layer_sizes
    return (int(sizes),) if isinstance(sizes, int | np.integer) else tuple(map(int, sizes))


def check_network(model: Any, may_be_auto: bool = False) -> None:
    """Of `hidden_layer_sizes`, `activation`, `num_steps` and `batch_size`."""
    if model.activation not in ACTIVATIONS:
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, but is {model.activation!r}."
        )
    steps, sizes, size = model.num_steps, model.hidden_layer_sizes, model.batch_size
    auto, or_auto = ("auto", '"auto" or ') if may_be_auto else (None, "")
    if not _is(steps, auto) and (not isinstance(steps, int | np.integer) or steps < 2):
        raise ValueError(f"num_steps must be {or_auto}a whole number from 2, but is {steps!r}.")
    is_text = isinstance(sizes, str)
    if not _is(sizes, auto) and (is_text or any(each < 1 for each in hidden_sizes(model))):
        raise ValueError(f"hidden_layer_sizes must be {or_auto}positive, but is {sizes!r}.")
    if size is not None and (not isinstance(size, int | np.integer) or size < 1):
        raise ValueError(f"batch_size must be None or a whole number from 1, but is {size!r}.")


def _is(value: Any, word: str | None) -> bool:
    return isinstance(value, str) and value == word
