"""What a setting will give: the exact law of a sampler's draws on a Gaussian target.

On U = ½θᵀAθ with gradient noise N(0, V) a step of SGHMC, SGLD or HMC without its accept step is
affine, z' = F z + L n, with n all the standard normals that enter. F and L are Jacobians of the
step function that runs, in double precision; the rest is linear algebra, no sampling. With A the
curvature of a posterior at its mode, this tells the bias and the autocorrelation time in advance.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from sghmc.core import matrices
from sghmc.gradients.base import NoisyGradient
from sghmc.gradients.fisher import EmpiricalFisher
from sghmc.posterior.posterior import Potential
from sghmc.samplers.base import Kernel, Sampler
from sghmc.samplers.whitened import Whitened, WhitenedKernel

_LARGEST_RADIUS = 1 + 1e-9
"""Up to here a spectral radius above 1 is rounding."""


@dataclasses.dataclass(frozen=True, eq=False)
class AffineMap:
    """A step z' = F z + L n: F is `transition`, L is `noise`, z = (θ, r) or θ alone.

    `view` is the matrix that takes z to the draw it gives, θ itself or half a drift earlier.
    """

    transition: np.ndarray
    noise: np.ndarray
    view: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Law:
    """The stationary law of a sampler's draws, N(0, S).

    | field | formula | meaning |
    | --- | --- | --- |
    | `covariance` | S_θθ | covariance of the draws |
    | `state_covariance` | S | covariance of (θ, r); of θ alone where there is no momentum |
    | `standard_deviation_error` | √(S_ii / τ(A⁻¹)_ii) − 1 | for each coordinate |
    | `autocorrelation_time` | 1 + Σ_{s≥1} ρ_s | for each coordinate, in steps |
    | `effective_temperature` | tr(AS_θθ)/d | what to hold against τ |
    """

    covariance: np.ndarray
    state_covariance: np.ndarray
    standard_deviation_error: np.ndarray
    autocorrelation_time: np.ndarray
    effective_temperature: float


def stationary_law(
    sampler: Sampler, precision: ArrayLike, gradient_noise: ArrayLike = 0.0, *, t: int = 0
) -> Law:
    """The law that `sampler` has on U = ½θᵀAθ: S = F S Fᵀ + L Lᵀ.

    `precision` is A, `gradient_noise` the V that the gradient *has*: each a number, a vector (a
    diagonal) or a dense matrix. The sampler's own `gradient_noise` is the V̂ that it subtracts.
    Schedules are held at their values at step `t`. With momentum resampling every m steps the law
    is periodic, and what is returned is its average over m steps. For `Whitened` A, V and the law
    are those of θ, whatever moves.

    >>> import sghmc
    >>> from sghmc import theory
    >>> law = theory.stationary_law(sghmc.SGLD(0.2), precision=[1.0, 4.0])
    >>> law.covariance.diagonal().round(4).tolist()  # 1/(h(1 − ½εh))
    [1.1111, 0.4167]
    >>> law.autocorrelation_time.round(4).tolist()  # 1/(εh)
    [5.0, 1.25]
    """
    precision = _matrix(precision)
    sampler = _held(sampler, t)
    steps = _cycle(sampler, precision, gradient_noise)
    radius = _spectral_radius(steps)
    if not radius < 1:
        raise ValueError(_no_law(sampler, precision, radius))
    covariances = _cycle_covariances(steps)
    size, view = len(precision), steps[0].view
    state_covariance = np.mean(covariances, axis=0)
    covariance = view @ state_covariance @ view.T
    lagged = view @ _mean_lag_sum(steps, covariances) @ view.T
    exact = getattr(moving(sampler), "temperature", 1.0) * np.linalg.inv(precision)
    with np.errstate(divide="ignore", invalid="ignore"):  # without any noise all is 0/0: NaN
        return Law(
            covariance=covariance,
            state_covariance=state_covariance,
            standard_deviation_error=np.sqrt(covariance.diagonal() / exact.diagonal()) - 1,
            autocorrelation_time=1 + lagged.diagonal() / covariance.diagonal(),
            effective_temperature=float(np.trace(precision @ covariance)) / size,
        )


class FrictionLaw(NamedTuple):
    """What `friction_law` returns: in one direction, relative to the exact law."""

    variance: float
    autocorrelation_time: float

    @property
    def standard_deviation_error(self) -> float:
        return math.sqrt(self.variance) - 1


def friction_law(
    step_size: float,
    friction: float,
    *,
    curvature: float = 1.0,
    gradient_noise: float = 0.0,
    temperature: float = 1.0,
    observe: str = "end",
) -> FrictionLaw:
    """The law of SGHMC of mass 1 in one direction, in closed form.

        variance/(τ/h) = (1 + ε(V − V̂)/(2Cτ)) / (1 − ε²h/(4 − 2εC))
        1 + Σρ = C/(εh) + (1 − εC)/(2 − εC)

    `gradient_noise` is V − V̂. In the "middle" of a drift the variance lacks its denominator, and
    1 + Σρ is C/(εh) + ½: such a draw is the mean of the positions before and after the step.

    >>> from sghmc import theory
    >>> law = theory.friction_law(0.1, 1.0, gradient_noise=4.0)
    >>> round(law.variance, 4), round(law.autocorrelation_time, 2)
    (1.2032, 10.47)
    """
    decay = step_size * friction
    heating = 1 + step_size * gradient_noise / (2 * friction * temperature)
    stretch = 1 - step_size**2 * curvature / (4 - 2 * decay)
    if stretch <= 0:
        return FrictionLaw(math.inf, math.inf)
    time = friction / (step_size * curvature)
    if observe == "middle":
        return FrictionLaw(heating, time + 1 / 2)
    return FrictionLaw(heating / stretch, time + (1 - decay) / (2 - decay))


def stability_limit(sampler: Sampler, precision: ArrayLike) -> float:
    """The step size at which the sampler becomes unstable on U = ½θᵀAθ.

    Mass, friction and preconditioner stay as they are; neither noise nor an accept step matters.
    For SGD and Momentum it is a learning rate. By bisection on the spectral radius of the step.

    >>> import sghmc
    >>> from sghmc import theory
    >>> round(theory.stability_limit(sghmc.SGLD(0.01), precision=[1.0, 4.0]), 6)  # 2/h
    0.5
    """
    precision = _matrix(precision)
    sampler = _held(sampler, 0)
    irrelevant = {"gradient_noise": 0.0, "metropolis": False}
    present = {name: value for name, value in irrelevant.items() if hasattr(moving(sampler), name)}
    sampler = _with_settings(sampler, present)
    stable = _first_stable_factor(sampler, precision)
    unstable = 2 * stable
    while _is_stable(sampler.rescaled(unstable), precision):
        stable, unstable = unstable, 2 * unstable
    while unstable - stable > 1e-10 * stable:
        middle = (stable + unstable) / 2
        if _is_stable(sampler.rescaled(middle), precision):
            stable = middle
        else:
            unstable = middle
    limit = moving(sampler.rescaled(stable))
    return float(getattr(limit, "step_size" if hasattr(limit, "step_size") else "learning_rate"))


def affine_map(
    sampler: Sampler,
    precision: ArrayLike,
    gradient_noise: ArrayLike = 0.0,
    *,
    t: int = 0,
    num_steps: int | None = None,
) -> AffineMap:
    """Step `t` of a run of `num_steps` (by default, up to t) as z' = F z + L n, by autodiff.

    z is (θ, r), with r the momentum itself, whatever units and coordinates the sampler's state has.
    The columns of L are the sampler's normals, then those of the gradient noise.
    """
    if getattr(moving(sampler), "metropolis", False):
        raise ValueError(
            "A sampler with an accept step is not affine, and its law is exact: "
            "pass metropolis=False to see the law without that step."
        )
    if not moving(sampler).is_affine:
        raise ValueError(_not_affine(moving(sampler)))
    if isinstance(getattr(moving(sampler), "gradient_noise", None), EmpiricalFisher):
        raise ValueError(
            "EmpiricalFisher has no V̂ before it runs: give gradient_noise as numbers, such as the "
            "V that you expect."
        )
    precision = _matrix(precision)
    size = len(precision)
    with jax.enable_x64(True):
        like = jnp.zeros(size, jnp.float64)
        sampler = _around_zero(sampler, size)
        kernel = sampler.prepare(like, t + 1 if num_steps is None else num_steps)
        estimator = NoisyGradient(np.asarray(gradient_noise)).prepare(_gaussian(precision), like)
        transition, noise, view, seen, foretold = jax.tree.map(
            np.asarray, _differentiate(kernel, estimator, jnp.asarray(precision), jnp.asarray(t))
        )
    if not np.allclose(seen, foretold, rtol=1e-8, atol=1e-8):
        raise ValueError(_not_affine(sampler))
    units = _units(sampler, kernel, size)[: len(transition), : len(transition)]
    back = np.linalg.inv(units)
    return AffineMap(units @ transition @ back, units @ noise, view @ back)


def entropy_growth(time, curvature, mass, diffusion, temperature=1.0) -> np.ndarray:
    """How much entropy frictionless dynamics with a noisy gradient gain, h(t) − h(0).

        dθ = M⁻¹r dt,  dr = −hθ dt + N(0, 2B dt),  from equilibrium at temperature τ₀:
        h(t) − h(0) = ½ ln[(1 + bt/τ₀)² − (b/(τ₀ω))² sin²ωt],  b = B/m,  ω = √(h/m)

    for one mode of curvature h; `diffusion` is B = ½εV. All arguments broadcast. This is what
    Theorem 3.1 says on a Gaussian: the entropy grows without end, so friction is needed.

    >>> from sghmc import theory
    >>> theory.entropy_growth([0.0, 1.0, 10.0], 1.0, mass=1.0, diffusion=0.2).round(4).tolist()
    [0.0, 0.1724, 1.098]
    """
    time, curvature, mass, diffusion, temperature = map(
        np.asarray, (time, curvature, mass, diffusion, temperature)
    )
    heating = diffusion / mass / temperature
    frequency = np.sqrt(curvature / mass)
    swing = heating * time * np.sinc(frequency * time / np.pi)
    heated = heating * time
    return np.log1p(2 * heated + heated**2 - swing**2) / 2


def chi_squared(covariance, reference) -> np.ndarray:
    """The χ² divergence of N(0, S) from N(0, Σ), ∫p²/q − 1 with p the first of them.

        |Σ|^½ |S|⁻¹ |2S⁻¹ − Σ⁻¹|^{−½} − 1 = Π_i (1 − (λ_i − 1)²)^{−½} − 1

    with λ the eigenvalues of Σ⁻¹S; infinite when one of them reaches 2. Leading axes broadcast.

    >>> from sghmc import theory
    >>> float(theory.chi_squared([[1.1]], [[1.0]]).round(6))
    0.005038
    """
    root = np.linalg.inv(np.linalg.cholesky(np.asarray(reference, float)))
    whitened = root @ np.asarray(covariance, float) @ np.swapaxes(root, -1, -2)
    excess = np.linalg.eigvalsh(whitened) - 1
    with np.errstate(divide="ignore"):
        return np.expm1(-np.sum(np.log1p(-np.minimum(excess**2, 1)), axis=-1) / 2)


@eqx.filter_jit
def _differentiate(kernel, estimator, precision, t):
    """F, L and the view in the state's own units; where a step ends, and where F and L say."""
    like = jnp.zeros(len(precision), precision.dtype)
    target = _gaussian(precision)
    key = jnp.zeros(2, jnp.uint32)
    gradients = kernel.num_gradients
    normals, unravel_normals = ravel_pytree(
        (kernel.draw(key, 0, 1, like), estimator.draw(key, 0, 1, gradients, like))
    )
    state, unravel_state = ravel_pytree(kernel.init([jnp.zeros_like(like)], like))

    def step(z, n):
        own, of_gradient = unravel_normals(n)
        oracle = estimator.oracle(target, of_gradient)
        return ravel_pytree(kernel.step(t, own, unravel_state(z), oracle)[0])[0]

    origin = jnp.zeros_like(state), jnp.zeros_like(normals)
    transition, noise = jax.jacfwd(step, argnums=(0, 1))(*origin)
    z, n = (jnp.cos(jnp.arange(x.size) + 1.0) for x in origin)
    view = jax.jacfwd(lambda z: kernel.observed(t, unravel_state(z)))(origin[0])
    return transition, noise, view, step(z, n), step(*origin) + transition @ z + noise @ n


