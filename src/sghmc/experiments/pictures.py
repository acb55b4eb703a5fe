"""What the experiments' pictures share. matplotlib is imported when a picture is made."""

from typing import TYPE_CHECKING, Any

from sghmc.core.optional import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"truth": "#222222", "blue": "#0072b2", "red": "#d55e00", "green": "#009e73"}
"""Distinct for the color-blind (Okabe and Ito)."""
SKY, PURPLE = "#56b4e9", "#cc79a7"


def panels(columns: int, size: tuple[float, float], *, rows: int = 1) -> tuple["Figure", Any]:
    """Axes, row by row, on a figure of its own: nothing is shared with the caller's pyplot."""
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
