"""Proposition 3.1: with B̂ = B the law is right, up to ε²; and SGLD as the limit (§3.2)."""

import numpy as np

from sghmc.paper.theorems.statement import (
    GRADIENT_NOISE,
    MASS,
    ORDER_TOLERANCE,
    PRECISION,
    ROUNDING,
    STEP_SIZES,
    TEMPERATURE,
    ZERO,
    Checked,
    Statement,
    draw_orders,
    order,
    sampler,
    stationary_law,
)
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.sghmc import SGHMC

_ESTIMATES = {"corrected": GRADIENT_NOISE, "uncorrected": ZERO}
"""V̂ with B̂ = B, and with B̂ = 0."""


def check() -> Checked:
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


def draw(axis, curve) -> None:
    draw_orders(
        axis,
        curve,
        {"corrected": r"$\hat B = B$", "uncorrected": r"$\hat B = 0$"},
        title="Proposition 3.1: error of the law",
        ylabel=r"largest error of Cov $\theta$",
    )
