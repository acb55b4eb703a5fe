"""Gradient estimators: target → oracle. Samplers see the oracle, never data, batches or N."""

import abc
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sghmc.core import matrices, random, tree
from sghmc.display import notebook
from sghmc.posterior.posterior import Posterior, Target
from sghmc.types import Change, Evaluation, PyTree


class Oracle:
    """What a sampler may ask about the target in one step.

    `oracle(i, position)` uses the step's i-th batch or gradient noise; `oracle.potential(position)`
    is the exact potential, where there is one: data that only stream by have none. `is_exact` says
    that both agree. `oracle.change(old, new)` is a difference of exact potentials as a sum, for
    accept steps that look at a part of the data.
    """

    def __init__(
        self,
        evaluate: Callable[..., Evaluation],
        potential: Callable[[PyTree], jax.Array] | None,
        is_exact: bool,
        change: Callable[[PyTree, PyTree], Change] | None = None,
    ):
        self._evaluate = evaluate
        self._potential = potential
        self._change = change
        self.is_exact = is_exact

    def __call__(self, i, position: PyTree) -> Evaluation:
        return self._evaluate(i, position)

    def potential(self, position: PyTree) -> jax.Array:
        if self._potential is None:
            raise ValueError(
                "The accept step needs the potential over all data, but this source of data has no "
                "full pass: use metropolis=False, or SGHMC, which needs no accept step."
            )
        return self._potential(position)

    def change(self, old: PyTree, new: PyTree) -> Change:
        if self._change is None:
            raise ValueError(
                "The accept step asks for single rows of the data, but this source of data gives "
                "none: use metropolis=False, or SGHMC without replicas."
            )
        return self._change(old, new)

    def from_batch(self, first) -> "Oracle":
        """The same oracle from the step's batch number `first` on: one of several replicas'."""
        return Oracle(
            lambda i, position: self(first + i, position),
            self.potential,
            self.is_exact,
            self.change,
        )

    def through(self, inward: Callable, outward: Callable) -> "Oracle":
        """The same oracle for other coordinates: `inward` of positions, `outward` of gradients."""

        def evaluate(i, position):
            potential, grad = self(i, inward(position))
            return Evaluation(potential, outward(grad))

        def exact(position):
            return self.potential(inward(position))

        def change(old, new):
            return self.change(inward(old), inward(new))

        return Oracle(evaluate, exact, self.is_exact, change)


class Gradient(eqx.Module):
    """A way to estimate gradients, as given; `prepare` makes the estimator that runs."""

    def _repr_html_(self) -> str:
        return notebook.settings(self)

    @property
    def batch_rows(self) -> int | None:
        """Rows of a batch; None where gradients are not made of batches."""
        return None

    @property
    def is_independent(self) -> bool:
        """Whether the errors of different steps are independent, as a correction by V̂ assumes."""
        return True

    @abc.abstractmethod
    def prepare(self, target: Target, position: PyTree) -> "GradientEstimator":
        """Check against the target and do all one-time work, for a chain that starts at `position`.

        Where nothing but shapes and dtypes matters, `position` may have those alone.
        """


class GradientEstimator(eqx.Module):
    """A gradient estimator made ready: raw variates in, an oracle out.

    Its `memory` is what it has computed from all data: a part of the run's state, since it depends
    on the hyperparameters and may follow the chain.
    """

    @property
    def renew_every(self) -> int | None:
        """After how many steps `follow` is due; None: never."""
        return None

    @property
    def is_shared(self) -> bool:
        """Whether all chains take the variates of the first."""
        return False

    @property
    def takes_rows(self) -> bool:
        """Whether the variates are row numbers, for which the host of a source puts the rows."""
        return False

    def draw(self, key, start, num_steps: int, num_gradients: int, like: PyTree) -> PyTree:
        """Raw variates for the gradients of steps start, …: 1-D arrays, step by step."""
        return []

    def remember(self, target: Target) -> PyTree:
        """The memory before step 0."""
        return ()

    def renew(self, target: Target, memory: PyTree) -> PyTree:
        """The memory after a change of the hyperparameters."""
        return memory

    def follow(self, target: Target, memory: PyTree, position: PyTree) -> PyTree:
        """The memory once the chain has come to `position`."""
        return memory

    @abc.abstractmethod
    def oracle(self, target: Target, noise: PyTree, memory: PyTree = ()) -> Oracle:
        """The oracle of one step, from that step's variates."""

    def examples(self, target: Target, noise: PyTree) -> PyTree:
        """The rows of a step's first batch, from that step's variates."""
        raise TypeError(f"{type(self).__name__} takes no batches.")

    def example_gradients(
        self, target: Target, position: PyTree, examples: PyTree, memory: PyTree
    ) -> PyTree:
        """What each example adds to a batch's sum: its scatter is the gradient's noise."""
        raise TypeError(f"{type(self).__name__} takes no batches: its noise has no such estimate.")

    @property
    def noise_scale(self) -> jax.Array | float:
        """The covariance of the gradient's error over that of the example gradients."""
        return 0.0


class FullBatch(Gradient):
    """The exact gradient, over all data.

    >>> import sghmc
    >>> sghmc.FullBatch()
    FullBatch()
    """

    def prepare(self, target, position):
        return _ExactEstimator()


