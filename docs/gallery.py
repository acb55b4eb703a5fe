"""The gallery: runs the scripts in examples/, and writes a page for each with what it shows.

`python docs/gallery.py` writes to results/docs/gallery, where `make docs` finds it. A page is made
anew when its script changed, or when it was deleted, which is up to you where the library changed.
With QUICK=1 in the environment scripts run at their quick sizes, in seconds instead of minutes.

A script is a row of cells, as editors and notebooks know them: `# %% [markdown]` begins a text,
`# %%` begins code. A line `NUM_SAMPLES = 4_000  # quick: 200` has a second value, for quick runs. A
figure's name, `plt.subplots(num="…")`, says what it shows to those who cannot see it.
"""

import contextlib
import dataclasses
import hashlib
import io
import os
import re
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from cycler import cycler
from matplotlib import pyplot as plt

from outputs import can_run

ROOT = Path(__file__).parents[1]
ORDER = (
    "gaussian",
    "double_well",
    "logistic_regression",
    "digits",
    "calibration",
    "uncertainty",
    "recommender",
    "numpyro_model",
    "equinox_network",
    "flax_training_loop",
    "pytorch_network",
    "transformer",
    "streaming",
    "resume",
    "cyclical",
)
LOOK: Any = {
    "axes.prop_cycle": cycler(  # distinct for the color-blind (Okabe and Ito)
        color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
    ),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "figure.figsize": (8.0, 3.8),
    "font.size": 11.0,
    "legend.frameon": False,
    "savefig.dpi": 120,
}

_EXPECTED = ("FigureCanvasAgg is non-interactive", "Interrupted after")
"""Warnings that scripts provoke on purpose."""


class Cell(NamedTuple):
    """A part of a script, and the number of lines before it."""

    is_text: bool
    source: str
    num_before: int


class Figure(NamedTuple):
    """A picture and what it shows."""

    png: bytes
    description: str


@dataclasses.dataclass(frozen=True)
class Shown:
    """A cell, what it printed and what it drew."""

    cell: Cell
    printed: str = ""
    figures: tuple[Figure, ...] = ()


@dataclasses.dataclass(frozen=True)
class Example:
    """A script that was run; `names` are its variables."""

    name: str
    shown: list[Shown]
    names: dict[str, Any]

    @property
    def title(self) -> str:
        return self.shown[0].cell.source.splitlines()[0].removeprefix("# ")

    @property
    def figures(self) -> list[Figure]:
        return [figure for shown in self.shown for figure in shown.figures]

    @property
    def printed(self) -> str:
        return "".join(shown.printed for shown in self.shown)


def script(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


def sized(source: str, quick: bool) -> str:
    """A script with its full or its quick sizes."""
    return re.sub(
        r"^(\w+ = )(.+?)  # quick: (.+)$", r"\1\3" if quick else r"\1\2", source, flags=re.MULTILINE
    )


def cells(source: str) -> list[Cell]:
    """The cells of a script; texts without their comment signs."""
    found: list[Cell] = []
    lines = source.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        is_text = lines[start] == "# %% [markdown]"
        inside = "\n".join(lines[start + 1 : end]).strip("\n")
        text = re.sub(r"^# ?", "", inside, flags=re.MULTILINE) if is_text else inside
        found.append(Cell(is_text, text, start + 1))
    return found


def run(name: str, quick: bool = False) -> Example:
    """Run a script, cell by cell, in this process."""
    path = script(name)
    module = types.ModuleType(name)
    shown = []
    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        plt.switch_backend("agg")
        for message in _EXPECTED:
            warnings.filterwarnings("ignore", message=message)
        for cell in cells(sized(path.read_text("utf-8"), quick)):
            if cell.is_text:
                shown.append(Shown(cell))
                continue
            printed = io.StringIO()
            code = compile("\n" * cell.num_before + cell.source, str(path), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, module.__dict__)
            shown.append(Shown(cell, printed.getvalue(), _drawn()))
    return Example(name, shown, module.__dict__)


def _drawn() -> tuple[Figure, ...]:
    """All figures that are open, which are closed."""
    figures = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        figure = plt.figure(number)
        figure.savefig(file, format="png")
        figures.append(Figure(file.getvalue(), str(figure.get_label())))
    plt.close("all")
    return tuple(figures)


def page(example: Example) -> str:
    """The Markdown page of an example; its figures lie beside it."""
    parts, pictures = [], iter(_picture_names(example))
    for shown in example.shown:
        cell = shown.cell
        parts.append(cell.source if cell.is_text else f"```python\n{cell.source}\n```")
        if shown.printed:
            parts.append(f"```text\n{shown.printed.rstrip()}\n```")
        parts += [f"![{figure.description}]({next(pictures)})" for figure in shown.figures]
    where = f"The script is `examples/{example.name}.py`: run it as it is, or cell by cell."
    return "\n\n".join([*parts, where]) + "\n"


def _picture_names(example: Example) -> list[str]:
    return [f"{example.name}-{number}.png" for number, _ in enumerate(example.figures, 1)]


def write(folder: Path) -> None:
    """Bring the pages and figures in a folder up to date with the scripts."""
    quick = bool(os.environ.get("QUICK"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ORDER:
        path, mark = folder / f"{name}.md", _mark(name, quick)
        if path.exists() and path.read_text("utf-8").endswith(mark):
            continue
        source = sized(script(name).read_text("utf-8"), quick)
        if not can_run(source):  # without a mark, so that it is made once it can be
            unrun = Example(name, [Shown(cell) for cell in cells(source)], {})
            path.write_text(page(unrun), encoding="utf-8")
            continue
        example = run(name, quick)
        for picture, figure in zip(_picture_names(example), example.figures, strict=True):
            (folder / picture).write_bytes(figure.png)
        path.write_text(f"{page(example)}\n{mark}", encoding="utf-8")
    pages = {name: (folder / f"{name}.md").read_text("utf-8") for name in ORDER}
    (folder / "index.md").write_text(index(pages), encoding="utf-8")


def index(pages: dict[str, str]) -> str:
    """The page with the title and the last picture of every other, by name."""
    intro = textwrap.dedent("""\
        # Gallery

        Short scripts, each with a picture and a few numbers to check. They are in `examples/`, run
        from top to bottom, and open as notebooks in VS Code and Jupyter. The tests run them at
        smaller sizes, and hold what they show against what is known.
        """)
    cards = []
    for name, text in pages.items():
        title = text.split("\n", 1)[0].removeprefix("# ")
        pictures = re.findall(r"!\[(.+?)\]\((.+?)\)", text)[-1:]
        shown = [f"[![{what}]({picture})]({name}.md)\n\n    " for what, picture in pictures]
        cards.append(f"-   {''.join(shown)}[{title}]({name}.md)")
    grid = "\n\n".join(cards)
    return f'{intro}\n<div class="grid cards" markdown>\n\n{grid}\n\n</div>\n'


def _mark(name: str, quick: bool) -> str:
    """The last line of a page: from what it was made."""
    source = sized(script(name).read_text("utf-8"), quick) + Path(__file__).read_text("utf-8")
    return f"<!-- {hashlib.sha256(source.encode()).hexdigest()} -->\n"


if __name__ == "__main__":
    write(ROOT / "results" / "docs" / "gallery")
