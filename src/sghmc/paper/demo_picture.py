"""The demonstration's picture, for bright and dark pages alike: its background is transparent."""

import math
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from sghmc.paper import pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 600
"""Largest number of points in a cloud: more would be one blot, and a larger file."""
_SIZE_INCHES = (8, 3.1)
"""Size of the picture: 800 pixels wide on a page, where a point is a pixel and a third."""
_INK = "#808890"
"""Color that is visible on white and on black."""
_COLORS = {"auto": "#d55e00", "hmc": "#3d8fd1"}
"""Colors that are visible on white and on black, and distinct for the color-blind."""
_LABELS = {"auto": '"auto"', "hmc": "exact HMC"}
_MAX_DEVIATIONS = 4.2
"""Half the width of a cloud's panel, in standard deviations."""


def plot(result: dict[str, Any]) -> "Figure":
    """Draw the draws of the two most correlated coefficients, and the errors of all."""
    import matplotlib

    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context({**dict.fromkeys(names, _INK), "font.size": 8}):
        figure, axes = pages.panels(3, _SIZE_INCHES)
        figure.patch.set_alpha(0)
        for axis, name in zip(axes, _LABELS, strict=False):
            _draw_cloud(axis, name, result)
        _draw_errors(axes[-1], result)
    for axis in axes:
        axis.patch.set_alpha(0)
    return figure


def save(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture for a page 800 pixels wide, at two screen pixels for each."""
    plot(result).savefig(path, dpi=200, transparent=True)


def _draw_cloud(axis, name: str, result: dict[str, Any]) -> None:
    found, pair = result[name], result["pair"]
    for radius in (1, 2, 3):
        axis.plot(*_ellipse(radius, pair["correlation"]), color=_INK, linewidth=0.8)
    if found["num_draws"]:
        points = np.array(found["points"])
        size = 2 if len(points) > MAX_POINTS / 2 else 8
        axis.scatter(*points.T, s=size, color=_COLORS[name], linewidths=0)
    else:
        axis.text(0, 0, "no draw yet", ha="center", va="center")
    axis.text(0.03, 0.03, "ellipses: exact", transform=axis.transAxes)
    i, j = pair["columns"]
    limits = (-_MAX_DEVIATIONS, _MAX_DEVIATIONS)
    axis.set(xlim=limits, ylim=limits, aspect="equal")
    axis.set(xlabel=f"coefficient {i}, exact sds", ylabel=f"coefficient {j}")
    title = f"{_LABELS[name]}: {found['num_draws']:,} draws in {found['seconds']:.0f} s"
    axis.set_title(title, color=_COLORS[name], fontsize=9, fontweight="bold")


def _ellipse(radius: float, correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points at distance `radius` from the mean of two correlated standard normals."""
    angle = np.linspace(0, 2 * math.pi, 200)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    return x, correlation * x + math.sqrt(1 - correlation**2) * y


def _draw_errors(axis, result: dict[str, Any]) -> None:
    """Draw a point for each coefficient: the nearer to the cross, the better."""
    axis.axvline(0, color=_INK, linewidth=0.8)
    axis.axhline(1, color=_INK, linewidth=0.8)
    for name, label in reversed(_LABELS.items()):
        if result[name]["num_draws"]:
            found = result[name]
            style = {"color": _COLORS[name], "label": label, "markersize": 3.5}
            axis.plot(found["mean_errors"], found["sd_ratios"], "o", **style)
    reach = max(map(abs, axis.get_xlim()))
    axis.set(xlim=(-reach, reach), xlabel="error of the mean, exact sds", ylabel="sd / exact sd")
    axis.set_title(f"all {len(result['exact']['sd'])} coefficients", fontsize=9)
    if any(result[name]["num_draws"] for name in _LABELS):
        axis.legend(frameon=False, loc="best")
