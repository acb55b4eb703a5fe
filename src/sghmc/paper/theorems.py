"""The paper's theorems, checked by number: entropy, invariance, reversibility, convergence.

`gaussian_laws` checks exactly what holds for a step on a Gaussian target. Here Theorem 3.1 is
simulated, and Theorem 3.2 checked on a potential with two wells. Where the paper's text is wrong
the corrected claim is checked: π̃ ∝ exp(−H/(1 + δ/2)), and reversibility between mid-drift points,
for exp(−H/τ).
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper, theory
from sghmc.gradients.noise import NoisyGradient
from sghmc.paper import Claim
from sghmc.paper import gaussian_laws as exact
from sghmc.paper.gaussian_laws import Checked, Statement
from sghmc.posterior.target import Potential
from sghmc.samplers.sghmc import SGHMC

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

QUICK = {"num_steps": 300, "num_chains": 4_000}

# Theorem 3.1 and its corollary: noise without friction makes entropy, by chains of that sampler.
# h(t) − h(0) on one mode of curvature h and mass m, from equilibrium at temperature τ, is known in
# closed form (`theory.entropy_growth`); the energy grows by tr(BM⁻¹)t.

_STEPS_PER_POINT = 20
"""Steps of the sampler between points of the curve."""
_MAX_STANDARD_ERRORS = 5
"""Allowed error of a simulated number: chance exceeds it once in 1.7 million runs."""
_RATE_TOLERANCE = 0.02
"""Largest relative error of the entropy's rate; it is 0.3 % below the limit ε → 0 here."""


@dataclasses.dataclass(frozen=True)
class TheoremsConfig:
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
        """Return the diffusion B = ½εV."""
        return self.step_size * self.gradient_noise / 2

    @property
    def sampler(self) -> SGHMC:
        """Return SGHMC without friction."""
        return SGHMC(self.step_size, 0.0, self.mass, temperature=self.temperature)


def check_entropy(config: TheoremsConfig, key: jax.Array, progress: bool) -> Checked:
    position, momentum = _noisy_dynamics(config, key, progress)
    times = config.step_size * np.arange(_STEPS_PER_POINT, config.num_steps + 1, _STEPS_PER_POINT)
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
        Statement("Thm 3.1: entropy gained", growth[-1], expected[-1], _MAX_STANDARD_ERRORS / root),
        Statement(
            "Thm 3.1: energy gained, tr(BM⁻¹)t",
            energies.mean() - config.temperature,
            heating * times[-1],
            _MAX_STANDARD_ERRORS * energies.std() / root,
        ),
        Statement(
            "Cor 3.1: entropy rate at π > 0", *_entropy_rate(config), _RATE_TOLERANCE * heating
        ),
    ]
    curve = {"times": times.tolist(), "measured": growth.tolist(), "expected": expected.tolist()}
    return Checked(statements, curve)


