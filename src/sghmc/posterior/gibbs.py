"""Gibbs updates of hyperparameters between steps, and Gaussian priors with learned precisions."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.core import random
from sghmc.core.checks import check_count
from sghmc.core.random import gammas
from sghmc.types import PyTree


class Gibbs(eqx.Module):
    """Draw the hyperparameters from their conditional after every `every`-th step from `start` on.

    `update(key, params, posterior)` returns new hyperparameters with the structure, shapes and
    dtypes of `posterior.hyper`; it runs inside the compiled loop, once a chain. For SGHMC it gets
    the parameters half a drift back, which keeps the bias at order ε²: at the end of a step
    position and momentum are correlated, and an update there would bias θ at order ε.

    >>> import sghmc
    >>> sghmc.Gibbs(lambda key, params, posterior: posterior.hyper, every=100).every
    100
    """

    update: Callable[[jax.Array, PyTree, Any], PyTree]
    every: int = 1
    start: int = 0

    def __check_init__(self):
        if not callable(self.update):
            raise TypeError(
                f"Gibbs needs a function update(key, params, posterior), not {self.update!r}."
            )
        check_count(self.every, "every")
        check_count(self.start, "start", 0)


class GaussianPrior(eqx.Module):
    """θ ~ N(0, λ⁻¹) with λ ~ Gamma(a, b), one precision λ for each leaf or group of leaves.

        log p(θ | λ) = ½ n log λ − ½ λ‖θ‖²  (up to a constant)
        λ | θ ~ Gamma(1 + (a − 1 + n/2)/τ, (b + ‖θ‖²/2)/τ)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `shape`, `rate` | a, b | of the gamma prior |
    | `temperature` | τ | that of the sampler: at τ ≠ 1 the conditional is tempered too |
    | `group` | | function of a leaf's name, "0.weight" say, to the name of its precision |

    The precisions are a dict from names to numbers: the hyperparameters of a `Posterior`.

    >>> import jax.numpy as jnp
    >>> prior = GaussianPrior()
    >>> prior.start({"weight": jnp.ones(3), "bias": jnp.ones(2)})
    {'bias': Array(1., dtype=float32), 'weight': Array(1., dtype=float32)}
    """

    shape: float = 1.0
    rate: float = 1.0
    temperature: float = 1.0
    group: Callable[[str], str] | None = None

    def __check_init__(self):
        for name in ("shape", "rate", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, but is {getattr(self, name)}.")

    def start(self, params: PyTree) -> dict[str, jax.Array]:
        """Return a precision of 1 for every group."""
        sums = jax.eval_shape(self._sums, params)
        return {name: jnp.ones((), total.dtype) for name, (_, total) in sums.items()}

    def log_density(self, params: PyTree, precisions: dict[str, jax.Array]) -> jax.Array:
        terms = [
            0.5 * count * jnp.log(precisions[name]) - 0.5 * precisions[name] * total
            for name, (count, total) in self._sums(params).items()
        ]
        return jnp.sum(jnp.stack(terms))

    def update(self, key: jax.Array, params: PyTree) -> dict[str, jax.Array]:
        """Draw new precisions from their conditional."""
        sums = self._sums(params)
        counts, totals = (
            jnp.stack([jnp.asarray(x) for x in column])
            for column in zip(*sums.values(), strict=True)
        )
        drawn = draw_precision(
            key, self.shape, self.rate, counts, totals, temperature=self.temperature
        )
        return dict(zip(sums, drawn, strict=True))

    def gibbs(self, every: int) -> Gibbs:
        """Return the Gibbs update of posteriors whose hyperparameters are just these precisions."""
        return Gibbs(lambda key, params, posterior: self.update(key, params), every)

    def _sums(self, params: PyTree) -> dict[str, tuple[int, jax.Array]]:
        """Return the number of entries and the sum of squares of each group."""
        sums: dict[str, tuple[int, jax.Array]] = {}
        for path, leaf in jax.tree.leaves_with_path(params):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            name = name if self.group is None else self.group(name)
            count, total = sums.get(name, (0, jnp.zeros((), leaf.dtype)))
            sums[name] = (count + leaf.size, total + jnp.sum(leaf**2))
        return dict(sorted(sums.items()))


def scaled_log_density(params: PyTree, precisions: PyTree) -> jax.Array:
    """Return −½ Σ λ‖θ‖², the log-density of normal priors with a known precision for each leaf."""
    squares = jax.tree.map(
        lambda leaf, precision: precision * jnp.sum(jnp.square(leaf)), params, precisions
    )
    return -0.5 * jnp.sum(jnp.stack(jax.tree.leaves(squares)))


def draw_precision(key, shape, rate, count, sum_of_squares, *, temperature=1.0) -> jax.Array:
    """Draw the precision of `count` centered normal numbers from its (tempered) conditional."""
    a = 1 + (shape - 1 + count / 2) / temperature
    b = (rate + sum_of_squares / 2) / temperature
    a = jnp.broadcast_to(a, jnp.shape(b)).astype(jnp.result_type(sum_of_squares))
    return gammas(random.words(key), a) / b