def _gaussian(precision) -> Potential:
    return Potential(lambda theta: theta @ (precision @ theta) / 2)


def _matrix(value, size: int | None = None) -> np.ndarray:
    """A number, a diagonal or a dense matrix as a dense array."""
    array = np.asarray(value, np.float64)
    if size is None:
        size = 1 if array.ndim == 0 else len(array)
    like = jax.ShapeDtypeStruct((size,), np.float64)
    return matrices.parse(array, like, "precision", definite=True).dense([size]).array


def moving(sampler: Sampler) -> Sampler:
    """What moves inside any number of changes of coordinates."""
    return moving(sampler.sampler) if isinstance(sampler, Whitened) else sampler


def _with_settings(sampler: Sampler, settings: dict) -> Sampler:
    """The sampler with other settings of what moves."""
    if isinstance(sampler, Whitened):
        inner = _with_settings(sampler.sampler, settings)
        return dataclasses.replace(sampler, sampler=inner)
    return dataclasses.replace(sampler, **settings)


def _around_zero(sampler: Sampler, size: int) -> Sampler:
    """The same law, but for its place, whatever pytree the parameters were."""
    if isinstance(sampler, Whitened):
        inner = _around_zero(sampler.sampler, size)
        return dataclasses.replace(sampler, sampler=inner, center=np.zeros(size))
    return sampler


