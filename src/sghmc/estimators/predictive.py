"""Predictions of regressors and classifiers: mixtures over draws, with their uncertainty."""

import abc
import functools
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

_MAX_QUANTILE_STEPS = 200
_PROBABILITY_ERROR = 1e-6
"""Error in probability at which the search for a quantile ends."""
_NUM_NODES = 512
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
    """Mixture over draws at some rows, of Student's t or, for infinite `degrees`, of Gaussians.

    Axes of location are (draw, row), of scale (draw, row) or (draw, 1), of degrees (draw, 1).
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

    def crps(self, y: np.ndarray, generator: np.random.Generator, count: int = 400) -> np.ndarray:
        """Return E|Y − y| − ½ E|Y − Y'| at each row, estimated from `count` observations Y."""
        drawn = np.sort(self.sample(generator, count), axis=0)
        ranks = 2 * np.arange(1, count + 1) - count - 1
        return np.abs(drawn - y[None]).mean(0) - ranks @ drawn / (count * (count - 1))

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Return P(observation ≤ y) at each row."""
        errors = (y[None] - self.location) / self.scale
        if np.isinf(self.degrees).all():
            return special.ndtr(errors).mean(0)
        return special.stdtr(self.degrees, errors).mean(0)

    def quantile(self, level: float) -> np.ndarray:
        """Return where the cdf is `level`, up to 10⁻⁵ in probability.

        Newton steps, or bisection where they leave the bracket between the draws' own quantiles.
        """
        is_gaussian = np.isinf(self.degrees).all()
        reach = special.ndtri(level) if is_gaussian else special.stdtrit(self.degrees, level)
        own = self.location + self.scale * reach
        low, high = own.min(0), own.max(0)
        spread = np.sqrt(self.location.var(0) + np.mean(own - self.location, axis=0) ** 2)
        found = np.clip(self.mean() + np.sign(level - 0.5) * spread, low, high)
        evaluate = _gaussian if is_gaussian else _table_of(self.degrees)
        left = np.arange(len(found))
        for number in range(_MAX_QUANTILE_STEPS):
            here, scale = (
                found[left],
                self.scale if self.scale.shape[1] == 1 else self.scale[:, left],
            )
            probability, density = evaluate((here - self.location[:, left]) / scale)
            error = probability.mean(0) - level
            density = (density / scale).mean(0)
            low[left] = np.where(error < 0, here, low[left])
            high[left] = np.where(error > 0, here, high[left])
            is_left = np.abs(error) > _PROBABILITY_ERROR
            left, here = left[is_left], here[is_left]
            if len(left) == 0:
                break
            with np.errstate(divide="ignore", over="ignore"):
                step = here - error[is_left] / density[is_left]
            # Every fourth step halves the bracket: between far modes Newton's may not.
            is_inside = (step > low[left]) & (step < high[left]) & (number % 4 != 3)
            found[left] = np.where(is_inside, step, 0.5 * (low[left] + high[left]))
        return found

    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Draw observations (sample, row), each row and sample from a draw of its own."""
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


