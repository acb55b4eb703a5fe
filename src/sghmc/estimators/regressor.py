"""What regressors share: targets, and the law of new observations."""

import abc
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state, column_or_1d

from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.predictive import Predictive, Uncertainty
from sghmc.estimators.rows import Scaling


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Predictions are those of a mixture over draws."""

    target_scaling_: Scaling

    @abc.abstractmethod
    def _law(self, x: np.ndarray) -> Predictive:
        """Of the standardized target, for standardized inputs."""

    def partial_fit(self, X, y, sample_weight=None) -> Self:
        """Add rows: the posterior goes on from where the chains stand, given all rows so far."""
        self._check_settings()
        is_new = self._is_new()
        X, y, weight = self._checked(X, y, sample_weight, reset=is_new)
        if is_new:
            self._forget()
        return self._learn(X, y, weight)

    def _encoded(self, y):
        return y.astype(np.float64)

    def predict(self, X, return_std: bool = False):
        """The mean; with `return_std` also the standard deviation of a new observation."""
        if not return_std:
            return np.concatenate([law.mean() for _, law in self._laws(X)])
        pairs = [(law.mean(), law.uncertainty().std) for _, law in self._laws(X)]
        return tuple(np.concatenate(parts) for parts in zip(*pairs, strict=True))

    def predict_interval(self, X, coverage: float = 0.9) -> np.ndarray:
        """(row, 2): between which a new observation lies with probability `coverage`.

        As much probability is left below as above.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be between 0 and 1, but is {coverage}.")
        return self.predict_quantiles(X, [0.5 - coverage / 2, 0.5 + coverage / 2])

    def predict_quantiles(self, X, levels: Sequence[float]) -> np.ndarray:
        """(row, level): the values that a new observation is below with these probabilities."""
        levels = np.atleast_1d(np.asarray(levels, float)).tolist()
        if not levels or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must be between 0 and 1, but are {levels}.")
        parts = [np.stack([law.quantile(q) for q in levels], 1) for _, law in self._laws(X)]
        return np.concatenate(parts)

    def predict_uncertainty(self, X) -> Uncertainty:
        """Standard deviations of new observations: whole, of the mean, and of the noise."""
        parts = [law.uncertainty() for _, law in self._laws(X)]
        return Uncertainty(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def sample_predictive(self, X, num_samples: int = 100, random_state=None) -> np.ndarray:
        """(sample, row): new observations, drawn for each row by itself."""
        if not isinstance(num_samples, int | np.integer) or num_samples < 1:
            raise ValueError(f"num_samples must be a whole number from 1, but is {num_samples!r}.")
        seed = check_random_state(random_state).randint(2**31 - 1)
        generator = np.random.default_rng(seed)
        parts = [law.sample(generator, int(num_samples)) for _, law in self._laws(X)]
        return np.concatenate(parts, axis=1)

    def predict_cdf(self, X, y) -> np.ndarray:
        """The probability that a new observation is below y, row by row."""
        y = column_or_1d(y).astype(np.float64)
        return np.concatenate([law.cdf(y[places]) for places, law in self._laws(X)])

    def log_likelihood(self, X, y) -> np.ndarray:
        """log p(y | x, data) of each row, parameters averaged out."""
        y = column_or_1d(y).astype(np.float64)
        return np.concatenate([law.log_density(y[places]) for places, law in self._laws(X)])

    def _laws(self, X) -> Iterator[tuple[slice, Predictive]]:
        """In the target's own units, some rows at a time."""
        for places, x in self._parts(X):
            law = self._law(x)
            center, scale = self.target_scaling_
            yield (
                places,
                Predictive(center + scale * law.location, scale * law.scale, law.degrees),
            )
