"""Writes a page for every sampler, and an index: `python docs/pages.py`.

What a page says is the sampler's docstring, so that there is one place to keep it right.
"""

import inspect
import re
from pathlib import Path

import sghmc
from sghmc.samplers.table import EXAMPLES, markdown

FOLDER = Path(__file__).parent / "samplers"
BESIDE = (sghmc.Austerity, sghmc.AdaptMass, sghmc.AdaptScale, sghmc.AdaptHMC)
"""What belongs to the samplers but is none."""


def pages() -> dict[str, str]:
    """File name → content."""
    kinds = [*dict.fromkeys(type(example) for example in EXAMPLES.values()), *BESIDE]
    links = "\n".join(
        f"- [{kind.__name__}]({kind.__name__.lower()}.md): {_first(kind)}" for kind in kinds
    )
    index = f"# Samplers\n\n{markdown()}\n\n{links}\n"
    return {"index.md": index} | {f"{kind.__name__.lower()}.md": page(kind) for kind in kinds}


def page(kind: type) -> str:
    """The page of a class."""
    return f"# {kind.__name__}\n\n{_call(kind)}\n\n{_as_markdown(inspect.getdoc(kind) or '')}\n"


def _first(kind: type) -> str:
    return (inspect.getdoc(kind) or "").split("\n", 1)[0]


def _call(kind: type) -> str:
    """How it is called, with the defaults."""
    lines = []
    for name, parameter in inspect.signature(kind).parameters.items():
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        has_default = default is not inspect.Parameter.empty
        lines.append(f"    {name}={shown}," if has_default else f"    {name},")
    return "\n".join(["```python", f"sghmc.{kind.__name__}(", *lines, ")", "```"])


def _as_markdown(text: str) -> str:
    """A docstring with its example fenced; its formulas are indented, as Markdown wants code."""
    text = text.replace("\\\n", "")
    return re.sub(r"(?ms)^(>>> .*?)(?=\n\n|\Z)", r"```pycon\n\1\n```", text)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, content in pages().items():
        (FOLDER / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
