"""Bayesian networks for classes and for numbers, in scikit-learn's terms."""

from typing import Any

import jax
import numpy as np
from scipy.optimize import minimize_scalar

from sghmc.estimators.base import BayesianClassifier, BayesianEstimator, BayesianRegressor, softmax
from sghmc.estimators.curvature import activate
from sghmc.estimators.network import ACTIVATIONS, Network, Plan, rescaled
from sghmc.estimators.rows import Rows, Scaling

_FULL_BATCH, _BATCH = 2048, 1024
_FEWEST_PARTS, _MOST_HELD_OUT = 4, 512
"""A chain leaves out a quarter of the rows at most, and at most 512: enough for one number."""
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
        return Plan.of(self._draws_per_chain, self.num_steps, size, self.progress)

    def _standardized(self) -> Rows:
        """Rows as the network sees them, up to the power of a likelihood."""
        assert self._rows is not None
        return self._rows._replace(x=self._scaled(self._rows.x))

    def _run(self, key, rows: Rows, num_outputs: int, target: Scaling) -> None:
        """Go on with the chains, or start them.

        `rows.weight` is the same for all chains, or has a leading axis of chains.
        """
        weight = np.broadcast_to(rows.weight, (self.num_chains, len(rows.x)))
        rows = rows._replace(weight=weight)
        network = Network(rows, self._hidden(), num_outputs, self.activation)
        plan = self._plan(len(rows.x))
        start_key, run_key = jax.random.split(key)
        scalings = (self.input_scaling_, target)
        if self._chains is None:
            chains = network.start(start_key)
        else:
            chains, old = self._chains
            chains = chains._replace(positions=rescaled(chains.positions, old, scalings))
            plan = plan.settling()
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

        P(y | x) ∝ E[softmax(f(x))]^s,  weights ~ N(0, λ⁻¹), λ ~ Gamma(1, 1) for each layer

    for inputs standardized inside. Chains of SGHMC set their own step sizes; nothing need be tuned.

    | parameter | meaning |
    | --- | --- |
    | `hidden_layer_sizes` | units of each hidden layer; () is a linear model |
    | `activation` | "relu" or "tanh" |
    | `likelihood_power` | how many observations a label counts for |
    | `sharpness` | exponent of the averaged probabilities; "auto": from held-out rows |
    | `num_draws` | posterior draws kept, of all chains together |
    | `num_chains` | independent chains |
    | `num_steps` | steps of each chain, half of them warm-up |
    | `batch_size` | rows a step; None: all up to 2048, else 1024 |
    | `random_state` | seed: an integer gives the same draws every time |
    | `progress` | show a progress bar |

    Inputs, once standardized, are taken as arcsinh(x): those far out count by their logarithm, so
    that no single odd value decides alone.

    Labels of curated data are surer than one draw from softmax(f): several people agreed on each,
    or doubtful ones were left out. `likelihood_power` says so, by counting each label that many
    times. How sure predictions may then be is read off rows that were not seen: the averaged
    probabilities p become p^s / Σ p^s with the sharpness s that makes held-out labels likeliest.
    Each chain first leaves out a part of the rows for that, then takes it in; when partial_fit has
    doubled the rows, s is chosen anew. `sharpness_` tells it. `likelihood_power=1, sharpness=1` is
    the posterior in the strict sense.

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
        likelihood_power=3.0,
        sharpness: float | str = "auto",
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
        self.sharpness = sharpness
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.random_state = random_state
        self.progress = progress

    def _check_settings(self):
        super()._check_settings()
        power, sharpness = self.likelihood_power, self.sharpness
        if isinstance(power, str) or not power > 0:
            raise ValueError(f"likelihood_power must be a positive number, but is {power!r}.")
        if sharpness != "auto" and (isinstance(sharpness, str) or not sharpness > 0):
            raise ValueError(
                f'sharpness must be "auto" or a positive number, but is {sharpness!r}.'
            )

    def _scaled(self, x):
        return np.arcsinh(super()._scaled(x))

    def _sample(self, key):
        rows = self._standardized()
        choice_key, key = jax.random.split(key)
        if self.sharpness != "auto":
            self.sharpness_ = float(self.sharpness)
        elif self._num_calls == 1 or len(rows.x) >= 2 * self._num_judged:
            self._num_judged = len(rows.x)
            self.sharpness_ = self._best_sharpness(choice_key, rows)
        self._run_classes(key, rows)

    def _run_classes(self, key, rows: Rows) -> None:
        weighted = rows._replace(weight=self.likelihood_power * rows.weight)
        self._run(key, weighted, len(self.classes_), _UNSCALED)

    def _best_sharpness(self, key, rows: Rows) -> float:
        """By cross-validation in one run: each chain leaves out a part of its own, by weights of 0.

        The chains can then go on with all rows, nearer to their posterior than at the start.
        """
        num_parts = max(self.num_chains, _FEWEST_PARTS, -(-len(rows.x) // _MOST_HELD_OUT))
        part = _parts(rows.y, num_parts)
        is_held = part[None] == np.arange(self.num_chains)[:, None]
        # Chains that are there have seen all rows.
        self._chains = None
        self._run_classes(key, rows._replace(weight=np.where(is_held, 0.0, rows.weight[None])))
        held = is_held.any(0)
        logs = self._held_out_logs(rows.x, is_held)
        return _likeliest_sharpness(logs[held], rows.y[held], rows.weight[held])

    def _held_out_logs(self, x: np.ndarray, is_held: np.ndarray) -> np.ndarray:
        """Logarithms of the class probabilities of rows, by the chain that has not seen them."""
        logs = np.zeros((len(x), len(self.classes_)))
        for chain, rows in enumerate(is_held):
            draws = softmax(self._outputs(x[rows]))
            ours = draws.reshape(len(is_held), -1, *draws.shape[1:])[chain]
            logs[rows] = np.log(np.maximum(ours.mean(0), np.finfo(float).tiny))
        return logs

    def predict_proba(self, X) -> np.ndarray:
        p = np.maximum(super().predict_proba(X), np.finfo(float).tiny)
        return softmax(self.sharpness_ * np.log(p))


def _parts(y: np.ndarray, num_parts: int) -> np.ndarray:
    """A part for each row, at random, every class spread over all of them."""
    part = np.empty(len(y), int)
    order = np.lexsort((np.random.default_rng(0).random(len(y)), y))
    part[order] = np.arange(len(y)) % num_parts
    return part


def _likeliest_sharpness(logs: np.ndarray, y: np.ndarray, weight: np.ndarray) -> float:
    """The s with which p^s / Σ p^s makes the labels likeliest, for log s ~ N(0, 1).

    Without a prior, rows that are all right would ask for an infinite s.
    """

    def potential(log_s: float) -> float:
        p = softmax(np.exp(log_s) * logs)[np.arange(len(y)), y]
        return 0.5 * log_s**2 - float(weight @ np.log(np.maximum(p, np.finfo(float).tiny)))

    found: Any = minimize_scalar(potential, bounds=(-3, 3), method="bounded")
    return float(np.exp(found.x))


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
