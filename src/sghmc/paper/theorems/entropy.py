"""Theorem 3.1 and its corollary: noise without friction makes entropy, by chains of that sampler.

h(t) − h(0) on one mode of curvature h and mass m, from equilibrium at temperature τ, is known in
closed form (`theory.entropy_growth`); the energy grows by tr(BM⁻¹)t.
"""

import dataclasses

import jax
import numpy as np

from sghmc import theory
from sghmc.gradients.exact import NoisyGradient
from sghmc.paper import pages
from sghmc.paper.pages import draw as draw_samples
from sghmc.paper.theorems.statement import Checked, Statement
from sghmc.posterior.target import Potential
from sghmc.samplers.sghmc import SGHMC

_EVERY = 20
"""Steps between points of the curve."""
_ERRORS = 5
"""Standard errors that a simulated number may be off: chance exceeds that once in 1.7 million."""
_RATE_TOLERANCE = 0.02
"""Of the entropy's rate, relative: a step of this size adds 0.3 % less than the limit ε → 0."""


@dataclasses.dataclass(frozen=True)
class Config:
    """The mode on which Theorem 3.1 is simulated, by `num_chains` chains from equilibrium.

    `gradient_noise` V is large, as ½εV is what makes the entropy.
    """

    curvature: float = 2.0
    mass: float = 1.5
    gradient_noise: float = 60.0
    temperature: float = 0.7
    step_size: float = 0.01
    num_steps: int = 800
    num_chains: int = 20_000

    @property
    def diffusion(self) -> float:
        """B = ½εV."""
        return self.step_size * self.gradient_noise / 2

    @property
    def sampler(self) -> SGHMC:
        """Without friction."""
        return SGHMC(self.step_size, 0.0, self.mass, temperature=self.temperature)


def check(config: Config, key: jax.Array, progress: bool) -> Checked:
    position, momentum = _noisy_dynamics(config, key, progress)
    times = config.step_size * np.arange(_EVERY, config.num_steps + 1, _EVERY)
    start = config.temperature**2 * config.mass / config.curvature
    volumes = [
        np.linalg.det(np.cov(pair)) for pair in np.stack([position, momentum]).T.swapaxes(1, 2)
    ]
    growth = np.log(np.array(volumes) / start) / 2
    expected = theory.entropy_growth(
        times, config.curvature, config.mass, config.diffusion, config.temperature
    )
    energies = (config.curvature * position[:, -1] ** 2 + momentum[:, -1] ** 2 / config.mass) / 2
    root = np.sqrt(config.num_chains)
    heating = config.diffusion / config.mass
    statements = [
        # ½ ln det of n draws' covariance in 2 dimensions has standard error 1/√n.
        Statement("Thm 3.1: entropy gained", growth[-1], expected[-1], _ERRORS / root),
        Statement(
            "Thm 3.1: energy gained, tr(BM⁻¹)t",
            energies.mean() - config.temperature,
            heating * times[-1],
            _ERRORS * energies.std() / root,
        ),
        Statement(
            "Cor 3.1: entropy rate at π > 0", *_entropy_rate(config), _RATE_TOLERANCE * heating
        ),
    ]
    curve = {"times": times.tolist(), "measured": growth.tolist(), "expected": expected.tolist()}
    return Checked(statements, curve)


def _noisy_dynamics(config: Config, key, progress) -> tuple[np.ndarray, np.ndarray]:
    """θ half a drift before the end of a step, and r, of all chains after every 20th step.

    Taken there, their energy has no error of order ε.
    """
    start_key, chain_key = jax.random.split(key)
    spread = np.sqrt(config.temperature / config.curvature)
    positions = draw_samples(
        chain_key,
        Potential(lambda theta: config.curvature * theta**2 / 2),
        config.sampler,
        spread * jax.random.normal(start_key, (config.num_chains,)),
        gradient=NoisyGradient(config.gradient_noise),
        num_samples=config.num_steps,
        num_chains=config.num_chains,
        init_axis=0,
        progress=progress,
    ).positions
    before, after = (positions[:, _EVERY - back :: _EVERY].astype(np.float64) for back in (2, 1))
    return (before + after) / 2, config.mass * (after - before) / config.step_size


def _entropy_rate(config: Config) -> tuple[float, float]:
    """What one step from π adds to the entropy, over ε; and Eq. 9 at π, tr(B S_rr⁻¹)."""
    step = theory.affine_map(config.sampler, config.curvature, config.gradient_noise)
    before = np.diag([config.temperature / config.curvature, config.temperature * config.mass])
    after = step.transition @ before @ step.transition.T + step.noise @ step.noise.T
    gained = np.linalg.slogdet(after)[1] - np.linalg.slogdet(before)[1]
    return gained / 2 / config.step_size, config.diffusion / before[1, 1]


def draw(axis, curve) -> None:
    red, black = pages.COLORS["red"], pages.COLORS["truth"]
    axis.plot(curve["times"], curve["measured"], "o", markersize=4, color=red, label="chains")
    axis.plot(curve["times"], curve["expected"], color=black, label="closed form")
    axis.set(title="Theorem 3.1: noise makes entropy", xlabel="time", ylabel="entropy gained")
