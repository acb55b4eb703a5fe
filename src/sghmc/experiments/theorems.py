"""The paper's theorems, checked by number: entropy, invariance, reversibility, convergence.

On Gaussian targets the exact law of the step that runs stands against closed forms; Theorem 3.1 is
also simulated, and Theorem 3.2 checked on a potential with two wells. Matrices are dense and none
is the identity, so that no factor can hide. Where the paper's text is wrong the corrected claim is
checked: π̃ ∝ exp(−H/(1 + δ/2)), and reversibility between mid-drift points, for exp(−H/τ).
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from sghmc import theory
from sghmc.experiments import pictures
from sghmc.experiments.claims import Claim
from sghmc.gradients.exact import NoisyGradient
from sghmc.posterior.potential import Potential
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.sgld import SGLD
from sghmc.sampling import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

PRECISION = np.array([[1.6, 0.5], [0.5, 0.7]])
MASS = np.array([[1.3, -0.3], [-0.3, 0.8]])
FRICTION = np.array([[1.1, 0.4], [0.4, 0.9]])
GRADIENT_NOISE = np.array([[2.0, -0.6], [-0.6, 1.5]])
TEMPERATURE = 0.8
_EVERY = 20
_ZERO = np.zeros((2, 2))
_STEP_SIZES = 0.4 * 0.5 ** np.arange(6)
_DELTAS = np.linspace(0.05, 1, 20)


@dataclasses.dataclass(frozen=True)
class Config:
    """The mode on which Theorem 3.1 is simulated, by `num_chains` chains from equilibrium."""

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

    @classmethod
    def quick(cls) -> "Config":
        return cls(num_steps=300, num_chains=4_000)


class Row(NamedTuple):
    """One claim as numbers. `relation` is "=" (to within `tolerance`) or "<"."""

    statement: str
    measured: float
    expected: float
    tolerance: float
    relation: str = "="

    def as_dict(self) -> dict[str, Any]:
        difference = self.measured - self.expected
        passed = difference < 0 if self.relation == "<" else abs(difference) <= self.tolerance
        return {
            "statement": self.statement,
            "measured": float(self.measured),
            "relation": self.relation,
            "expected": float(self.expected),
            "tolerance": float(self.tolerance),
            "passed": bool(passed),
        }


def run(config: Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    entropy_key, point_key = jax.random.split(key)
    rows, curves = [], {}
    for name, (part, curve) in {
        "entropy": _entropy(config, entropy_key, progress),
        "fokker_planck": _fokker_planck(point_key),
        "invariance": _invariance(),
        "reversibility": _reversibility(),
        "convergence": _convergence(),
    }.items():
        rows += part
        curves[name] = curve
    return {"rows": [row.as_dict() for row in rows], "curves": curves}


def _entropy(config: Config, key: jax.Array, progress: bool):
    """Theorem 3.1 and its corollary, by chains of the frictionless sampler."""
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
    energies = config.curvature * position[:, -1] ** 2 + momentum[:, -1] ** 2 / config.mass
    error = energies.std() / 2 / np.sqrt(config.num_chains)
    heating = config.diffusion / config.mass
    rows = [
        # ½ ln det of n draws' covariance in 2 dimensions has standard error 1/√n.
        Row("Thm 3.1: entropy gained", growth[-1], expected[-1], 5 / config.num_chains**0.5),
        Row(
            "Thm 3.1: energy gained, tr(BM⁻¹)t",
            energies.mean() / 2 - config.temperature,
            heating * times[-1],
            5 * error,
        ),
        Row("Cor 3.1: entropy rate at π > 0", *_entropy_rate(config), 0.02 * heating),
    ]
    curve = {
        "times": times.tolist(),
        "measured": growth.tolist(),
        "expected": expected.tolist(),
    }
    return rows, curve


def _noisy_dynamics(config, key, progress) -> tuple[np.ndarray, np.ndarray]:
    """θ half a drift before the end of a step, and r, of all chains after every 20th step.

    Taken there, their energy has no error of order ε.
    """
    start_key, chain_key = jax.random.split(key)
    spread = np.sqrt(config.temperature / config.curvature)
    positions = sample(
        chain_key,
        Potential(lambda theta: config.curvature * theta**2 / 2),
        SGHMC(config.step_size, 0.0, config.mass, temperature=config.temperature),
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
    sampler = SGHMC(config.step_size, 0.0, config.mass, temperature=config.temperature)
    step = theory.affine_map(sampler, config.curvature, config.gradient_noise)
    before = np.diag([config.temperature / config.curvature, config.temperature * config.mass])
    after = step.transition @ before @ step.transition.T + step.noise @ step.noise.T
    gained = np.linalg.slogdet(after)[1] - np.linalg.slogdet(before)[1]
    return gained / 2 / config.step_size, config.diffusion / before[1, 1]


def _fokker_planck(key: jax.Array):
    """∂_t π at points of phase space, U = Σ(−2θ² + θ⁴) + ½θ₁θ₂: Theorem 3.2, Corollary 3.1."""
    inverse_mass = np.linalg.inv(MASS)
    with jax.enable_x64(True):
        points = jax.random.normal(key, (200, 4), jnp.float64)

        def energy(z):
            theta, r = z[:2], z[2:]
            wells = jnp.sum(-2 * theta**2 + theta**4) + theta[0] * theta[1] / 2
            return wells + r @ inverse_mass @ r / 2

        with_friction, without = (
            np.asarray(jax.jit(jax.vmap(lambda z, c=c: _density_change(energy, c, z)))(points))
            for c in (FRICTION, _ZERO)
        )
        speed = np.asarray(points)[:, 2:] @ inverse_mass
    heating = np.einsum("ni,ij,nj->n", speed, FRICTION, speed) - np.trace(FRICTION @ inverse_mass)
    rows = [
        Row("Thm 3.2: ∂π/∂t with friction, largest", np.abs(with_friction).max(), 0, 1e-10),
        Row("Cor 3.1: ∂π/∂t without friction, rms", _rms(without), _rms(heating), 1e-10),
    ]
    return rows, {"with_friction": _rms(with_friction), "without": _rms(without)}


def _density_change(energy, friction, z):
    """(∂_t π)/π by the Fokker–Planck equation of dz = g dt + N(0, 2D dt), D from FRICTION."""
    turn = np.block([[_ZERO, np.eye(2)], [-np.eye(2), -friction]])
    diffusion = _block_diagonal(_ZERO, FRICTION)

    def drift(z):
        return turn @ jax.grad(energy)(z)

    slope, bend = -jax.grad(energy)(z), -jax.hessian(energy)(z)
    spreading = jnp.sum(diffusion * (bend + jnp.outer(slope, slope)))
    return spreading - jnp.trace(jax.jacfwd(drift)(z)) - drift(z) @ slope


def _block_diagonal(of_position: np.ndarray, of_momentum: np.ndarray) -> np.ndarray:
    return np.block([[of_position, _ZERO], [_ZERO, of_momentum]])


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _sampler(step_size: float, gradient_noise=GRADIENT_NOISE, temperature=TEMPERATURE) -> SGHMC:
    return SGHMC(float(step_size), FRICTION, MASS, gradient_noise, temperature)


def _invariance():
    """Proposition 3.1: with B̂ = B the law is right, up to ε²; and SGLD as the limit."""
    wanted = TEMPERATURE * np.linalg.inv(PRECISION)
    errors = {
        name: [
            np.abs(_law(_sampler(step_size, estimate)).covariance - wanted).max()
            for step_size in _STEP_SIZES
        ]
        for name, estimate in {"corrected": GRADIENT_NOISE, "uncorrected": _ZERO}.items()
    }
    step_size = float(_STEP_SIZES[0])
    at_limit = SGHMC(step_size, MASS / step_size, MASS, GRADIENT_NOISE, TEMPERATURE)
    langevin = SGLD(step_size**2, np.linalg.inv(MASS), GRADIENT_NOISE, TEMPERATURE)
    difference = np.abs(_law(at_limit).covariance - _law(langevin).covariance).max()
    rows = [
        Row("Prop 3.1: order of error in ε, B̂ = B", _order(errors["corrected"]), 2, 0.05),
        Row("Prop 3.1: the same with B̂ = 0", _order(errors["uncorrected"]), 1, 0.05),
        Row("§3.2: SGHMC at εC = M less SGLD", difference, 0, 1e-10),
    ]
    return rows, {"step_sizes": _STEP_SIZES.tolist(), **errors}


def _law(sampler) -> theory.Law:
    return theory.stationary_law(sampler, PRECISION, GRADIENT_NOISE)


def _order(errors: list[float]) -> float:
    """The exponent of ε, from the two smallest step sizes."""
    return float(np.log2(errors[-2] / errors[-1]))


def _reversibility():
    """(FS)ᵀ = N F S N with N turning r around: skew reversibility, and where it holds."""
    violations = {"middle": [], "end": []}
    for step_size in _STEP_SIZES:
        sampler = _sampler(step_size)
        step = theory.affine_map(sampler, PRECISION, GRADIENT_NOISE).transition
        covariance = _law(sampler).state_covariance
        middle = _half_drift_back(step_size)
        violations["end"].append(_asymmetry(step, covariance))
        violations["middle"].append(
            _asymmetry(middle @ step @ np.linalg.inv(middle), middle @ covariance @ middle.T)
        )
    sampler = _sampler(_STEP_SIZES[0])
    law = _middle_covariance(sampler, GRADIENT_NOISE)[:2]
    exact = np.hstack([TEMPERATURE * np.linalg.inv(PRECISION), _ZERO])
    rows = [
        Row("Thm S.1: skew asymmetry at mid-drift", max(violations["middle"]), 0, 1e-10),
        Row("Thm S.1: order of it at the step's end", _order(violations["end"]), 1, 0.05),
        Row("θ-law at mid-drift less exp(−U/τ)", np.abs(law - exact).max(), 0, 1e-10),
    ]
    return rows, {"step_sizes": _STEP_SIZES.tolist(), **violations}


def _half_drift_back(step_size: float) -> np.ndarray:
    return np.block([[np.eye(2), -step_size / 2 * np.linalg.inv(MASS)], [_ZERO, np.eye(2)]])


def _middle_covariance(sampler: SGHMC, gradient_noise: np.ndarray) -> np.ndarray:
    middle = _half_drift_back(float(np.asarray(sampler.step_size)))
    law = theory.stationary_law(sampler, PRECISION, gradient_noise)
    return middle @ law.state_covariance @ middle.T


def _asymmetry(step: np.ndarray, covariance: np.ndarray) -> float:
    turn = np.diag([1.0, 1.0, -1.0, -1.0])
    lagged = step @ covariance
    return float(np.abs(lagged.T - turn @ lagged @ turn).max() / np.abs(covariance).max())


def _convergence():
    """χ²(π̃, π) of dynamics that ignore the gradient's noise, B̂ = 0, against the bound δc/λ."""
    special, general = (_divergences(noise) for noise in (FRICTION, GRADIENT_NOISE / 4))
    closed = (1 - (_DELTAS / 2) ** 2) ** -2.0 - 1
    epsilon = float(_STEP_SIZES[0])
    law = _middle_covariance(_sampler(epsilon, _ZERO, 1.0), FRICTION)
    heat = np.trace(PRECISION @ law[:2, :2]) / 2
    balance = special["speed"] * _DELTAS / (special["rate"] * special["divergence"])
    rows = [
        Row("π̃ for V = C: temperature 1 + δ/2", heat, 1 + epsilon / 2, 1e-10),
        Row("χ² for V = C, largest δ", special["divergence"][-1], closed[-1], 1e-9),
        Row("Thm S.2: δ∂χ²/λχ² at π̃, worst", balance[np.abs(balance - 1).argmax()], 1, 1e-4),
        Row("Thm S.2: χ²/bound, V = C, largest", _share(special), 1, 0, "<"),
        Row("Thm S.2: χ²/bound, other V, largest", _share(general), 1, 0, "<"),
    ]
    curve = {
        "deltas": _DELTAS.tolist(),
        "special": special["divergence"].tolist(),
        "closed_form": closed.tolist(),
        "bound": _bound(special).tolist(),
    }
    return rows, curve


