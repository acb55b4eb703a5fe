"""Bayesian matrix factorization of implicit feedback: which pairs came up, or how often."""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.models import factor_gibbs, tiles
from sghmc.models.codes import checked_codes, take_rows
from sghmc.models.factor_features import Features
from sghmc.models.factor_gibbs import SIDES, ColumnPrior
from sghmc.models.factor_model import AbstractFactorization
from sghmc.posterior.posterior import Posterior
from sghmc.types import PyTree


class ClickModel(AbstractFactorization):
    """Which pairs of users and items came up, of all that could have; or how often.

        y_ij ~ Bernoulli(σ(o + u_i·v_j + a_i + b_j))    or, with is_count,
        y_ij ~ Poisson(exp(o + u_i·v_j + a_i + b_j))

    Pairs that did not come up are data too, all of them: an example of the posterior is a tile of
    64 users times 64 items (`sghmc.models.tiles`). The offset o stays as it is. Rows have the
    priors of `FactorizationModel` with prior="dimension".

    | field | meaning |
    | --- | --- |
    | `num_users`, `num_items`, `rank` | the shapes of the factors |
    | `is_count` | whether it matters how often |
    | `features` | {"user": …, "item": …}: what is known of them, see `factor_features` |

    >>> model = ClickModel(num_users=3, num_items=4, rank=2)
    >>> model.posterior([0, 2], [1, 3], offset=-1.0).num_examples
    1
    """

    num_users: int
    num_items: int
    rank: int
    is_count: bool
    features: dict[str, Features]

    def __init__(
        self, num_users: int, num_items: int, rank: int, is_count: bool = False, features=None
    ):
        self.num_users, self.num_items, self.rank = num_users, num_items, rank
        self.is_count, self.features = is_count, features or {}

    def log_likelihood(self, params: jax.Array, example: PyTree, hyper: PyTree) -> jax.Array:
        """Of one tile."""
        sizes, firsts = hyper["num_real"], (0, self.num_users)
        rows, are_real = [], []
        for k, side in enumerate(SIDES):
            position, is_real = tiles.codes_in(example["block"][k], sizes[k])
            code = take_rows(hyper["order"][side], position)
            rows.append(take_rows(params, firsts[k] + code))
            are_real.append(is_real)
        score = scores(rows[0], rows[1], hyper["offset"])
        return tiles.log_likelihood(score, example, (are_real[0], are_real[1]), self.is_count)

    def posterior(
        self,
        user,
        item,
        count=None,
        *,
        offset: float,
        num_real: tuple[int, int] | None = None,
        seed: int = 0,
        **constants: jax.Array,
    ) -> Posterior:
        """The posterior given codes of the pairs that came up, and how often they did.

        `num_real` says how many users and items there are, where the table has more rows; those
        have the prior as their law. Blocks of tiles are random ones: `seed` says which.
        """
        user = checked_codes(user, self.num_users, "user")
        item = checked_codes(item, self.num_items, "item")
        count = np.ones(len(user)) if count is None else np.asarray(count, np.float32)
        if np.any(count <= 0) or not np.all(np.isfinite(count)):
            raise ValueError(
                "count must be positive numbers: leave out pairs that did not come up."
            )
        sizes = (self.num_users, self.num_items) if num_real is None else num_real
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(size) for size in sizes]
        row, column = np.argsort(orders[0])[user], np.argsort(orders[1])[item]
        lengths = (self.num_users, self.num_items)
        hyper = {
            **self.prior_start(),
            "offset": jnp.asarray(offset, jnp.float32),
            "num_real": jnp.asarray(sizes, jnp.int32),
            "order": {
                side: jnp.asarray(np.append(order, np.zeros(length - len(order))), jnp.int32)
                for side, order, length in zip(SIDES, orders, lengths, strict=True)
            },
            **constants,
        }
        data = tiles.tiled(row, column, count, sizes)
        return Posterior(self.log_likelihood, self.log_prior, data, hyper)

    def update(self, key: jax.Array, params: jax.Array, posterior: Posterior) -> PyTree:
        return factor_gibbs.update(key, self.sides(params), self.priors, None, None, posterior)

    def precisions(self, hyper: PyTree, counts: PyTree) -> dict[str, jax.Array]:
        """1: the variances of y, summed over all pairs of a row, are about its positive ones."""
        return {side: jnp.ones(()) for side in SIDES}

    @property
    def columns(self) -> ColumnPrior:
        return ColumnPrior.by_dimension(self.rank)


def scores(users: jax.Array, items: jax.Array, offset: jax.Array) -> jax.Array:
    """o + u_i·v_j + a_i + b_j of all pairs of some rows."""
    products = users[:, :-1] @ items[:, :-1].T
    return products + users[:, -1:] + items[:, -1][None] + offset
