"""How objects show in a notebook: small tables in its own colours. All escaped."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A title over a table of words."""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td style=text-align:left>{_text(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return (
        f"<b>{html.escape(title)}</b><table>"
        + (f"<thead><tr>{head}</tr></thead>" if heads else "")
        + f"<tbody>{body}</tbody></table>"
    )


def facts(title: str, named: Mapping[str, object]) -> str:
    return table(title, (), list(named.items()))


def settings(thing: Any) -> str:
    """A dataclass by its fields, arrays by their shapes; what is None is left out."""
    fields = [field.name for field in dataclasses.fields(thing) if field.repr]
    values = {name: getattr(thing, name) for name in fields}
    named = {name: eqx.tree_pformat(v) for name, v in values.items() if v is not None}
    return facts(type(thing).__name__, named)


def _text(cell: object) -> str:
    return html.escape(str(cell)).replace("\n", "<br>")
