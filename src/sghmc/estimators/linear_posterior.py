"""Posteriors of linear models: Newton's method, then SGHMC in whitened coordinates.

With β = β̂ + L z, L Lᵀ = H⁻¹ at the mode β̂, every direction of z has spread and frequency 1,
whatever the scales and correlations of the inputs: one step size fits all, and single precision
loses nothing, since only the deviation from the mode is held in it.

Modes of linear models and their curvature, with the precisions at typical values.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.weighted_rows import WeightedRows, padded
from sghmc.posterior.gibbs import Gibbs, draw_precision
from sghmc.posterior.posterior import Posterior
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

INTERCEPT_PRECISION = 0.01
"""Prior precision of an intercept: almost flat, as inputs and targets have standard deviation 1."""
PRECISION_SHAPE = 1.0
NOISE_SHAPE, NOISE_RATE = 1.0, 0.1
_STEP_SIZE, _FRICTION = 0.2, 1.0
"""Step size and friction; on a Gaussian variances are 1.1 % too large, and ten steps make an
independent draw."""
_THINNING = 10
_NUM_WARMUP = 10


class LinearMode(NamedTuple):
    """Mode of the coefficients at typical precisions, and its curvature, in double precision.

    `rate` is that of the prior of the weights' precision.
    """

    center: np.ndarray
    curvature: np.ndarray
    is_weight: np.ndarray
    precision: float
    rate: float
    noise: float = 1.0


class Coefficients(eqx.Module):
    """β = β̂ + L z with prior N(0, λ⁻¹) on weights and an almost flat one on intercepts.

    λ ~ Gamma(1, 1/d): of d inputs of spread 1, the sum of all has about the spread of a target,
    however many they are.
    """

    center: jax.Array
    factor: jax.Array
    is_weight: jax.Array
    rate: jax.Array

    def __call__(self, z: jax.Array) -> jax.Array:
        return self.center + self.factor @ z

    def log_prior(self, z: jax.Array, hyper: PyTree) -> jax.Array:
        count, squares, others = self.sums(z)
        precision = hyper["precision"]
        return (
            0.5 * count * jnp.log(precision)
            - 0.5 * precision * squares
            - 0.5 * INTERCEPT_PRECISION * others
        )

    def sums(self, z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the number of weights and the sums of squares of weights and of intercepts."""
        squares = self(z) ** 2
        return (
            jnp.sum(self.is_weight),
            jnp.sum(self.is_weight * squares),
            jnp.sum((1 - self.is_weight) * squares),
        )

    def draw_precision(self, key: jax.Array, z: jax.Array) -> jax.Array:
        count, squares, _ = self.sums(z)
        return draw_precision(key, PRECISION_SHAPE, self.rate, count, squares)


class LinearModel(eqx.Module):
    """Gaussian likelihood from sums over the data: one "example" holds all of them.

    ‖y − Xβ‖² = s − 2 gᵀz + zᵀQz, so that a gradient costs the same for ten rows and for millions.
    """

    coefficients: Coefficients

    def log_likelihood(self, z, sums, hyper):
        noise = hyper["noise"]
        return 0.5 * sums["count"] * jnp.log(noise) - 0.5 * noise * self.squares(z, sums)

    def squares(self, z, sums) -> jax.Array:
        return sums["rest"] - 2 * sums["slope"] @ z + z @ (sums["bend"] @ z)

    def update(self, key, z, posterior: Posterior):
        of_prior, of_noise = jax.random.split(key)
        sums = jax.tree.map(lambda leaf: leaf[0], posterior.data)
        noise = draw_precision(
            of_noise, NOISE_SHAPE, NOISE_RATE, sums["count"], self.squares(z, sums)
        )
        return {"noise": noise, "precision": self.coefficients.draw_precision(of_prior, z)}


class LogisticModel(eqx.Module):
    """Logistic likelihood: one logit for two classes, else one for each."""

    coefficients: Coefficients
    num_logits: int

    def log_likelihood(self, z, example, hyper):
        beta = self.coefficients(z).reshape(self.num_logits, -1)
        logits = beta @ example["x"]
        if self.num_logits == 1:
            value = -jax.nn.softplus(jnp.where(example["y"] == 1, -logits[0], logits[0]))
        else:
            value = jax.nn.log_softmax(logits)[example["y"]]
        return example["weight"] * value

    def update(self, key, z, posterior: Posterior):
        return {"precision": self.coefficients.draw_precision(key, z)}


