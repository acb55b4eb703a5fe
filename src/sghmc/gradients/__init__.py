"""Gradient estimators, which turn a target into an oracle: over all rows, and over minibatches.

Samplers see the oracle, never data, batches or N.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc import display
from sghmc.core import random
from sghmc.core.checks import check_choice, check_count
from sghmc.posterior.parameter_rows import RowPrior, RowTerms, Touched
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Potential, Target
from sghmc.types import Change, Evaluation, PyTree


class RowView(NamedTuple):
    """Access to single rows of the parameters, for samplers that move only some of them.

    `touched(i)` are the rows that the i-th batch uses; `prior(rows, like)` gives the prior's means
    and precisions of rows, in the shapes of `like`.
    """

    touched: Callable[..., Touched]
    prior: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


@dataclasses.dataclass(frozen=True, eq=False)
class Oracle:
    """The view of the target that a sampler has in one step.

    `oracle(i, position)` uses the step's i-th batch or gradient noise; `oracle.potential(position)`
    is the exact potential, which streamed data do not have. `is_exact` says that both agree.
    `oracle.change(old, new)` is a difference of exact potentials as a sum over rows, for accept
    steps that use a part of the data. `oracle.rows` is for parameters that are tables.
    """

    evaluate: Callable[..., Evaluation]
    exact_potential: Callable[[PyTree], jax.Array] | None
    is_exact: bool
    exact_change: Callable[[PyTree, PyTree], Change] | None = None
    row_view: RowView | None = None

    def __call__(self, i, position: PyTree) -> Evaluation:
        return self.evaluate(i, position)

    def potential(self, position: PyTree) -> jax.Array:
        if self.exact_potential is None:
            raise ValueError(
                "The accept step needs the potential over all data, but this source of data has no "
                "full pass: use metropolis=False, or SGHMC, which needs no accept step."
            )
        return self.exact_potential(position)

    def change(self, old: PyTree, new: PyTree) -> Change:
        if self.exact_change is None:
            raise ValueError(
                "The accept step needs single rows of the data, but this source of data has no "
                "random access: use metropolis=False, or SGHMC without replicas."
            )
        return self.exact_change(old, new)

    @property
    def rows(self) -> RowView:
        if self.row_view is None:
            raise TypeError(
                "Lazy moves the rows that a batch uses, but it is not known which they are: give "
                "Posterior(RowLikelihood(…), RowPrior(…), data) in its own coordinates, with all "
                "parameters trainable, and gradient=Minibatch(…). Other gradients use every row in "
                "every step, where SGHMC itself is as quick."
            )
        return self.row_view

    def from_batch(self, first) -> "Oracle":
        """Return this oracle with batches counted from `first` on, for one of several replicas."""
        return dataclasses.replace(
            self, evaluate=lambda i, position: self(first + i, position), row_view=None
        )

    def through(
        self, to_position: Callable, pull_back: Callable, *, keeps_rows: bool = False
    ) -> "Oracle":
        """Return this oracle as a function of other coordinates z.

        `to_position` maps z to the position, `pull_back` a gradient there to one in z. It keeps
        `rows` if z has the same numbers as the position, in other shapes (`keeps_rows`).
        """

        def evaluate(i, z):
            potential, grad = self.evaluate(i, to_position(z))
            return Evaluation(potential, pull_back(grad))

        def exact(z):
            return self.potential(to_position(z))

        def change(old, new):
            return self.change(to_position(old), to_position(new))

        return Oracle(evaluate, exact, self.is_exact, change, self.row_view if keeps_rows else None)


class Gradient(eqx.Module):
    """The settings of a gradient estimator; `prepare` makes the estimator that runs.

    A subclass has its settings as fields and implements `prepare`.
    """

    def _repr_html_(self) -> str:
        return display.notebook_settings(self)

    @property
    def batch_rows(self) -> int | None:
        """The number of rows of a batch; None if gradients are not made of batches."""
        return None

    @property
    def is_independent(self) -> bool:
        """Whether errors of different steps are independent, as subtracting V̂ assumes."""
        return True

    @abc.abstractmethod
    def prepare(self, target: Target, position: PyTree) -> "GradientEstimator":
        """Check against the target and do all one-time work, for a chain that starts at `position`.

        `position` may have shapes and dtypes only, if the estimator needs nothing else of it.
        """


class GradientEstimator(eqx.Module):
    """A prepared gradient estimator, which turns raw variates into an oracle.

    Its `anchor` holds results of passes over all data. It is a part of the run's state, since it
    depends on the hyperparameters and may follow the chain. A subclass implements `oracle` and, if
    that takes randomness, `draw`.
    """

    @property
    def renew_every(self) -> int | None:
        """The number of steps after which `move_anchor` is due; None: never."""
        return None

    @property
    def is_shared(self) -> bool:
        """Whether all chains use the variates of the first."""
        return False

    @property
    def takes_rows(self) -> bool:
        """Whether the variates are row numbers, which the host replaces by the rows of a source."""
        return False

    def draw(self, key, first_step, num_steps: int, num_gradients: int, like: PyTree) -> PyTree:
        """Return raw variates for the gradients of some steps: 1-D arrays, step by step."""
        return []

    def init_anchor(self, target: Target) -> PyTree:
        """Return the anchor before step 0."""
        return ()

    def renew_anchor(self, target: Target, anchor: PyTree) -> PyTree:
        """Return the anchor after a change of the hyperparameters."""
        return anchor

    def move_anchor(self, target: Target, anchor: PyTree, position: PyTree) -> PyTree:
        """Return the anchor once the chain has come to `position`."""
        return anchor

    @abc.abstractmethod
    def oracle(self, target: Target, noise: PyTree, anchor: PyTree = ()) -> Oracle:
        """Return the oracle of one step, from that step's variates."""

    def examples(self, target: Target, noise: PyTree) -> PyTree:
        """Return the rows of a step's first batch, from that step's variates."""
        raise TypeError(f"{type(self).__name__} takes no batches.")

    def example_gradients(
        self, target: Target, position: PyTree, examples: PyTree, anchor: PyTree
    ) -> PyTree:
        """Return each example's term of a batch's sum; their covariance is the gradient's noise."""
        raise TypeError(f"{type(self).__name__} takes no batches: its noise has no such estimate.")

    @property
    def noise_scale(self) -> jax.Array | float:
        """The covariance of the gradient's error over that of the example gradients."""
        return 0.0


