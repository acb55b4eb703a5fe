"""Makes the front page's picture, from the very code that stands above it there.

It runs the README's example, then the same posterior by plain minibatches, and draws both beside
the exact answer: with 100,000 rows the Laplace approximation at the mode.
"""

import contextlib
import hashlib
import io
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sghmc

_ROOT = Path(__file__).parents[1]
_SCHEMES = {"light": ("#222222", "#d55e00"), "dark": ("#e6e6e6", "#ff9e57")}
"""Colors of the text and of the wrong answer; the right one is blue on both."""
_COEFFICIENT = 1
_ENGINES = {"exact": "HMC on all rows", "minibatch": "SGHMC on minibatches"}


def write(folder: Path) -> None:
    """One file for light pages and one for dark; drawn anew only if code or drawing changed."""
    code = example()
    digest = hashlib.sha256((code + Path(__file__).read_text("utf-8")).encode()).hexdigest()
    stamp = folder / "front.txt"
    if stamp.exists() and stamp.read_text("utf-8") == digest:
        return
    laws = run(code)
    for scheme, (ink, wrong) in _SCHEMES.items():
        figure = draw(laws, ink, wrong)
        figure.savefig(folder / f"front-{scheme}.svg", transparent=True)
    stamp.write_text(digest, encoding="utf-8")


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (_ROOT / "README.md").read_text("utf-8"), re.S)
    return code


def run(code: str) -> dict[str, Any]:
    """Draws of one coefficient, right and wrong, and its exact mean and standard deviation."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "README.md", "exec"), names)
    posterior, samples = names["posterior"], names["samples"]
    # By Newton's method, so that the exact curve owes nothing to the draws.
    mode = np.zeros(3)
    for _ in range(20):
        covariance = np.linalg.inv(jax.hessian(posterior.potential)(mode))
        mode = mode - covariance @ np.asarray(posterior.gradient(mode))
    plain = sghmc.sample(
        jax.random.key(3),
        posterior,
        sghmc.SGHMC.from_learning_rate(0.1 / posterior.num_examples, momentum_decay=0.1),
        mode,
        gradient=sghmc.Minibatch(500),
        num_samples=4_000,
        num_burnin=100,
        thinning=10,
        num_chains=4,
        progress=False,
    )
    return {
        "mean": float(mode[_COEFFICIENT]),
        "sd": float(np.sqrt(covariance[_COEFFICIENT, _COEFFICIENT])),
        "engine": _ENGINES[samples.tuning.engine],
        "right": samples.positions[..., _COEFFICIENT].ravel(),
        "wrong": plain.positions[..., _COEFFICIENT].ravel(),
    }


def draw(laws: dict[str, Any], ink: str, wrong: str) -> Figure:
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    grid = laws["mean"] + laws["sd"] * np.linspace(-9, 9, 400)
    normal = np.exp(-((grid - laws["mean"]) ** 2) / (2 * laws["sd"] ** 2))
    normal /= laws["sd"] * np.sqrt(2 * np.pi)
    axes.fill_between(grid, normal, color="#808080", alpha=0.45, label="the exact posterior")
    for name, color, label in (
        ("right", "#2a8fd6", f'sample(…, "auto", …), which chose {laws["engine"]}'),
        ("wrong", wrong, "plain minibatches of 500: {:.1f} times too wide"),
    ):
        draws = laws[name]
        axes.hist(
            draws,
            bins=np.linspace(grid[0], grid[-1], 73),
            density=True,
            histtype="step",
            linewidth=2,
            color=color,
            label=label.format(np.std(draws) / laws["sd"]),
        )
    _dress(axes, ink)
    return figure


def _dress(axes: Axes, ink: str) -> None:
    axes.set_xlabel("a coefficient of the logistic regression", color=ink)
    axes.set_yticks([])
    axes.tick_params(colors=ink)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(ink)
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.legend(loc="upper left", frameon=False, labelcolor=ink)