def _noisy_dynamics(config: TheoremsConfig, key, progress) -> tuple[np.ndarray, np.ndarray]:
    """Return θ half a drift before the end of a step, and r, of all chains at each point.

    At mid-drift points the energy has no error of order ε.
    """
    start_key, chain_key = jax.random.split(key)
    spread = np.sqrt(config.temperature / config.curvature)
    positions = paper.draw(
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
    before, after = (
        positions[:, _STEPS_PER_POINT - back :: _STEPS_PER_POINT].astype(np.float64)
        for back in (2, 1)
    )
    return (before + after) / 2, config.mass * (after - before) / config.step_size


def _entropy_rate(config: TheoremsConfig) -> tuple[float, float]:
    """Return the entropy that one step from π adds, over ε; and Eq. 9 at π, tr(B S_rr⁻¹)."""
    step = theory.affine_map(config.sampler, config.curvature, config.gradient_noise)
    before = np.diag([config.temperature / config.curvature, config.temperature * config.mass])
    after = step.transition @ before @ step.transition.T + step.noise @ step.noise.T
    gained = np.linalg.slogdet(after)[1] - np.linalg.slogdet(before)[1]
    return gained / 2 / config.step_size, config.diffusion / before[1, 1]


def draw_entropy(axis, curve) -> None:
    red, black = paper.COLORS["red"], paper.COLORS["truth"]
    axis.plot(curve["times"], curve["measured"], "o", markersize=4, color=red, label="chains")
    axis.plot(curve["times"], curve["expected"], color=black, label="closed form")
    axis.set(title="Theorem 3.1: noise makes entropy", xlabel="time", ylabel="entropy gained")


# Theorem 3.2 and Corollary 3.1: π is stationary with friction and is not without it.
# By the Fokker–Planck equation of dz = g dt + N(0, 2D dt), ∂_t π = ∇·(−gπ + D∇π), on a potential
# with two wells in each of two coupled directions.

_NUM_PHASE_POINTS = 200
_NOISE_COVARIANCE = exact.FRICTION
"""Covariance D of the gradient's noise, which the friction balances."""


def check_stationarity(key: jax.Array) -> Checked:
    inverse_mass = np.linalg.inv(exact.MASS)
    with jax.enable_x64(True):
        points = jax.random.normal(key, (_NUM_PHASE_POINTS, 4), jnp.float64)

        def energy(z):
            theta, r = z[:2], z[2:]
            wells = jnp.sum(-2 * theta**2 + theta**4) + theta[0] * theta[1] / 2
            return wells + r @ inverse_mass @ r / 2

        with_friction, without = (
            np.asarray(jax.jit(jax.vmap(lambda z, c=c: _density_change(energy, c, z)))(points))
            for c in (exact.FRICTION, exact.ZERO)
        )
        speed = np.asarray(points)[:, 2:] @ inverse_mass
    # What is left without friction: (∂_t π)/π = vᵀDv − tr(DM⁻¹), v the velocity.
    heating = np.einsum("ni,ij,nj->n", speed, exact.FRICTION, speed) - np.trace(
        exact.FRICTION @ inverse_mass
    )
    largest = np.abs(with_friction).max()
    statements = [
        Statement("Thm 3.2: ∂π/∂t with friction, largest", largest, 0, exact.ROUNDING),
        Statement(
            "Cor 3.1: ∂π/∂t without friction, rms", _rms(without), _rms(heating), exact.ROUNDING
        ),
    ]
    return Checked(statements, {"with_friction": _rms(with_friction), "without": _rms(without)})


def _density_change(energy, friction, z):
    """Return (∂_t π)/π at a point of phase space, π ∝ exp(−energy)."""
    turn = np.block([[exact.ZERO, np.eye(2)], [-np.eye(2), -friction]])
    diffusion = exact.block_diagonal(exact.ZERO, _NOISE_COVARIANCE)

    def drift(z):
        return turn @ jax.grad(energy)(z)

    slope, bend = -jax.grad(energy)(z), -jax.hessian(energy)(z)
    spreading = jnp.sum(diffusion * (bend + jnp.outer(slope, slope)))
    return spreading - jnp.trace(jax.jacfwd(drift)(z)) - drift(z) @ slope


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


# All of them: the experiment.

_PICTURES = {
    "entropy": draw_entropy,
    "invariance": exact.draw_invariance,
    "reversibility": exact.draw_reversibility,
    "convergence": exact.draw_convergence,
}


def run(config: TheoremsConfig, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    entropy_key, point_key = jax.random.split(key)
    parts = {
        "entropy": check_entropy(config, entropy_key, progress),
        "stationarity": check_stationarity(point_key),
        "invariance": exact.check_invariance(),
        "reversibility": exact.check_reversibility(),
        "convergence": exact.check_convergence(),
    }
    return {
        "rows": [statement.judged() for part in parts.values() for statement in part.statements],
        "curves": {name: part.curve for name, part in parts.items()},
    }


def plot(result: dict[str, Any]) -> "Figure":
    figure, axes = paper.panels(2, (10, 7.6), rows=2)
    for axis, (name, draw) in zip(axes, _PICTURES.items(), strict=True):
        draw(axis, result["curves"][name])
        axis.legend(frameon=False)
    return figure


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    return [
        Claim(
            f"{row['statement']}: {row['relation']} {row['expected']:.5g}",
            f"{row['measured']:.5g}",
            row["passed"],
        )
        for row in result["rows"]
    ]


def table(result: dict[str, Any]) -> "Table":
    rows = [
        (
            row["statement"],
            f"{row['measured']:.5g}",
            row["relation"],
            f"{row['expected']:.5g}",
            "yes" if row["passed"] else "[bold red]no",
        )
        for row in result["rows"]
    ]
    headings = ("statement", "measured", "", "expected", "passed")
    return paper.table("The theorems: measured against expected", headings, rows)