class FullBatch(Gradient):
    """The exact gradient over all data; for a stochastic `Potential`, one with a fresh key.

    >>> import sghmc
    >>> sghmc.FullBatch()
    FullBatch()
    """

    def prepare(self, target, position):
        return KeyedEstimator() if target.is_stochastic else _ExactEstimator()


class _ExactEstimator(GradientEstimator):
    def oracle(self, target, noise, anchor=()):
        return Oracle(
            lambda i, position: target.evaluate(position), target.potential, True, target.change
        )


class Minibatch(Gradient):
    """The gradient over `batch_size` random rows, scaled by N/n: unbiased.

    | `replacement` | rows of a batch | covariance of the gradient's error |
    | --- | --- | --- |
    | `True` | independent, uniform | (N²/n) s² |
    | `False` | distinct within a batch | (N²/n)(1 − n/N) s² |
    | `"epochs"` | shuffled passes, N mod n rows of each left out | cancels over a pass |
    | `"palindrome"` | such a pass, its batches back, then another | cancels over either |

    Every evaluation has its own batch. In shuffled epochs and palindromes the errors of different
    steps are not independent: a sampler that subtracts `gradient_noise` refuses them.

    A palindrome ω₁ … ω_m ω_m … ω₁ of m = ⌊N/n⌋ batches is a symmetric composition of steps: the
    bias of `UBU`, `BAOAB` and `SGHMC` has the orders ε², ε⁴, … (Paulin, Whalley, Chada &
    Leimkuhler, 2024). In shuffled epochs it has ε², ε³, …, with independent batches ε; that of
    `SGLD`, without momentum, ε in each. `sghmc.theory.minibatch_law` has the exact law of all four.

    With `shared` all chains use the same batches: rows are fetched once for all chains, which is
    most of the cost if the data do not fit into a cache. Each chain has the same law as before, but
    their gradients have common errors: chains that gradient noise dominates are correlated, and
    averaging over them helps less than their number suggests.

    >>> import sghmc
    >>> sghmc.Minibatch(500)
    Minibatch(batch_size=500)
    """

    batch_size: int
    replacement: bool | Literal["epochs", "palindrome"] = True
    shared: bool = False

    def __check_init__(self):
        check_count(self.batch_size, "batch_size")
        check_choice(self.replacement, "replacement", (True, False, "epochs", "palindrome"))

    @property
    def batch_rows(self) -> int:
        return self.batch_size

    @property
    def is_independent(self) -> bool:
        return isinstance(self.replacement, bool)

    def prepare(self, target, position):
        target = with_data(target, self)
        num_examples = int(target.num_examples)
        if self.replacement is not True and self.batch_size > num_examples:
            raise ValueError(
                f"batch_size is {self.batch_size}, but the data have {num_examples} rows: take at "
                f"most that many, or replacement=True."
            )
        return BatchEstimator(self.batch_size, self.replacement, self.shared, target.num_examples)


def with_data(target: Target, gradient: Gradient) -> AbstractPosterior:
    """Return the target, checked to have data to draw batches from."""
    if isinstance(target, AbstractPosterior):
        return target
    raise TypeError(
        f"{type(gradient).__name__} needs data to draw from: give a Posterior, or use FullBatch or "
        f"NoisyGradient with a Potential."
    )


