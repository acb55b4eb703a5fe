"""Pictures of draws for a page, each in bright and in dark colours."""

import base64
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INKS = {"light": "#1c2024", "dark": "#e6e8ea"}
_MOST_POINTS = 1_000
"""Of a line: more than a screen is wide shows nothing more."""
_MOST_CHAINS = 8
_NUM_RANK_BINS = 20
_NUM_LAGS = 60
_LONGEST_NAME = 18


def both(draw: Callable[["Figure"], None], width: float, height: float) -> tuple[str, str]:
    """What `draw` puts on a figure, as data addresses of a bright and of a dark picture."""
    light, dark = (_encoded(draw, width, height, ink) for ink in _INKS.values())
    return light, dark


def _encoded(draw: Callable[["Figure"], None], width: float, height: float, ink: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context({**dict.fromkeys(names, ink), "font.size": 9}):
        figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
        draw(figure)
        file = io.BytesIO()
        figure.savefig(file, format="png", transparent=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def chains(draws: Mapping[str, np.ndarray]) -> Callable[["Figure"], None]:
    """Traces, ranks and autocorrelations, a row for each number; axes (chain, draw)."""
    import arviz

    def draw(figure: "Figure") -> None:
        table = figure.subplots(len(draws), 3, squeeze=False, width_ratios=(2, 1, 1))
        for (name, values), (trace, rank, lags) in zip(draws.items(), table, strict=True):
            _lines(trace, values)
            trace.set_ylabel(_plain(name))
            ranks = values.ravel().argsort().argsort().reshape(values.shape)
            bins = np.linspace(0, values.size, min(_NUM_RANK_BINS, values.shape[1]) + 1)
            for chain in ranks[:_MOST_CHAINS]:
                counts = np.histogram(chain, bins)[0]
                rank.stairs(counts / counts.mean(), bins / values.size)
            rank.set_ylim(bottom=0)
            for chain in values[:_MOST_CHAINS]:
                lags.plot(np.asarray(arviz.autocorr(chain))[:_NUM_LAGS], linewidth=0.8)
            lags.axhline(0, linewidth=0.5, color="gray")
        titles = ("trace", "ranks: level if chains agree", "autocorrelation by lag")
        for axes, title in zip(table[0], titles, strict=True):
            axes.set_title(title)

    return draw


def diagnostics(named: Mapping[str, np.ndarray]) -> Callable[["Figure"], None]:
    """Lines of what is known of each draw; axes (chain, draw)."""

    def draw(figure: "Figure") -> None:
        for (name, values), axes in zip(
            named.items(), np.ravel(figure.subplots(len(named), 1, squeeze=False)), strict=True
        ):
            _lines(axes, values)
            axes.set_ylabel(_plain(name))

    return draw


def _lines(axes, values: np.ndarray) -> None:
    step = -(-values.shape[1] // _MOST_POINTS)
    for chain in values[:_MOST_CHAINS]:
        axes.plot(np.arange(0, len(chain), step), chain[::step], linewidth=0.6)


def _plain(name: str) -> str:
    """A name short enough for an axis, that matplotlib does not take for mathematics."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[:6]}…{name[7 - _LONGEST_NAME :]}"
    return short.replace("$", r"\$")
