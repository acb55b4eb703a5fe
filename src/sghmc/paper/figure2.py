"""Fig. 2: paths of (θ, r) under Hamiltonian dynamics, noise, resampled momenta and friction.

The target is U = ½θ² with a noisy gradient. All four are SGHMC: without friction it is Hamiltonian
dynamics. Momenta are computed from consecutive positions, r = (θ_t − θ_{t−1})/ε, which is exact for
SGHMC's update. The paper's start, (θ, r) = (1, 0), holds for the two that have no fresh momenta;
resampled ones and those with friction start from r ~ N(0, 1), which they forget long before the
first shown point.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper, theory
from sghmc.gradients.noise import NoisyGradient
from sghmc.paper import Claim, draw
from sghmc.posterior.target import Potential
from sghmc.samplers.sghmc import SGHMC

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

# One target for all runs, so that the loop is compiled once for each kind of sampler.
_TARGET = Potential(lambda theta: theta**2 / 2)
LABELS = {
    "noisy": "Noisy Hamiltonian dynamics",
    "resampled": "Noisy dynamics (resample r each 50 steps)",
    "friction": "Noisy dynamics with friction",
    "hamiltonian": "Hamiltonian dynamics",
}


@dataclasses.dataclass(frozen=True)
class Figure2Config:
    """Settings: `gradient_noise` is the caption's N(0, 4); the published script has 0.25.

    One chain of `num_chains` is shown; the radius is measured over all of them.
    """

    step_size: float = 0.1
    num_steps: int = 15_000
    shown_every: int = 50
    friction: float = 3.0
    gradient_noise: float = 4.0
    num_chains: int = 1000


QUICK = {"num_steps": 3_000, "num_chains": 200}
_MAX_ROUNDING = 1e-3
"""Relative error of the radius below which it is rounding, and no z-score is computed."""
_MIN_DIVERGED_RADII, _MAX_CONTROLLED_RADIUS = 5.0, 2.0
"""Radii, relative to the noiseless one, from which noisy dynamics count as diverged; and the
largest radius that counts as controlled, where friction has 1.48 exactly."""


def run(config: Figure2Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    every = config.shown_every
    steps = np.arange(every, config.num_steps + 1, every)
    result: dict[str, Any] = {"steps": steps.tolist(), "clouds": {}}
    for i, (name, (sampler, gradient_noise)) in enumerate(_settings(config).items()):
        position, momentum = _trajectories(
            config, sampler, gradient_noise, jax.random.fold_in(key, i), progress
        )
        squares = position**2 + momentum**2
        expected = expected_square_radius(config, sampler, gradient_noise)
        measured = squares.mean(axis=0)
        result["clouds"][name] = {
            "position": position[0].tolist(),
            "momentum": momentum[0].tolist(),
            "rms_radius": np.sqrt(measured).tolist(),
            "expected_rms_radius": np.sqrt(expected).tolist(),
            "end": _end(squares[:, -1], expected[-1]),
        }
    return result


def _end(squares: np.ndarray, expected: float) -> dict[str, float]:
    """Return the rms radius of all chains after the last step, and its z-score."""
    error = squares.std(ddof=1) / np.sqrt(len(squares))
    is_certain = error < _MAX_ROUNDING * expected
    return {
        "rms_radius": float(np.sqrt(squares.mean())),
        "expected_rms_radius": float(np.sqrt(expected)),
        "z_score": 0.0 if is_certain else float((squares.mean() - expected) / error),
    }


def _settings(config: Figure2Config) -> dict[str, tuple[SGHMC, float]]:
    """Return sampler and gradient variance by name; at temperature 0 momenta start from 0."""
    noise = config.gradient_noise
    frictionless = SGHMC(config.step_size, 0.0, temperature=0.0)
    resampled = SGHMC(config.step_size, 0.0, resample_every=config.shown_every)
    return {
        "noisy": (frictionless, noise),
        "resampled": (resampled, noise),
        "friction": (SGHMC(config.step_size, config.friction, gradient_noise=noise), noise),
        "hamiltonian": (frictionless, 0.0),
    }


def _trajectories(config, sampler, gradient_noise, key, progress) -> tuple[np.ndarray, np.ndarray]:
    """Return θ and r of every chain after each `shown_every`th step."""
    positions = draw(
        key,
        _TARGET,
        sampler,
        jnp.ones(()),
        gradient=NoisyGradient(gradient_noise),
        num_samples=config.num_steps,
        num_chains=config.num_chains,
        progress=progress,
    ).positions
    last = slice(config.shown_every - 1, None, config.shown_every)
    before = slice(config.shown_every - 2, None, config.shown_every)
    position = positions[:, last].astype(np.float64)
    return position, (position - positions[:, before][:, : position.shape[1]]) / config.step_size


def expected_square_radius(
    config: Figure2Config, sampler: SGHMC, gradient_noise: float
) -> np.ndarray:
    """Return E[θ² + r²] at the shown steps, by S ← F S Fᵀ + L Lᵀ with the step's F and L."""
    every, num_steps = config.shown_every, config.num_steps
    plain, resampling = (
        theory.affine_map(sampler, 1.0, gradient_noise, t=t, num_steps=num_steps)
        for t in (1, every)
    )
    moments = np.diag([1.0, float(np.asarray(sampler.temperature))])
    squares = []
    for t in range(num_steps):
        step = resampling if t > 0 and t % every == 0 else plain
        moments = step.transition @ moments @ step.transition.T + step.noise @ step.noise.T
        if (t + 1) % every == 0:
            squares.append(np.trace(moments))
    return np.array(squares)