class Draws(NamedTuple):
    """Draws of the coefficients and precisions; `last` is where each chain ended."""

    coefficients: np.ndarray
    hyper: dict[str, np.ndarray]
    last: np.ndarray


def whitening(mode: LinearMode) -> np.ndarray:
    """Return L with L Lᵀ = H⁻¹."""
    return np.linalg.inv(np.linalg.cholesky(mode.curvature)).T


def around(mode: LinearMode) -> Coefficients:
    arrays = (mode.center, whitening(mode), mode.is_weight, mode.rate)
    return Coefficients(*(jnp.asarray(array, jnp.float32) for array in arrays))


def linear_posterior(sums: dict[str, Any], mode: LinearMode) -> tuple[Posterior, Gibbs]:
    """Return the posterior given sums: count, XᵀX ("gram"), Xᵀy ("moment"), yᵀy ("square")."""
    factor, center = whitening(mode), mode.center
    gram, moment = sums["gram"], sums["moment"]
    rest = sums["square"] - 2 * moment @ center + center @ gram @ center
    example = {
        "count": sums["count"],
        "rest": max(float(rest), 0.0),
        "slope": factor.T @ (moment - gram @ center),
        "bend": factor.T @ gram @ factor,
    }
    model = LinearModel(around(mode))
    data = {name: np.asarray(array, np.float32)[None] for name, array in example.items()}
    hyper = {"noise": np.float32(mode.noise), "precision": np.float32(mode.precision)}
    posterior = Posterior(model.log_likelihood, model.coefficients.log_prior, data, hyper)
    return posterior, Gibbs(model.update, every=_THINNING // 2)


def logistic_posterior(
    rows: WeightedRows, length: int, mode: LinearMode
) -> tuple[Posterior, Gibbs]:
    """Return the posterior given rows with a column of ones, padded to `length` by weights of 0."""
    model = LogisticModel(around(mode), len(mode.center) // rows.x.shape[1])
    data = {
        "x": padded(rows.x, length).astype(np.float32),
        "y": padded(rows.y, length).astype(np.int32),
        "weight": padded(rows.weight, length).astype(np.float32),
    }
    hyper = {"precision": np.float32(mode.precision)}
    posterior = Posterior(model.log_likelihood, model.coefficients.log_prior, data, hyper)
    return posterior, Gibbs(model.update, every=_THINNING // 2)


def draw(
    key: jax.Array,
    posterior: Posterior,
    gibbs: Gibbs,
    mode: LinearMode,
    last: np.ndarray | None,
    num_draws: int,
    num_chains: int,
    progress: bool,
) -> Draws:
    """Sample every chain, which goes on from `last` or starts near the mode."""
    start_key, run_key = jax.random.split(key)
    factor = whitening(mode)
    if last is None:
        starts = np.asarray(jax.random.normal(start_key, (num_chains, len(mode.center))))
    else:
        starts = np.linalg.solve(factor, (last - mode.center).T).T.astype(np.float32)
    samples = sample(
        run_key,
        posterior,
        SGHMC(_STEP_SIZE, friction=_FRICTION),
        starts,
        init_axis=0,
        # Warm-up draws are dropped here rather than by num_burnin: that is a program of its own.
        num_samples=_NUM_WARMUP + num_draws,
        thinning=_THINNING,
        num_chains=num_chains,
        gibbs=gibbs,
        progress=progress,
    )
    z = samples.positions[:, _NUM_WARMUP:].astype(np.float64)
    beta = mode.center + z @ factor.T
    hyper = {
        name: values[:, _NUM_WARMUP:].reshape(-1).astype(np.float64)
        for name, values in samples.hyper.items()
    }
    return Draws(beta.reshape(-1, beta.shape[-1]), hyper, beta[:, -1])


# Modes of linear models and their curvature, with the precisions at typical values.

_NUM_ROUNDS = 30
_NUM_NEWTON_STEPS = 50
_NUM_HALVINGS = 30
_CLOSE = 1e-3
"""Relative error at which the precisions have converged."""


def linear_mode(sums: dict[str, Any], is_weight: np.ndarray, rate: float) -> LinearMode:
    """Return the mode at the noise and prior precisions that expectation maximization finds."""
    noise, precision = 1.0, 1.0
    for _ in range(_NUM_ROUNDS):
        curvature = noise * sums["gram"] + np.diag(_prior(precision, is_weight))
        covariance = np.linalg.inv(curvature)
        center = noise * covariance @ sums["moment"]
        errors = sums["square"] - 2 * sums["moment"] @ center + center @ sums["gram"] @ center
        errors = max(errors, 0.0) + np.sum(sums["gram"] * covariance)
        old = noise, precision
        noise = float((NOISE_SHAPE + sums["count"] / 2) / (NOISE_RATE + errors / 2))
        precision = _typical_precision(center, covariance, is_weight, rate)
        if np.allclose(old, (noise, precision), rtol=_CLOSE):
            break
    curvature = noise * sums["gram"] + np.diag(_prior(precision, is_weight))
    center = np.linalg.solve(curvature, noise * sums["moment"])
    return LinearMode(center, curvature, is_weight, precision, rate, noise)


def logistic_mode(
    rows: WeightedRows, num_logits: int, is_weight: np.ndarray, rate: float
) -> LinearMode:
    """Return the mode: Newton's method at a precision, a typical precision there, and so on."""
    target = _Logistic(rows, num_logits)
    beta, precision = np.zeros(num_logits * rows.x.shape[1]), 1.0
    for _ in range(_NUM_ROUNDS):
        prior = _prior(precision, is_weight)
        beta, curvature = _newton(target, beta, prior)
        old = precision
        precision = _typical_precision(beta, np.linalg.inv(curvature), is_weight, rate)
        if np.isclose(old, precision, rtol=_CLOSE):
            break
    beta, curvature = _newton(target, beta, _prior(precision, is_weight))
    return LinearMode(beta, curvature, is_weight, precision, rate)


def _prior(precision: float, is_weight: np.ndarray) -> np.ndarray:
    return np.where(is_weight > 0, precision, INTERCEPT_PRECISION)


def _typical_precision(center, covariance, is_weight, rate: float) -> float:
    squares = np.sum(is_weight * (center**2 + np.diag(covariance)))
    return float((PRECISION_SHAPE + is_weight.sum() / 2) / (rate + squares / 2))


class _Logistic:
    """The log-likelihood of a (multinomial) logistic regression, in double precision."""

    def __init__(self, rows: WeightedRows, num_logits: int):
        self.rows, self.num_logits = rows, num_logits
        self.labels = rows.y[:, None] if num_logits == 1 else np.eye(num_logits)[rows.y.astype(int)]

    def probabilities(self, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P(class | x) of the classes that have a logit, and the rows' log-likelihoods."""
        logits = self.rows.x @ beta.reshape(self.num_logits, -1).T
        if self.num_logits == 1:
            logits = np.column_stack([np.zeros(len(logits)), logits])
        logits = logits - logits.max(1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        chosen = logs[np.arange(len(logs)), self.rows.y.astype(int)]
        return np.exp(logs[:, -self.num_logits :]), chosen

    def potential(self, beta: np.ndarray) -> float:
        return -float(self.rows.weight @ self.probabilities(beta)[1])

    def slope(self, beta: np.ndarray) -> np.ndarray:
        errors = self.rows.weight[:, None] * (self.probabilities(beta)[0] - self.labels)
        return (errors.T @ self.rows.x).ravel()

    def curvature(self, beta: np.ndarray) -> np.ndarray:
        p, x = self.probabilities(beta)[0], self.rows.x
        size, width = self.num_logits, x.shape[1]
        result = np.empty((size, width, size, width))
        for k in range(size):
            for m in range(k, size):
                share = self.rows.weight * p[:, k] * ((k == m) - p[:, m])
                result[k, :, m] = (x * share[:, None]).T @ x
                result[m, :, k] = result[k, :, m].T
        return result.reshape(size * width, size * width)


def _newton(target: _Logistic, beta: np.ndarray, prior: np.ndarray):
    """Damped Newton steps until the next one would be a small part of a standard deviation."""

    def potential(beta):
        return target.potential(beta) + 0.5 * prior @ beta**2

    distance = np.inf
    for _ in range(_NUM_NEWTON_STEPS):
        curvature = target.curvature(beta) + np.diag(prior)
        slope = target.slope(beta) + prior * beta
        step = np.linalg.solve(curvature, slope)
        distance = float(np.sqrt(slope @ step))
        if distance < _CLOSE:
            return beta - step, curvature
        old, size = potential(beta), 1.0
        for _ in range(_NUM_HALVINGS):
            if potential(beta - size * step) < old:
                break
            size /= 2
        beta = beta - size * step
    raise ValueError(
        f"Newton's method is still {distance:.2g} standard deviations off the mode "
        f"after {_NUM_NEWTON_STEPS} steps: look for inputs of extreme size."
    )
