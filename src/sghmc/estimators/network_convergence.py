"""Convergence of a network: its chains should agree in their predictions."""

import dataclasses
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sghmc.results.convergence import by_quantity, effective_size, pooled_r_hat

_MAX_RHAT = 1.2
"""Largest R-hat of observations: the means of chains differ by two thirds of a chain's own standard
deviation."""
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
            message = f"The fit has not converged: {'; '.join(self.troubles)}."
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
