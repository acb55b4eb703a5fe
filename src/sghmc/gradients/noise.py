"""Noise of gradients: added with a known law, or estimated from single examples' gradients."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from sghmc.core import checks, matrices, random, tree
from sghmc.core.checks import check_choice, check_count
from sghmc.gradients import Gradient, GradientEstimator, Oracle
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.types import Evaluation, PyTree

_NOISE_TOLERANCE = 1e-5
"""Relative tolerance of the check of an estimated V̂: its rounding error in single precision."""


class EmpiricalFisher(eqx.Module):
    """V̂ estimated while a chain runs: `gradient_noise=EmpiricalFisher()` of `SGHMC` or `SGLD`.

    Before the first step and after every `every`-th one the gradients of a batch's single examples
    give V̂ of the gradient estimator in use, plain or with a control variate,

        V̂ = (N²/n) s²,  times 1 − n/N without replacement,  s² centered and with divisor n − 1:

    unbiased. The sampler subtracts B̂ = ½εV̂, with V̂ a running average, from its injected noise.

    | field | meaning |
    | --- | --- |
    | `diagonal` | variances alone, O(nd); False: the whole matrix, O(nd²), and O(d³) to factor it |
    | `every` | steps from one estimate to the next: per-example gradients are expensive |
    | `window` | number of estimates after which the mean becomes a running average of that length |
    | `raise_friction` | where V̂ is too large: raise the friction, as far as needed; else an error |

    If V̂ turns out too large for the friction, τC ⋡ ½εV̂, the run raises `GradientNoiseError`. With a
    diagonal V̂, correlations of the noise remain and bias the law.

    Ahn, Korattikara & Welling, 2012; Chen, Fox & Guestrin, 2014, §3.3.

    >>> import sghmc
    >>> sghmc.SGHMC(0.1, friction=3.0, gradient_noise=sghmc.EmpiricalFisher()).gradient_noise.every
    100
    """

    diagonal: bool = True
    every: int = 100
    window: int = 20
    raise_friction: bool = False

    def __check_init__(self):
        check_choice(self.diagonal, "diagonal", (True, False))
        check_choice(self.raise_friction, "raise_friction", (True, False))
        check_count(self.every, "every")
        check_count(self.window, "window")


class RunningNoise(NamedTuple):
    """A running average of V̂, and the step `failed_at` where it first was too large.

    `needed` and `allowed` are the two numbers of that step; see `Kernel.with_gradient_noise`.
    """

    mean: jax.Array
    num_estimates: jax.Array
    failed_at: jax.Array
    needed: jax.Array
    allowed: jax.Array

    def with_estimate(self, estimate: jax.Array, window: int) -> "RunningNoise":
        count = self.num_estimates + 1
        weight = 1 / jnp.minimum(count, window).astype(estimate.dtype)
        return self._replace(mean=self.mean + weight * (estimate - self.mean), num_estimates=count)

    def judged(self, t, needed: jax.Array, allowed: jax.Array) -> "RunningNoise":
        # Equality is allowed (all noise then comes from the gradient), so rounding errors must be.
        is_first = (needed > allowed * (1 + _NOISE_TOLERANCE)) & (self.failed_at > t)
        new = self._replace(failed_at=jnp.asarray(t, jnp.int32), needed=needed, allowed=allowed)
        return jax.tree.map(lambda x, y: jnp.where(is_first, x, y), new, self)


def no_noise(size: int, fisher: EmpiricalFisher, dtype, never: int) -> RunningNoise:
    """Return the average before the first estimate."""
    shape = (size,) if fisher.diagonal else (size, size)
    zero = jnp.zeros((), dtype)
    return RunningNoise(
        jnp.zeros(shape, dtype), jnp.zeros((), jnp.int32), jnp.asarray(never, jnp.int32), zero, zero
    )


def scatter(terms: PyTree, *, diagonal: bool) -> jax.Array:
    """Return the sample covariance (divisor n − 1) of the rows of `terms`, raveled.

    `diagonal` gives the variances alone: O(nd) instead of O(nd²).
    """
    rows = jax.vmap(tree.ravel)(terms)
    centered = rows - jnp.mean(rows, 0, keepdims=True)
    count = len(rows) - 1
    if diagonal:
        return jnp.sum(centered**2, 0) / count
    return centered.T @ centered / count


def gradient_noise(
    estimator: GradientEstimator,
    target: Target,
    anchor: PyTree,
    position: PyTree,
    examples: PyTree,
    *,
    diagonal: bool,
    pull_back: Callable[[PyTree], PyTree] = lambda grad: grad,
) -> jax.Array:
    """Return an unbiased estimate of V̂, the covariance of the gradient's error at `position`.

    The examples need not be a batch: any number of independent rows will do. `pull_back` maps
    gradients to the coordinates of V̂.
    """
    terms = estimator.example_gradients(target, position, examples, anchor)
    return estimator.noise_scale * scatter(jax.vmap(pull_back)(terms), diagonal=diagonal)


@eqx.filter_jit
def mean_gradient_noise(
    estimator: GradientEstimator,
    target: Target,
    positions: PyTree,
    rows: jax.Array,
    *,
    diagonal: bool,
) -> jax.Array:
    """Return V̂ averaged over positions on a leading axis, each with row numbers of its own."""
    assert isinstance(target, AbstractPosterior)
    anchor = estimator.init_anchor(target)

    def of_position(pair):
        position, indices = pair
        examples = target.rows(indices)
        return gradient_noise(estimator, target, anchor, position, examples, diagonal=diagonal)

    return jnp.mean(lax.map(of_position, (positions, rows)), 0)


class NoisyGradient(Gradient):
    """The exact gradient plus N(0, V): gradient noise with a known law.

    `variance` is V: a number, a pytree like the parameters (a diagonal) or a dense matrix.

    >>> import sghmc
    >>> sghmc.NoisyGradient(4.0)
    NoisyGradient(variance=4.0)
    """

    variance: PyTree

    def __check_init__(self):
        checks.check_matrix(self.variance, "variance")

    def prepare(self, target, position):
        variance = checks.parse_matrix(self.variance, position, "variance", definite=False)
        nothing = matrices.scaled(variance, 0.0)
        root = matrices.pencil(variance, nothing, tree.sizes(position), "variance")
        return _NoisyEstimator(matrices.finish(root, tree.float_type(position)))


class _NoisyEstimator(GradientEstimator):
    root: matrices.Pencil

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.normals_like(key, first_step, num_steps, like, copies=num_gradients)

    def oracle(self, target, noise, anchor=()):
        def evaluate(i, position):
            potential, grad = target.evaluate(position)
            error = self.root.sqrt(1, 0, random.copy_of(noise, i, position))
            return Evaluation(potential, tree.add_scaled(grad, 1, error))

        return Oracle(evaluate, target.potential, False, target.change)
