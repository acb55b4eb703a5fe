"""Tables for notebooks, self-contained HTML pages, and pictures of draws as data URLs.

All text is escaped.
"""

import base64
import dataclasses
import html
import io
import math
import os
import pathlib
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from sghmc.core import files
from sghmc.core.checks import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def notebook_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table of texts under a title."""
    head = f"<thead>{_row(heads, 'th')}</thead>" if heads else ""
    body = "".join(_row(row, "td style=text-align:left") for row in rows).replace("\n", "<br>")
    return f"<b>{text(title)}</b><table>{head}<tbody>{body}</tbody></table>"


def notebook_facts(title: str, named: Mapping[str, object]) -> str:
    return notebook_table(title, (), list(named.items()))


def notebook_settings(thing: Any) -> str:
    """Return an HTML table of a dataclass's fields without those that are None."""
    fields = [field.name for field in dataclasses.fields(thing) if field.repr]
    values = {name: getattr(thing, name) for name in fields}
    named = {name: eqx.tree_pformat(v) for name, v in values.items() if v is not None}
    return notebook_facts(type(thing).__name__, named)


# Self-contained HTML pages: sections, tables to sort and search, pictures.

FILE = "report.html"
"""File name of a page in a folder of results."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy that forbids the page any network access."""


_UNSEEN_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that steer a terminal, turn text around or hide in it."""


def printable(words: str, kept: str = "") -> str:
    r"""Write control and formatting characters as escapes, except those of `kept`.

    >>> printable("red: \x1b[31m, and on\n", kept="\n")
    'red: \\x1b[31m, and on\n'
    """
    return "".join(
        ascii(letter)[1:-1]
        if unicodedata.category(letter) in _UNSEEN_CATEGORIES and letter not in kept
        else letter
        for letter in words
    )


def text(value: object) -> str:
    return html.escape(printable(str(value), kept="\n\t"), quote=True)


def page(title: str, sections: Iterable[str]) -> str:
    """Return an HTML document of sections, which are HTML already."""
    style, script = (
        resources.files("sghmc.display").joinpath(name).read_text("utf-8")
        for name in ("page.css", "page.js")
    )
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{text(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n"
        f"<body><header><h1>{text(title)}</h1>"
        '<button type="button" id="theme" hidden>Dark colours</button></header>\n'
        f"<main>{body}\n</main>"
        f"<script>{script}</script></body></html>\n"
    )


def section(heading: str, *parts: str) -> str:
    return f"<section><h2>{text(heading)}</h2>{''.join(parts)}</section>"


def verdict(words: str, is_good: bool) -> str:
    kind = "good" if is_good else "bad"
    return f'<p class="verdict {kind}"><strong>Verdict: {text(words)}.</strong></p>'


def paragraph(words: str) -> str:
    return f'<p class="faint">{text(words)}</p>'


def points(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>"


def facts(named: Mapping[str, object]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>'
        for name, value in named.items()
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def grid(columns: Sequence[str], entries: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    head, body = _row(columns, 'th scope="col"'), "".join(map(_row, entries))
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="table"><table class="words">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _row(cells: Iterable[object], element: str = "td") -> str:
    """Return a row of a table, each cell in an element that is given with its attributes."""
    end = element.split(maxsplit=1)[0]
    return f"<tr>{''.join(f'<{element}>{text(cell)}</{end}>' for cell in cells)}</tr>"


def preformatted(words: str) -> str:
    return f'<pre tabindex="0">{text(words)}</pre>'


def rows(name: str, columns: Sequence[str], entries: Iterable[tuple[str, Sequence[float]]]) -> str:
    """Return a table of named rows of numbers, sortable by column and searchable by name."""
    heads = "".join(
        f'<th scope="col"><button type="button">{text(column)}</button></th>' for column in columns
    )
    body = "".join(
        f"<tr><td>{text(label)}</td>{''.join(map(_number, numbers))}</tr>"
        for label, numbers in entries
    )
    return (
        f'<p><label for="search-{text(name)}">Search by name: </label>'
        f'<input id="search-{text(name)}" type="search" autocomplete="off"> '
        f'<output id="count-{text(name)}" for="search-{text(name)}"></output></p>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(name)}">'
        f'<table class="rows" data-search="search-{text(name)}" data-count="count-{text(name)}">'
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _number(value: float) -> str:
    shown = "–" if math.isnan(value) else f"{value:.4g}"
    return f'<td data-value="{"" if math.isnan(value) else repr(float(value))}">{text(shown)}</td>'


def picture(pair: tuple[str, str], words: str) -> str:
    """Return images of one picture for bright and dark pages, with an alternative text."""
    light, dark = (
        f'<img class="{kind}" src="{address}" alt="{text(words)}">'
        for kind, address in zip(("light", "dark"), pair, strict=True)
    )
    return light + dark


def side_by_side(caption: str, shown: Sequence[str]) -> str:
    """Return pictures side by side if the page is wide enough, under one caption."""
    inside = "".join(f"<div>{each}</div>" for each in shown)
    named = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f'<figure>{named}<div class="side">{inside}</div></figure>'


def card(address: str, words: str) -> str:
    """Return a picture on white, which scrolls if the page is too narrow."""
    return f'<figure class="card" tabindex="0"><img src="{address}" alt="{text(words)}"></figure>'


def write(path: str | os.PathLike[str], content: str) -> pathlib.Path:
    """Write the page to a file, or to report.html in a folder, and return the path."""
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / FILE
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which a report does not follow: remove it first.")
    files.write(path, content)
    return path


# Pictures of draws as data URLs, each in bright and in dark colours.

_INKS = {"light": "#1c2024", "dark": "#e6e8ea"}
_SIZE_INCHES = (4.4, 2.0)
"""Size of a picture, small enough to be read on a phone."""
_MAX_POINTS = 1_000
"""Largest number of points of a line, about the pixels of a screen's width."""
_MAX_CHAINS = 8
_NUM_RANK_BINS = 20
_NUM_LAGS = 60
_GRAY = "#808890"
"""Colour of lines that are visible on white and on black."""