class BatchEstimator(GradientEstimator):
    """Draws batches of rows, and evaluates the scaled sum over a batch."""

    batch_size: int = eqx.field(static=True)
    replacement: bool | str = eqx.field(static=True)
    shared: bool = eqx.field(static=True)
    num_examples: int | jax.Array

    @property
    def is_shared(self):
        return self.shared

    @property
    def takes_rows(self):
        return True

    def draw(self, key, first_step, num_steps, num_gradients, like):
        """Return row numbers, a batch for each gradient of each step."""
        if self.replacement is True:
            width = num_gradients * self.batch_size
            return random.integers(key, first_step, num_steps, width, self.num_examples)
        first = jnp.asarray(first_step).astype(jnp.uint32) * np.uint32(num_gradients)
        permutation = first + lax.iota(jnp.uint32, num_steps * num_gradients)
        index = lax.iota(jnp.int32, self.batch_size)[None]
        if self.replacement is not False:
            permutation, batch = self._in_passes(permutation)
            index = index + self.batch_size * batch[:, None]
        rows = random.permuted(key, permutation, index, self.num_examples)
        return rows.reshape(-1, *key.shape[1:])

    def _in_passes(self, evaluation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the pass that an evaluation belongs to, and its batch in that pass."""
        per_epoch = jnp.asarray(self.num_examples // self.batch_size).astype(jnp.uint32)
        if self.replacement == "epochs":
            permutation, batch = evaluation // per_epoch, evaluation % per_epoch
        else:
            permutation, turn = evaluation // (2 * per_epoch), evaluation % (2 * per_epoch)
            batch = jnp.minimum(turn, 2 * per_epoch - 1 - turn)
        return permutation, batch.astype(jnp.int32)

    def oracle(self, target, noise, anchor=()):
        assert isinstance(target, AbstractPosterior)
        n = self.batch_size

        def evaluate(i, position):
            batch = target.batch(noise, i, n)
            return Evaluation(*jax.value_and_grad(target.estimate)(position, batch))

        rows = None
        if isinstance(target.log_prior, RowPrior) and (terms := RowTerms.of(target)):
            rows = RowView(lambda i: terms.touched(target.batch(noise, i, n)), terms.moments)
        return Oracle(evaluate, target.potential, False, target.change, rows)

    def examples(self, target, noise):
        assert isinstance(target, AbstractPosterior)
        return target.examples(noise, 0, self.batch_size)

    def example_gradients(self, target, position, examples, anchor):
        assert isinstance(target, AbstractPosterior)

        def of_example(example):
            row = jax.tree.map(lambda leaf: leaf[None], example)
            return jax.grad(lambda params: -target.log_likelihood_sum(params, row))(position)

        return jax.vmap(of_example)(examples)

    @property
    def noise_scale(self):
        """N²/n for independent rows, times 1 − n/N for distinct ones.

        For shuffled epochs and palindromes this is the error of one step; errors of a pass cancel.
        """
        scale = self.num_examples / self.batch_size * self.num_examples  # N² may overflow
        share = 0.0 if self.replacement is True else self.batch_size / self.num_examples
        return scale * (1 - share)


# Gradients of a stochastic potential, each with a key of its own.

_NUM_NOISE_KEYS = 16
"""Number of keys for one estimate of the noise; estimates are averaged over the run, too."""

_NOISE_KEY_CONSTANT = 0x7FFFFFFF
"""Constant folded into the step's key to get the keys of the noise estimate; chosen so that user
code is unlikely to fold in the same number."""


class KeyedEstimator(GradientEstimator):
    """Draw two words for each gradient of each step, which are the key of U(params, key)."""

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return random.bits(key, first_step, num_steps, 2 * num_gradients)

    def oracle(self, target, noise, anchor=()):
        assert isinstance(target, Potential)

        def evaluate(i, position):
            return Evaluation(*jax.value_and_grad(target.estimate)(position, _key(noise, i)))

        return Oracle(evaluate, target.potential, False, target.change)

    def examples(self, target, noise):
        """Return keys other than the step's own and those that U may split off it."""
        apart = jax.random.fold_in(_key(noise, 0), _NOISE_KEY_CONSTANT)
        return jax.random.split(apart, _NUM_NOISE_KEYS)

    def example_gradients(self, target, position, examples, anchor):
        assert isinstance(target, Potential)
        return jax.vmap(jax.grad(target.estimate), (None, 0))(position, examples)

    @property
    def noise_scale(self):
        """The factor 1: a step's gradient is that of one key."""
        return 1.0


def _key(words: PyTree, i) -> jax.Array:
    pair = jax.lax.dynamic_slice(words, (2 * jnp.asarray(i),), (2,))
    return jax.random.wrap_key_data(pair, impl="threefry2x32")
