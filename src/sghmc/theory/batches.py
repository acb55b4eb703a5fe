"""The law of a sampler with minibatches: every order of batches enumerated."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sghmc.core import runtime
from sghmc.core.runtime import double_precision, widened
from sghmc.gradients import Gradient
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.samplers import Sampler
from sghmc.theory.affine import Derivatives, check_affine, derivatives, held
from sghmc.theory.stationary import Law
from sghmc.types import PyTree

# Largest number of batch orders to enumerate.
_MAX_ORDERS = 50_000


@dataclasses.dataclass(frozen=True, eq=False)
class MinibatchLaw(Law):
    """The stationary law of draws with minibatches: moments of a mixture, which is no Gaussian.

    The fields are those of `Law`, and `mean_error`, the bias of the mean in exact standard
    deviations. Covariances and times are averages over the steps of a period: a step for
    independent batches, a pass for shuffled epochs, two for palindromes.
    """

    mean_error: np.ndarray


def minibatch_law(
    sampler: Sampler, posterior: AbstractPosterior, gradient: Gradient, init: PyTree
) -> MinibatchLaw:
    """The exact law of `sampler` on a quadratic posterior with `Minibatch` or `ControlVariate`.

    A step with batch b is affine, z' = F_b z + c_b + L_b n, and so is the composition of the steps
    of a period, for each order of its batches. The next period draws a new order, whatever came
    before: the moments of the stationary law are those that the mean over all orders reproduces,

        μ = E[F]μ + E[c],  S = E[F S Fᵀ + c cᵀ + L Lᵀ] around μ.

    All orders are gone through, so the posterior has few rows. Derivatives are those of the real
    step with the real oracle; schedules are held at step 0. `init` says what parameters are like.

    >>> import jax.numpy as jnp
    >>> import sghmc
    >>> from sghmc import theory
    >>> rows = jnp.array([-2.0, -0.5, 0.3, 2.2])
    >>> posterior = sghmc.Posterior(lambda x, y: -0.5 * (y - x) ** 2, lambda x: 0.0, rows)
    >>> for replacement in (True, "palindrome"):
    ...     gradient = sghmc.Minibatch(1, replacement)
    ...     law = theory.minibatch_law(sghmc.BAOAB(0.05, 2.0), posterior, gradient, jnp.array(0.0))
    ...     print(law.standard_deviation_error.round(5))
    [0.20853]
    [0.00126]
    """
    check_affine(sampler)
    sampler = held(sampler.eager, 0)
    batch_size, rule = gradient.batch_rows, getattr(gradient, "replacement", None)
    if batch_size is None or not isinstance(posterior, AbstractPosterior):
        raise TypeError(
            f"minibatch_law needs batches of rows, but the gradient is {gradient!r} and the target "
            f"a {type(posterior).__name__}: use stationary_law, whose gradient_noise is V."
        )
    if sampler.dynamics.resample_every is not None:
        raise ValueError("minibatch_law does not know resample_every: leave it out.")
    periods = list(_periods(int(posterior.num_examples), batch_size, rule))
    batches = sorted(set(itertools.chain.from_iterable(periods)))
    number = {batch: i for i, batch in enumerate(batches)}
    orders = np.array([[number[batch] for batch in period] for period in periods])
    with double_precision():
        exact, steps = _differentiated(sampler, posterior, gradient, init, np.array(batches))
    if not steps.is_affine:
        raise ValueError(
            f"A step of {sampler.name} is not affine on this posterior: minibatch_law is for "
            f"log-likelihoods and log-priors that are quadratic in the parameters."
        )
    moments = _moments(steps, orders)
    temperature = sampler.dynamics.temperature
    assert not callable(temperature)
    view, units = steps.view[0], steps.units[0]
    covariance = view @ moments.covariance @ view.T
    variance = temperature * np.linalg.inv(exact.precision).diagonal()
    return MinibatchLaw(
        covariance=covariance,
        state_covariance=units @ moments.covariance @ units.T,
        standard_deviation_error=np.sqrt(covariance.diagonal() / variance) - 1,
        autocorrelation_time=1
        + (view @ moments.lag_sum @ view.T).diagonal() / covariance.diagonal(),
        effective_temperature=float(np.trace(exact.precision @ covariance)) / len(variance),
        mean_error=(exact.look + view @ moments.mean - exact.mean) / np.sqrt(variance),
    )


def _periods(num_rows: int, batch_size: int, rule) -> Iterator[tuple]:
    """The batches of a period, in every order there is, all as likely."""
    per_epoch = num_rows // batch_size
    choices = [math.comb(num_rows - i * batch_size, batch_size) for i in range(per_epoch)]
    count = {True: num_rows**batch_size, False: math.comb(num_rows, batch_size)}
    num_orders = count.get(rule, math.prod(choices))
    if num_orders > _MAX_ORDERS:
        raise ValueError(
            f"minibatch_law goes through all orders of batches, and {num_rows} rows in batches of "
            f"{batch_size} have {num_orders:.3g}: give at most {_MAX_ORDERS}, by fewer rows."
        )
    if rule is True:
        return ((batch,) for batch in itertools.product(range(num_rows), repeat=batch_size))
    if rule is False:
        return ((batch,) for batch in itertools.combinations(range(num_rows), batch_size))
    passes = _passes(tuple(range(num_rows)), batch_size)
    return (each + each[::-1] for each in passes) if rule == "palindrome" else passes


def _passes(rows: tuple, batch_size: int) -> Iterator[tuple]:
    if len(rows) < batch_size:
        yield ()
        return
    for batch in itertools.combinations(rows, batch_size):
        rest = tuple(row for row in rows if row not in batch)
        for others in _passes(rest, batch_size):
            yield (batch, *others)


class _Exact(NamedTuple):
    """The posterior's mean and precision; the draw that z = 0 gives."""

    mean: Any
    precision: Any
    look: Any


