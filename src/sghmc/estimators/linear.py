"""Bayesian linear and logistic regression with scikit-learn's interface."""

import numpy as np

from sghmc.estimators.base import BayesianEstimator
from sghmc.estimators.linear_posterior import (
    Draws,
    LinearMode,
    draw,
    linear_mode,
    linear_posterior,
    logistic_mode,
    logistic_posterior,
)
from sghmc.estimators.predictive import BayesianClassifier, BayesianRegressor, Predictive
from sghmc.estimators.weighted_rows import Scaling, WeightedRows, padded, padded_size

_MAX_COEFFICIENTS = 4000


class _Linear(BayesianEstimator):
    """Base of the linear models; draws "coef" (draw, output, input) are for standardized inputs."""

    def __init__(self, num_draws=400, num_chains=4, random_state=None, progress=False):
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.random_state = random_state
        self.progress = progress

    def _inputs(self) -> np.ndarray:
        """Return standardized inputs with a column of ones, padded by zeros to a common width."""
        assert self._rows is not None
        x = self._scaled(self._rows.x)
        return np.column_stack([np.ones(len(x)), padded(x, padded_size(x.shape[1], 2), axis=1)])

    def _is_weight(self, width: int, num_outputs: int) -> np.ndarray:
        self._check_size(width * num_outputs)
        return np.tile(np.arange(width) > 0, num_outputs).astype(float)

    @property
    def _precision_rate(self) -> float:
        """Return 1/d for d inputs; columns of zeros beside them must not change the law."""
        return 1 / self._num_inputs

    def _check_size(self, size: int) -> None:
        if size > _MAX_COEFFICIENTS:
            raise ValueError(
                f"{size} coefficients are too many for the dense curvature that this model works "
                f"with (at most {_MAX_COEFFICIENTS}): use a network with hidden_layer_sizes=()."
            )

    def _draw(self, key, posterior, gibbs, mode: LinearMode) -> Draws:
        last = None if self._chains is None else self._restarts(mode)
        return draw(
            key,
            posterior,
            gibbs,
            mode,
            last,
            self._draws_per_chain,
            self.num_chains,
            self.progress,
        )

    def _restarts(self, mode: LinearMode) -> np.ndarray:
        """Return the chains' last positions in the scales that the rows have now."""
        beta, inputs, target = self._chains
        beta = _in_raw_units(beta.reshape(len(beta), -1, self._width(mode)), inputs, target)
        return _in_new_units(beta, self.input_scaling_, self._target()).reshape(len(beta), -1)

    def _width(self, mode: LinearMode) -> int:
        return padded_size(self._num_inputs, 2) + 1

    def _target(self) -> Scaling:
        return getattr(self, "target_scaling_", Scaling(np.zeros(()), np.ones(())))

    def _keep(self, draws: Draws, num_outputs: int) -> None:
        beta = draws.coefficients.reshape(len(draws.coefficients), num_outputs, -1)
        self.draws_ = {
            "coef": beta[..., 1 : 1 + self._num_inputs],
            "intercept": beta[..., 0],
            **draws.hyper,
        }
        self._chains = (draws.last, self.input_scaling_, self._target())

    def _outputs(self, x):
        return x @ self.draws_["coef"].swapaxes(1, 2) + self.draws_["intercept"][:, None]

    def _described(self):
        """Return coefficients for the inputs and targets as they were given."""
        center, scale = self.input_scaling_
        target = self._target()
        coef = self.draws_["coef"] * target.scale / scale
        intercept = target.center + target.scale * self.draws_["intercept"] - coef @ center
        return {"coef": coef, "intercept": intercept}

    @property
    def coef_(self) -> np.ndarray:
        """Posterior means of the coefficients."""
        return self._shaped(self._described()["coef"].mean(0))

    @property
    def intercept_(self) -> np.ndarray | np.floating:
        return self._shaped(self._described()["intercept"].mean(0))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values


