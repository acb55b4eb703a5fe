"""The recommender: Bayesian matrix factorization by SGHMC, with uncertainties of predictions."""

import copy
import dataclasses
import json
import pathlib
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from sghmc.core.checks import check_choice, check_count, checked_codes
from sghmc.estimators import storage
from sghmc.recommender.factor_chain import ChainSettings, Likelihood, run_factor_chain
from sghmc.recommender.factor_gibbs import SIDES
from sghmc.recommender.fold_in import Newcomers
from sghmc.recommender.rating_answers import LIKELIHOODS, RatingAnswers, mean_by_user, split
from sghmc.recommender.rating_likelihoods import levels_of
from sghmc.recommender.ratings import DUPLICATES, Ratings, Sizes, codes_of
from sghmc.recommender.side_information import (
    Entries,
    SideEncoding,
    SideFeatures,
    Sides,
    SideTable,
    extended,
    given,
    learned,
    with_ids,
)

AUTO = "auto"
"""Likelihood that is chosen by the probabilities of held-out ratings."""

_HELD_OUT_SHARE = 0.1
_MIN_ERRORS_OF_GAIN = 2.0
"""Standard errors by which "ordinal" must be better than "gaussian" to be chosen."""

_RATINGS, _FEATURES = "ratings.", "features."
"""Prefixes of the names of arrays in a model file that are not draws."""


