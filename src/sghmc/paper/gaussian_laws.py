"""Theorems that hold exactly for one step of SGHMC on a Gaussian target, U = ½ θᵀ PRECISION θ.

Proposition 3.1 (invariance), and the supplement's theorems on reversibility and convergence. The
law of the step that runs stands against closed forms. Matrices are dense and none is the identity,
so that no factor can hide.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from sghmc import paper, theory
from sghmc.samplers import Sampler
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.sghmc import SGHMC

ROUNDING = 1e-10
"""Largest difference of two equal numbers that were computed in double precision."""


class Statement(NamedTuple):
    """A statement of a theorem as numbers; `relation` is "=" (to within `tolerance`) or "<"."""

    statement: str
    measured: float
    expected: float
    tolerance: float
    relation: str = "="

    def holds(self) -> bool:
        difference = self.measured - self.expected
        if self.relation == "<":
            return bool(difference < 0)
        return bool(abs(difference) <= self.tolerance)

    def judged(self) -> dict[str, Any]:
        """Return the fields, and whether the statement holds, for a file of results."""
        plain = {k: v if isinstance(v, str) else float(v) for k, v in self._asdict().items()}
        return {**plain, "passed": self.holds()}


class Checked(NamedTuple):
    """Statements of a theorem that were checked, and the numbers of its picture."""

    statements: list[Statement]
    curve: dict[str, Any]


PRECISION = np.array([[1.6, 0.5], [0.5, 0.7]])
MASS = np.array([[1.3, -0.3], [-0.3, 0.8]])
FRICTION = np.array([[1.1, 0.4], [0.4, 0.9]])
GRADIENT_NOISE = np.array([[2.0, -0.6], [-0.6, 1.5]])
TEMPERATURE = 0.8
ZERO = np.zeros((2, 2))
STEP_SIZES = 0.4 * 0.5 ** np.arange(6)
"""Step sizes ε, each half of the one before, so that orders in ε show."""
ORDER_TOLERANCE = 0.05
"""Largest error of a measured exponent of ε; the next order of ε adds less than 0.02."""


def sampler(step_size: float, gradient_noise=GRADIENT_NOISE, temperature=TEMPERATURE) -> SGHMC:
    return SGHMC(float(step_size), FRICTION, MASS, gradient_noise, temperature)


def stationary_law(of: Sampler, gradient_noise: np.ndarray = GRADIENT_NOISE) -> theory.Law:
    return theory.stationary_law(of, PRECISION, gradient_noise)


def half_drift_back(step_size: float) -> np.ndarray:
    """Return the matrix on (θ, r) that leads from the end of a step to its mid-drift point."""
    return np.block([[np.eye(2), -step_size / 2 * np.linalg.inv(MASS)], [ZERO, np.eye(2)]])


def middle_covariance(of: SGHMC, gradient_noise: np.ndarray) -> np.ndarray:
    """Return the covariance of (θ, r) at mid-drift points."""
    middle = half_drift_back(float(np.asarray(of.step_size)))
    return middle @ stationary_law(of, gradient_noise).state_covariance @ middle.T


def block_diagonal(of_position: np.ndarray, of_momentum: np.ndarray) -> np.ndarray:
    return np.block([[of_position, ZERO], [ZERO, of_momentum]])


def order(errors: list[float]) -> float:
    """Return the exponent of ε, from the errors at the two smallest step sizes."""
    return float(np.log2(errors[-2] / errors[-1]))


def _draw_orders(axis, curve, labels: dict[str, str], *, title: str, ylabel: str) -> None:
    """Draw errors against step sizes, both on logarithmic axes."""
    colors = (paper.COLORS["red"], paper.COLORS["blue"])
    for (name, label), color in zip(labels.items(), colors, strict=True):
        axis.loglog(curve["step_sizes"], curve[name], marker="o", color=color, label=label)
    axis.set(title=title, xlabel=r"step size $\varepsilon$", ylabel=ylabel)
    axis.set_xticks([], minor=True)
    axis.set_xticks(curve["step_sizes"], labels=[f"{size:g}" for size in curve["step_sizes"]])


# Proposition 3.1: with B̂ = B the law is right, up to ε²; and SGLD as the limit (§3.2).

_ESTIMATES = {"corrected": GRADIENT_NOISE, "uncorrected": ZERO}
"""Estimates V̂ of the gradient noise: with B̂ = B, and with B̂ = 0."""


def check_invariance() -> Checked:
    wanted = TEMPERATURE * np.linalg.inv(PRECISION)
    errors = {
        name: [
            float(np.abs(stationary_law(sampler(step, estimate)).covariance - wanted).max())
            for step in STEP_SIZES
        ]
        for name, estimate in _ESTIMATES.items()
    }
    step_size = float(STEP_SIZES[0])
    at_limit = SGHMC(step_size, MASS / step_size, MASS, GRADIENT_NOISE, TEMPERATURE)
    langevin = SGLD(step_size**2, np.linalg.inv(MASS), GRADIENT_NOISE, TEMPERATURE)
    laws = [stationary_law(each).covariance for each in (at_limit, langevin)]
    difference = np.abs(laws[0] - laws[1]).max()
    corrected, uncorrected = (order(errors[name]) for name in _ESTIMATES)
    statements = [
        Statement("Prop 3.1: order of error in ε, B̂ = B", corrected, 2, ORDER_TOLERANCE),
        Statement("Prop 3.1: the same with B̂ = 0", uncorrected, 1, ORDER_TOLERANCE),
        Statement("§3.2: SGHMC at εC = M less SGLD", difference, 0, ROUNDING),
    ]
    return Checked(statements, {"step_sizes": STEP_SIZES.tolist(), **errors})


def draw_invariance(axis, curve) -> None:
    _draw_orders(
        axis,
        curve,
        {"corrected": r"$\hat B = B$", "uncorrected": r"$\hat B = 0$"},
        title="Proposition 3.1: error of the law",
        ylabel=r"largest error of Cov $\theta$",
    )


# The supplement's first theorem: skew reversibility, (FS)ᵀ = N F S N with N turning r around.
# F is the step, S the covariance of (θ, r). It holds between mid-drift points.


def check_reversibility() -> Checked:
    violations = {"middle": [], "end": []}
    for step_size in STEP_SIZES:
        of = sampler(step_size)
        step = theory.affine_map(of, PRECISION, GRADIENT_NOISE).transition
        covariance = stationary_law(of).state_covariance
        middle = half_drift_back(step_size)
        violations["end"].append(_asymmetry(step, covariance))
        violations["middle"].append(
            _asymmetry(middle @ step @ np.linalg.inv(middle), middle @ covariance @ middle.T)
        )
    law = middle_covariance(sampler(STEP_SIZES[0]), GRADIENT_NOISE)[:2]
    exact = np.hstack([TEMPERATURE * np.linalg.inv(PRECISION), ZERO])
    worst, error = max(violations["middle"]), np.abs(law - exact).max()
    statements = [
        Statement("Thm S.1: skew asymmetry at mid-drift", worst, 0, ROUNDING),
        Statement(
            "Thm S.1: order of it at the step's end", order(violations["end"]), 1, ORDER_TOLERANCE
        ),
        Statement("θ-law at mid-drift less exp(−U/τ)", error, 0, ROUNDING),
    ]
    return Checked(statements, {"step_sizes": STEP_SIZES.tolist(), **violations})


def _asymmetry(step: np.ndarray, covariance: np.ndarray) -> float:
    turn = np.diag([1.0, 1.0, -1.0, -1.0])
    lagged = step @ covariance
    return float(np.abs(lagged.T - turn @ lagged @ turn).max() / np.abs(covariance).max())


def draw_reversibility(axis, curve) -> None:
    _draw_orders(
        axis,
        curve,
        {"middle": "between mid-drift points", "end": "between ends of steps"},
        title="Reversibility: asymmetry",
        ylabel=r"$|(FS)^\top - NFSN|$",
    )


# The supplement's second theorem: χ²(π̃, π) ≤ δc/λ where the gradient's noise is ignored, B̂ = 0.
# The noise has covariance δV. At π̃ the error process, which changes χ² at the rate δ∂χ², and
# mixing, which reduces it at the rate λχ², balance. For V = C, π̃ ∝ exp(−H/(1 + δ/2)).

_DELTAS = np.linspace(0.05, 1, 20)
_OTHER_NOISE = GRADIENT_NOISE / 4
"""Noise covariance V that is no multiple of C, and so small that χ² is finite for every δ."""
_DIFFERENCE_STEP = 1e-6
"""Step of the central differences of χ², which are accurate to about 1e-7."""
_CHI_TOLERANCE, _BALANCE_TOLERANCE = 1e-9, 1e-4


def check_convergence() -> Checked:
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
    """Return for each δ, at π̃: χ², the speed at which noise changes it, the rate of mixing."""
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
    """Return ∂_t χ² as the covariance moves in a direction, by a central difference."""
    ahead, behind = (
        theory.chi_squared(covariance + t * direction, reference)
        for t in (_DIFFERENCE_STEP, -_DIFFERENCE_STEP)
    )
    return float(ahead - behind) / (2 * _DIFFERENCE_STEP)


def _bound(found: dict[str, np.ndarray]) -> np.ndarray:
    """Return δc/λ with the c and λ that hold for all δ."""
    return _DELTAS * found["speed"].max() / found["rate"].min()


def _share(found: dict[str, np.ndarray]) -> float:
    return float((found["divergence"] / _bound(found)).max())


def draw_convergence(axis, curve) -> None:
    red, black, blue = (paper.COLORS[name] for name in ("red", "truth", "blue"))
    axis.plot(curve["deltas"], curve["special"], "o", markersize=4, color=red, label=r"$\tilde\pi$")
    axis.plot(curve["deltas"], curve["closed_form"], color=black, label="closed form")
    axis.plot(curve["deltas"], curve["bound"], color=blue, label=r"bound $\delta c/\lambda$")
    axis.set(title=r"Convergence theorem, $V = C$", xlabel=r"$\delta$", ylabel=r"$\chi^2$")
