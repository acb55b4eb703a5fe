"""The supplement's first theorem: skew reversibility, (FS)ᵀ = N F S N with N turning r around.

F is the step, S the covariance of (θ, r). It holds between mid-drift points.
"""

import numpy as np

from sghmc import theory
from sghmc.paper.theorems.statement import (
    GRADIENT_NOISE,
    ORDER_TOLERANCE,
    PRECISION,
    ROUNDING,
    STEP_SIZES,
    TEMPERATURE,
    ZERO,
    Checked,
    Statement,
    draw_orders,
    half_drift_back,
    middle_covariance,
    order,
    sampler,
    stationary_law,
)


def check() -> Checked:
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


def draw(axis, curve) -> None:
    draw_orders(
        axis,
        curve,
        {"middle": "between mid-drift points", "end": "between ends of steps"},
        title="Reversibility: asymmetry",
        ylabel=r"$|(FS)^\top - NFSN|$",
    )