def _units(sampler: Sampler, kernel: Kernel, size: int) -> np.ndarray:
    """(θ, r) as a matrix times the kernel's state: θ = Lz, so that r = L⁻ᵀ times z's momentum."""
    units = np.eye(2 * size)
    if isinstance(sampler, Whitened) and isinstance(kernel, WhitenedKernel):
        factor = sampler.matrix(jax.ShapeDtypeStruct((size,), np.float64)).dense([size]).array
        units[:size, :size], units[size:, size:] = factor, np.linalg.inv(factor).T
        return units @ _units(sampler.sampler, kernel.inner, size)
    unit = float(getattr(kernel, "unit", 1.0))
    units[size:, size:] = _matrix(getattr(sampler, "mass", 1.0), size) / unit
    return units


def _held(sampler: Sampler, t: int) -> Sampler:
    """The sampler with every schedule held at its value at step t."""
    with jax.enable_x64(True):
        held = {n: float(np.asarray(value(t))) for n, value in moving(sampler).schedules.items()}
    return _with_settings(sampler, held)


def _cycle(sampler: Sampler, precision: np.ndarray, gradient_noise) -> list[AffineMap]:
    """The steps after which the dynamics repeat: one, or all from one resampling to the next."""
    period = getattr(moving(sampler), "resample_every", None)
    if period is None:
        return [affine_map(sampler, precision, gradient_noise)]
    resampling, plain = (
        affine_map(sampler, precision, gradient_noise, t=t) for t in (period, 2 * period - 1)
    )
    return [resampling] + [plain] * (period - 1)


