"""Settings that both networks have, checked before anything runs."""

from typing import Any

import numpy as np

from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.mlp.number_network import ACTIVATIONS


class BayesianNetwork(BayesianEstimator):
    """An estimator with hidden layers, whose chains take steps by batches."""

    may_be_auto = False
    """Whether sizes and steps may be left to the rows."""

    def __init__(
        self,
        hidden_layer_sizes: Any,
        activation: str,
        num_draws: int,
        num_chains: int,
        num_steps: int | str,
        batch_size: int | None,
        random_state: Any,
        progress: bool,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.num_steps: Any = num_steps
        self.batch_size = batch_size
        self.random_state = random_state
        self.progress = progress

    def _hidden_sizes(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return (int(sizes),) if isinstance(sizes, int | np.integer) else tuple(map(int, sizes))

    def _check_settings(self):
        super()._check_settings()
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, but is {self.activation!r}."
            )
        steps, sizes, size = self.num_steps, self.hidden_layer_sizes, self.batch_size
        auto, or_auto = ("auto", '"auto" or ') if self.may_be_auto else (None, "")
        if not _is(steps, auto) and (not isinstance(steps, int | np.integer) or steps < 2):
            raise ValueError(f"num_steps must be {or_auto}a whole number from 2, but is {steps!r}.")
        is_text = isinstance(sizes, str)
        if not _is(sizes, auto) and (is_text or any(each < 1 for each in self._hidden_sizes())):
            raise ValueError(f"hidden_layer_sizes must be {or_auto}positive, but is {sizes!r}.")
        if size is not None and (not isinstance(size, int | np.integer) or size < 1):
            raise ValueError(f"batch_size must be None or a whole number from 1, but is {size!r}.")


def _is(value: Any, word: str | None) -> bool:
    return isinstance(value, str) and value == word