def plot(result: dict[str, Any]) -> "Figure":
    figure, (cloud_axis, radius_axis) = paper.panels(2, (11, 5.4))
    for name, cloud in result["clouds"].items():
        style = {"linestyle": "", "markersize": 3, "label": LABELS[name], **_STYLES[name]}
        cloud_axis.plot(cloud["position"], cloud["momentum"], **style)
        radius_axis.plot(result["steps"], cloud["rms_radius"], color=style["color"])
        radius_axis.plot(result["steps"], cloud["expected_rms_radius"], **_EXPECTED)
    cloud_axis.set(xlabel=r"$\theta$", ylabel=r"$r$", title="one trajectory")
    cloud_axis.set_aspect("equal", adjustable="datalim")
    radius_axis.plot([], [], label="expected", **_EXPECTED)
    radius_axis.set(xlabel="step", ylabel=r"rms of $|(\theta, r)|$")
    radius_axis.set_title("radius over all trajectories")
    radius_axis.legend(frameon=False)
    handles, labels = cloud_axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


_EXPECTED = {"color": "#222222", "linestyle": ":"}
_STYLES: dict[str, dict[str, Any]] = {
    "noisy": {"color": paper.COLORS["red"], "marker": "v"},
    "resampled": {"color": paper.COLORS["truth"], "marker": "o"},
    "friction": {"color": paper.COLORS["green"], "marker": "s"},
    "hamiltonian": {"color": paper.COLORS["blue"], "marker": "x"},
}


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    radius = {name: cloud["end"]["rms_radius"] for name, cloud in result["clouds"].items()}
    still = radius["hamiltonian"]
    return [
        Claim(
            "Noisy Hamiltonian dynamics diverge without friction.",
            f"The radius grows from 1 to {radius['noisy']:.1f}; without noise it is {still:.2f}.",
            radius["noisy"] > _MIN_DIVERGED_RADII * still,
        ),
        Claim(
            "Friction corrects this.",
            f"The radius is {radius['friction']:.2f}; √2 is that of the target.",
            radius["friction"] < _MAX_CONTROLLED_RADIUS,
        ),
        Claim(
            "Resampling the momentum helps control divergence.",
            f"The radius is {radius['resampled']:.2f}.",
            radius["resampled"] < radius["noisy"] / 2,
        ),
    ]


def table(result: dict[str, Any]) -> "Table":
    rows = [
        (
            LABELS[name],
            f"{cloud['end']['rms_radius']:.3f}",
            f"{cloud['end']['expected_rms_radius']:.3f}",
            f"{cloud['end']['z_score']:+.1f}",
        )
        for name, cloud in result["clouds"].items()
    ]
    title = f"Fig. 2: rms radius of the clouds after {result['steps'][-1]:,} steps"
    return paper.table(title, ("dynamics", "measured", "expected", "z"), rows)
