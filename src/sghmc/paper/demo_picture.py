"""The demonstration's picture, for bright and dark pages alike: its background is transparent."""

import math
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from sghmc.paper import pages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 600
"""Of a cloud: more would be one blot, and a larger file."""
_SIZE = (8, 3.1)
"""Inches: 800 pixels wide on a page, where a point is a pixel and a third."""
_INK = "#808890"
"""Seen on white and on black."""
_COLORS = {"auto": "#d55e00", "hmc": "#3d8fd1"}
"""Likewise, and told apart by the color-blind."""
_LABELS = {"auto": '"auto"', "hmc": "exact HMC"}
_REACH = 4.2
"""Standard deviations that a cloud's panel shows."""


def plot(result: dict[str, Any]) -> "Figure":
    """Draws of the two most correlated coefficients, and the errors of all."""
    import matplotlib

    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context({**dict.fromkeys(names, _INK), "font.size": 8}):
        figure, axes = pages.panels(3, _SIZE)
        figure.patch.set_alpha(0)
        for axis, name in zip(axes, _LABELS, strict=False):
            _draw_cloud(axis, name, result)
        _draw_errors(axes[-1], result)
    for axis in axes:
        axis.patch.set_alpha(0)
    return figure


def save(result: dict[str, Any], path: pathlib.Path) -> None:
    """For a page 800 pixels wide, on screens that have two for each of them."""
    plot(result).savefig(path, dpi=200, transparent=True)


def _draw_cloud(axis, name: str, result: dict[str, Any]) -> None:
    found, pair = result[name], result["pair"]
    for radius in (1, 2, 3):
        axis.plot(*_ellipse(radius, pair["correlation"]), color=_INK, linewidth=0.8)
    if found["num_draws"]:
        points = np.array(found["points"])
        size = 2 if len(points) > MOST_POINTS / 2 else 8
        axis.scatter(*points.T, s=size, color=_COLORS[name], linewidths=0)
    else:
        axis.text(0, 0, "no draw yet", ha="center", va="center")
    axis.text(0.03, 0.03, "ellipses: exact", transform=axis.transAxes)
    i, j = pair["columns"]
    axis.set(xlim=(-_REACH, _REACH), ylim=(-_REACH, _REACH), aspect="equal")
    axis.set(xlabel=f"coefficient {i}, exact sds", ylabel=f"coefficient {j}")
    title = f"{_LABELS[name]}: {found['num_draws']:,} draws in {found['seconds']:.0f} s"
    axis.set_title(title, color=_COLORS[name], fontsize=9, fontweight="bold")


def _ellipse(radius: float, correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Points whose distance from the mean is `radius`, of two correlated standard normals."""
    angle = np.linspace(0, 2 * math.pi, 200)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    return x, correlation * x + math.sqrt(1 - correlation**2) * y


def _draw_errors(axis, result: dict[str, Any]) -> None:
    """A point a coefficient: the nearer to the cross, the better."""
    axis.axvline(0, color=_INK, linewidth=0.8)
    axis.axhline(1, color=_INK, linewidth=0.8)
    for name, label in reversed(_LABELS.items()):
        if result[name]["num_draws"]:
            found = result[name]
            axis.plot(
                found["mean_errors"],
                found["sd_ratios"],
                linestyle="",
                marker="o",
                markersize=3.5,
                color=_COLORS[name],
                label=label,
            )
    reach = max(map(abs, axis.get_xlim()))
    axis.set(xlim=(-reach, reach), xlabel="error of the mean, exact sds", ylabel="sd / exact sd")
    axis.set_title(f"all {len(result['exact']['sd'])} coefficients", fontsize=9)
    if any(result[name]["num_draws"] for name in _LABELS):
        axis.legend(frameon=False, loc="best")
