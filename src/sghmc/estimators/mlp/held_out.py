"""How sure to be, as rows tell that were not seen."""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from sghmc.estimators.classifier import softmax

_CLEAR_ERRORS, _CLEAR_GAIN = 2.0, 3.0
"""By how many standard errors, and by how much in all, another setting must beat the usual one.

Where all held-out labels are easy, to be surer is a sure gain, though one hard row would undo it:
hence the second condition. It is a likelihood ratio of 20.
"""
_SHARPNESS_SPREAD = 0.5


def random_parts(y: np.ndarray, num_parts: int) -> np.ndarray:
    """A part for each row, at random, every class spread over all of them."""
    part = np.empty(len(y), int)
    order = np.lexsort((np.random.default_rng(0).random(len(y)), y))
    part[order] = np.arange(len(y)) % num_parts
    return part


def clearly_likeliest(logs: dict[Any, np.ndarray], usual: Any) -> Any:
    """The setting with the likeliest rows, of the usual one and those clearly better than it."""

    def is_better(setting: Any) -> bool:
        gains = logs[setting] - logs[usual]
        error = gains.std() * len(gains) ** 0.5
        return gains.sum() > max(_CLEAR_ERRORS * error, _CLEAR_GAIN)

    better = [setting for setting in logs if is_better(setting)]
    return max([usual, *better], key=lambda setting: logs[setting].sum())


class HeldOut(NamedTuple):
    """Logarithms of the class probabilities of rows that were not seen, their labels and weights.

    With sharpness s probabilities are p^s / Σ p^s, and log s ~ N(0, 0.5²): without a prior, rows
    that are all right would ask for an infinite s.
    """

    logs: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    def log_likelihoods(self, s: float) -> np.ndarray:
        p = softmax(s * self.logs)[np.arange(len(self.y)), self.y]
        return self.weight * np.log(np.maximum(p, np.finfo(float).tiny))

    def likeliest_sharpness(self) -> float:
        def potential(log_s: float) -> float:
            prior = 0.5 * (log_s / _SHARPNESS_SPREAD) ** 2
            return prior - float(self.log_likelihoods(np.exp(log_s)).sum())

        found: Any = minimize_scalar(potential, bounds=(-3, 3), method="bounded")
        return float(np.exp(found.x))
