"""What Fig. 4 and Table 1 share: the paper's four methods, the search for settings, the table."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from sghmc.experiments import pictures
from sghmc.results.samples import Samples
from sghmc.samplers.base import Sampler
from sghmc.samplers.descent import SGD, Momentum
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.sgld import SGLD

if TYPE_CHECKING:
    from rich.table import Table

LABELS = {"sgd": "SGD", "momentum": "SGD with momentum", "sgld": "SGLD", "sghmc": "SGHMC"}
OPTIMIZERS = ("sgd", "momentum")
COLORS = {
    "sgd": pictures.SKY,
    "momentum": pictures.COLORS["green"],
    "sgld": pictures.COLORS["blue"],
    "sghmc": pictures.COLORS["red"],
}
OURS = pictures.PURPLE
"""The color of a recipe of our own."""


def is_cut(config: Any) -> bool:
    """Whether a run is cut short: there is no accelerator, and nobody asked for all of it."""
    return not config.full and jax.default_backend() == "cpu"


def warm_after(num_quiet_steps: int, temperature: float = 1.0) -> Callable:
    """The temperature as a schedule: as in the authors' scripts, the first steps have no noise."""
    return lambda t: jnp.where(t < num_quiet_steps, 0.0, temperature)


def sampler(config: Any, name: str, num_quiet_steps: int) -> Sampler:
    """One of the four with the steps and the momentum decay of `config`."""
    warm, decay = warm_after(num_quiet_steps), config.momentum_decay
    return {
        "sgd": lambda: SGD(config.sgd_step),
        "momentum": lambda: Momentum(config.momentum_step, decay),
        "sgld": lambda: SGLD(config.sgld_step, temperature=warm),
        "sghmc": lambda: SGHMC.from_learning_rate(config.sghmc_step, decay, temperature=warm),
    }[name]()


def over_time(name: str, samples: Samples) -> Any:
    """The scores at each draw: an optimizer's last iterate's, a sampler's average's."""
    return samples.positions if name in OPTIMIZERS else samples.trace


def search(
    config: Any, grids: dict[str, list[dict[str, float]]], score: Callable[[Any, str], float]
) -> tuple[Any, dict[str, Any]]:
    """`config` with each method's best setting, the lowest score; and all that was tried."""
    found: dict[str, Any] = {}
    for name, settings in grids.items():
        rows = [
            {**setting, "score": score(dataclasses.replace(config, **setting), name)}
            for setting in settings
        ]
        best = min(range(len(rows)), key=lambda i: rows[i]["score"])
        found[name] = {"tried": rows, "best": rows[best]}
        config = dataclasses.replace(config, **settings[best])
    return config, found


def grid(**values: list[float]) -> list[dict[str, float]]:
    """Every combination of the values of each field.

    >>> grid(step=[1.0, 2.0], regularizer=[4.0])
    [{'step': 1.0, 'regularizer': 4.0}, {'step': 2.0, 'regularizer': 4.0}]
    """
    combinations: list[dict[str, float]] = [{}]
    for field, choices in values.items():
        combinations = [{**each, field: choice} for each in combinations for choice in choices]
    return combinations


def scaled(unit: float, *factors: float) -> list[float]:
    """Step sizes as the paper writes them: some factors of a power of ten."""
    return [unit * factor for factor in factors]


def table(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> "Table":
    """A row a method, numbers to the right."""
    from rich.table import Table

    shown = Table(title=title)
    for i, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if i else "left")
    for row in rows:
        shown.add_row(*row)
    return shown