class _ExactEstimator(GradientEstimator):
    def oracle(self, target, noise, memory=()):
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

    Every evaluation has its own batch. In shuffled epochs the errors of different steps are not
    independent: a sampler that subtracts `gradient_noise` refuses them.

    With `shared` all chains see the same batches: rows are fetched once for all, which is most of
    the cost where data do not fit into a cache. Each chain has the same law as before, but the
    errors of their gradients are common to them: chains that gradient noise drives move alike, and
    averages over them gain less than their number says.

    >>> import sghmc
    >>> sghmc.Minibatch(500)
    Minibatch(batch_size=500)
    """

    batch_size: int
    replacement: bool | Literal["epochs"] = True
    shared: bool = False

    def __check_init__(self):
        if not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1:
            raise ValueError(
                f"batch_size must be a whole number from 1, but is {self.batch_size!r}."
            )
        if not isinstance(self.replacement, bool) and self.replacement != "epochs":
            raise ValueError(
                f'replacement must be True, False or "epochs", but is {self.replacement!r}.'
            )

    @property
    def batch_rows(self) -> int:
        return self.batch_size

    @property
    def is_independent(self) -> bool:
        return self.replacement != "epochs"

    def prepare(self, target, position):
        if not isinstance(target, Posterior):
            raise TypeError(
                "Minibatch needs data to draw from: give a Posterior, or use FullBatch or "
                "NoisyGradient with a Potential."
            )
        num_examples = int(target.num_examples)
        if self.replacement is not True and self.batch_size > num_examples:
            raise ValueError(
                f"batch_size is {self.batch_size}, but the data have {num_examples} rows: take at "
                f"most that many, or replacement=True."
            )
        return BatchEstimator(self.batch_size, self.replacement, self.shared, target.num_examples)


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

    def draw(self, key, start, num_steps, num_gradients, like):
        """Row numbers, a batch for each gradient of each step."""
        if self.replacement is True:
            width = num_gradients * self.batch_size
            return random.integers(key, start, num_steps, width, self.num_examples)
        first = jnp.asarray(start).astype(jnp.uint32) * np.uint32(num_gradients)
        permutation = first + lax.iota(jnp.uint32, num_steps * num_gradients)
        place = lax.iota(jnp.int32, self.batch_size)[None]
        if self.replacement == "epochs":
            per_epoch = jnp.asarray(self.num_examples // self.batch_size).astype(jnp.uint32)
            batch = (permutation % per_epoch).astype(jnp.int32)
            permutation = permutation // per_epoch
            place = place + self.batch_size * batch[:, None]
        rows = random.permuted(key, permutation, place, self.num_examples)
        return rows.reshape(-1, *key.shape[1:])

    def oracle(self, target, noise, memory=()):
        assert isinstance(target, Posterior)

        def evaluate(i, position):
            batch = target.batch(noise, i, self.batch_size)
            return Evaluation(*jax.value_and_grad(target.estimate)(position, batch))

        return Oracle(evaluate, target.potential, False, target.change)

    def examples(self, target, noise):
        assert isinstance(target, Posterior)
        return target.examples(noise, 0, self.batch_size)

    def example_gradients(self, target, position, examples, memory):
        assert isinstance(target, Posterior)

        def of_example(example):
            row = jax.tree.map(lambda leaf: leaf[None], example)
            return jax.grad(lambda params: -target.log_likelihood_sum(params, row))(position)

        return jax.vmap(of_example)(examples)

    @property
    def noise_scale(self):
        """N²/n for independent rows, less the share of the data that a batch has seen for others.

        For shuffled epochs this is the error of one step; over a pass the errors cancel.
        """
        scale = self.num_examples / self.batch_size * self.num_examples  # N² may overflow
        seen = 0.0 if self.replacement is True else self.batch_size / self.num_examples
        return scale * (1 - seen)


class NoisyGradient(Gradient):
    """The exact gradient plus N(0, V): gradient noise with a known law.

    `variance` is V: a number, a pytree like the parameters (a diagonal) or a dense matrix.

    >>> import sghmc
    >>> sghmc.NoisyGradient(4.0)
    NoisyGradient(variance=4.0)
    """

    variance: PyTree

    def __check_init__(self):
        matrices.check(self.variance, "variance")

    def prepare(self, target, position):
        variance = matrices.parse(self.variance, position, "variance", definite=False)
        nothing = matrices.scaled(variance, 0.0)
        root = matrices.pencil(variance, nothing, tree.sizes(position), "variance")
        return _NoisyEstimator(matrices.finish(root, tree.float_type(position)))


class _NoisyEstimator(GradientEstimator):
    root: matrices.Pencil

    def draw(self, key, start, num_steps, num_gradients, like):
        return random.normals_like(key, start, num_steps, like, copies=num_gradients)

    def oracle(self, target, noise, memory=()):
        def evaluate(i, position):
            potential, grad = target.evaluate(position)
            error = self.root.sqrt(1, 0, random.copy_of(noise, i, position))
            return Evaluation(potential, tree.add_scaled(grad, 1, error))

        return Oracle(evaluate, target.potential, False, target.change)