def _spectral_radius(steps: Sequence[AffineMap]) -> float:
    return float(np.max(np.abs(np.linalg.eigvals(_compose(steps).transition))))


def _compose(steps: Sequence[AffineMap]) -> AffineMap:
    """All the steps as one map."""
    whole = steps[0]
    for step in steps[1:]:
        noise = np.concatenate([step.transition @ whole.noise, step.noise], axis=1)
        whole = AffineMap(step.transition @ whole.transition, noise, step.view)
    return whole


def _cycle_covariances(steps: Sequence[AffineMap]) -> list[np.ndarray]:
    """The stationary covariance before each step of the cycle."""
    covariances = [_solve_lyapunov(_compose(steps))]
    for step in steps[:-1]:
        covariances.append(_propagate(step, covariances[-1]))
    return covariances


def _propagate(step: AffineMap, covariance: np.ndarray) -> np.ndarray:
    return step.transition @ covariance @ step.transition.T + step.noise @ step.noise.T


def _solve_lyapunov(step: AffineMap) -> np.ndarray:
    """S = F S Fᵀ + L Lᵀ by doubling, S_{2k} = S_k + F^k S_k (F^k)ᵀ: accurate up to instability."""
    transition, covariance = step.transition, step.noise @ step.noise.T
    increment = covariance
    while np.max(np.abs(increment)) > 1e-17 * np.max(np.abs(covariance)):
        increment = transition @ covariance @ transition.T
        covariance = covariance + increment
        transition = transition @ transition
    return covariance


def _mean_lag_sum(steps: Sequence[AffineMap], covariances: Sequence[np.ndarray]) -> np.ndarray:
    """Σ_{s≥1} Cov(z_{t+s}, z_t), averaged over the steps t of the cycle.

    With R_t the sum of the transitions from t to all later times, R_t = (I + R_{t+1})F_t.
    """
    identity = np.eye(len(steps[0].transition))
    cycle, within = identity, 0 * identity
    for step in steps:
        cycle = step.transition @ cycle
        within = within + cycle
    later = within @ np.linalg.inv(identity - cycle)
    total = 0 * identity
    for step, covariance in zip(steps[::-1], covariances[::-1], strict=True):
        later = (identity + later) @ step.transition
        total = total + later @ covariance
    return total / len(steps)


def _is_stable(sampler: Sampler, precision: np.ndarray) -> bool:
    try:
        steps = _cycle(sampler, precision, 0.0)
    except ValueError:  # samplers refuse settings that diverge on every target
        return False
    return _spectral_radius(steps) <= _LARGEST_RADIUS


def _first_stable_factor(sampler: Sampler, precision: np.ndarray) -> float:
    factor = 1.0
    while not _is_stable(sampler.rescaled(factor), precision):
        factor /= 4
        if factor < 1e-30:
            affine_map(sampler, precision)  # says what is wrong, if anything but the step size is
            raise ValueError(f"{sampler} is unstable at every step size.")
    return factor


def _not_affine(sampler: Sampler) -> str:
    return (
        f"A step of {type(sampler).__name__} is not affine on a Gaussian target: it has no "
        f"Gaussian law to compute."
    )


def _no_law(sampler: Sampler, precision: np.ndarray, radius: float) -> str:
    fault = "is unstable on this target" if radius > _LARGEST_RADIUS else "never forgets its start"
    return (
        f"The chain {fault}, so there is no stationary law: the spectral radius of a step is "
        f"{radius:.6g} and must be below 1. The stability_limit of its step size is "
        f"{stability_limit(sampler, precision):.6g}; a chain below it lacks friction."
    )
