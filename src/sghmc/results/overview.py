"""A run in a few words: for `print`, for notebooks, and for the table of its report."""

from collections.abc import Iterable, Mapping

import numpy as np

from sghmc.display import notebook
from sghmc.results.info import Info
from sghmc.results.origin import Origin, SavedOrigin

_NUM_SHOWN, _MOST_LISTED = 6, 50
"""Variables that a printed overview names, and that a notebook lists: a line, and a page."""

_INSTANT = 1e-9
"""Seconds: what the time of a run is taken for that made no draw after its first."""


def parts(
    variables: Mapping[str, np.ndarray],
    averages: Iterable[str],
    info: Info,
    num_steps: int,
    seconds: float,
) -> list[str]:
    """How big the run was, what it kept, and whether it is sound."""
    shown = [f"{name} {leaf.shape[2:]}" for name, leaf in list(variables.items())[:_NUM_SHOWN]]
    if len(variables) > _NUM_SHOWN:
        shown.append(f"and {len(variables) - _NUM_SHOWN} more")
    found = [
        size(info),
        f"{_count(num_steps, 'step')} in {seconds:.1f} s",
        ", ".join(shown) if shown else "nothing kept",
    ]
    if averages:
        found.append(f"averages {', '.join(averages)}")
    if info.acceptance is not None and info.acceptance.size:
        found.append(f"acceptance {np.mean(info.acceptance):.2f}")
    failed = int(np.any(~info.is_finite, axis=1).sum())
    found.append(f"{failed} of {len(info.is_finite)} chains not finite" if failed else "all finite")
    return found


def table(title: str, variables: Mapping[str, np.ndarray]) -> str:
    """HTML with a row for each variable."""
    rows = [(name, leaf.shape[2:], leaf.dtype) for name, leaf in variables.items()]
    if len(rows) > _MOST_LISTED:
        rows = [*rows[:_MOST_LISTED], (f"and {len(rows) - _MOST_LISTED} more", "", "")]
    return notebook.table(title, ("variable", "shape", "dtype"), rows)


def settings(
    origin: Origin | SavedOrigin | None,
    info: Info,
    num_steps: int,
    seconds: float,
    startup_seconds: float,
) -> dict[str, object]:
    """What made the run, and how fast, by name."""
    sampling = max(seconds - startup_seconds, _INSTANT)
    speed = num_steps * len(info.is_finite) / sampling
    named: dict[str, object] = {
        "draws": size(info),
        "steps of each chain": f"{num_steps:,}",
        "seconds": f"{seconds:.1f}, {startup_seconds:.1f} of them to the first draw",
        "steps a second, all chains": f"{speed:,.0f}",
    }
    if isinstance(origin, SavedOrigin):
        return named | origin.arguments
    if origin is not None:
        named |= {"sampler": repr(origin.sampler), "gradient": repr(origin.gradient)}
    return named


def size(info: Info) -> str:
    num_chains, num_draws = info.is_finite.shape
    return f"{_count(num_chains, 'chain')} × {_count(num_draws, 'draw')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
