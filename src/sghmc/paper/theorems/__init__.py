"""The paper's theorems, checked by number: entropy, invariance, reversibility, convergence.

On Gaussian targets the exact law of the step that runs stands against closed forms; Theorem 3.1 is
also simulated, and Theorem 3.2 checked on a potential with two wells. Matrices are dense and none
is the identity, so that no factor can hide. Where the paper's text is wrong the corrected claim is
checked: π̃ ∝ exp(−H/(1 + δ/2)), and reversibility between mid-drift points, for exp(−H/τ).
"""

from typing import TYPE_CHECKING, Any

import jax

from sghmc.paper import pages
from sghmc.paper.pages import Claim
from sghmc.paper.theorems import convergence, entropy, invariance, reversibility, stationarity
from sghmc.paper.theorems.entropy import Config

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = ["QUICK", "Config", "claims", "plot", "run", "table"]

QUICK = {"num_steps": 300, "num_chains": 4_000}

_PICTURES = {
    "entropy": entropy.draw,
    "invariance": invariance.draw,
    "reversibility": reversibility.draw,
    "convergence": convergence.draw,
}


def run(config: Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    entropy_key, point_key = jax.random.split(key)
    parts = {
        "entropy": entropy.check(config, entropy_key, progress),
        "stationarity": stationarity.check(point_key),
        "invariance": invariance.check(),
        "reversibility": reversibility.check(),
        "convergence": convergence.check(),
    }
    return {
        "rows": [statement.judged() for part in parts.values() for statement in part.statements],
        "curves": {name: part.curve for name, part in parts.items()},
    }


def plot(result: dict[str, Any]) -> "Figure":
    figure, axes = pages.panels(2, (10, 7.6), rows=2)
    for axis, (name, draw) in zip(axes, _PICTURES.items(), strict=True):
        draw(axis, result["curves"][name])
        axis.legend(frameon=False)
    return figure


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    return [
        Claim(
            f"{row['statement']}: {row['relation']} {row['expected']:.5g}",
            f"{row['measured']:.5g}",
            row["passed"],
        )
        for row in result["rows"]
    ]


def table(result: dict[str, Any]) -> "Table":
    rows = [
        (
            row["statement"],
            f"{row['measured']:.5g}",
            row["relation"],
            f"{row['expected']:.5g}",
            "yes" if row["passed"] else "[bold red]no",
        )
        for row in result["rows"]
    ]
    headings = ("statement", "measured", "", "expected", "passed")
    return pages.table("The theorems: measured against expected", headings, rows)