def _gaussian(errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard normal's cdf and density."""
    return special.ndtr(errors), np.exp(-0.5 * errors**2 - _HALF_LOG_TAU)


def _table_of(degrees: np.ndarray) -> "_StudentTable":
    return _student_table(degrees.tobytes())


@functools.lru_cache(maxsize=2)
def _student_table(degrees: bytes) -> "_StudentTable":
    """Return the table of some degrees of freedom, which all rows of a prediction share."""
    return _StudentTable(np.frombuffer(degrees))


class _StudentTable:
    """Student's cdf for each draw, linear between nodes in |e|/(1 + |e|).

    The exact cdf takes ten times as long as all else that a quantile needs; the error of 512 nodes
    is below 5·10⁻⁶.
    """

    def __init__(self, degrees: np.ndarray):
        nodes = np.arange(_NUM_NODES) / _NUM_NODES
        values = special.stdtr(degrees[:, None], nodes / (1 - nodes)) - 0.5
        self.values = np.column_stack([values, np.full(len(degrees), 0.5)])
        self.slopes = _NUM_NODES * np.diff(self.values, axis=1)
        self.first = _NUM_NODES * np.arange(len(degrees))[:, None]

    def __call__(self, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inverse = 1 / (1 + np.abs(errors))
        place = np.minimum(1 - inverse, 1 - 1e-12)
        node = (_NUM_NODES * place).astype(np.int32)
        slope = self.slopes.ravel()[self.first + node]
        upper = self.values[:, :-1].ravel()[self.first + node] + slope * (place - node / _NUM_NODES)
        return 0.5 + np.copysign(upper, errors), slope * inverse**2


# Regressors.


class BayesianRegressor(RegressorMixin, BayesianEstimator):
    """Base of the regressors, whose predictions are mixtures over draws."""

    target_scaling_: Scaling

    @abc.abstractmethod
    def _law(self, x: np.ndarray) -> Predictive:
        """Return the law of the standardized target, for standardized inputs."""

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

    def predict(self, X, return_std: bool = False, interval: float | None = None):
        """Return the mean; with `return_std` also the standard deviation of a new observation.

        With `interval` the ends of `predict_interval(X, interval)` come last. These are arguments,
        so that a Pipeline passes them on.
        """
        levels = () if interval is None else _ends(interval, "interval")
        parts = []
        for _, law in self._laws(X):
            part = [law.mean()] + ([law.uncertainty().std] if return_std else [])
            parts.append(
                [*part, np.stack([law.quantile(q) for q in levels], 1)] if levels else part
            )
        found = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
        return found if return_std or levels else np.concatenate(found)

    def predict_interval(self, X, coverage: float = 0.9) -> np.ndarray:
        """Return ends (row, 2) that hold a new observation with probability `coverage`.

        As much probability is left below as above.
        """
        return self.predict_quantiles(X, _ends(coverage, "coverage"))

    def predict_quantiles(self, X, levels: Sequence[float]) -> np.ndarray:
        """Return values (row, level) that a new observation is below with these probabilities."""
        levels = np.atleast_1d(np.asarray(levels, float)).tolist()
        if not levels or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must be between 0 and 1, but are {levels}.")
        parts = [np.stack([law.quantile(q) for q in levels], 1) for _, law in self._laws(X)]
        return np.concatenate(parts)

    def predict_uncertainty(self, X) -> Uncertainty:
        """Return standard deviations of new observations, of their mean and of the noise."""
        parts = [law.uncertainty() for _, law in self._laws(X)]
        return Uncertainty(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def sample_predictive(self, X, num_samples: int = 100, random_state=None) -> np.ndarray:
        """Draw new observations (sample, row), for each row by itself."""
        if not isinstance(num_samples, int | np.integer) or num_samples < 1:
            raise ValueError(f"num_samples must be a whole number from 1, but is {num_samples!r}.")
        seed = check_random_state(random_state).randint(2**31 - 1)
        generator = np.random.default_rng(seed)
        parts = [law.sample(generator, int(num_samples)) for _, law in self._laws(X)]
        return np.concatenate(parts, axis=1)

    def predict_cdf(self, X, y) -> np.ndarray:
        """Return the probability that a new observation is below y, row by row."""
        y = column_or_1d(y).astype(np.float64)
        return np.concatenate([law.cdf(y[places]) for places, law in self._laws(X)])

    def log_likelihood(self, X, y) -> np.ndarray:
        """Return log p(y | x, data) of each row, averaged over the draws."""
        y = column_or_1d(y).astype(np.float64)
        return np.concatenate([law.log_density(y[places]) for places, law in self._laws(X)])

    def _laws(self, X) -> Iterator[tuple[slice, Predictive]]:
        """Yield the law in the target's own units, some rows at a time."""
        for places, x in self._parts(X):
            law = self._law(x)
            center, scale = self.target_scaling_
            yield (
                places,
                Predictive(center + scale * law.location, scale * law.scale, law.degrees),
            )


def _ends(coverage: float, name: str) -> list[float]:
    if not 0 < coverage < 1:
        raise ValueError(f"{name} must be between 0 and 1, but is {coverage}.")
    return [0.5 - coverage / 2, 0.5 + coverage / 2]


# Classifiers.


class ClassUncertainty(NamedTuple):
    """Uncertainty of the class of each row, in nats.

    | field | meaning |
    | --- | --- |
    | `entropy` | of the predicted probabilities |
    | `mutual_information` | of class and parameters: what more rows would take away |
    """

    entropy: np.ndarray
    mutual_information: np.ndarray


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """Base of the classifiers, whose class probabilities are averages over draws."""

    classes_: np.ndarray

    @abc.abstractmethod
    def _outputs(self, x: np.ndarray) -> np.ndarray:
        """Return the logits (draw, row, class) for standardized inputs."""

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
        """Return the entropy of predictions, and which part of it more rows would remove."""
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
        """Return log p(y | x, data) of each row, averaged over the draws."""
        check_is_fitted(self)
        labels = self._encoded(column_or_1d(y))
        return self.predict_log_proba(X)[np.arange(len(labels)), labels]


def softmax(outputs: np.ndarray) -> np.ndarray:
    shifted = np.exp(outputs - outputs.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -np.sum(p * np.log(np.maximum(p, np.finfo(float).tiny)), axis=-1)