Pair = tuple[str, str]


def picture_address(
    figure: "Figure", *, dpi: int = 100, transparent: bool = False, format: str = "png"
) -> str:
    file = io.BytesIO()
    figure.savefig(file, format=format, dpi=dpi, transparent=transparent)
    kind = "svg+xml" if format == "svg" else format
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode()


def _both(title: str, draw: Callable[[Any], None]) -> Pair:
    """Draw a picture by `draw(axes)` for a bright and for a dark page."""
    light, dark = (_drawn(title, draw, ink) for ink in _INKS.values())
    return light, dark


def inked(ink: str, font_size: float) -> Any:
    """Return a context in which matplotlib draws text and axes in one color on no background."""
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    clear = dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none")
    settings = {**dict.fromkeys(names, ink), **clear, "font.size": font_size}
    return require("matplotlib", extra="plots").rc_context(settings)


def _drawn(title: str, draw: Callable[[Any], None], ink: str) -> str:
    figures = require("matplotlib.figure", extra="plots")
    with inked(ink, font_size=9):
        figure = figures.Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(title)
        draw(axes)
        return picture_address(figure, transparent=True)


def trace_picture(values: np.ndarray, title: str = "trace", level: float | None = None) -> Pair:
    """Draw a line for each chain, and a level to compare with; axes (chain, draw)."""
    step = -(-values.shape[1] // _MAX_POINTS)

    def draw(axes) -> None:
        for chain in values[:_MAX_CHAINS]:
            axes.plot(np.arange(0, len(chain), step), chain[::step], linewidth=0.6)
        if level is not None:
            axes.axhline(level, linewidth=1, linestyle="--", color=_GRAY, zorder=3)

    return _both(title, draw)


def rank_picture(values: np.ndarray) -> Pair:
    """Draw a histogram of each chain's ranks among all draws; axes (chain, draw)."""
    order = values.ravel().argsort().argsort().reshape(values.shape)
    bins = np.linspace(0, values.size, min(_NUM_RANK_BINS, values.shape[1]) + 1)

    def draw(axes) -> None:
        for chain in order[:_MAX_CHAINS]:
            counts = np.histogram(chain, bins)[0]
            axes.stairs(counts / counts.mean(), bins / values.size)
        axes.set_ylim(bottom=0)

    return _both("ranks: level where chains agree", draw)


def autocorrelation_picture(values: np.ndarray) -> Pair:
    """Draw the autocorrelation of each chain by lag; axes (chain, draw)."""
    lagged = [correlations(chain)[:_NUM_LAGS] for chain in values[:_MAX_CHAINS]]

    def draw(axes) -> None:
        for chain in lagged:
            axes.plot(chain, linewidth=0.8)
        axes.axhline(0, linewidth=0.5, color=_GRAY)

    return _both("autocorrelation by lag", draw)


def correlations(chain: np.ndarray) -> np.ndarray:
    """Return the autocorrelation of a chain at lags 0, 1, …; NaN if it never moved.

    >>> correlations(np.array([1.0, -1.0, 1.0, -1.0])).round(9).tolist()
    [1.0, -0.75, 0.5, -0.25]
    """
    spectrum = np.abs(np.fft.rfft(chain - chain.mean(), 2 * len(chain))) ** 2
    covariance = np.fft.irfft(spectrum)[: len(chain)]
    with np.errstate(invalid="ignore"):
        return covariance / covariance[0]


def replicates_picture(observed: float, replicated: np.ndarray) -> Pair:
    """Draw a summary of the data over a histogram of that of replicated data."""

    def draw(axes) -> None:
        axes.hist(replicated, bins=30, color="#3d8fd1")
        axes.axvline(observed, linewidth=2, color="#d55e00")

    return _both("replicated data; the line: observed", draw)
