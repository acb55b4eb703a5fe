"""The paper's figures and theorems, reproduced: one file each, the paper's settings the defaults.

Every experiment is a module with

| name | meaning |
| --- | --- |
| `Config` | its settings, a frozen dataclass |
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
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax

from sghmc.core import files
from sghmc.display import write
from sghmc.paper import pages

if TYPE_CHECKING:
    from rich.table import Table

EXPERIMENTS = ("figure1", "figure2", "figure3", "figure4", "table1", "theorems")
"""Names of the experiments, and of their modules, which are imported when one is loaded."""


def load(name: str) -> ModuleType:
    if name not in EXPERIMENTS:
        raise ValueError(f"There is no experiment {name!r}: there are {', '.join(EXPERIMENTS)}.")
    return importlib.import_module(f"sghmc.paper.{name}")


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
    experiment's Config.
    """
    experiment = load(name)
    config = _configure(name, experiment, quick, options)
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
        write(stage, page(name, settings, result))
    return result


def page(name: str, config: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the report of an experiment as HTML."""
    return pages.experiment_page(name, load(name), config, result)


def table(name: str, result: dict[str, Any]) -> "Table":
    """Return what was measured against what was expected, in 80 columns."""
    return load(name).table(result)


def known_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the `options` that this experiment has, for a run of several experiments."""
    known = {field.name for field in dataclasses.fields(load(name).Config)}
    return {option: value for option, value in options.items() if option in known}


def _configure(name: str, experiment: ModuleType, quick: bool, options: dict[str, Any]) -> Any:
    config = experiment.Config(**(experiment.QUICK if quick else {}))
    known = [field.name for field in dataclasses.fields(config)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: choose from {', '.join(known)}.")
    return dataclasses.replace(config, **options)