def _divergences(noise: np.ndarray) -> dict[str, np.ndarray]:
    """For each δ, at π̃: χ², how fast the error process changes it, at what rate mixing does."""
    inverse_mass = np.linalg.inv(MASS)
    flow = np.block([[_ZERO, inverse_mass], [-PRECISION, -FRICTION @ inverse_mass]])
    exact = _block_diagonal(np.linalg.inv(PRECISION), MASS)
    spread, error = (_block_diagonal(_ZERO, part) for part in (2 * FRICTION, noise))
    found = {"divergence": [], "speed": [], "rate": []}
    for delta in _DELTAS:
        law = np.asarray(scipy.linalg.solve_continuous_lyapunov(flow, -spread - delta * error))
        divergence = theory.chi_squared(law, exact)
        mixing = _slope(law, flow @ law + law @ flow.T + spread, exact)
        found["divergence"].append(divergence)
        found["speed"].append(_slope(law, error, exact))
        found["rate"].append(-mixing / divergence)
    return {name: np.array(values) for name, values in found.items()}


def _slope(covariance: np.ndarray, direction: np.ndarray, reference: np.ndarray) -> float:
    """∂_t χ² where the covariance moves in a direction, by a central difference."""
    ahead, behind = (
        theory.chi_squared(covariance + t * direction, reference) for t in (1e-6, -1e-6)
    )
    return float(ahead - behind) / 2e-6


