"""Bayesian networks for classes and for numbers, in scikit-learn's terms."""

import dataclasses
from typing import Any

import jax
import numpy as np

from sghmc.estimators.base import BayesianClassifier, BayesianEstimator, BayesianRegressor, softmax
from sghmc.estimators.curvature import activate
from sghmc.estimators.network import ACTIVATIONS, Network, Plan, rescaled
from sghmc.estimators.rows import Rows, Scaling

_FULL_BATCH, _BATCH = 2048, 1024
_POWERS = (1.0, 3.0, 10.0, 30.0)
_FEWEST_ROWS = 50
_HELD_OUT = 0.2
_PRECISION = "precision."
_UNSCALED = Scaling(np.zeros(()), np.ones(()))


class _MLP(BayesianEstimator):
    """Draws "0.weight", "0.bias", …, and "precision.0.weight", … of the priors."""

    hidden_layer_sizes: Any
    activation: str
    num_steps: int
    batch_size: int | None
    progress: bool

    def _check_settings(self):
        super()._check_settings()
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, but is {self.activation!r}."
            )
        if not isinstance(self.num_steps, int | np.integer) or self.num_steps < 2:
            raise ValueError(f"num_steps must be a whole number from 2, but is {self.num_steps!r}.")
        if any(size < 1 for size in self._hidden()):
            raise ValueError(
                f"hidden_layer_sizes must be positive, but is {self.hidden_layer_sizes!r}."
            )

    def _hidden(self) -> tuple[int, ...]:
        sizes = self.hidden_layer_sizes
        return (int(sizes),) if isinstance(sizes, int | np.integer) else tuple(map(int, sizes))

    def _plan(self, num_rows: int) -> Plan:
        size = self.batch_size
        if size is None:
            size = num_rows if num_rows <= _FULL_BATCH else _BATCH
        # Rows are padded: a batch of all of them is one that is larger than any padding makes it.
        size = 2 * num_rows + 1 if size >= num_rows else int(size)
        return Plan.of(self._draws_per_chain, self.num_chains, self.num_steps, size, self.progress)

    def _standardized(self) -> Rows:
        """Rows as the network sees them, up to the power of a likelihood."""
        assert self._rows is not None
        return self._rows._replace(x=self.input_scaling_.apply(self._rows.x))

    def _run(self, key, rows: Rows, num_outputs: int, target: Scaling, rounds=None) -> None:
        """Go on with the chains, or start them; `rounds` are those of warm-up and those kept."""
        network = Network(rows, self._hidden(), num_outputs, self.activation)
        plan = self._plan(len(rows.x))
        start_key, run_key = jax.random.split(key)
        scalings = (self.input_scaling_, target)
        if self._chains is None:
            chains = network.start(start_key, self.num_chains)
        else:
            chains, old = self._chains
            chains = chains._replace(positions=rescaled(chains.positions, old, scalings))
            plan = plan.settling()
        if rounds is not None:
            plan = dataclasses.replace(plan, num_warmup_rounds=rounds[0], num_rounds=rounds[1])
        positions, hyper, chains = network.run(run_key, chains, plan)
        self._chains = (chains, scalings)
        self.draws_ = _named(positions, hyper, self.n_features_in_)

    def _outputs(self, x):
        value, layer = x / self.n_features_in_**0.5, 0
        while True:
            weight = self.draws_[f"{layer}.weight"].astype(np.float64)
            value = value @ weight + self.draws_[f"{layer}.bias"][:, None].astype(np.float64)
            layer += 1
            if f"{layer}.weight" not in self.draws_:
                return value
            value, _ = activate(self.activation, value)

    def _numbers_per_row(self):
        widest = max(self.n_features_in_, *self._hidden(), 1) if self._hidden() else 1
        return len(self.draws_["0.bias"]) * widest


def _named(positions, hyper, num_inputs: int) -> dict[str, np.ndarray]:
    """Draws of all chains together, by name; weights of padded inputs left out."""
    draws = {
        f"{i}.{name}": values for i, layer in enumerate(positions) for name, values in layer.items()
    }
    draws["0.weight"] = draws["0.weight"][:, :, :num_inputs]
    draws |= {_PRECISION + name: values for name, values in hyper["prior"].items()}
    if "noise" in hyper:
        draws["noise"] = hyper["noise"]
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.items()}


