"""Seeds of two methods compared in pairs.

What Fig. 4 and Table 1 share: the paper's four methods, what is kept of them, their settings.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.paper import pages
from sghmc.results.samples import Samples
from sghmc.samplers import Sampler
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.optimizers import SGD, Momentum
from sghmc.samplers.sghmc import SGHMC

_LEVEL = 0.95
_ROUNDING = 1e-12
"""Differences that vary less, relative to the values, are equal: their spread is rounding."""


def mean_and_sd(values: np.ndarray) -> dict[str, float]:
    """One value has no spread."""
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sd": sd}


def compare(values: Sequence[float], reference: Sequence[float]) -> dict[str, Any]:
    """The mean difference, its 95 % interval and p-value by the paired t-test.

    Positive where the reference is smaller. The last two are None where there is no spread to judge
    by.
    """
    from scipy import stats

    differences = np.subtract(values, reference)
    mean, count = float(differences.mean()), len(differences)
    if count < 2 or differences.std() <= _ROUNDING * np.abs(values).max():
        return {"difference": mean, "interval": None, "p_value": None}
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(_LEVEL)
    return {
        "difference": mean,
        "interval": [float(low), float(high)],
        "p_value": float(test.pvalue),  # pyright: ignore[reportAttributeAccessIssue]
    }


# What Fig. 4 and Table 1 share: the paper's four methods, what is kept of them, their settings.

LABELS = {"sgd": "SGD", "momentum": "SGD with momentum", "sgld": "SGLD", "sghmc": "SGHMC"}
SHORT = LABELS | {"momentum": "momentum"}
"""For tables of 80 columns."""
OPTIMIZERS = ("sgd", "momentum")
COLORS = {
    "sgd": pages.SKY,
    "momentum": pages.COLORS["green"],
    "sgld": pages.COLORS["blue"],
    "sghmc": pages.COLORS["red"],
}
OURS = pages.PURPLE
"""The color of a recipe of our own."""


@dataclasses.dataclass(frozen=True)
class MethodSettings:
    """Step sizes, factors before the gradient of the whole potential as in the supplement.

    SGHMC and momentum share `momentum_decay`, the optimizers `regularizer`.
    """

    sgd: float
    momentum: float
    sgld: float
    sghmc: float
    momentum_decay: float
    regularizer: float

    def sampler(self, name: str, num_quiet_steps: int) -> Sampler:
        """One of the four; the samplers without noise in their first steps."""
        warm, decay = warm_after(num_quiet_steps), self.momentum_decay
        return {
            "sgd": lambda: SGD(self.sgd),
            "momentum": lambda: Momentum(self.momentum, decay),
            "sgld": lambda: SGLD(self.sgld, temperature=warm),
            "sghmc": lambda: SGHMC.from_learning_rate(self.sghmc, decay, temperature=warm),
        }[name]()

    def of(self, name: str) -> dict[str, float]:
        """What one of the four uses of these."""
        used = {"step": getattr(self, name)}
        if name in ("momentum", "sghmc"):
            used["momentum_decay"] = self.momentum_decay
        if name in OPTIMIZERS:
            used["regularizer"] = self.regularizer
        return used


def is_cut(config: Any) -> bool:
    """Whether a run is cut short: there is no accelerator, and nobody asked for all of it."""
    return not config.full and jax.default_backend() == "cpu"


def warm_after(num_quiet_steps: int, temperature: float = 1.0) -> Callable:
    """The temperature as a schedule: as in the authors' scripts, the first steps have no noise."""
    return lambda t: jnp.where(t < num_quiet_steps, 0.0, temperature)


def kept(
    name: str,
    score_draw: Callable,
    averages: Mapping[str, Callable],
    score_average: Callable,
) -> dict[str, Any]:
    """Arguments of `sample`: an optimizer's scores are its last iterate's, a sampler's those of
    the average prediction."""
    if name in OPTIMIZERS:
        return {"keep": score_draw}
    return {
        "keep": lambda params, hyper: (),
        "averages": dict(averages),
        "trace": score_average,
    }


def over_time(name: str, samples: Samples) -> Any:
    """The scores at each draw, of a run that was `kept`."""
    return samples.positions if name in OPTIMIZERS else samples.trace


def search(
    settings: MethodSettings,
    grids: Mapping[str, Sequence[Mapping[str, float]]],
    score: Callable[[MethodSettings, str], float],
) -> tuple[MethodSettings, dict[str, Any]]:
    """`settings` with each method's best, the lowest score, one after another; and all tries."""
    found: dict[str, Any] = {}
    for name, tries in grids.items():
        rows = [
            {**each, "score": score(dataclasses.replace(settings, **each), name)} for each in tries
        ]
        best = min(range(len(rows)), key=lambda i: rows[i]["score"])
        found[name] = {"tried": rows, "best": rows[best]}
        settings = dataclasses.replace(settings, **tries[best])
    return settings, found


def grid(**values: Sequence[float]) -> list[dict[str, float]]:
    """Every combination of the values of each field.

    >>> grid(sgd=[1.0, 2.0], regularizer=[4.0])
    [{'sgd': 1.0, 'regularizer': 4.0}, {'sgd': 2.0, 'regularizer': 4.0}]
    """
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def scaled(unit: float, *factors: float) -> list[float]:
    """Step sizes as the paper writes them: some factors of a power of ten."""
    return [unit * factor for factor in factors]