def _bound(found: dict[str, np.ndarray]) -> np.ndarray:
    """δc/λ with the c and λ that hold for all δ."""
    return _DELTAS * found["speed"].max() / found["rate"].min()


def _share(found: dict[str, np.ndarray]) -> float:
    return float((found["divergence"] / _bound(found)).max())


def plot(result: dict[str, Any]) -> "Figure":
    figure, axes = pictures.panels(2, (10, 7.6), rows=2)
    curves = result["curves"]
    _plot_entropy(axes[0], curves["entropy"])
    _plot_orders(
        axes[1],
        curves["invariance"],
        {"corrected": r"$\hat B = B$", "uncorrected": r"$\hat B = 0$"},
        title="Proposition 3.1: error of the law",
        ylabel=r"largest error of Cov $\theta$",
    )
    _plot_orders(
        axes[2],
        curves["reversibility"],
        {"middle": "between mid-drift points", "end": "between ends of steps"},
        title="Reversibility: asymmetry",
        ylabel=r"$|(FS)^\top - NFSN|$",
    )
    _plot_convergence(axes[3], curves["convergence"])
    return figure


def _plot_entropy(axis, curve) -> None:
    red, black = pictures.COLORS["red"], pictures.COLORS["truth"]
    axis.plot(
        curve["times"],
        curve["measured"],
        linestyle="",
        marker="o",
        markersize=4,
        color=red,
        label="chains",
    )
    axis.plot(curve["times"], curve["expected"], color=black, label="closed form")
    axis.set(title="Theorem 3.1: noise makes entropy", xlabel="time", ylabel="entropy gained")
    axis.legend(frameon=False)


