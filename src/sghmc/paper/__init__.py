"""The paper's figures and theorems, reproduced: one file each, the paper's settings the defaults.

What all experiments share is here: claims, whole runs, tables, panels, and pages of results. rich
and matplotlib are imported where a table or a picture is made. Every experiment is a module with

| name | meaning |
| --- | --- |
| `Figure1Config`, say | its settings, a frozen dataclass |
| `QUICK` | the settings that a run of seconds replaces |
| `run(config, key, progress=…)` | plain numbers |
| `plot(result)` | a matplotlib Figure |
| `table(result)` | a rich Table: what was measured against what was expected |
| `claims(config, result)` | what the paper says beside what came out |
"""

import dataclasses
import importlib
import os
import pathlib
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from sghmc import display
from sghmc.core import files
from sghmc.core.checks import require
from sghmc.results.samples import Samples
from sghmc.sampling import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

EXPERIMENTS = ("figure1", "figure2", "figure3", "figure4", "table1", "theorems")
"""Names of the experiments, and of their modules, which are imported when one is loaded."""


def load(name: str) -> ModuleType:
    if name not in EXPERIMENTS:
        raise ValueError(f"There is no experiment {name!r}: there are {', '.join(EXPERIMENTS)}.")
    return importlib.import_module(f"sghmc.paper.{name}")


def config_class(name: str) -> type:
    """Return the class of an experiment's settings: `Figure1Config` of "figure1"."""
    return getattr(load(name), f"{name.capitalize()}Config")


def reproduce(
    name: str,
    out: pathlib.Path,
    *,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Run an experiment and write `config.json`, `result.json`, `<name>.png` and a report.

    They go to `out/<name>`, all of them at the end or none. `options` replace fields of the
    experiment's settings.
    """
    experiment = load(name)
    config = _configure(name, quick, options)
    with files.drafts(pathlib.Path(out) / name) as stage:
        started = time.perf_counter()
        result = experiment.run(config, jax.random.key(seed), progress=progress)
        settings = {
            "experiment": name,
            "quick": quick,
            "seed": seed,
            "seconds": round(time.perf_counter() - started, 2),
            "jax": jax.__version__,
            "python": platform.python_version(),
            "device": jax.devices()[0].device_kind,
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            **dataclasses.asdict(config),
        }
        files.write_json(stage / "config.json", settings)
        files.write_json(stage / "result.json", result)
        experiment.plot(result).savefig(stage / f"{name}.png", dpi=150)
        display.write(stage, page(name, settings, result))
    return result


def known_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the `options` that this experiment has, for a run of several experiments."""
    known = {field.name for field in dataclasses.fields(config_class(name))}
    return {option: value for option, value in options.items() if option in known}


def _configure(name: str, quick: bool, options: dict[str, Any]) -> Any:
    config = config_class(name)(**(load(name).QUICK if quick else {}))
    known = [field.name for field in dataclasses.fields(config)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: choose from {', '.join(known)}.")
    return dataclasses.replace(config, **options)


# What experiments share.


class Claim(NamedTuple):
    """A statement of the paper beside this run; `agrees` is None if the run cannot decide it."""

    paper: str
    here: str
    agrees: bool | None


def draw(*arguments: Any, num_samples: int, **options: Any) -> Samples:
    """Call `sample`, but let Ctrl-C raise KeyboardInterrupt instead of returning some draws."""
    samples = sample(*arguments, num_samples=num_samples, **options)
    if samples.is_interrupted:
        raise KeyboardInterrupt
    return samples


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Return a table for a terminal: the first column aligned left, the others right."""
    from rich.table import Table

    shown = Table(title=title)
    for i, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if i else "left")
    for row in rows:
        shown.add_row(*row)
    return shown


COLORS = {"truth": "#222222", "blue": "#0072b2", "red": "#d55e00", "green": "#009e73"}
"""Colors that are distinct for the color-blind (Okabe and Ito)."""
SKY, PURPLE = "#56b4e9", "#cc79a7"


def panels(columns: int, size: tuple[float, float], *, rows: int = 1) -> tuple["Figure", Any]:
    """Return axes, row by row, on a figure that shares nothing with the caller's pyplot."""
    figures = require("matplotlib.figure", extra="plots")
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


# The page of an experiment.

_RUN_FIELDS = ("seed", "quick", "seconds", "machine", "device", "jax", "python")
_QUICK = "A quick run at small sizes: its numbers are rough."
_HEADINGS = ("the paper", "here", "agrees")
_ANSWERS = {True: "yes", False: "NO", None: "cannot tell"}


def page(name: str, config: Mapping[str, Any], result: dict[str, Any]) -> str:
    """Return the report of an experiment, whose title is the first line of its module."""
    experiment = load(name)
    title = (experiment.__doc__ or name).partition("\n")[0].rstrip(".")
    claims = experiment.claims(config, result)
    run = {key: config[key] for key in _RUN_FIELDS if key in config}
    settings = {k: v for k, v in config.items() if k not in run and k != "experiment"}
    compared = [(claim.paper, claim.here, _ANSWERS[claim.agrees]) for claim in claims]
    quick = " --quick" if config.get("quick") else ""
    command = f"sghmc reproduce {name} --seed {config.get('seed', 0)}{quick}"
    return display.page(
        title,
        [
            display.verdict(*judged(claims)),
            *([display.paragraph(_QUICK)] if config.get("quick") else []),
            display.section("The paper and this run", display.grid(_HEADINGS, compared)),
            display.section("The figure, as made here", drawing(experiment.plot(result), title)),
            display.section("Measured", rich_table(experiment.table(result))),
            display.section("The run", display.facts({"command": command, **run})),
            display.section("Settings", display.facts(settings)),
        ],
    )


def judged(claims: Sequence[Claim]) -> tuple[str, bool]:
    """Return the verdict on an experiment, and whether it is good."""
    decided = [claim.agrees for claim in claims if claim.agrees is not None]
    if not decided:
        return "this run cannot tell whether the paper's statements hold", False
    number = "all" if all(decided) else f"{sum(decided)} of"
    rest = "" if len(decided) == len(claims) else "; of others this run cannot tell"
    return f"{number} {len(decided)} statements of the paper hold here{rest}", all(decided)


def drawing(figure: "Figure", words: str, *, dpi: int = 110) -> str:
    return display.card(display.picture_address(figure, dpi=dpi), words)


def rich_table(table: "Table") -> str:
    """Return a terminal's table as HTML."""
    from rich.text import Text

    def plain(cell: Any) -> str:
        return Text.from_markup(str(cell)).plain.replace("\n", " ").strip()

    heads = [plain(column.header) for column in table.columns]
    cells = [[plain(cell) for cell in column.cells] for column in table.columns]
    return display.grid(heads, zip(*cells, strict=True))
