"""The paper's figures and theorems, reproduced: one file each, the paper's settings the defaults.

Every experiment is a module with `Config` (and `Config.quick()`, a run of seconds), `run(config,
key, progress=…)` → plain numbers, `plot(result)` → a matplotlib Figure, `table(result)` → a rich
Table of what was measured against what was expected.
"""

import dataclasses
import importlib
import pathlib
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax

from sghmc.experiments import files

if TYPE_CHECKING:
    from rich.table import Table

EXPERIMENTS = {
    "figure1": "sghmc.experiments.figure1",
    "figure2": "sghmc.experiments.figure2",
    "figure3": "sghmc.experiments.figure3",
    "figure4": "sghmc.experiments.figure4",
    "table1": "sghmc.experiments.table1",
    "theorems": "sghmc.experiments.theorems",
}
"""Name → module, imported when it is asked for."""


def load(name: str) -> ModuleType:
    if name not in EXPERIMENTS:
        raise ValueError(f"There is no experiment {name!r}: there are {', '.join(EXPERIMENTS)}.")
    return importlib.import_module(EXPERIMENTS[name])


def reproduce(
    name: str,
    out: pathlib.Path,
    *,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Run an experiment, write `config.json`, `result.json` and `<name>.png` to `out/<name>`.

    `options` replace fields of the experiment's Config. The three files appear together, whole, or
    not at all.
    """
    experiment = load(name)
    config = _configure(name, experiment, quick, options)
    started = time.perf_counter()
    result = experiment.run(config, jax.random.key(seed), progress=progress)
    settings = {
        "experiment": name,
        "quick": quick,
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 2),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        **dataclasses.asdict(config),
    }
    with files.staged(pathlib.Path(out) / name) as stage:
        files.write_json(stage / "config.json", settings)
        files.write_json(stage / "result.json", result)
        experiment.plot(result).savefig(stage / f"{name}.png", dpi=150)
    return result


def table(name: str, result: dict[str, Any]) -> "Table":
    """What was measured against what was expected, in 80 columns."""
    return load(name).table(result)


def known_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of `options` that the experiment has: for a run of several experiments."""
    known = {field.name for field in dataclasses.fields(load(name).Config)}
    return {option: value for option, value in options.items() if option in known}


def _configure(name: str, experiment: ModuleType, quick: bool, options: dict[str, Any]) -> Any:
    config = experiment.Config.quick() if quick else experiment.Config()
    known = [field.name for field in dataclasses.fields(config)]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: choose from {', '.join(known)}.")
    return dataclasses.replace(config, **options)
