"""Gradient estimators, which turn a target into an oracle, and estimates of their noise.

Samplers see the oracle, never data, batches or N.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax

from sghmc import display
from sghmc.posterior.parameter_rows import Touched
from sghmc.posterior.target import Target
from sghmc.types import Change, Evaluation, PyTree


class RowView(NamedTuple):
    """Access to single rows of the parameters, for samplers that move only some of them.

    `touched(i)` are the rows that the i-th batch uses; `prior(rows, like)` gives the prior's means
    and precisions of rows, in the shapes of `like`.
    """

    touched: Callable[..., Touched]
    prior: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


class Oracle:
    """The view of the target that a sampler has in one step.

    `oracle(i, position)` uses the step's i-th batch or gradient noise; `oracle.potential(position)`
    is the exact potential, which streamed data do not have. `is_exact` says that both agree.
    `oracle.change(old, new)` is a difference of exact potentials as a sum over rows, for accept
    steps that use a part of the data. `oracle.rows` is for parameters that are tables.
    """

    def __init__(
        self,
        evaluate: Callable[..., Evaluation],
        potential: Callable[[PyTree], jax.Array] | None,
        is_exact: bool,
        change: Callable[[PyTree, PyTree], Change] | None = None,
        rows: RowView | None = None,
    ):
        self._evaluate = evaluate
        self._potential = potential
        self._change = change
        self._rows = rows
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
                "The accept step needs single rows of the data, but this source of data has no "
                "random access: use metropolis=False, or SGHMC without replicas."
            )
        return self._change(old, new)

    @property
    def rows(self) -> RowView:
        if self._rows is None:
            raise TypeError(
                "Lazy moves the rows that a batch uses, but it is not known which they are: give "
                "Posterior(RowLikelihood(…), RowPrior(…), data) in its own coordinates, with all "
                "parameters trainable, and gradient=Minibatch(…). Other gradients use every row in "
                "every step, where SGHMC itself is as quick."
            )
        return self._rows

    def from_batch(self, first) -> "Oracle":
        """Return this oracle with batches counted from `first` on, for one of several replicas."""
        return Oracle(
            lambda i, position: self(first + i, position),
            self.potential,
            self.is_exact,
            self.change,
        )

    def through(
        self, to_position: Callable, pull_back: Callable, *, keeps_rows: bool = False
    ) -> "Oracle":
        """Return this oracle as a function of other coordinates z.

        `to_position` maps z to the position, `pull_back` a gradient there to one in z. It keeps
        `rows` if z has the same numbers as the position, in other shapes (`keeps_rows`).
        """

        def evaluate(i, z):
            potential, grad = self(i, to_position(z))
            return Evaluation(potential, pull_back(grad))

        def exact(z):
            return self.potential(to_position(z))

        def change(old, new):
            return self.change(to_position(old), to_position(new))

        return Oracle(evaluate, exact, self.is_exact, change, self._rows if keeps_rows else None)


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
