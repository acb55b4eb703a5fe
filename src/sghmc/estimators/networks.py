"""Shared parts of both networks: settings, diagnostics, curvature, held-out choices."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.predictive import softmax
from sghmc.estimators.regression_network import ACTIVATIONS
from sghmc.estimators.weighted_rows import WeightedRows
from sghmc.results.convergence import by_quantity, effective_size, pooled_r_hat
from sghmc.types import PyTree


class BayesianNetwork(BayesianEstimator):
    """Base of the estimators with hidden layers, with checks of the settings that they share."""

    diagnostics_: dict[str, Any]
    may_be_auto = False
    """True if sizes and steps may be "auto", which depends on the number of rows."""

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

    def diagnostics(self) -> "Diagnostics":
        """Return whether chains agree in their predictions, and how their steps did."""
        check_is_fitted(self)
        return Diagnostics.of_plain(self.diagnostics_)

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


# Convergence: chains should agree in their predictions.

_MAX_RHAT = 1.2
"""Largest R-hat of observations: the means of chains differ by two thirds of a chain's own standard
deviation."""
_MAX_RHAT_MEAN = 5.0
"""Largest R-hat of means: it was up to 3.1 on UCI sets, and from 12 where the mean was wrong."""
_MIN_ACCEPTANCE = 0.3
_STEPS_FACTOR = 4
"""A fit with 4 times as many steps is worth a try: chains are then a quarter to a half closer."""
_MAX_JUDGED_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Convergence diagnostics of a fit.

    | field | meaning |
    | --- | --- |
    | `rhat` | R-hat over chains of new observations: mean, noise and all |
    | `rhat_mean` | R-hat over chains of the predicted mean alone |
    | `effective_size` | independent draws that the predicted mean is worth, median over rows |
    | `acceptance` | share of trajectories that each chain accepts; empty without accept step |
    | `potential` | mean potential energy of each chain |
    | `temperature` | temperature of the momenta with batches; 1 is right |
    | `num_replaced` | chains that were left behind and begun again where another was |
    | `apart` | root mean squared distance, over rows, of a chain's mean from that of all |
    | `unit` | unit of `apart` |
    | `num_steps` | steps of each chain |
    | `error_ratio` | squared error on held-out rows, relative to a constant's; None if not tried |
    | `watches_means` | whether a warning says that chains disagree about the mean |

    R-hats compare variances summed over rows. Weights of networks never agree, since units can
    change places; predictions should.
    """

    rhat: float
    rhat_mean: float
    effective_size: float
    acceptance: tuple[float, ...]
    potential: tuple[float, ...]
    temperature: float | None = None
    num_replaced: int = 0
    apart: float | None = None
    unit: str = "standard deviations of the target"
    num_steps: int | None = None
    error_ratio: float | None = None
    watches_means: bool = False

    @property
    def troubles(self) -> list[str]:
        """Return what is wrong and what to do about it, in words; empty if nothing was found."""
        found = []
        if not self.rhat < _MAX_RHAT:
            apart = "" if self.apart is None else f"; they are {self.apart:.2g} {self.unit} apart"
            found.append(
                f"chains predict different things (R-hat of observations {self.rhat:.2f}, above "
                f"{_MAX_RHAT}{apart}). Predictions average over chains, and their spread "
                f"includes what these disagree about: if it is too much, {self._more()}"
            )
        if self.watches_means and not self.rhat_mean < _MAX_RHAT_MEAN:
            found.append(
                f"chains disagree about the mean (R-hat of means {self.rhat_mean:.1f}, above "
                f"{_MAX_RHAT_MEAN:g}; {self.effective_size:.0f} effective draws), which may be far "
                f"off though the log-likelihood is good: {self._more()}, or try noise='constant'"
            )
        if self.error_ratio is not None and self.error_ratio >= 1:
            found.append(
                f"on rows held out for a trial the squared error is {self.error_ratio:.2f} times "
                f"that of a constant: leave out inputs that do not matter, or give more rows"
            )
        if self.acceptance and min(self.acceptance) < _MIN_ACCEPTANCE:
            found.append(
                f"a chain accepts {min(self.acceptance):.0%} of its trajectories: {self._more()}, "
                f"or look for a target without noise"
            )
        return found

    def _more(self) -> str:
        """Name a number of steps, which a user of "auto" does not know."""
        if self.num_steps is None:
            return "take a larger num_steps"
        more = _STEPS_FACTOR * self.num_steps
        return f"take a larger num_steps, such as {more} for {self.num_steps}"

    def __str__(self) -> str:
        lines = [
            f"R-hat of observations {self.rhat:.3f}, of means {self.rhat_mean:.3f}",
            f"effective size of predictions {self.effective_size:.0f}",
        ]
        if self.acceptance:
            lines.append(f"accept rate {np.mean(self.acceptance):.2f}")
        if self.temperature is not None:
            lines.append(f"temperature {self.temperature:.2f}")
        return "; ".join([*lines, *self.troubles])

    def warn(self) -> None:
        if self.troubles:
            message = f"Do not rely on this fit as it is: {'; '.join(self.troubles)}."
            warnings.warn(message, ConvergenceWarning, stacklevel=2)

    def plain(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of_plain(cls, fields: dict[str, Any]) -> "Diagnostics":
        tuples: dict[str, Any] = {name: tuple(fields[name]) for name in ("acceptance", "potential")}
        return cls(**(fields | tuples))


def judged_rows(num_rows: int) -> np.ndarray:
    """Return the numbers of the rows at which predictions are judged, evenly spaced."""
    return np.unique(np.linspace(0, num_rows - 1, min(_MAX_JUDGED_ROWS, num_rows)).astype(int))


def diagnose(location: np.ndarray, variance: np.ndarray, **others) -> Diagnostics:
    """Compare chains by predicted means and noise variances, axes (chain, draw, row)."""
    means, noise = by_quantity(location), by_quantity(variance)
    return Diagnostics(
        rhat=pooled_r_hat(means, noise),
        rhat_mean=pooled_r_hat(means, np.zeros_like(noise)),
        effective_size=float(np.median(effective_size(means))),
        apart=float(np.sqrt(location.mean(1).var(0).mean())),
        **others,
    )


# Curvature of the likelihood along each layer, which becomes its mass.
#
# On the host, in double precision and from some hundred rows: it is needed a few times a fit, for
# ever new shapes, and a compiled program for each would cost more than it saves.

_NUM_POWER_STEPS = 6


def activate(name: str, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the activation, scaled so that weights of size 1 keep sizes, and its derivative."""
    if name == "relu":
        factor = (2 / z.shape[-1]) ** 0.5
        return factor * np.maximum(z, 0), factor * (z > 0)
    if name == "silu":
        factor = (2.8 / z.shape[-1]) ** 0.5
        gate = 1 / (1 + np.exp(-np.clip(z, -500, None)))
        return factor * z * gate, factor * gate * (1 + z * (1 - gate))
    factor = (1 / z.shape[-1]) ** 0.5
    value = np.tanh(z)
    return factor * value, factor * (1 - value**2)


class Pass:
    """A forward pass, stored for products with its Jacobian and the transpose."""

    def __init__(self, params: PyTree, x: np.ndarray, activation: str):
        self.params = params
        self.inputs, self.slopes = [x], []
        for layer in params[:-1]:
            z = self.inputs[-1] @ layer["weight"] + layer["bias"]
            value, slope = activate(activation, z)
            self.inputs.append(value)
            self.slopes.append(slope)
        self.output = self.inputs[-1] @ params[-1]["weight"] + params[-1]["bias"]

    def forward(self, layer: int, tangent: np.ndarray) -> np.ndarray:
        """Return the change of the outputs with that of a layer's sums."""
        for i in range(layer, len(self.slopes)):
            tangent = (tangent * self.slopes[i]) @ self.params[i + 1]["weight"]
        return tangent

    def backward(self, layer: int, cotangent: np.ndarray) -> np.ndarray:
        for i in reversed(range(layer, len(self.slopes))):
            cotangent = (cotangent @ self.params[i + 1]["weight"].T) * self.slopes[i]
        return cotangent


def largest_curvatures(
    params: PyTree, rows: WeightedRows, activation: str
) -> list[dict[str, float]]:
    """Return the largest eigenvalue of each leaf's block of the Gauss–Newton matrix."""
    run = Pass(params, rows.x, activation)
    bend = _bend(run.output, rows.weight[:, None])
    ones = np.ones((len(rows.weight), 1))
    return [
        {
            "bias": _largest(run, i, ones, bend),
            "weight": _largest(run, i, run.inputs[i], bend),
        }
        for i in range(len(params))
    ]


def _bend(output: np.ndarray, weight: np.ndarray) -> Callable:
    """Return the likelihood's Hessian in the logits, as a map of vectors."""
    p = np.exp(output - output.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return lambda v: weight * p * (v - (p * v).sum(1, keepdims=True))


def _largest(run: Pass, layer: int, inputs: np.ndarray, bend: Callable) -> float:
    shape = (inputs.shape[1], run.params[layer]["bias"].size)
    vector, value = np.random.default_rng(0).normal(size=shape), 0.0
    for _ in range(_NUM_POWER_STEPS):
        vector /= np.linalg.norm(vector) + np.finfo(float).tiny
        outputs = run.forward(layer, inputs @ vector)
        vector = inputs.T @ run.backward(layer, bend(outputs))
        value = float(np.linalg.norm(vector))
    return value


# Choices by rows that were held out.

_CLEAR_ERRORS, _CLEAR_GAIN = 2.0, 3.0
"""Number of standard errors, and gain in all, by which another setting must beat the usual one.

Where all held-out labels are easy, to be surer is a sure gain, though one hard row would undo it:
hence the second condition. It is a likelihood ratio of 20.
"""
_SHARPNESS_SPREAD = 0.5


def random_parts(y: np.ndarray, num_parts: int) -> np.ndarray:
    """Assign each row to a part at random, every class spread over all parts."""
    part = np.empty(len(y), int)
    order = np.lexsort((np.random.default_rng(0).random(len(y)), y))
    part[order] = np.arange(len(y)) % num_parts
    return part


def clearly_likeliest(logs: dict[Any, np.ndarray], usual: Any) -> Any:
    """Return the setting with the likeliest rows, among the usual one and those clearly better."""

    def is_better(setting: Any) -> bool:
        gains = logs[setting] - logs[usual]
        error = gains.std() * len(gains) ** 0.5
        return bool(gains.sum() > max(_CLEAR_ERRORS * error, _CLEAR_GAIN))

    better = [setting for setting in logs if is_better(setting)]
    return max([usual, *better], key=lambda setting: logs[setting].sum())


class HeldOut(NamedTuple):
    """Log-probabilities of the classes of held-out rows, with their labels and weights.

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
