"""Pictures for a page as data addresses: of draws, each in bright and in dark colours."""

import base64
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sghmc.core.optional import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INKS = {"light": "#1c2024", "dark": "#e6e8ea"}
_SIZE = (4.4, 2.0)
"""Inches: small enough to be read on a phone."""
_MOST_POINTS = 1_000
"""Of a line: more than a screen is wide shows nothing more."""
_MOST_CHAINS = 8
_NUM_RANK_BINS = 20
_NUM_LAGS = 60
_GRAY = "#808890"
"""Seen on white and on black."""

Pair = tuple[str, str]


def address(figure: "Figure", *, dpi: int = 100, transparent: bool = False) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi, transparent=transparent)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _both(title: str, draw: Callable[[Any], None]) -> Pair:
    """What `draw` puts on axes, for a bright and for a dark page."""
    light, dark = (_drawn(title, draw, ink) for ink in _INKS.values())
    return light, dark


def _drawn(title: str, draw: Callable[[Any], None], ink: str) -> str:
    matplotlib = require("matplotlib", extra="plots")
    figures = require("matplotlib.figure", extra="plots")
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context({**dict.fromkeys(names, ink), "font.size": 9}):
        figure = figures.Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title)
        draw(axes)
        return address(figure, transparent=True)


def trace(values: np.ndarray, title: str = "trace", level: float | None = None) -> Pair:
    """A line for each chain, and a level to hold them against; axes (chain, draw)."""
    step = -(-values.shape[1] // _MOST_POINTS)

    def draw(axes) -> None:
        for chain in values[:_MOST_CHAINS]:
            axes.plot(np.arange(0, len(chain), step), chain[::step], linewidth=0.6)
        if level is not None:
            axes.axhline(level, linewidth=1, linestyle="--", color=_GRAY, zorder=3)

    return _both(title, draw)


def ranks(values: np.ndarray) -> Pair:
    """How often each chain has draws of a rank among all; axes (chain, draw)."""
    order = values.ravel().argsort().argsort().reshape(values.shape)
    bins = np.linspace(0, values.size, min(_NUM_RANK_BINS, values.shape[1]) + 1)

    def draw(axes) -> None:
        for chain in order[:_MOST_CHAINS]:
            counts = np.histogram(chain, bins)[0]
            axes.stairs(counts / counts.mean(), bins / values.size)
        axes.set_ylim(bottom=0)

    return _both("ranks: level where chains agree", draw)


def autocorrelation(values: np.ndarray) -> Pair:
    """Of each chain, by lag; axes (chain, draw)."""
    lagged = [correlations(chain)[:_NUM_LAGS] for chain in values[:_MOST_CHAINS]]

    def draw(axes) -> None:
        for chain in lagged:
            axes.plot(chain, linewidth=0.8)
        axes.axhline(0, linewidth=0.5, color=_GRAY)

    return _both("autocorrelation by lag", draw)


def correlations(chain: np.ndarray) -> np.ndarray:
    """The autocorrelation of a chain at lags 0, 1, …; NaN where it never moved.

    >>> correlations(np.array([1.0, -1.0, 1.0, -1.0])).round(9).tolist()
    [1.0, -0.75, 0.5, -0.25]
    """
    spectrum = np.abs(np.fft.rfft(chain - chain.mean(), 2 * len(chain))) ** 2
    covariance = np.fft.irfft(spectrum)[: len(chain)]
    with np.errstate(invalid="ignore"):
        return covariance / covariance[0]


def replicates(observed: float, replicated: np.ndarray) -> Pair:
    """A summary of the data against that of data made by the model."""

    def draw(axes) -> None:
        axes.hist(replicated, bins=30, color="#3d8fd1")
        axes.axvline(observed, linewidth=2, color="#d55e00")

    return _both("replicated data; the line: observed", draw)
