"""What classifiers share: labels, averaged probabilities, and how unsure they are."""

import abc
from typing import NamedTuple, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from sghmc.estimators.base import BayesianEstimator


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
