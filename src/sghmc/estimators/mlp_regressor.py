"""A Bayesian network for numbers, in scikit-learn's terms."""

from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from sghmc.estimators import noise_choice
from sghmc.estimators.convergence import Diagnostics, diagnose, judged_rows
from sghmc.estimators.network_settings import check_network, hidden_sizes
from sghmc.estimators.number_chains import NumberChains, Plan, Run
from sghmc.estimators.number_network import KINDS, NumberNetwork, Table
from sghmc.estimators.regressor import BayesianRegressor
from sghmc.estimators.rows import Rows, Scaling, padded, padded_size


class BayesianMLPRegressor(BayesianRegressor):
    """A network whose predictions average over its posterior, with their uncertainty.

        y = f(x) + σ(x) e,  weights ~ N(0, spread² / fan in), log σ ~ N(−2, 2²)

    for inputs and targets standardized inside. Each chain starts from a network trained by itself,
    explores by isokinetic trajectories, and then samples by such with an accept step. Nothing need
    be tuned.

    | parameter | meaning |
    | --- | --- |
    | `hidden_layer_sizes` | units of each hidden layer; () is a linear model |
    | `activation` | "silu", "tanh" or "relu" |
    | `noise` | "constant": one σ, e Gaussian; "input": σ depends on x; "student": e ~ t besides |
    | | "auto": whichever makes held-out rows likeliest |
    | `num_draws` | posterior draws kept, of all chains together |
    | `num_chains` | independent chains |
    | `num_steps` | steps of each chain, two gradients each; a quarter of them makes draws |
    | `batch_size` | rows a step; None: all of them |
    | `random_state` | seed: an integer gives the same draws every time |
    | `progress` | show a progress bar |

    `noise_` tells which noise it is, `diagnostics()` whether the chains agree.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 40)[:, None]
    >>> model = BayesianMLPRegressor(10, noise="constant", num_steps=900, random_state=0)
    >>> mean, std = model.fit(x, np.sin(3 * x[:, 0])).predict([[0.0], [4.0]], return_std=True)
    >>> bool(std[1] > std[0])
    True
    """

    noise_: str
    diagnostics_: dict[str, Any]

    def __init__(
        self,
        hidden_layer_sizes=(16, 16),
        activation="silu",
        noise="auto",
        num_draws=400,
        num_chains=8,
        num_steps=4500,
        batch_size=None,
        random_state=None,
        progress=False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.noise = noise
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.random_state = random_state
        self.progress = progress

    def _check_settings(self):
        super()._check_settings()
        check_network(self)
        if self.noise not in ("auto", *KINDS):
            raise ValueError(
                f"noise must be one of auto, {', '.join(KINDS)}, but is {self.noise!r}."
            )

    def diagnostics(self) -> Diagnostics:
        """Whether chains agree in their predictions, and how their steps did."""
        check_is_fitted(self)
        return Diagnostics.of_plain(self.diagnostics_)

    def _network(self) -> NumberNetwork:
        return NumberNetwork(self.n_features_in_, hidden_sizes(self), self.activation)

    def _sample(self, key):
        assert self._rows is not None
        self.target_scaling_ = Scaling.of(self._rows.y, self._rows.weight)
        if len(np.unique(self._rows.y)) == 1:
            self._sample_constant(key)
            return
        rows = self._rows._replace(
            x=self._scaled(self._rows.x), y=self.target_scaling_.apply(self._rows.y)
        )
        choice_key, start_key, run_key = jax.random.split(key, 3)
        network, plan = self._network(), Plan.of(self.num_steps, self._draws_per_chain)
        scalings = (self.input_scaling_, self.target_scaling_)
        table = _table(rows)
        if self._chains is None:
            self.noise_ = self.noise
            if self.noise == "auto":
                self.noise_ = noise_choice.choose(
                    choice_key, network, table, len(rows.x), self.num_chains, plan
                )
        chains = NumberChains(network, table, [self.noise_] * self.num_chains, self.progress)
        if self._chains is None:
            start = chains.train(start_key)
        else:
            position, old = self._chains
            start, plan = network.rescaled(position, old, scalings), plan.going_on()
        run = chains.sample(run_key, start, plan)
        self._chains = (run.draws[:, -1], scalings)
        self._keep(run.draws)
        self._judge(run, rows)

    def _keep(self, draws: np.ndarray) -> None:
        places = np.linspace(0, draws.shape[1] - 1, self._draws_per_chain).round().astype(int)
        self.draws_ = {"z": draws[:, places].reshape(-1, draws.shape[-1])}

    def _judge(self, run: Run, rows: Rows) -> None:
        """Sets `diagnostics_`; warns about what is doubtful, and raises where all is lost."""
        law = self._law(rows.x[judged_rows(len(rows.x))])
        shape = (self.num_chains, -1, law.location.shape[1])
        noise = np.broadcast_to(law.scale**2, law.location.shape)
        found = diagnose(
            law.location.reshape(shape),
            noise.reshape(shape),
            acceptance=tuple(run.acceptance.tolist()),
            potential=tuple(run.potentials.mean(1).tolist()),
            num_replaced=run.num_replaced,
        )
        if not np.isfinite(run.potentials).all() or run.acceptance.max() == 0:
            raise FloatingPointError(
                "No chain accepts a step, however small: look for inputs or targets with values "
                "far from all others, or take noise='student'."
            )
        self.diagnostics_ = found.plain()
        found.warn()

    def _sample_constant(self, key) -> None:
        """A target of one value: that value, and noise as its prior and the count allow."""
        assert self._rows is not None
        network = self._network()
        self.noise_, self._chains = "constant", None
        count = self.num_chains * self._draws_per_chain
        self.draws_ = {"z": network.constant(key, count, self._rows.total_weight)}
        ones = np.ones((self.num_chains, self._draws_per_chain, 1))
        self.diagnostics_ = diagnose(0 * ones, ones, acceptance=(), potential=()).plain()

    def _law(self, x):
        return self._network().predictive(self.draws_["z"], x.T, self.noise_)

    def _described(self):
        """Weights (draw, input, unit) and biases by layer, and what the noise has."""
        return self._network().named(self.draws_["z"])

    def _numbers_per_row(self):
        return len(self.draws_["z"]) * max(self.n_features_in_, *hidden_sizes(self), 2)


def _table(rows: Rows) -> Table:
    """As columns, padded to lengths that programs are compiled for."""
    length = padded_size(len(rows.x), 1 if len(rows.x) <= 256 else 4)
    parts = (padded(rows.x, length).T, padded(rows.y, length), padded(rows.weight, length))
    return Table(*(np.ascontiguousarray(part, np.float32) for part in parts))