def _plot_orders(axis, curve, labels, *, title, ylabel) -> None:
    colors = (pictures.COLORS["red"], pictures.COLORS["blue"])
    for (name, label), color in zip(labels.items(), colors, strict=True):
        axis.loglog(curve["step_sizes"], curve[name], marker="o", color=color, label=label)
    axis.set(title=title, xlabel=r"step size $\varepsilon$", ylabel=ylabel)
    axis.set_xticks([], minor=True)
    axis.set_xticks(curve["step_sizes"], labels=[f"{size:g}" for size in curve["step_sizes"]])
    axis.legend(frameon=False)


def _plot_convergence(axis, curve) -> None:
    red, black = pictures.COLORS["red"], pictures.COLORS["truth"]
    axis.plot(curve["deltas"], curve["special"], "o", markersize=4, color=red, label=r"$\tilde\pi$")
    axis.plot(curve["deltas"], curve["closed_form"], color=black, label="closed form")
    axis.plot(
        curve["deltas"],
        curve["bound"],
        color=pictures.COLORS["blue"],
        label=r"bound $\delta c/\lambda$",
    )
    axis.set(title=r"Convergence theorem, $V = C$", xlabel=r"$\delta$", ylabel=r"$\chi^2$")
    axis.legend(frameon=False)


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
    from rich.table import Table

    shown = Table(title="The theorems: measured against expected")
    for heading in ("statement", "measured", "", "expected", "passed"):
        shown.add_column(heading, justify="left" if heading == "statement" else "right")
    for row in result["rows"]:
        shown.add_row(
            row["statement"],
            f"{row['measured']:.5g}",
            row["relation"],
            f"{row['expected']:.5g}",
            "yes" if row["passed"] else "[bold red]no",
        )
    return shown
