"""What a recommender asks of a likelihood: data for its chain, and what draws say of ratings."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.posterior.posterior import Posterior
from sghmc.recommender.draws import FactorDraws
from sghmc.recommender.factor_gibbs import Features
from sghmc.recommender.factor_model import AbstractFactorization
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.ratings import Ratings
from sghmc.types import PyTree


class Sizes(NamedTuple):
    """Rows of users and items in a chain's table, padding included."""

    user: int
    item: int


class Problem(NamedTuple):
    """What a chain samples: a model, and its posterior given ratings."""

    model: AbstractFactorization
    posterior: Posterior
    batch_size: int
    """Ratings that a step looks at, unless told otherwise; or pairs, where examples are tiles."""
    gibbs_every: int
    """Steps between fresh hyperparameters, for which all ratings may have to be looked at."""
    pairs_per_example: int = 1


class Schedule(NamedTuple):
    """What a chain has where the user asks for nothing else; counts are in steps."""

    step_size: float
    momentum_decay: float
    thinning: int
    num_burnin: int


class Outcome(abc.ABC):
    """From draws of pairs' means to ratings."""

    @property
    @abc.abstractmethod
    def levels(self) -> np.ndarray | None:
        """The ratings that there are, in order; None where any number may come."""

    @abc.abstractmethod
    def moments(
        self, draws: FactorDraws, users: np.ndarray, items: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of a new rating of each pair of codes."""

    @abc.abstractmethod
    def ranked(
        self,
        draws: FactorDraws,
        users: np.ndarray,
        items: np.ndarray,
        means: np.ndarray,
        variances: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same, where mean and variance of the pairs' means are known already."""

    @abc.abstractmethod
    def probabilities(self, draws: FactorDraws, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Of each level: (pair, level)."""


@dataclasses.dataclass(frozen=True)
class Likelihood(abc.ABC):
    """How ratings come about, given their pair's mean.

    `scale` leads from ratings to the model's units and back; it is found once, at the first fit.
    """

    scale: np.ndarray

    kept: ClassVar[tuple[str, ...]] = ()
    """Hyperparameters, besides those of rows, that every draw has."""
    schedule: ClassVar[Schedule]
    is_rated: ClassVar[bool] = True
    """Whether a row says how much something was liked, not only that it came up."""
    repeats: ClassVar[str] = "error"
    """What becomes of a pair that comes twice, where the user does not say."""
    joins: ClassVar[str] = "last"
    """What becomes of it when it comes again later."""

    @classmethod
    @abc.abstractmethod
    def of(cls, table: Ratings) -> Self:
        """With the scale of these ratings."""

    @abc.abstractmethod
    def in_units(self, table: Ratings) -> Ratings:
        """The table as the model takes it."""

    @abc.abstractmethod
    def problem(
        self, ratings: Ratings, sizes: Sizes, rank: int, features: dict[str, Features]
    ) -> Problem:
        """Given ratings in the model's units."""

    def weight(self, ratings: Ratings) -> np.ndarray | None:
        """How much each rating says; None: all alike."""
        return None

    @abc.abstractmethod
    def start(self, problem: Problem) -> PyTree:
        """Hyperparameters, besides those of rows, that a chain starts from."""

    @abc.abstractmethod
    def resumed(self, hyper: PyTree, problem: Problem) -> PyTree:
        """The same from where a chain stands that knew fewer users, maybe."""

    @abc.abstractmethod
    def outcome(self, draws: dict[str, np.ndarray], ratings: Ratings, clip: bool) -> Outcome:
        """Of draws by name; with `clip` means stay within the ratings seen."""

    @abc.abstractmethod
    def fold_in(self, key: jax.Array, new: Newcomers) -> dict[str, np.ndarray]:
        """Draws by name with rows for new users and items."""


def counted(posterior: Posterior, count: int) -> Posterior:
    """A posterior of whose rows only the first count."""
    real: Any = jnp.asarray(count, jnp.int32)
    return eqx.tree_at(lambda p: p.num_real, posterior, real, is_leaf=lambda leaf: leaf is None)
