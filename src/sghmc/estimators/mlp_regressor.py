"""A Bayesian network for regression, with scikit-learn's interface."""

import dataclasses
from typing import Any

import jax
import numpy as np

from sghmc.estimators import regression_chains
from sghmc.estimators.networks import BayesianNetwork, diagnose, judged_rows
from sghmc.estimators.predictive import BayesianRegressor
from sghmc.estimators.regression_batches import RegressionBatches
from sghmc.estimators.regression_chains import ChainPlan, RegressionChains, Run
from sghmc.estimators.regression_network import KINDS, Kind, RegressionNetwork, columns
from sghmc.estimators.weighted_rows import Scaling, WeightedRows, bent, bounded, rounding

_FULL_BATCH, _BATCH = 12_288, 512
_SMALL, _LARGE = (16, 16), (50, 50)
_MAX_ROW_STEPS, _MIN_STEPS, _MAX_STEPS, _BATCH_STEPS = 10_000_000, 4000, 17_500, 6000
"""Product of rows and steps, and bounds of the steps: more are better, and take their time."""
_MAX_ERROR = 3.0
"""Largest mean squared error of fitted rows, relative to that of the target's mean alone."""


class BayesianMLPRegressor(BayesianNetwork, BayesianRegressor):
    """A network whose predictions average over its posterior, with their uncertainty.

        y = f(x) + σ(x) e,  weights ~ N(0, spread² / fan in), log σ ~ N(−2, 2²)

    for inputs and targets standardized inside. Each chain starts from a network trained by itself,
    explores by microcanonical trajectories, and then samples by such with an accept step. Nothing
    need be tuned.

    | parameter | meaning |
    | --- | --- |
    | `hidden_layer_sizes` | units of each hidden layer; () is a linear model; "auto": (16, 16) up \
to 12288 rows, else (50, 50) |
    | `activation` | "silu", "tanh" or "relu" |
    | `noise` | "constant": one σ, e Gaussian; "input": σ depends on x; "student": e ~ t besides |
    | | "auto": "student", unless "constant" makes held-out rows clearly likelier |
    | `num_draws` | posterior draws kept, of all chains together |
    | `num_chains` | independent chains |
    | `num_steps` | steps of each chain, two gradients each, a quarter of them for draws; "auto": \
what takes some ten seconds on two cores up to 2500 rows, 17500 for few |
    | `batch_size` | rows a step; None: all up to 12288, else 512 |
    | `random_state` | seed: an integer gives the same draws every time |
    | `progress` | show a progress bar |

    `noise_` tells which noise it is, `diagnostics()` whether the chains agree. When partial_fit has
    doubled the rows, "auto" chooses anew.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 40)[:, None]
    >>> model = BayesianMLPRegressor(10, noise="constant", num_steps=900, random_state=0)
    >>> mean, std = model.fit(x, np.sin(3 * x[:, 0])).predict([[0.0], [4.0]], return_std=True)
    >>> bool(std[1] > std[0])
    True
    """

    may_be_auto = True
    noise_: str
    hidden_layer_sizes_: tuple[int, ...]
    target_rounding_: float
    _error_ratio: float | None = None

    def __init__(
        self,
        hidden_layer_sizes: Any = "auto",
        activation="silu",
        noise="auto",
        num_draws=400,
        num_chains=8,
        num_steps: int | str = "auto",
        batch_size=None,
        random_state=None,
        progress=False,
    ):
        self.noise = noise
        super().__init__(
            hidden_layer_sizes, activation, num_draws, num_chains, num_steps, batch_size,
            random_state, progress,
        )  # fmt: skip

    def _check_settings(self):
        super()._check_settings()
        if self.noise not in ("auto", *KINDS):
            raise ValueError(
                f"noise must be one of auto, {', '.join(KINDS)}, but is {self.noise!r}."
            )

    def _network(self) -> RegressionNetwork:
        return RegressionNetwork(self._num_inputs, self.hidden_layer_sizes_, self.activation)

    def _batch_size(self, num_rows: int) -> int | None:
        """Return the rows of a step, or None for all."""
        size = self.batch_size
        if size is None:
            size = num_rows if num_rows <= _FULL_BATCH else _BATCH
        return None if size >= num_rows else int(size)

    def _sample(self, key):
        assert self._rows is not None
        rows, is_new = self._rows, self._chains is None
        if is_new:
            self._error_ratio = None
        self.target_scaling_ = Scaling.of(rows.y, rows.weight)
        self.target_rounding_ = rounding(rows.y)
        if is_new:
            self.hidden_layer_sizes_ = self._sizes(len(rows.x))
        if len(np.unique(rows.y)) == 1:
            self._sample_constant(key)
            return
        rows = rows._replace(x=self._scaled(rows.x), y=self.target_scaling_.apply(rows.y))
        key, choice_key = jax.random.split(key)
        num_steps = self._num_steps(len(rows.x))
        if self.noise != "auto":
            self.noise_ = self.noise
        elif is_new or len(rows.x) >= 2 * self._num_judged:
            self._choose_noise(choice_key, rows, num_steps)
        run = self._run(key, rows, num_steps)
        self._chains = (run.draws[:, -1], (self.input_scaling_, self.target_scaling_))
        self._keep(run.draws)
        self._judge(run, rows)

    def _choose_noise(self, key, rows: WeightedRows, num_steps: int) -> None:
        """Choose the noise on held-out rows; chains that had another one begin anew."""
        self._num_judged = len(rows.x)
        sizes = self.hidden_layer_sizes_ if len(rows.x) <= _FULL_BATCH else _SMALL
        network = dataclasses.replace(self._network(), hidden=sizes)
        plan = ChainPlan.of(num_steps, self._draws_per_chain)
        chosen = regression_chains.choose(key, network, rows, self.num_chains, plan)
        if self._chains is not None and chosen.noise != self.noise_:
            self._chains = None
        self.noise_, self._error_ratio = chosen

    def _num_steps(self, num_rows: int) -> int:
        if self.num_steps != "auto":
            return int(self.num_steps)
        if self._batch_size(num_rows) is not None:
            return _BATCH_STEPS
        return int(np.clip(_MAX_ROW_STEPS // num_rows, _MIN_STEPS, _MAX_STEPS))

    def _sizes(self, num_rows: int) -> tuple[int, ...]:
        if self.hidden_layer_sizes != "auto":
            return self._hidden_sizes()
        return _SMALL if num_rows <= _FULL_BATCH else _LARGE

    def _run(self, key, rows: WeightedRows, num_steps: int) -> Run:
        """Sample from trained starts, or from where the chains have come to."""
        start_key, key = jax.random.split(key)
        network, table, start = self._network(), columns(rows), None
        kind = Kind.of(self.noise_, self._least_scale())
        if self._chains is not None:
            position, old = self._chains
            start = network.rescaled(position, old, (self.input_scaling_, self.target_scaling_))
        size, count = self._batch_size(len(rows.x)), self.num_chains
        if size is not None:
            batches = RegressionBatches(network, table, kind, size, count, self.progress)
            if start is None:
                start = batches.train(start_key, num_steps)
            return batches.sample(key, start, num_steps, self._draws_per_chain)
        plan = ChainPlan.of(num_steps, self._draws_per_chain)
        plan = plan if start is None else plan.going_on()
        chains = RegressionChains(network, table, kind, self.progress)
        return chains.sample(key, count, plan, start)

    def _keep(self, draws: np.ndarray) -> None:
        places = np.linspace(0, draws.shape[1] - 1, self._draws_per_chain).round().astype(int)
        self.draws_ = {"z": draws[:, places].reshape(-1, draws.shape[-1])}

    def _judge(self, run: Run, rows: WeightedRows) -> None:
        """Set `diagnostics_`, warn about doubtful chains, and raise if the fit is useless."""
        places = judged_rows(len(rows.x))
        law = self._law(rows.x[places])
        shape = (self.num_chains, -1, law.location.shape[1])
        noise = np.broadcast_to(law.scale**2, law.location.shape)
        found = diagnose(
            law.location.reshape(shape),
            noise.reshape(shape),
            acceptance=tuple(run.acceptance.tolist()),
            potential=tuple(run.potentials.mean(1).tolist()),
            temperature=run.temperature,
            num_replaced=run.num_replaced,
            num_steps=self._num_steps(len(rows.x)),
            error_ratio=self._error_ratio,
            watches_means=True,
        )
        _refuse_what_is_lost(run, law.mean(), rows.y[places], rows.weight[places])
        self.diagnostics_ = found.plain()
        found.warn()

    def _sample_constant(self, key) -> None:
        """Sample for a target of one value, with the noise that prior and count allow."""
        assert self._rows is not None
        network = self._network()
        self.noise_, self._chains = "constant", None
        count = self.num_chains * self._draws_per_chain
        self.draws_ = {"z": network.constant(key, count, self._rows.total_weight)}
        ones = np.ones((self.num_chains, self._draws_per_chain, 1))
        self.diagnostics_ = diagnose(0 * ones, ones, acceptance=(), potential=()).plain()

    def _law(self, x):
        return self._network().predictive(self.draws_["z"], x.T, self.noise_, self._least_scale())

    def _scaled(self, x):
        """Standardize, and take what is beyond the fitted rows by its logarithm from there on."""
        ends = x[:0] if self.input_range_ is None else self.input_range_
        z, far = super()._scaled(np.concatenate([ends, x])), list(self.far_columns_)
        z[:, far] = bounded(z[:, far])
        return bent(z[len(ends) :], z[: len(ends)], x.shape[1])

    def _least_scale(self) -> float:
        return self.target_rounding_ / float(self.target_scaling_.scale)

    def _described(self):
        """Return weights (draw, input, unit) and biases by layer, and the noise's parameters."""
        return self._network().named(self.draws_["z"])

    def _numbers_per_row(self):
        return len(self.draws_["z"]) * max(self._num_inputs, *self.hidden_layer_sizes_, 2)


def _refuse_what_is_lost(run: Run, mean: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
    """Raise if no chain moves, or if predictions of standardized y are far worse than its mean."""
    is_still = len(run.acceptance) > 0 and run.acceptance.max() == 0
    if is_still or not np.isfinite(run.potentials).all():
        raise FloatingPointError(
            "No chain accepts a step, however small: look for inputs or targets with values far "
            "from all others, or take noise='student'."
        )
    error = np.average((mean - y) ** 2, weights=weight)
    # On some rows of a target with heavy tails the mean alone may be far off, too.
    usual = max(1.0, np.average(y**2, weights=weight))
    if not error < _MAX_ERROR * usual:
        raise FloatingPointError(
            f"Predictions of fitted rows are off by {error**0.5:.3g} standard deviations of the "
            f"target: take a larger num_steps or batch_size, or noise='student'."
        )