def _in_raw_units(beta: np.ndarray, inputs: Scaling, target: Scaling) -> np.ndarray:
    """Return coefficients (chain, output, 1 + input) of standardized data as those of raw data."""
    center, scale = (padded(part, beta.shape[-1] - 1) for part in inputs)
    raw = beta.copy()
    raw[..., 1:] = target.scale * beta[..., 1:] / np.where(scale == 0, 1, scale)
    raw[..., 0] = target.center + target.scale * beta[..., 0] - raw[..., 1:] @ center
    return raw


def _in_new_units(raw: np.ndarray, inputs: Scaling, target: Scaling) -> np.ndarray:
    center, scale = (padded(part, raw.shape[-1] - 1) for part in inputs)
    beta = raw.copy()
    beta[..., 1:] = raw[..., 1:] * np.where(scale == 0, 1, scale) / target.scale
    beta[..., 0] = (raw[..., 0] + raw[..., 1:] @ center - target.center) / target.scale
    return beta


class BayesianLinearRegression(_Linear, BayesianRegressor):
    """y = b + w·x + noise, with the sizes of weights and noise learned.

        w ~ N(0, λ⁻¹), λ ~ Gamma(1, 1/d); noise ~ N(0, ν⁻¹), ν ~ Gamma(1, 0.1); b almost flat

    for inputs and targets standardized inside. Sampled around the mode from sums over the data: a
    step costs the same for ten rows and for millions.

    | parameter | meaning |
    | --- | --- |
    | `num_draws` | posterior draws kept, of all chains together |
    | `num_chains` | independent chains |
    | `random_state` | seed: an integer gives the same draws every time |
    | `progress` | show a progress bar |

    >>> import numpy as np
    >>> x = np.arange(20.0)[:, None]
    >>> model = BayesianLinearRegression(random_state=0).fit(x, 2 * x[:, 0] + 1)
    >>> mean, std = model.predict([[30.0]], return_std=True)
    >>> bool(abs(mean[0] - 61) < 3 * std[0])
    True
    """

    def _sample(self, key):
        assert self._rows is not None
        self.target_scaling_ = Scaling.of(self._rows.y, self._rows.weight)
        x, y = self._inputs(), self.target_scaling_.apply(self._rows.y)
        weighted = x * self._rows.weight[:, None]
        sums = {
            "count": np.asarray(self._rows.total_weight),
            "gram": weighted.T @ x,
            "moment": weighted.T @ y,
            "square": np.asarray(self._rows.weight @ y**2),
        }
        mode = linear_mode(sums, self._is_weight(x.shape[1], 1), self._precision_rate)
        self._keep(self._draw(key, *linear_posterior(sums, mode), mode), 1)

    def _law(self, x):
        precision = self.draws_["noise"][:, None]
        return Predictive(
            self._outputs(x)[..., 0], precision**-0.5, np.full_like(precision, np.inf)
        )

    def _shaped(self, values):
        return values[0]


class BayesianLogisticRegression(_Linear, BayesianClassifier):
    """Class probabilities linear in their logits, with the size of the weights learned.

        P(y = k | x) ∝ exp(b_k + w_k·x);  w ~ N(0, λ⁻¹), λ ~ Gamma(1, 1/d); b almost flat

    for inputs standardized inside; two classes share one logit. Newton's method finds the mode, and
    exact gradients sample around it. Parameters as for `BayesianLinearRegression`.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 40)[:, None]
    >>> model = BayesianLogisticRegression(random_state=0).fit(x, x[:, 0] > 0)
    >>> model.predict([[-1.5], [1.5]])
    array([False,  True])
    """

    def _sample(self, key):
        assert self._rows is not None
        x = self._inputs()
        rows = WeightedRows(x, self._rows.y, self._rows.weight)
        num_logits = 1 if len(self.classes_) == 2 else len(self.classes_)
        is_weight = self._is_weight(x.shape[1], num_logits)
        mode = logistic_mode(rows, num_logits, is_weight, self._precision_rate)
        length = padded_size(len(x), 1 if len(x) <= 256 else 4)
        self._keep(self._draw(key, *logistic_posterior(rows, length, mode), mode), num_logits)

    def _outputs(self, x):
        logits = super()._outputs(x)
        return logits if logits.shape[-1] > 1 else np.concatenate([-logits / 2, logits / 2], -1)