class MatrixFactorization(RatingAnswers):
    """Model ratings as products of factors of users and items plus biases, with their posterior.

        r_ij ~ N(m + a_i + b_j + u_i·v_j, 1/τ_i)

    | argument | meaning |
    | --- | --- |
    | `rank` | dimensions of the factors |
    | `likelihood` | "gaussian", above; others below |
    | `num_draws` | posterior draws to average over; memory and time are proportional to it |
    | `thinning`, `num_burnin` | steps between draws, steps before the first; None: 50 and 1000 |
    | `num_update_steps` | steps of a `partial_fit` after its burn-in |
    | `batch_size` | ratings in a batch; None: 40,000, or a tenth of them if that is more |
    | `step_size`, `momentum_decay` | ε and α, in units where every row oscillates equally fast; |
    | | None: 0.05 and 0.0125 |
    | `duplicates` | for a pair that is rated twice in one table: "error", "last" or "mean" |
    | `clip` | keep predicted means (not standard deviations) within the range of ratings |
    | `random_state` | seed: the same data and seed give the same model |

    Every user has a noise precision τ_i, since some rate more consistently than others. A rating
    is known to a hundredth of the ratings' standard deviation at best, so that ratings without
    noise have a posterior, too. Precisions and the factors' means are drawn by Gibbs steps; masses
    are matched to the number of ratings of each row, and frozen after burn-in. Unknown users and
    items have the prior as their law: predictions then depend on the other side only, with the
    uncertainty that this leaves. Ctrl-C raises KeyboardInterrupt and leaves the model unchanged.

    | likelihood | of the data, given m_ij = u_i·v_j + a_i + b_j |
    | --- | --- |
    | "gaussian" | numbers: m_ij plus noise with the user's precision |
    | "ordinal" | levels, such as stars: m_ij plus that noise falls between cuts, learned too |
    | "implicit" | whether a pair came up at all, with log-odds o + m_ij; all other pairs did not |
    | "counts" | how often a pair came up: Poisson with log-rate o + m_ij |
    | "auto" | "gaussian" or "ordinal", by the probability of a held-out tenth of the ratings |

    If `fit` gets features of users or items, they enter the priors of rows: u_i is normal around
    μ + Bᵀf_i, and B is learned (Macau). Then predictions for users without ratings depend on their
    features.

    >>> from sghmc.recommender.ratings import synthetic_ratings
    >>> model = MatrixFactorization(rank=2, num_draws=10, thinning=2, num_burnin=20)
    >>> model = model.fit(synthetic_ratings(0, 20, 10))
    >>> mean, std = model.predict([3, 99], [7, 7], return_std=True)
    >>> bool(std[1] > std[0])  # user 99 is unknown
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
        rating, three arrays, or the result of `load_ratings`. Ids may be numbers or text. `users`
        and `items` are tables of features, a row for each id, in a column named user or item, or a
        pandas index: numbers, dates, text, lists. Values may be missing, and so may users and
        items. Users and items that only these tables have can be predicted, too.
        """
        _check_settings(self)
        table = self._read(ratings, self.likelihood)
        if len(table) == 0:
            raise ValueError("There are no ratings to fit: the table has 0 rows.")
        features = given(users, items)
        name, why = self.likelihood, {}
        if name == AUTO:
            name, why = likeliest(self, table, features)
        table = with_ids(table, features)
        sides = learned(features, table)
        self._learn(table, sides, LIKELIHOODS[name].of(table), None, num_fits=0)
        self.diagnostics_ = why
        return self

    def partial_fit(
        self, ratings: Any, y: None = None, *, users: Any = None, items: Any = None
    ) -> Self:
        """Add new ratings, users and items, and continue the chain from its last draw.

        A pair that was rated before gets its new rating, and a user or item in `users` or `items`
        its new features. After a short run the draws are those of the new posterior. Without an
        earlier fit this is `fit`.
        """
        if not hasattr(self, "draws_"):
            return self.fit(ratings, users=users, items=items)
        _check_settings(self)
        table, sides = self._joined(ratings, users, items)
        last = {name: part[-1] for name, part in self.draws_.items()}
        self._learn(table, sides, self._likelihood, last, self.num_fits_)
        return self

    def fold_in(self, ratings: Any = None, *, users: Any = None, items: Any = None) -> Self:
        """Add ratings by new users, or of new items, without a new fit.

        Each user of `ratings`, known ones too, gets fresh draws given all their ratings of known
        items, with those items' draws held fixed. New items then get theirs given all their
        ratings. So the new ratings change no other row, and a rating of a new item by a new user
        only informs about the item; `partial_fit` uses all ratings for everything. New users and
        items in `users` and `items`, tables of features as for `fit`, need no ratings.
        """
        check_is_fitted(self, "draws_")
        before = self.ratings_
        known = Sizes(before.num_users, before.num_items)
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
        """Write the model with its draws and ratings to one file, atomically and without pickle."""
        check_is_fitted(self, "draws_")
        stored = copy.copy(self)
        stored.draws_ = packed(self)
        storage.write(stored, pathlib.Path(path))  # pyright: ignore[reportArgumentType]

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Self:
        """Read a model that `save` wrote: its predictions are bit for bit the same."""
        model = storage.read(pathlib.Path(path), cls)
        unpack(model, str(path))
        table = model.ratings_
        storage.check_prediction(
            lambda: model.predict(table.users[:1], table.items[:1], return_std=True),
            pathlib.Path(path),
        )
        return model

    def _joined(self, ratings: Any, users: Any, items: Any) -> tuple[Ratings, Sides]:
        """Join old and new ratings and features."""
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
        last: dict[str, np.ndarray] | None,
        num_fits: int,
    ) -> None:
        """Run the chain; the model changes only after it has ended."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(ChainSettings)}
        for name, usual in likelihood.schedule._asdict().items():
            values[name] = usual if values[name] is None else values[name]
        if last is not None:
            values["thinning"] = -(-self.num_update_steps // self.num_draws)
        key = jax.random.fold_in(jax.random.key(self.random_state), num_fits)
        in_units = likelihood.in_units(table)
        draws = run_factor_chain(key, in_units, ChainSettings(**values), last, likelihood, sides)
        self.ratings_, self.sides_, self.scale_ = table, sides, likelihood.scale
        self.likelihood_, self.num_fits_ = likelihood.name, num_fits + 1
        self.draws_ = draws


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
    check_choice(model.duplicates, "duplicates", DUPLICATES)
    check_choice(model.likelihood, "likelihood", (*LIKELIHOODS, AUTO))


def likeliest(
    model: MatrixFactorization, table: Ratings, features: dict[str, SideTable]
) -> tuple[str, dict[str, Any]]:
    """Choose the name of the likelihood for a table, and return the scores behind the choice.

    Ratings that are all equal only say that a pair came up. If ratings have a few levels, both
    "ordinal" and "gaussian" are fitted to nine tenths of them; "ordinal" must be clearly better.
    """
    levels = levels_of(table.rating)
    if levels is None:
        return "gaussian", {}
    if len(levels) == 1:
        return "implicit", {}
    parts = split(table, "random", _HELD_OUT_SHARE, model.random_state)
    train, test = (table.take(rows) for rows in parts)
    frames = {f"{side}s": frame for side, frame in features.items()}
    logs = {}
    for name in ("gaussian", "ordinal"):
        untrained: Any = clone(model)
        fitted = untrained.set_params(likelihood=name).fit(train, **frames)
        logs[name] = fitted.log_probabilities(test)
    gain = mean_by_user(logs["ordinal"] - logs["gaussian"], test.user)
    is_clear = gain.error is not None and (gain.value or 0.0) > _MIN_ERRORS_OF_GAIN * gain.error
    found = {name: float(np.mean(each)) for name, each in logs.items()}
    return "ordinal" if is_clear else "gaussian", {"log_probability": found}


def packed(model: Any) -> dict[str, np.ndarray]:
    """Return all arrays of a fitted recommender by name: draws, ratings and features."""
    columns = dataclasses.asdict(model.ratings_)
    parts = {name: column for name, column in columns.items() if column is not None}
    parts |= {"scale": model.scale_, "num_fits": np.array(model.num_fits_)}
    arrays = {f"{_RATINGS}{name}": part for name, part in parts.items()}
    for side, each in model.sides_.items():
        text = json.dumps(each.encoding.plain()).encode()
        named = {"encoding": np.frombuffer(text, np.uint8), **each.entries._asdict()}
        arrays |= {f"{_FEATURES}{side}.{name}": part for name, part in named.items()}
    return model.draws_ | arrays


def unpack(model: Any, path: str) -> None:
    """Move the arrays that `packed` added from a model's draws to its attributes."""
    ratings = _taken(model.draws_, _RATINGS)
    features = {side: _taken(model.draws_, f"{_FEATURES}{side}.") for side in SIDES}
    try:
        model.scale_, model.num_fits_ = ratings.pop("scale"), int(ratings.pop("num_fits"))
        table, model.sides_ = Ratings(**ratings), {}
        checked_codes(table.user, table.num_users, "users")
        checked_codes(table.item, table.num_items, "items")
        np.broadcast_shapes(table.user.shape, table.item.shape, table.rating.shape)
        model.ratings_ = table
        for side, parts in features.items():
            if parts:
                encoding = SideEncoding.restored(json.loads(parts.pop("encoding").tobytes()))
                model.sides_[side] = SideFeatures(encoding, Entries(**parts))
    except (KeyError, TypeError, ValueError) as error:
        raise storage.ModelFileError(f"{path} was not written by sghmc: {error}.") from error


def _taken(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Remove the arrays with a prefix, and return them without it."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}