def _differentiated(sampler, posterior, gradient, init, batches) -> tuple[_Exact, Derivatives]:
    """The derivatives have a leading axis of batches."""
    like = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float64), init)
    posterior = jax.tree.map(widened, posterior)
    kernel = sampler.prepare(like)
    if kernel.num_gradients != 1:
        raise ValueError(
            f"minibatch_law is for samplers of one gradient a step, but {sampler.name} takes "
            f"{kernel.num_gradients}."
        )
    estimator = gradient.prepare(posterior, like)

    @eqx.filter_jit(**runtime.jit_options("once"))
    def facts(posterior, kernel, estimator, batches):
        anchor = estimator.init_anchor(posterior)
        steps = jax.vmap(
            lambda rows: derivatives(
                kernel, like, (), lambda _: estimator.oracle(posterior, rows, anchor), 0
            )
        )(batches)
        flat, unravel = ravel_pytree(like)
        precision = jax.hessian(lambda theta: posterior.potential(unravel(theta)))(flat)
        grad = ravel_pytree(posterior.gradient(like))[0]
        of_start = [jnp.zeros(leaf.size) for leaf in jax.tree.leaves(like)]
        nowhere = jax.tree.map(jnp.zeros_like, kernel.init(of_start, like))
        look = ravel_pytree(kernel.draw_from(0, nowhere))[0]
        return _Exact(-jnp.linalg.solve(precision, grad), precision, look), steps

    rows = jnp.asarray(batches, jnp.int32)
    return jax.tree.map(np.asarray, facts(posterior, kernel, estimator, rows))


class _Moments(NamedTuple):
    """Mean, covariance and Σ_{s≥1} Cov(z_{t+s}, z_t) of the state, averaged over a period."""

    mean: np.ndarray
    covariance: np.ndarray
    lag_sum: np.ndarray