class BayesianMLPClassifier(_MLP, BayesianClassifier):
    """A network whose class probabilities average over its posterior.

        P(y | x) = E[softmax(f(x))],  weights ~ N(0, λ⁻¹), λ ~ Gamma(1, 1) for each layer

    for inputs standardized inside. Chains of SGHMC set their own step sizes; nothing need be tuned.

    | parameter | meaning |
    | --- | --- |
    | `hidden_layer_sizes` | units of each hidden layer; () is a linear model |
    | `activation` | "relu" or "tanh" |
    | `likelihood_power` | how many observations a label counts for; see below |
    | `num_draws` | posterior draws kept, of all chains together |
    | `num_chains` | independent chains |
    | `num_steps` | steps of each chain, half of them warm-up |
    | `batch_size` | rows a step; None: all up to 2048, else 1024 |
    | `random_state` | seed: an integer gives the same draws every time |
    | `progress` | show a progress bar |

    Labels of curated data are surer than one draw from softmax(f): several people agreed on each,
    or doubtful ones were left out. `likelihood_power` says so, by counting each label that many
    times; predictions are then sharper. 1 is the posterior in the strict sense. "auto" goes from 1
    to 3, 10 and 30 as long as a held-out fifth of the rows gets likelier by more than chance (and
    takes 3 for fewer than 50 rows), in the first call with enough rows; `likelihood_power_` says
    how far.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 40)[:, None]
    >>> model = BayesianMLPClassifier(10, num_steps=200, random_state=0).fit(x, abs(x[:, 0]) > 1)
    >>> model.predict([[-1.9], [0.0], [1.9]])
    array([ True, False,  True])
    """

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        likelihood_power: float | str = "auto",
        num_draws=200,
        num_chains=4,
        num_steps=2000,
        batch_size=None,
        random_state=None,
        progress=False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.likelihood_power = likelihood_power
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.random_state = random_state
        self.progress = progress

    def _check_settings(self):
        super()._check_settings()
        power = self.likelihood_power
        if power != "auto" and (isinstance(power, str) or not power > 0):
            raise ValueError(
                f'likelihood_power must be "auto" or a positive number, but is {power!r}.'
            )

    def _sample(self, key):
        rows = self._standardized()
        choice_key, key = jax.random.split(key)
        if self.likelihood_power != "auto":
            self.likelihood_power_ = float(self.likelihood_power)
        elif self._num_calls == 1 or self._is_undecided:
            self._is_undecided = len(rows.weight) < _FEWEST_ROWS
            self.likelihood_power_ = (
                _POWERS[1] if self._is_undecided else self._best_power(choice_key, rows)
            )
        self._run_classes(key, rows, self.likelihood_power_)

    def _run_classes(self, key, rows: Rows, power: float, rounds=None) -> None:
        weighted = rows._replace(weight=power * rows.weight)
        self._run(key, weighted, len(self.classes_), _UNSCALED, rounds)

    def _best_power(self, key, rows: Rows) -> float:
        """From 1 up, as long as a held-out fifth of the rows is likelier by more than chance.

        The chains go on from power to power, which is also their warm-up. Rows are held out by a
        weight of 0: the compiled program is the same.
        """
        is_held = np.random.default_rng(0).random(len(rows.weight)) < _HELD_OUT
        seen = rows._replace(weight=np.where(is_held, 0.0, rows.weight))
        best, scores, after = _POWERS[0], None, self._chains
        for number, power in enumerate(_POWERS):
            # The first needs its whole warm-up, or later powers win by having had more of it.
            warmup = self._plan(len(is_held)).num_warmup_rounds if number == 0 else 1
            self._run_classes(jax.random.fold_in(key, number), seen, power, (warmup, 1))
            p = softmax(self._outputs(rows.x[is_held])).mean(0)
            chosen = p[np.arange(len(p)), rows.y[is_held]]
            logs = np.log(np.maximum(chosen, np.finfo(float).tiny))
            if scores is not None and not _is_gain(logs - scores, rows.weight[is_held]):
                break
            best, scores, after = power, logs, self._chains
        self._chains = after
        return best


def _is_gain(differences: np.ndarray, weight: np.ndarray) -> bool:
    """Whether a weighted sum is positive by more than its standard error.

    Few rows decide such sums, those that a sharper model gets wrong: without the margin a choice
    among so few would be luck.
    """
    total = weight @ differences
    deviations = differences - total / weight.sum()
    return bool(total > np.sqrt(weight @ deviations**2))


class BayesianMLPRegressor(_MLP, BayesianRegressor):
    """A network whose predictions average over its posterior, with their uncertainty.

        y = f(x) + N(0, ν⁻¹),  weights ~ N(0, λ⁻¹), ν and each layer's λ ~ Gamma(1, 0.1)

    for inputs and targets standardized inside. Parameters as for `BayesianMLPClassifier`.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 40)[:, None]
    >>> model = BayesianMLPRegressor(10, num_steps=200, random_state=0).fit(x, x[:, 0] ** 2)
    >>> mean, std = model.predict([[0.0], [4.0]], return_std=True)
    >>> bool(std[1] > std[0])
    True
    """

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        num_draws=200,
        num_chains=4,
        num_steps=2000,
        batch_size=None,
        random_state=None,
        progress=False,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.random_state = random_state
        self.progress = progress

    def _sample(self, key):
        assert self._rows is not None
        self.target_scaling_ = Scaling.of(self._rows.y, self._rows.weight)
        rows = self._standardized()
        rows = rows._replace(y=self.target_scaling_.apply(rows.y))
        self._run(key, rows, 0, self.target_scaling_)
