"""Whether chains agree where users look: in predictions."""

import dataclasses
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sghmc.results.convergence import autocorrelation_time

_LARGEST_RHAT = 1.2
"""Of new observations: chains that differ by two thirds of the spread that each of them expects."""
_LEAST_ACCEPTANCE = 0.3
_MORE = 4
"""Times as many steps are worth a try: the spread of chains falls by a quarter to a half."""
_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """What a fit says about itself.

    | field | meaning |
    | --- | --- |
    | `rhat` | R-hat over chains of new observations: mean, noise and all |
    | `rhat_mean` | R-hat over chains of the predicted mean alone |
    | `effective_size` | independent draws that the predicted mean is worth, median over rows |
    | `acceptance` | share of trajectories accepted by each chain; empty where no step asks |
    | `potential` | mean potential energy of each chain |
    | `temperature` | of the momenta where batches are used; 1 is right |
    | `num_replaced` | chains that exploration left behind, begun again where another was |
    | `apart` | how far a chain's mean is from that of all, over rows: root mean square |
    | `unit` | of `apart` |
    | `num_steps` | of each chain |

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
        """What is wrong and what to do about it, in words; empty: nothing was found."""
        found = []
        if not self.rhat < _LARGEST_RHAT:
            apart = "" if self.apart is None else f"; they are {self.apart:.2g} {self.unit} apart"
            found.append(
                f"chains predict different things (R-hat of observations {self.rhat:.2f}, above "
                f"{_LARGEST_RHAT}{apart}). Predictions average over chains, and their spread "
                f"includes what these disagree about: if it is too much, {self._more()}"
            )
        if self.acceptance and min(self.acceptance) < _LEAST_ACCEPTANCE:
            found.append(
                f"a chain accepts {min(self.acceptance):.0%} of its trajectories: {self._more()}, "
                f"or look for a target without noise"
            )
        return found

    def _more(self) -> str:
        """By number: who left the steps to the rows does not know how many there were."""
        if self.num_steps is None:
            return "take a larger num_steps"
        return f"take a larger num_steps, such as {_MORE * self.num_steps} for {self.num_steps}"

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
    """Places of the rows that predictions are judged at, evenly spaced."""
    return np.unique(np.linspace(0, num_rows - 1, min(_ROWS, num_rows)).astype(int))


def diagnose(location: np.ndarray, variance: np.ndarray, **others) -> Diagnostics:
    """From predicted means and variances of the noise, axes (chain, draw, row)."""
    return Diagnostics(
        rhat=rhat(location, variance),
        rhat_mean=rhat(location, np.zeros_like(variance)),
        effective_size=float(np.median(effective_size(location))),
        apart=float(np.sqrt(location.mean(1).var(0).mean())),
        **others,
    )


def rhat(location: np.ndarray, variance: np.ndarray) -> float:
    """√(1 + ΣB/ΣW) over rows: B of the chains' means, W the variance inside a chain.

    Each chain is cut in halves, so that one that drifts disagrees with itself.
    """
    half = location.shape[1] // 2
    parts = location if half == 0 else np.concatenate([location[:, :half], location[:, -half:]])
    inside = parts.var(1).mean(0) + variance.mean((0, 1))
    between = parts.mean(1).var(0, ddof=1) if len(parts) > 1 else np.zeros(location.shape[2])
    return float(np.sqrt(1 + between.sum() / max(inside.sum(), np.finfo(float).tiny)))


def effective_size(location: np.ndarray) -> np.ndarray:
    """Draws over their correlation time, and no more than chains that disagree leave over."""
    num_chains, num_draws, _ = location.shape
    if num_draws < 4:
        return np.full(location.shape[2], float(num_chains * num_draws))
    time = 2 * autocorrelation_time(np.moveaxis(location, -1, 0)) - 1
    return num_chains * num_draws / np.maximum(time, 1.0)
