"""The base class of all estimators: checked inputs, streams of rows, keys, draws, files."""

import abc
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from sghmc.core.signals import whole_or_nothing
from sghmc.estimators import storage
from sghmc.estimators.weighted_rows import (
    Scaling,
    WeightedRows,
    completed,
    far_columns,
    hides_the_rest,
    means,
)

_MAX_ENTRIES = 1 << 22
"""Largest number of entries that a prediction holds at once: rows are taken in parts."""


class BayesianEstimator(BaseEstimator, abc.ABC):
    """Fits, streams and stores; a subclass turns rows into draws and draws into predictions.

    | attribute | meaning |
    | --- | --- |
    | `draws_` | posterior draws by name, each with a leading axis of draws |
    | `input_scaling_` | center and scale of the inputs and indicators |
    | `input_range_` | least and largest value of each input |
    | `missing_columns_` | inputs with missing values, NaN: each has an indicator besides |
    | `far_columns_` | inputs with few values very far from all others |

    Missing values count as the mean of the others; networks take far ones by their logarithm.
    """

    num_draws: int
    num_chains: int
    random_state: Any
    draws_: dict[str, np.ndarray]
    n_features_in_: int
    input_scaling_: Scaling
    input_range_: np.ndarray | None = None
    missing_columns_: Sequence[int] = ()
    far_columns_: Sequence[int] = ()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X, y, sample_weight=None) -> Self:
        """Sample the posterior given these rows; weights count how often a row was seen."""
        self._check_settings()
        self._forget()
        return self._learn(*self._checked(X, y, sample_weight, reset=True))

    def _checked(self, X, y, sample_weight, *, reset: bool):
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                f"is None."
            )
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=np.float64,
            y_numeric=isinstance(self, RegressorMixin),
            accept_large_sparse=False,
            ensure_all_finite="allow-nan",
        )
        y = column_or_1d(y, warn=True)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, y, weight

    def _learn(self, X, y, weight) -> Self:
        """Add rows and let the chains go on; if that fails or is interrupted, nothing changes."""
        before = dict(vars(self))
        try:
            new = WeightedRows(X, self._encoded(y), weight)
            self._rows = new.joined(self._rows).merged()
            self._num_calls += 1
            self._describe_inputs(self._rows)
            with whole_or_nothing():
                self._sample(self._key())
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        _warn_of_far_values(self, self._rows)
        return self

    def _describe_inputs(self, rows: WeightedRows) -> None:
        """Set what predictions need to know of inputs; chains end where their number changes."""
        before = (self.missing_columns_, self.far_columns_)
        self.missing_columns_ = np.flatnonzero(np.isnan(rows.x).any(0)).tolist()
        ends = np.stack([np.fmin.reduce(rows.x), np.fmax.reduce(rows.x)])
        self.input_range_ = np.nan_to_num(ends)
        x = completed(rows.x, means(rows), self.missing_columns_)
        self.far_columns_ = far_columns(x[:, : self.n_features_in_])
        self.input_scaling_ = Scaling.of(x, rows.weight, self.far_columns_)
        if before != (self.missing_columns_, self.far_columns_):
            self._chains = None

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "draws_")

    def _forget(self) -> None:
        vars(self).pop("draws_", None)
        self._rows: WeightedRows | None = None
        self._chains: Any = None
        self._num_calls = 0
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    def _is_new(self) -> bool:
        """Tell whether no rows were seen yet; a loaded model has none and cannot go on."""
        if not hasattr(self, "draws_"):
            return True
        if getattr(self, "_rows", None) is None:
            raise ValueError(
                "A loaded model predicts, but cannot learn on: the file holds its draws, not the "
                "rows they came from. Call fit with all rows."
            )
        return False

    def _key(self) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self._seed), self._num_calls)

    def _check_settings(self) -> None:
        for name in ("num_draws", "num_chains"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1, but is {value!r}.")

    @property
    def _draws_per_chain(self) -> int:
        return -(-self.num_draws // self.num_chains)

    @abc.abstractmethod
    def _encoded(self, y: np.ndarray) -> np.ndarray:
        """Return targets in the form that the model takes."""

    @abc.abstractmethod
    def _sample(self, key: jax.Array) -> None:
        """Set `draws_`, and `_chains` to go on from, given `_rows` and the scalings."""

    def sample_posterior(self, num_draws: int | None = None, random_state=None):
        """Return draws of the parameters by name, all of them or `num_draws` chosen at random."""
        check_is_fitted(self)
        draws = self._described()
        if num_draws is None:
            return draws
        count = len(next(iter(draws.values())))
        if not 1 <= num_draws <= count:
            raise ValueError(
                f"num_draws must be from 1 to {count}, the draws kept, but is {num_draws}: fit "
                f"with a larger num_draws to have more."
            )
        chosen = check_random_state(random_state).choice(count, num_draws, replace=False)
        return {name: values[chosen] for name, values in draws.items()}

    def _described(self) -> dict[str, np.ndarray]:
        return dict(self.draws_)

    def _parts(self, X) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of the rows, and those rows in the form that the model takes."""
        check_is_fitted(self)
        x = self._scaled(self._inputs_of(X))
        length = max(1, _MAX_ENTRIES // self._numbers_per_row())
        for i in range(0, len(x), length):
            yield slice(i, i + length), x[i : i + length]

    def _inputs_of(self, X) -> np.ndarray:
        options: Any = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return np.asarray(validate_data(self, X, reset=False, **options))

    def outside_range(self, X) -> np.ndarray:
        """Tell of each value (row, input) whether the fitted rows had none as small or as large."""
        check_is_fitted(self)
        x, ends = self._inputs_of(X), np.asarray(self.input_range_)
        return (x < ends[0]) | (x > ends[1])

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        """Return inputs in the form that the model takes."""
        center = self.input_scaling_.center[: x.shape[1]]
        return self.input_scaling_.apply(completed(x, center, self.missing_columns_))

    @property
    def _num_inputs(self) -> int:
        """Return the number of inputs with indicators of what is missing."""
        return self.n_features_in_ + len(self.missing_columns_)

    def _numbers_per_row(self) -> int:
        return len(next(iter(self.draws_.values())))

    def save(self, path: str | pathlib.Path) -> None:
        """Write draws, scalings and settings to one file, whole or not at all; no pickle."""
        check_is_fitted(self)
        storage.write(self, pathlib.Path(path))

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Self:
        """Load the model that `save` wrote; its predictions are the same to the bit."""
        model = storage.read(pathlib.Path(path), cls)
        storage.check_prediction(model._trial_prediction, pathlib.Path(path))
        return model

    def _trial_prediction(self) -> np.ndarray:
        """Predict two rows, a standard deviation from the mean of all inputs, by all draws."""
        if len({len(values) for values in self.draws_.values()}) > 1:
            raise ValueError("draws of unequal numbers")
        row = np.reshape(sum(self.input_scaling_), (1, self._num_inputs))
        rows = np.tile(row[:, : self.n_features_in_], (2, 1))
        model: Any = self
        is_classifier = hasattr(self, "classes_")
        mean = (model.predict_proba if is_classifier else model.predict)(rows)
        mean = mean.reshape(2, len(model.classes_) if is_classifier else 1)
        return np.column_stack([mean, *model.predict_uncertainty(rows)])


def _warn_of_far_values(model: BayesianEstimator, rows: WeightedRows) -> None:
    """Warn if few values are so far out that they hide all others."""
    names = getattr(model, "feature_names_in_", range(rows.x.shape[1]))
    found = [f"input {names[i]}" for i in np.flatnonzero(hides_the_rest(rows.x))]
    if isinstance(model, RegressorMixin) and hides_the_rest(rows.y[:, None])[0]:
        found.insert(0, "the target")
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        warnings.warn(
            f"Few values of {', '.join(found[:3])}{more} are so far from all others that these "
            f"can hardly be told apart: look for codes such as 999999 or other units, or take "
            f"logarithms.",
            UserWarning,
            stacklevel=4,
        )
