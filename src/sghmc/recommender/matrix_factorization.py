"""A recommender that knows what it does not know: Bayesian matrix factorization by SGHMC."""

import copy
import pathlib
from typing import Any, Self

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from sghmc.core.checks import check_count
from sghmc.estimators import storage
from sghmc.recommender import likelihood_choice
from sghmc.recommender.chain import Chain, ChainSettings, run_factor_chain
from sghmc.recommender.features import Sides, extended, given, learned, packed, unpack, with_ids
from sghmc.recommender.fold_in import Known, Newcomers
from sghmc.recommender.likelihood import Likelihood
from sghmc.recommender.likelihood_choice import AUTO, LIKELIHOODS, name_of
from sghmc.recommender.rating_answers import RatingAnswers
from sghmc.recommender.ratings import DUPLICATES, Ratings, codes_of


class MatrixFactorization(RatingAnswers):
    """Ratings as products of factors of users and items plus biases, with their posterior.

        r_ij ~ N(m + a_i + b_j + u_i·v_j, 1/τ_i)

    | argument | meaning |
    | --- | --- |
    | `rank` | dimensions of the factors |
    | `likelihood` | "gaussian", above; others below |
    | `num_draws` | posterior draws that predictions average; memory and time grow with them |
    | `thinning`, `num_burnin` | steps between draws, steps before the first; None: 50 and 1000 |
    | `num_update_steps` | steps of a `partial_fit`, its burn-in left out |
    | `batch_size` | ratings a step looks at; None: 40,000, or a tenth of them if that is more |
    | `step_size`, `momentum_decay` | ε and α, in units where every row oscillates equally fast; |
    | | None: 0.05 and 0.0125 |
    | `duplicates` | of a pair rated twice in one table: "error", "last" or "mean" |
    | `clip` | keep predicted means (never their spread) within the ratings seen |
    | `random_state` | seed: the same data and seed give the same model |

    Every user has a precision τ_i of their own: some rate more consistently than others. A rating
    counts as known to a hundredth of the ratings' spread at best, so that ratings without noise
    have a posterior, too. Precisions and the factors' means are drawn by Gibbs steps; masses are
    matched to how often a row was rated and frozen after burn-in. Unknown users and items have the
    prior as their law: predictions then rest on what is known of the other side, and are as
    uncertain as they should be. Ctrl-C raises KeyboardInterrupt and leaves the model as it was.

    | likelihood | of what, given m_ij = u_i·v_j + a_i + b_j |
    | --- | --- |
    | "gaussian" | numbers: m_ij and noise of the user's own precision |
    | "ordinal" | levels, such as stars: where m_ij and that noise fall between cuts, learned too |
    | "implicit" | whether a pair came up at all, with log-odds o + m_ij; all other pairs did not |
    | "counts" | how often it did: Poisson with log-rate o + m_ij |
    | "auto" | "gaussian" or "ordinal", by the probability of a tenth of the ratings, held out |

    Features of users and items, where `fit` is given any, are priors of their rows: u_i is normal
    around μ + Bᵀf_i, and B is learned (Macau). So somebody who has rated nothing is not a stranger.

    >>> from sghmc.recommender.ratings import synthetic_ratings
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
        likelihood: str = "gaussian",
        num_draws: int = 100,
        thinning: int | None = None,
        num_burnin: int | None = None,
        num_update_steps: int = 2000,
        batch_size: int | None = None,
        step_size: float | None = None,
        momentum_decay: float | None = None,
        duplicates: str = "error",
        clip: bool = True,
        random_state: int = 0,
        progress: bool = False,
    ):
        self.rank, self.clip, self.duplicates = rank, clip, duplicates
        self.likelihood = likelihood
        self.num_draws, self.thinning, self.num_burnin = num_draws, thinning, num_burnin
        self.num_update_steps, self.batch_size = num_update_steps, batch_size
        self.step_size, self.momentum_decay = step_size, momentum_decay
        self.random_state, self.progress = random_state, progress

    def fit(self, ratings: Any, y: None = None, *, users: Any = None, items: Any = None) -> Self:
        """Draw from the posterior given ratings.

        `ratings` is a pandas, polars or Arrow table or a dict with the columns user, item and
        rating, three arrays, or what `load_ratings` gave. Ids may be numbers or
        text. `users` and `items` are tables of features, a row for each id, in a column named user
        or item, or a pandas index: numbers, dates, text, lists; values may be missing, and so may
        users and items. Those that only these tables have can be predicted, too.
        """
        _check_settings(self)
        table = self._read(ratings, self.likelihood)
        if len(table) == 0:
            raise ValueError("There are no ratings to fit: the table has 0 rows.")
        features = given(users, items)
        name, why = self.likelihood, {}
        if name == AUTO:
            name, why = likelihood_choice.likeliest(self, table, features)
        table = with_ids(table, features)
        sides = learned(features, table)
        self._learn(table, sides, LIKELIHOODS[name].of(table), None, num_fits=0)
        self.diagnostics_ = why
        return self

    def partial_fit(
        self, ratings: Any, y: None = None, *, users: Any = None, items: Any = None
    ) -> Self:
        """Take in new ratings, users and items; the chain goes on from where it stands.

        A pair that was rated before gets its new rating, and a user or item in `users` or `items`
        its new features. The draws are then those of the new posterior, after a short run; without
        an earlier fit this is `fit`.
        """
        if not hasattr(self, "draws_"):
            return self.fit(ratings, users=users, items=items)
        _check_settings(self)
        table, sides = self._joined(ratings, users, items)
        start = Chain.of(self.draws_).last
        self._learn(table, sides, self._likelihood, start, self.num_fits_)
        return self

    def fold_in(self, ratings: Any = None, *, users: Any = None, items: Any = None) -> Self:
        """Take in ratings by new users, or of new items, at once: nobody else's law changes.

        Each user of `ratings`, known ones too, gets the law given all their ratings of known items
        and the draws of those items, exactly: as if the new ratings told nothing of the items. New
        items then get theirs given all who rated them. A rating of a new item by a new user so
        tells of the item only; `partial_fit` learns everything from all ratings. New users and
        items in `users` and `items`, tables of features as for `fit`, need no ratings.
        """
        check_is_fitted(self, "draws_")
        before = self.ratings_
        known = Known(before.num_users, before.num_items)
        table, sides = self._joined(ratings, users, items)
        fresh = np.arange(known.user, table.num_users)
        if ratings is not None:
            new = self._read(ratings, self.likelihood_)
            codes = codes_of(new.users, table.users), codes_of(new.items, table.items)
            fresh = np.union1d(fresh, codes[0][new.user[codes[1][new.item] < known.item]])
        likelihood = self._likelihood
        key = jax.random.fold_in(jax.random.key(self.random_state), self.num_fits_)
        in_units = likelihood.in_units(table)
        self.draws_ = likelihood.fold_in(key, Newcomers(self.draws_, in_units, known, fresh, sides))
        self.ratings_, self.sides_, self.num_fits_ = table, sides, self.num_fits_ + 1
        return self

    def save(self, path: str | pathlib.Path) -> None:
        """Write the model, draws and ratings, to one file: whole or not at all, without pickle."""
        check_is_fitted(self, "draws_")
        stored = copy.copy(self)
        stored.draws_ = packed(self)
        storage.write(stored, pathlib.Path(path))  # pyright: ignore[reportArgumentType]

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Self:
        """A model that `save` wrote: it predicts the same to the bit, and can learn on."""
        model = storage.read(pathlib.Path(path), cls)
        unpack(model, str(path))
        return model

    def _joined(self, ratings: Any, users: Any, items: Any) -> tuple[Ratings, Sides]:
        """All ratings and features, old and new."""
        table, features = self.ratings_, given(users, items)
        if ratings is not None:
            new = self._read(ratings, self.likelihood_)
            table = table.joined(new, self._likelihood.joins)
        table = with_ids(table, features)
        known = {"user": self.ratings_.num_users, "item": self.ratings_.num_items}
        return table, extended(self.sides_, features, table, known)

    def _learn(
        self,
        table: Ratings,
        sides: Sides,
        likelihood: Likelihood,
        start: Chain | None,
        num_fits: int,
    ) -> None:
        """Run the chain. Nothing of the model changes unless it comes to its end."""
        step_size, decay, thinning, num_burnin = (
            usual if getattr(self, each) is None else getattr(self, each)
            for each, usual in likelihood.schedule._asdict().items()
        )
        if start is not None:
            thinning = -(-self.num_update_steps // self.num_draws)
        settings = ChainSettings(
            rank=self.rank,
            num_draws=self.num_draws,
            thinning=thinning,
            num_burnin=num_burnin,
            batch_size=self.batch_size,
            step_size=step_size,
            momentum_decay=decay,
            progress=self.progress,
        )
        key = jax.random.fold_in(jax.random.key(self.random_state), num_fits)
        in_units = likelihood.in_units(table)
        chain = run_factor_chain(key, in_units, settings, start, likelihood, sides)
        self.ratings_, self.sides_, self.scale_ = table, sides, likelihood.scale
        self.likelihood_, self.num_fits_ = name_of(likelihood), num_fits + 1
        self.draws_ = chain.by_name()


def _check_settings(model: MatrixFactorization) -> None:
    for name in ("rank", "num_draws", "num_update_steps"):
        check_count(getattr(model, name), name)
    for name in ("thinning", "num_burnin"):
        check_count(getattr(model, name), name, or_none="for the usual")
    check_count(model.batch_size, "batch_size", or_none="for the usual")
    check_count(model.random_state, "random_state", 0)
    for name in ("step_size", "momentum_decay"):
        value = getattr(model, name)
        if value is not None and not 0 < value < 2:
            raise ValueError(f"{name} must be between 0 and 2, but is {value!r}.")
    if model.duplicates not in DUPLICATES:
        raise ValueError(f"duplicates must be one of {DUPLICATES}, but is {model.duplicates!r}.")
    if model.likelihood not in (*LIKELIHOODS, AUTO):
        raise ValueError(
            f"likelihood must be one of {(*LIKELIHOODS, AUTO)}, but is {model.likelihood!r}."
        )
