"""A recommender that knows what it does not know: Bayesian matrix factorization by SGHMC."""

import copy
import dataclasses
import pathlib
from typing import Any, Self

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from sghmc.core.checking import check_count
from sghmc.data import ratings as tables
from sghmc.data.ratings import DUPLICATES, Ratings, codes_of
from sghmc.estimators import storage
from sghmc.estimators.recommender import factor_chain
from sghmc.estimators.recommender.factor_chain import Chain, ChainSettings
from sghmc.estimators.recommender.fold_in import Known, fold_in
from sghmc.estimators.recommender.rating_answers import RatingAnswers

_RATINGS = "ratings."
"""Begins the names of the ratings' arrays in a file, where draws have names without a dot first."""

_SAME = 1e-6
"""Ratings that spread less than this, relative to their size, are equal: float32 tells no more."""


class MatrixFactorization(RatingAnswers):
    """Ratings as products of factors of users and items plus biases, with their posterior.

        r_ij ~ N(m + a_i + b_j + u_i·v_j, 1/τ_i)

    | argument | meaning |
    | --- | --- |
    | `rank` | dimensions of the factors |
    | `num_draws` | posterior draws that predictions average; memory and time grow with them |
    | `thinning`, `num_burnin` | steps between draws; steps before the first |
    | `num_update_steps` | steps of a `partial_fit`, its burn-in left out |
    | `batch_size` | ratings a step looks at; None: 40,000, or a tenth of them if that is more |
    | `step_size`, `momentum_decay` | ε and α, in units where every row oscillates equally fast |
    | `duplicates` | of a pair rated twice in one table: "error", "last" or "mean" |
    | `clip` | keep predicted means (never their spread) within the ratings seen |
    | `random_state` | seed: the same data and seed give the same model |

    Every user has a precision τ_i of their own: some rate more consistently than others. A rating
    counts as known to a hundredth of the ratings' spread at best, so that ratings without noise
    have a posterior, too. Precisions and the factors' means are drawn by Gibbs steps; masses are
    matched to how often a row was rated and frozen after burn-in. Unknown users and items have the
    prior as their law: predictions then rest on what is known of the other side, and are as
    uncertain as they should be. Ctrl-C raises KeyboardInterrupt and leaves the model as it was.

    >>> from sghmc.data.ratings import synthetic_ratings
    >>> model = MatrixFactorization(rank=2, num_draws=10, thinning=2, num_burnin=20)
    >>> model = model.fit(synthetic_ratings(0, 20, 10))
    >>> mean, std = model.predict([3, 99], [7, 7], return_std=True)
    >>> bool(std[1] > std[0])  # nobody knows user 99
    True
    >>> len(model.recommend(3, k=2).items)
    2
    """

    n_features_in_ = 2

    def __init__(
        self,
        rank: int = 20,
        *,
        num_draws: int = 100,
        thinning: int = 50,
        num_burnin: int = 1000,
        num_update_steps: int = 2000,
        batch_size: int | None = None,
        step_size: float = 0.05,
        momentum_decay: float = 0.0125,
        duplicates: str = "error",
        clip: bool = True,
        random_state: int = 0,
        progress: bool = False,
    ):
        self.rank, self.clip, self.duplicates = rank, clip, duplicates
        self.num_draws, self.thinning, self.num_burnin = num_draws, thinning, num_burnin
        self.num_update_steps, self.batch_size = num_update_steps, batch_size
        self.step_size, self.momentum_decay = step_size, momentum_decay
        self.random_state, self.progress = random_state, progress

    def fit(self, ratings: Any, y: None = None) -> Self:
        """Draw from the posterior given ratings.

        `ratings` is a pandas, polars or Arrow table or a dict with the columns user, item and
        rating, three arrays, or what `sghmc.data.ratings.load_ratings` gave. Ids may be numbers or
        text.
        """
        _check_settings(self)
        table = tables.from_table(ratings, duplicates=self.duplicates)
        if len(table) == 0:
            raise ValueError("There are no ratings to fit: the table has 0 rows.")
        self._learn(table, _scale(table.rating), None, self.thinning, num_fits=0)
        return self

    def partial_fit(self, ratings: Any, y: None = None) -> Self:
        """Take in new ratings, users and items; the chain goes on from where it stands.

        A pair that was rated before gets its new rating. The draws are then those of the new
        posterior, after a short run; without an earlier fit this is `fit`.
        """
        if not hasattr(self, "draws_"):
            return self.fit(ratings)
        _check_settings(self)
        table = self.ratings_.joined(tables.from_table(ratings, duplicates=self.duplicates))
        thinning = -(-self.num_update_steps // self.num_draws)
        start = Chain.of(self.draws_).last
        self._learn(table, self.scale_, start, thinning, self.num_fits_)
        return self

    def fold_in(self, ratings: Any) -> Self:
        """Take in ratings by new users, or of new items, at once: nobody else's law changes.

        Each user of `ratings`, known ones too, gets the law given all their ratings of known items
        and the draws of those items, exactly: as if the new ratings told nothing of the items. New
        items then get theirs given all who rated them. A rating of a new item by a new user so
        tells of the item only; `partial_fit` learns everything from all ratings.
        """
        check_is_fitted(self, "draws_")
        new = tables.from_table(ratings, duplicates=self.duplicates)
        known = Known(self.ratings_.num_users, self.ratings_.num_items)
        table = self.ratings_.joined(new)
        users, items = codes_of(new.users, table.users), codes_of(new.items, table.items)
        of_known = users[new.user[items[new.item] < known.num_items]]
        fresh = np.union1d(of_known, np.arange(known.num_users, table.num_users))
        key = jax.random.fold_in(jax.random.key(self.random_state), self.num_fits_)
        self.draws_ = fold_in(key, self.draws_, _standardized(table, self.scale_), known, fresh)
        self.ratings_, self.num_fits_ = table, self.num_fits_ + 1
        return self

    def save(self, path: str | pathlib.Path) -> None:
        """Write the model, draws and ratings, to one file: whole or not at all, without pickle."""
        check_is_fitted(self, "draws_")
        stored = copy.copy(self)
        columns = dataclasses.asdict(self.ratings_)
        parts = {name: column for name, column in columns.items() if column is not None}
        parts |= {"scale": self.scale_, "num_fits": np.array(self.num_fits_)}
        stored.draws_ = self.draws_ | {f"{_RATINGS}{name}": part for name, part in parts.items()}
        storage.write(stored, pathlib.Path(path))  # pyright: ignore[reportArgumentType]

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Self:
        """A model that `save` wrote: it predicts the same to the bit, and can learn on."""
        model = storage.read(pathlib.Path(path), cls)
        parts = {
            name.removeprefix(_RATINGS): model.draws_.pop(name)
            for name in list(model.draws_)
            if name.startswith(_RATINGS)
        }
        try:
            model.scale_, model.num_fits_ = parts.pop("scale"), int(parts.pop("num_fits"))
            model.ratings_ = Ratings(**parts)
        except (KeyError, TypeError) as error:
            raise storage.ModelFileError(f"{path} is none that sghmc wrote: {error}.") from error
        return model

    def _learn(
        self,
        table: Ratings,
        scale: np.ndarray,
        start: Chain | None,
        thinning: int,
        num_fits: int,
    ) -> None:
        """Run the chain. Nothing of the model changes unless it comes to its end."""
        settings = ChainSettings(
            self.rank,
            self.num_draws,
            thinning,
            self.num_burnin,
            self.batch_size,
            self.step_size,
            self.momentum_decay,
            self.progress,
        )
        key = jax.random.fold_in(jax.random.key(self.random_state), num_fits)
        chain = factor_chain.run(key, _standardized(table, scale), settings, start)
        self.ratings_, self.scale_, self.num_fits_ = table, scale, num_fits + 1
        self.draws_ = chain.by_name()


def _check_settings(model: MatrixFactorization) -> None:
    for name in ("rank", "num_draws", "thinning", "num_burnin", "num_update_steps"):
        check_count(getattr(model, name), name)
    check_count(model.batch_size, "batch_size", or_none="for all")
    check_count(model.random_state, "random_state", 0)
    for name in ("step_size", "momentum_decay"):
        value = getattr(model, name)
        if not 0 < value < 2:
            raise ValueError(f"{name} must be between 0 and 2, but is {value!r}.")
    if model.duplicates not in DUPLICATES:
        raise ValueError(f"duplicates must be one of {DUPLICATES}, but is {model.duplicates!r}.")


def _standardized(table: Ratings, scale: np.ndarray) -> Ratings:
    center, spread = scale
    return dataclasses.replace(table, rating=((table.rating - center) / spread).astype(np.float32))


def _scale(rating: np.ndarray) -> np.ndarray:
    """Center and spread of ratings; what does not vary keeps its scale."""
    center, spread = float(rating.mean(dtype=np.float64)), float(rating.std(dtype=np.float64))
    return np.array([center, spread if spread > _SAME * abs(center) else 1.0])
