"""The supplement's second theorem: χ²(π̃, π) ≤ δc/λ where the gradient's noise is ignored, B̂ = 0.

The noise has covariance δV. At π̃ the error process, which changes χ² at the rate δ∂χ², and mixing,
which reduces it at the rate λχ², hold each other in balance. For V = C, π̃ ∝ exp(−H/(1 + δ/2)).
"""

import numpy as np
import scipy.linalg

from sghmc import theory
from sghmc.paper import pages
from sghmc.paper.theorems.statement import (
    FRICTION,
    GRADIENT_NOISE,
    MASS,
    PRECISION,
    ROUNDING,
    STEP_SIZES,
    ZERO,
    Checked,
    Statement,
    block_diagonal,
    middle_covariance,
    sampler,
)

_DELTAS = np.linspace(0.05, 1, 20)
_OTHER_NOISE = GRADIENT_NOISE / 4
"""A V that is no multiple of C, small enough that χ² is finite for every δ."""
_DIFFERENCE = 1e-6
"""Of the central differences that take ∂χ²; they are good to about 1e-7."""
_CHI_TOLERANCE, _BALANCE_TOLERANCE = 1e-9, 1e-4


def check() -> Checked:
    special, general = (_divergences(noise) for noise in (FRICTION, _OTHER_NOISE))
    closed = (1 - (_DELTAS / 2) ** 2) ** -2.0 - 1
    epsilon = float(STEP_SIZES[0])
    law = middle_covariance(sampler(epsilon, ZERO, 1.0), FRICTION)
    heat = np.trace(PRECISION @ law[:2, :2]) / 2
    balance = special["speed"] * _DELTAS / (special["rate"] * special["divergence"])
    worst = balance[np.abs(balance - 1).argmax()]
    largest = special["divergence"][-1]
    statements = [
        Statement("π̃ for V = C: temperature 1 + δ/2", heat, 1 + epsilon / 2, ROUNDING),
        Statement("χ² for V = C, largest δ", largest, closed[-1], _CHI_TOLERANCE),
        Statement("Thm S.2: δ∂χ²/λχ² at π̃, worst", worst, 1, _BALANCE_TOLERANCE),
        Statement("Thm S.2: χ²/bound, V = C, largest", _share(special), 1, 0, "<"),
        Statement("Thm S.2: χ²/bound, other V, largest", _share(general), 1, 0, "<"),
    ]
    curve = {
        "deltas": _DELTAS.tolist(),
        "special": special["divergence"].tolist(),
        "closed_form": closed.tolist(),
        "bound": _bound(special).tolist(),
    }
    return Checked(statements, curve)


def _divergences(noise: np.ndarray) -> dict[str, np.ndarray]:
    """For each δ, at π̃: χ², how fast the error process changes it, at what rate mixing does."""
    inverse_mass = np.linalg.inv(MASS)
    flow = np.block([[ZERO, inverse_mass], [-PRECISION, -FRICTION @ inverse_mass]])
    exact = block_diagonal(np.linalg.inv(PRECISION), MASS)
    spread, error = (block_diagonal(ZERO, part) for part in (2 * FRICTION, noise))
    found = {"divergence": [], "speed": [], "rate": []}
    for delta in _DELTAS:
        law = np.asarray(scipy.linalg.solve_continuous_lyapunov(flow, -spread - delta * error))
        divergence = theory.chi_squared(law, exact)
        mixing = _slope(law, flow @ law + law @ flow.T + spread, exact)
        found["divergence"].append(divergence)
        found["speed"].append(_slope(law, error, exact))
        found["rate"].append(-mixing / divergence)
    return {name: np.array(values) for name, values in found.items()}


def _slope(covariance: np.ndarray, direction: np.ndarray, reference: np.ndarray) -> float:
    """∂_t χ² where the covariance moves in a direction, by a central difference."""
    ahead, behind = (
        theory.chi_squared(covariance + t * direction, reference)
        for t in (_DIFFERENCE, -_DIFFERENCE)
    )
    return float(ahead - behind) / (2 * _DIFFERENCE)


def _bound(found: dict[str, np.ndarray]) -> np.ndarray:
    """δc/λ with the c and λ that hold for all δ."""
    return _DELTAS * found["speed"].max() / found["rate"].min()


def _share(found: dict[str, np.ndarray]) -> float:
    return float((found["divergence"] / _bound(found)).max())


def draw(axis, curve) -> None:
    red, black, blue = (pages.COLORS[name] for name in ("red", "truth", "blue"))
    axis.plot(curve["deltas"], curve["special"], "o", markersize=4, color=red, label=r"$\tilde\pi$")
    axis.plot(curve["deltas"], curve["closed_form"], color=black, label="closed form")
    axis.plot(curve["deltas"], curve["bound"], color=blue, label=r"bound $\delta c/\lambda$")
    axis.set(title=r"Convergence theorem, $V = C$", xlabel=r"$\delta$", ylabel=r"$\chi^2$")
