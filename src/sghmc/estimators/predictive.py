"""The law of new observations: a mixture over draws, of Gaussians or Student's t.

What regressors share: targets, and the law of new observations.

What classifiers share: labels, averaged probabilities, and how unsure they are.
"""

import abc
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from scipy import special
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.weighted_rows import Scaling

_NUM_BISECTIONS = 40
_HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


class Uncertainty(NamedTuple):
    """Standard deviations of a new observation at each row.

    | field | meaning |
    | --- | --- |
    | `std` | of the observation: std² = epistemic² + aleatoric² |
    | `epistemic` | of its mean over draws: more rows make it smaller |
    | `aleatoric` | of the noise: more rows do not |
    """

    std: np.ndarray
    epistemic: np.ndarray
    aleatoric: np.ndarray


class Predictive(NamedTuple):
    """Of some rows: location (draw, row), scale (draw, row) or (draw, 1), degrees (draw, 1).

    `degrees` of infinity: Gaussian.
    """

    location: np.ndarray
    scale: np.ndarray
    degrees: np.ndarray

    def mean(self) -> np.ndarray:
        return self.location.mean(0)

    def uncertainty(self) -> Uncertainty:
        stretch = np.where(np.isinf(self.degrees), 1, 1 / (1 - 2 / self.degrees))
        noise = np.broadcast_to(self.scale**2 * stretch, self.location.shape).mean(0)
        spread = self.location.var(0)
        return Uncertainty(np.sqrt(spread + noise), np.sqrt(spread), np.sqrt(noise))

    def log_density(self, y: np.ndarray) -> np.ndarray:
        errors = (y[None] - self.location) / self.scale
        if np.isinf(self.degrees).all():
            logs = -0.5 * errors**2 - _HALF_LOG_TAU
        else:
            v = self.degrees
            logs = -(v + 1) / 2 * np.log1p(errors**2 / v) - 0.5 * np.log(v * np.pi)
            logs = logs + special.gammaln((v + 1) / 2) - special.gammaln(v / 2)
        return special.logsumexp(logs - np.log(self.scale), axis=0) - np.log(len(errors))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """P(observation ≤ y) at each row."""
        errors = (y[None] - self.location) / self.scale
        if np.isinf(self.degrees).all():
            return special.ndtr(errors).mean(0)
        return special.stdtr(self.degrees, errors).mean(0)

    def quantile(self, level: float) -> np.ndarray:
        """Where the cdf is `level`, by bisection between the draws' own quantiles."""
        if np.isinf(self.degrees).all():
            reach = special.ndtri(level)
        else:
            reach = special.stdtrit(self.degrees, level)
        own = self.location + self.scale * reach
        low, high = own.min(0), own.max(0)
        for _ in range(_NUM_BISECTIONS):
            middle = 0.5 * (low + high)
            is_below = self.cdf(middle) < level
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return 0.5 * (low + high)

    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Observations (sample, row), each row and sample from a draw of its own."""
        num_draws, num_rows = self.location.shape
        drawn = generator.integers(0, num_draws, (count, num_rows))
        rows = np.arange(num_rows)[None]
        noise = generator.standard_normal(drawn.shape)
        degrees = np.broadcast_to(self.degrees, self.location.shape)[drawn, rows]
        is_student = np.isfinite(degrees)
        safe = np.where(is_student, degrees, 1.0)
        noise = np.where(is_student, noise / np.sqrt(generator.chisquare(safe) / safe), noise)
        scale = np.broadcast_to(self.scale, self.location.shape)[drawn, rows]
        return self.location[drawn, rows] + scale * noise


# What regressors share: targets, and the law of new observations.


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


# What classifiers share: labels, averaged probabilities, and how unsure they are.


class ClassUncertainty(NamedTuple):
    """Of the class of each row, in nats.

    | field | meaning |
    | --- | --- |
    | `entropy` | of the predicted probabilities |
    | `mutual_information` | of class and parameters: what more rows would take away |
    """

    entropy: np.ndarray
    mutual_information: np.ndarray


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """Class probabilities are averages over draws."""

    classes_: np.ndarray

    @abc.abstractmethod
    def _outputs(self, x: np.ndarray) -> np.ndarray:
        """For standardized inputs, the logits under every draw: (draw, row, class)."""

    def partial_fit(self, X, y, classes=None, sample_weight=None) -> Self:
        """Add rows: the posterior goes on from where the chains stand, given all rows so far.

        The first call names all `classes`, unless its rows show every one of them.
        """
        self._check_settings()
        is_new = self._is_new()
        X, y, weight = self._checked(X, y, sample_weight, reset=is_new)
        if is_new:
            self._forget()
            self._find_classes(y if classes is None else classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"classes are {list(classes)}, but the first call had {list(self.classes_)}."
            )
        return self._learn(X, y, weight)

    def fit(self, X, y, sample_weight=None) -> Self:
        self._check_settings()
        self._forget()
        X, y, weight = self._checked(X, y, sample_weight, reset=True)
        self._find_classes(y[weight != 0])
        return self._learn(X[weight != 0], y[weight != 0], weight[weight != 0])

    def _find_classes(self, y) -> None:
        y = np.asarray(y)
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(
                f"Classification needs two classes or more, but y has one class only: "
                f"{classes.tolist()[0]!r}."
            )
        self.classes_ = classes

    def _encoded(self, y):
        places = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        unknown = np.unique(y[self.classes_[places] != y])
        if len(unknown):
            raise ValueError(
                f"y has labels {list(unknown)} outside the classes {list(self.classes_)}: name all "
                f"classes in the first call of partial_fit."
            )
        return places

    def predict_proba(self, X) -> np.ndarray:
        return np.concatenate([self._probabilities(x).mean(0) for _, x in self._parts(X)])

    def predict_uncertainty(self, X) -> ClassUncertainty:
        """How unsure predictions are, and which part of it more rows would mend."""
        parts = []
        for _, x in self._parts(X):
            p = self._probabilities(x)
            parts.append(_entropy(p.mean(0)) - _entropy(p).mean(0))
        # A float's rounding may make a little less than nothing.
        mutual = np.maximum(np.concatenate(parts), 0)
        return ClassUncertainty(_entropy(self.predict_proba(X)), mutual)

    def _probabilities(self, x: np.ndarray) -> np.ndarray:
        return softmax(self._outputs(x))

    def predict_log_proba(self, X) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X) -> np.ndarray:
        chosen = self.predict_proba(X).argmax(1)
        return self.classes_[chosen]

    def log_likelihood(self, X, y) -> np.ndarray:
        """log p(y | x, data) of each row, parameters averaged out."""
        check_is_fitted(self)
        labels = self._encoded(column_or_1d(y))
        return self.predict_log_proba(X)[np.arange(len(labels)), labels]


def softmax(outputs: np.ndarray) -> np.ndarray:
    shifted = np.exp(outputs - outputs.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log(np.maximum(p, np.finfo(float).tiny)), axis=-1)
