"""Makes the page with the exact bias of our samplers, by `sghmc.theory` from their steps."""

from collections.abc import Callable
from pathlib import Path

import sghmc
from sghmc import theory
from sghmc.samplers import Sampler

STEP_SIZES = (0.05, 0.1, 0.2, 0.4, 0.8)
FRICTION = 1.5
NOISE = 4.0
SAMPLERS: dict[str, Callable[[float, float], Sampler]] = {
    "`SGHMC(ε, 1.5)`": lambda e, v: sghmc.SGHMC(e, FRICTION, gradient_noise=v),
    '`SGHMC(ε, 1.5, observe="middle")`': lambda e, v: sghmc.SGHMC(
        e, FRICTION, gradient_noise=v, observe="middle"
    ),
    "`BAOAB(ε, 1.5)`": lambda e, v: sghmc.BAOAB(e, FRICTION, gradient_noise=v),
    "`OBABO(ε, 1.5)`": lambda e, v: sghmc.OBABO(e, FRICTION, gradient_noise=v),
    "`SGLD(ε²)`": lambda e, v: sghmc.SGLD(e**2, gradient_noise=v),
}
UNCORRECTED: dict[str, Callable[[float], Sampler]] = {
    **{name: (lambda e, make=make: make(e, 0.0)) for name, make in SAMPLERS.items()},
    "`UBU(ε, 1.5)`": lambda e: sghmc.UBU(e, FRICTION),
    "`HMC(ε, 5, metropolis=False)`": lambda e: sghmc.HMC(e, 5, metropolis=False),
}

PAGE = """\
# The bias of our samplers

Computed when this page was built (`python docs/law_table.py` prints it), on U = θ²/2, in double
precision, from the Jacobians of the steps that run: exact, no draws. Steps are in units where the
posterior has spread 1; `Whitened` and `tune` work in such units.

## Exact gradients

How much too large the standard deviation of the draws is, and in parentheses how many steps an
autocorrelation time takes (1 + Σρ).

{exact}

SGLD makes steps of the size ε² in θ where the others make steps of ε, so it is shown at ε². HMC's
draws cost six gradients each; with its accept step its bias is zero.

## Gradient noise of variance {noise:g}, not corrected

{ignored}

## The same noise, subtracted (`gradient_noise={noise:g}`)

{subtracted}

"refused" is an error that names the numbers: the gradient alone brings more noise than the law has
room for. Samplers whose step is not affine (`SGNHT`, `SGRHMC`, `PSGLD`) have no such table: they
are tested by the stationary Fokker–Planck equation and by sampling.
"""


def write(folder: Path) -> None:
    (folder / "bias.md").write_text(page(), encoding="utf-8")


def page() -> str:
    subtracted = {name: (lambda e, make=make: make(e, NOISE)) for name, make in SAMPLERS.items()}
    return PAGE.format(
        noise=NOISE,
        exact=table(UNCORRECTED, 0.0),
        ignored=table(UNCORRECTED, NOISE),
        subtracted=table(subtracted, NOISE),
    )


def table(samplers: dict[str, Callable[[float], Sampler]], noise: float) -> str:
    head = " | ".join(f"ε = {step_size}" for step_size in STEP_SIZES)
    lines = [f"| sampler | {head} |", "| --- |" + " ---: |" * len(STEP_SIZES)]
    for name, make in samplers.items():
        cells = (_cell(make, step_size, noise) for step_size in STEP_SIZES)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(make: Callable[[float], Sampler], step_size: float, noise: float) -> str:
    try:
        law = theory.stationary_law(make(step_size), 1.0, noise)
    except ValueError as error:
        if "gradient_noise" not in str(error):
            raise
        return "refused"
    percent = round(100 * law.standard_deviation_error.item(), 2) + 0.0  # no "-0.00"
    return f"{percent:.2f} % ({law.autocorrelation_time.item():.3g})"


if __name__ == "__main__":
    print(page())
