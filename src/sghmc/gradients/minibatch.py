"""Gradients over minibatches of rows."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import random
from sghmc.core.checks import check_choice, check_count
from sghmc.gradients import Gradient, GradientEstimator, Oracle, RowView
from sghmc.posterior.parameter_rows import RowTerms
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.target import Target
from sghmc.types import Evaluation


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

        def batch(i):
            return target.batch(noise, i, self.batch_size)

        def evaluate(i, position):
            return Evaluation(*jax.value_and_grad(target.estimate)(position, batch(i)))

        terms = RowTerms.of(target)
        rows = terms and RowView(lambda i: terms.touched(batch(i)), terms.moments)
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
