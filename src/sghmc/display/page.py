"""HTML that needs nothing beside it: sections, tables to sort and search, pictures. All escaped."""

import html
import math
import os
import pathlib
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from sghmc.core import atomic_file

FILE = "report.html"
"""The name of a page in a folder of results."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page asks nothing of any network."""


def text(value: object) -> str:
    return html.escape(str(value), quote=True)


def page(title: str, sections: Iterable[str]) -> str:
    """A whole document of sections that are HTML already."""
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
    """A table of words."""
    heads = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>" for cells in entries
    )
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="table"><table class="words">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def links(named: Iterable[tuple[str, str, str]]) -> str:
    """To other pages, by paths from here: address, name, what more there is to say."""
    lines = (
        f'<li><a href="{text(urllib.parse.quote(address))}">{text(name)}</a>{text(more)}</li>'
        for address, name, more in named
    )
    return f"<ul>{''.join(lines)}</ul>"


def preformatted(words: str) -> str:
    return f'<pre tabindex="0">{text(words)}</pre>'


def rows(name: str, columns: Sequence[str], entries: Iterable[tuple[str, Sequence[float]]]) -> str:
    """A table of named rows of numbers, sorted by a click on a column, searched by name."""
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
    """Data addresses of one picture for bright and for dark pages, and what it shows."""
    light, dark = (
        f'<img class="{kind}" src="{address}" alt="{text(words)}">'
        for kind, address in zip(("light", "dark"), pair, strict=True)
    )
    return light + dark


def side_by_side(caption: str, shown: Sequence[str]) -> str:
    """Pictures next to each other where there is room, under one caption."""
    inside = "".join(f"<div>{each}</div>" for each in shown)
    named = f"<figcaption>{text(caption)}</figcaption>" if caption else ""
    return f'<figure>{named}<div class="side">{inside}</div></figure>'


def card(address: str, words: str) -> str:
    """A picture on white, to be scrolled where it would be too small."""
    return f'<figure class="card" tabindex="0"><img src="{address}" alt="{text(words)}"></figure>'


def write(path: str | os.PathLike[str], content: str) -> pathlib.Path:
    """The page in a file, or as report.html in a folder; where that is."""
    path = pathlib.Path(path)
    if path.is_dir():
        path = path / FILE
    if path.is_symlink():
        raise ValueError(f"{path} is a link, which a report does not follow: remove it first.")
    atomic_file.write(path, content)
    return path
