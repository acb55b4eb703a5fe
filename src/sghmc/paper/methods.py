"""The paper's four methods, as Fig. 4 and Table 1 run them: settings, scores, comparisons."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper
from sghmc.results.samples import Samples
from sghmc.samplers import Sampler
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.optimizers import SGD, Momentum
from sghmc.samplers.sghmc import SGHMC

_CONFIDENCE_LEVEL = 0.95
_ROUNDING = 1e-12
"""Relative standard deviation up to which differences count as equal: it is rounding."""


def mean_and_sd(values: np.ndarray) -> dict[str, float]:
    """Return mean and standard deviation, which is 0 for a single value."""
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sd": sd}


def compare(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """Return the mean difference, its 95 % interval and p-value by the paired t-test.

    The difference is positive where the reference is smaller. Interval and p-value are None for a
    single pair, and where all differences are equal.
    """
    from scipy import stats

    differences = np.subtract(values, reference)
    mean, count = float(differences.mean()), len(differences)
    if count < 2 or differences.std() <= _ROUNDING * np.abs(values).max():
        return {"difference": mean, "interval": None, "p_value": None}
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(_CONFIDENCE_LEVEL)
    return {
        "difference": mean,
        "interval": [float(low), float(high)],
        "p_value": float(test.pvalue),  # pyright: ignore[reportAttributeAccessIssue]
    }


LABELS = {"sgd": "SGD", "momentum": "SGD with momentum", "sgld": "SGLD", "sghmc": "SGHMC"}
SHORT = LABELS | {"momentum": "momentum"}
"""Short names for tables of 80 columns."""
OPTIMIZERS = ("sgd", "momentum")
COLORS = {
    "sgd": paper.SKY,
    "momentum": paper.COLORS["green"],
    "sgld": paper.COLORS["blue"],
    "sghmc": paper.COLORS["red"],
}
OURS = paper.PURPLE
"""Color of a setting of our own."""


@dataclasses.dataclass(frozen=True)
class MethodSettings:
    """Step sizes as in the supplement: factors before the gradient of the whole potential.

    SGHMC and momentum share `momentum_decay`, the optimizers `regularizer`.
    """

    sgd: float
    momentum: float
    sgld: float
    sghmc: float
    momentum_decay: float
    regularizer: float

    def sampler(self, name: str, num_quiet_steps: int) -> Sampler:
        """Return one of the four methods; samplers have no noise in their first steps."""
        warm, decay = warm_after(num_quiet_steps), self.momentum_decay
        return {
            "sgd": lambda: SGD(self.sgd),
            "momentum": lambda: Momentum(self.momentum, decay),
            "sgld": lambda: SGLD(self.sgld, temperature=warm),
            "sghmc": lambda: SGHMC.from_learning_rate(self.sghmc, decay, temperature=warm),
        }[name]()

    def of(self, name: str) -> dict[str, float]:
        """Return the settings that this method uses."""
        used = {"step": getattr(self, name)}
        if name in ("momentum", "sghmc"):
            used["momentum_decay"] = self.momentum_decay
        if name in OPTIMIZERS:
            used["regularizer"] = self.regularizer
        return used


def is_cut(config: Any) -> bool:
    """Return whether a run is cut short: there is no accelerator, and `full` is not set."""
    return not config.full and jax.default_backend() == "cpu"


def warm_after(num_quiet_steps: int, temperature: float = 1.0) -> Callable:
    """Return a temperature schedule without noise in the first steps, as the authors' scripts."""
    return lambda t: jnp.where(t < num_quiet_steps, 0.0, temperature)


def kept(
    name: str,
    score_draw: Callable,
    averages: Mapping[str, Callable],
    score_average: Callable,
) -> dict[str, Any]:
    """Return arguments of `sample` that score an optimizer's iterates or a sampler's averages."""
    if name in OPTIMIZERS:
        return {"keep": score_draw}
    return {
        "keep": lambda params, hyper: (),
        "averages": dict(averages),
        "trace": score_average,
    }


def over_time(name: str, samples: Samples) -> Any:
    """Return the scores at each draw of a run with the arguments of `kept`."""
    return samples.positions if name in OPTIMIZERS else samples.trace
