"""Target → oracle: estimates of the gradient, and of their noise.

Gradient estimators: target → oracle. Samplers see the oracle, never data, batches or N.
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

# Gradient estimators: target → oracle. Samplers see the oracle, never data, batches or N.


class RowView(NamedTuple):
    """What an oracle knows of single rows of the parameters.

    `touched(i)` are those that the i-th batch sees; `prior(rows, like)` gives the prior's means and
    precisions of rows, in the shapes of `like`.
    """

    touched: Callable[..., Touched]
    prior: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


class Oracle:
    """What a sampler may ask about the target in one step.

    `oracle(i, position)` uses the step's i-th batch or gradient noise; `oracle.potential(position)`
    is the exact potential, where there is one: data that only stream by have none. `is_exact` says
    that both agree. `oracle.change(old, new)` is a difference of exact potentials as a sum, for
    accept steps that look at a part of the data. `oracle.rows` is for parameters that are tables.
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
                "The accept step asks for single rows of the data, but this source of data gives "
                "none: use metropolis=False, or SGHMC without replicas."
            )
        return self._change(old, new)

    @property
    def rows(self) -> RowView:
        if self._rows is None:
            raise TypeError(
                "Lazy moves the rows that a batch sees, but here nothing says which they are: give "
                "Posterior(RowLikelihood(…), RowPrior(…), data) in its own coordinates, all of its "
                "parameters moving, and gradient=Minibatch(…). Other gradients touch every row in "
                "every step, where SGHMC itself is as quick."
            )
        return self._rows

    def from_batch(self, first) -> "Oracle":
        """The same oracle from the step's batch number `first` on: one of several replicas'."""
        return Oracle(
            lambda i, position: self(first + i, position),
            self.potential,
            self.is_exact,
            self.change,
        )

    def through(
        self, to_position: Callable, pull_back: Callable, *, keeps_rows: bool = False
    ) -> "Oracle":
        """The same oracle for other coordinates z.

        `to_position` takes z to the position, `pull_back` a gradient there to that in z. It keeps
        rows where z has the same numbers as the position, in other shapes.
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
    """A way to estimate gradients, as given; `prepare` makes the estimator that runs.

    A subclass has its settings as fields and implements `prepare`.
    """

    def _repr_html_(self) -> str:
        return display.notebook_settings(self)

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

    Its `anchor` is what it has computed from all data: a part of the run's state, since it depends
    on the hyperparameters and may follow the chain. A subclass implements `oracle` and, where that
    takes randomness, `draw`.
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

    def draw(self, key, first_step, num_steps: int, num_gradients: int, like: PyTree) -> PyTree:
        """Raw variates for the gradients of some steps: 1-D arrays, step by step."""
        return []

    def init_anchor(self, target: Target) -> PyTree:
        """The anchor before step 0."""
        return ()

    def renew_anchor(self, target: Target, anchor: PyTree) -> PyTree:
        """The anchor after a change of the hyperparameters."""
        return anchor

    def move_anchor(self, target: Target, anchor: PyTree, position: PyTree) -> PyTree:
        """The anchor once the chain has come to `position`."""
        return anchor

    @abc.abstractmethod
    def oracle(self, target: Target, noise: PyTree, anchor: PyTree = ()) -> Oracle:
        """The oracle of one step, from that step's variates."""

    def examples(self, target: Target, noise: PyTree) -> PyTree:
        """The rows of a step's first batch, from that step's variates."""
        raise TypeError(f"{type(self).__name__} takes no batches.")

    def example_gradients(
        self, target: Target, position: PyTree, examples: PyTree, anchor: PyTree
    ) -> PyTree:
        """What each example adds to a batch's sum: its scatter is the gradient's noise."""
        raise TypeError(f"{type(self).__name__} takes no batches: its noise has no such estimate.")

    @property
    def noise_scale(self) -> jax.Array | float:
        """The covariance of the gradient's error over that of the example gradients."""
        return 0.0