def _moments(steps: Derivatives, orders: np.ndarray) -> _Moments:
    """`orders` has a row for each order of a period's batches, and a column for each step."""
    noise = steps.noise @ np.swapaxes(steps.noise, -1, -2)
    identity = np.eye(noise.shape[-1])
    start = _start_of_period(steps.transition, steps.offset, orders)
    # From here on around the mean at the start of a period: there an order is independent of z.
    offset = steps.offset + (steps.transition - identity) @ start
    heat, added = 0 * noise[orders[:, 0]], 0 * offset[orders[:, 0]]
    whole = identity + heat
    for b in orders.T:
        transition = steps.transition[b]
        heat = transition @ heat @ _transposed(transition) + noise[b]
        whole, added = transition @ whole, _times(transition, added) + offset[b]
    covariance = _solve(whole, np.mean(heat + _outer(added, added), 0))

    mean, second = 0 * added, covariance + 0 * whole
    means, seconds = [], []
    for b in orders.T:
        means.append(mean)
        seconds.append(second)
        transition, moved = steps.transition[b], _times(steps.transition[b], mean)
        second = transition @ second @ _transposed(transition) + noise[b]
        second = second + _outer(moved, offset[b]) + _outer(offset[b], moved + offset[b])
        mean = moved + offset[b]
    lags = _lag_sum(steps.transition, offset, orders, means, seconds)
    center = np.mean(means, (0, 1))
    return _Moments(start + center, np.mean(seconds, (0, 1)) - np.outer(center, center), lags)


def _start_of_period(transitions, offsets, orders) -> np.ndarray:
    """μ = E[F]μ + E[c] over whole periods."""
    identity = np.eye(transitions.shape[-1])
    whole, added = identity + 0 * transitions[orders[:, 0]], 0 * offsets[orders[:, 0]]
    for b in orders.T:
        whole, added = transitions[b] @ whole, _times(transitions[b], added) + offsets[b]
    return np.linalg.solve(identity - whole.mean(0), added.mean(0))


def _solve(whole: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """S = E[F S Fᵀ] + constant; F has a leading axis of orders."""
    size = len(constant)
    flat = whole.reshape(len(whole), -1)
    both = (flat.T @ flat / len(flat)).reshape(4 * (size,))  # E[F_ij F_kl]
    both = both.transpose(0, 2, 1, 3).reshape(size**2, size**2)
    radius = np.max(np.abs(np.linalg.eigvals(both)))
    if not radius < 1:
        raise ValueError(
            f"The chain is unstable with these batches, so there is no stationary law: its second "
            f"moments grow by {radius:.6g} in a period. Take a smaller step_size."
        )
    return np.linalg.solve(np.eye(size**2) - both, constant.reshape(-1)).reshape(size, size)


def _lag_sum(transitions, offsets, orders, means, seconds) -> np.ndarray:
    """Σ_{s≥1} Cov(z_{t+s}, z_t), averaged over the steps t of a period.

    Around the mean m_j at step j of a period, y_{j+1} = F_j y_j + d_j. What comes after step j sums
    to A_j y_j + b_j, with A_j = (I + A_{j+1})F_j and b_j = (I + A_{j+1})d_j + b_{j+1}; after the
    period to A y with A the mean of A_0 over all orders, since the next order is independent.
    """
    identity = np.eye(transitions.shape[-1])
    whole, within = identity + 0 * seconds[0], 0 * seconds[0]
    for b in orders.T:
        whole = transitions[b] @ whole
        within = within + whole
    later = within.mean(0) @ np.linalg.inv(identity - whole.mean(0)) + 0 * whole
    rest, total = 0 * means[0], 0 * identity
    centers = [mean.mean(0) for mean in means]
    for j in reversed(range(len(means))):
        b, center, following = orders[:, j], centers[j], centers[(j + 1) % len(centers)]
        step = transitions[b]
        drift = step @ center + offsets[b] - following
        rest = _times(identity + later, drift) + rest
        later = (identity + later) @ step
        mean = means[j] - center
        second = seconds[j] - _outer(means[j], center + 0 * mean) - _outer(center + 0 * mean, mean)
        total = total + np.mean(later @ second + _outer(rest, mean), 0)
    return total / len(means)


def _times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (matrices @ vectors[..., None])[..., 0]


def _outer(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x[..., :, None] * y[..., None, :]


def _transposed(matrices: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrices, -1, -2)
