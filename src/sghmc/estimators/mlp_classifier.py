"""A Bayesian network for classification, with scikit-learn's interface."""

from typing import Any

import jax
import numpy as np

from sghmc.estimators.class_network import Network, RoundPlan, rescaled
from sghmc.estimators.networks import (
    BayesianNetwork,
    HeldOut,
    activate,
    clearly_likeliest,
    diagnose,
    judged_rows,
    random_parts,
)
from sghmc.estimators.predictive import BayesianClassifier, softmax
from sghmc.estimators.weighted_rows import WeightedRows, bounded

_FULL_BATCH, _BATCH = 2048, 1024
_MIN_PARTS, _MAX_HELD_ROWS = 4, 512
"""Least number of parts, of which a chain leaves one out, and most rows of a part: enough to choose
one number by."""
_POWERS = (3.0, 30.0, 300.0)
"""Powers that are tried: for labels that are partly random, measured, or agreed on by people."""
_USUAL_POWER = 30.0
_PRECISION = "precision."


class BayesianMLPClassifier(BayesianNetwork, BayesianClassifier):
    """A network whose class probabilities average over its posterior.

        P(y | x) ∝ E[softmax(f(x))]^s,  weights ~ N(0, λ⁻¹)

    for inputs standardized inside. Chains of SGHMC set their own step sizes; nothing need be tuned.

    | parameter | meaning |
    | --- | --- |
    | `hidden_layer_sizes` | units of each hidden layer; () is a linear model |
    | `activation` | "relu", "tanh" or "silu" |
    | `prior_precision` | λ, for inputs of size 1; None: learned, λ ~ Gamma(1, 1) for each layer |
    | `likelihood_power` | how many observations a label counts for; "auto": from held-out rows |
    | `sharpness` | s, exponent of the averaged probabilities; "auto": from held-out rows |
    | `num_draws` | posterior draws kept, of all chains together |
    | `num_chains` | independent chains |
    | `num_steps` | steps of each chain, half of them warm-up |
    | `batch_size` | rows a step; None: all up to 2048, else 1024 |
    | `random_state` | seed: an integer gives the same draws every time |
    | `progress` | show a progress bar |

    Inputs, once standardized, are taken as 3 arcsinh(x/3): nearly as they are up to three standard
    deviations, and by their logarithm further out, so that no single odd value decides alone.

    Labels of curated data are surer than one draw from softmax(f): several people agreed on each,
    or doubtful ones were left out. `likelihood_power` says so, by counting each label that many
    times. How sure predictions may then be is read off rows that were not seen: the averaged
    probabilities p become p^s / Σ p^s, with the s that makes held-out labels likeliest. For that
    each chain leaves out a part of the rows, and later takes it in. The power is 30, unless 3 or
    300 make held-out labels clearly likelier, by two standard errors and a ratio of 20. When
    partial_fit has doubled the rows, both are chosen anew.
    `likelihood_power_` and `sharpness_` tell it, `diagnostics()` whether the chains agree.
    `BayesianMLPClassifier(prior_precision=None, likelihood_power=1, sharpness=1)` samples the
    posterior in the strict sense.

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
        prior_precision: float | None = 4.0,
        likelihood_power: float | str = "auto",
        sharpness: float | str = "auto",
        num_draws=200,
        num_chains=4,
        num_steps=2000,
        batch_size=None,
        random_state=None,
        progress=False,
    ):
        super().__init__(
            hidden_layer_sizes, activation, num_draws, num_chains, num_steps, batch_size,
            random_state, progress,
        )  # fmt: skip
        self.prior_precision = prior_precision
        self.likelihood_power = likelihood_power
        self.sharpness = sharpness

    def _check_settings(self):
        super()._check_settings()
        for name, word in (
            ("prior_precision", None),
            ("likelihood_power", "auto"),
            ("sharpness", "auto"),
        ):
            value = getattr(self, name)
            if value != word and (value is None or isinstance(value, str) or not value > 0):
                allowed = "None" if word is None else f'"{word}"'
                raise ValueError(
                    f"{name} must be {allowed} or a positive number, but is {value!r}."
                )

    def _scaled(self, x):
        return bounded(super()._scaled(x))

    def _plan(self, num_rows: int) -> RoundPlan:
        size = self.batch_size
        if size is None:
            size = num_rows if num_rows <= _FULL_BATCH else _BATCH
        # Rows are padded: a batch of all of them is one that is larger than any padding makes it.
        size = 2 * num_rows + 1 if size >= num_rows else int(size)
        return RoundPlan.of(self._draws_per_chain, self.num_steps, size, self.progress)

    def _sample(self, key):
        assert self._rows is not None
        rows = self._rows._replace(x=self._scaled(self._rows.x))
        choice_key, key = jax.random.split(key)
        if self._num_calls == 1 or len(rows.x) >= 2 * self._num_judged:
            self._num_judged = len(rows.x)
            self.likelihood_power_, self.sharpness_ = self._choice(choice_key, rows)
        self._run_classes(key, rows, self.likelihood_power_, self._plan(len(rows.x)))
        self._judge(rows)

    def _judge(self, rows: WeightedRows) -> None:
        """Compare the chains; a class is a number 0 or 1 with mean p and variance p (1 − p)."""
        p = self._probabilities(rows.x[judged_rows(len(rows.x))])
        p = p.reshape(self.num_chains, -1, p.shape[1] * p.shape[2])
        others: Any = {"acceptance": (), "potential": (), "num_steps": int(self.num_steps)}
        found = diagnose(p, p * (1 - p), unit="of probability", **others)
        self.diagnostics_ = found.plain()
        found.warn()

    def _run_classes(self, key, rows: WeightedRows, power: float, plan: RoundPlan) -> None:
        """Start the chains, or let them go on.

        `rows.weight` is the same for all chains, or has a leading axis of chains.
        """
        weight = np.broadcast_to(power * rows.weight, (self.num_chains, len(rows.x)))
        network = Network(
            rows._replace(weight=weight),
            self._hidden_sizes(),
            len(self.classes_),
            self.activation,
            self.prior_precision,
        )
        start_key, run_key = jax.random.split(key)
        if self._chains is None:
            chains = network.start(start_key)
        else:
            chains, old = self._chains
            chains = chains._replace(positions=rescaled(chains.positions, old, self.input_scaling_))
            plan = plan.settling()
        positions, hyper, chains = network.run(run_key, chains, plan)
        self._chains = (chains, self.input_scaling_)
        self.draws_ = _named(positions, hyper, self._num_inputs)

    def _choice(self, key, rows: WeightedRows) -> tuple[float, float]:
        """Choose power and sharpness on rows that a chain leaves out, by weights of 0.

        From power to power, and then with all rows, the chains go on from where they are. Larger
        powers are not tried where a smaller one is clearly better.
        """
        power: Any = self.likelihood_power
        sharpness: Any = self.sharpness
        if power != "auto" and sharpness != "auto":
            return float(power), float(sharpness)
        num_parts = max(self.num_chains, _MIN_PARTS, -(-len(rows.x) // _MAX_HELD_ROWS))
        part = random_parts(rows.y, num_parts)
        is_held = part[None] == np.arange(self.num_chains)[:, None]
        seen = rows._replace(weight=np.where(is_held, 0.0, rows.weight[None]))
        plan = self._plan(len(rows.x)).trial()
        # Chains that are there have seen all rows.
        self._chains = None
        powers, usual = (_POWERS, _USUAL_POWER) if power == "auto" else ((power,), power)
        chosen, sharpnesses, logs = usual, {}, {}
        for number, each in enumerate(powers):
            self._run_classes(jax.random.fold_in(key, number), seen, each, plan)
            held_out = self._held_out(rows, is_held)
            s = held_out.likeliest_sharpness() if sharpness == "auto" else sharpness
            sharpnesses[each], logs[each] = float(s), held_out.log_likelihoods(s)
            if usual in logs:
                chosen = clearly_likeliest(logs, usual)
            if chosen < each:
                break
        return float(chosen), sharpnesses[chosen]

    def _held_out(self, rows: WeightedRows, is_held: np.ndarray) -> HeldOut:
        """Return held-out rows, each judged by the chain that has not seen it."""
        logs = np.zeros((len(rows.x), len(self.classes_)))
        for chain, places in enumerate(is_held):
            draws = self._probabilities(rows.x[places])
            ours = draws.reshape(len(is_held), -1, *draws.shape[1:])[chain]
            logs[places] = np.log(np.maximum(ours.mean(0), np.finfo(float).tiny))
        held = is_held.any(0)
        return HeldOut(logs[held], rows.y[held], rows.weight[held])

    def predict_proba(self, X) -> np.ndarray:
        p = np.maximum(super().predict_proba(X), np.finfo(float).tiny)
        return softmax(self.sharpness_ * np.log(p))

    def _outputs(self, x):
        value, layer = x / self._num_inputs**0.5, 0
        while True:
            weight = self.draws_[f"{layer}.weight"].astype(np.float64)
            value = value @ weight + self.draws_[f"{layer}.bias"][:, None].astype(np.float64)
            layer += 1
            if f"{layer}.weight" not in self.draws_:
                return value
            value, _ = activate(self.activation, value)

    def _numbers_per_row(self):
        widest = max(self._num_inputs, *self._hidden_sizes(), len(self.classes_))
        return len(self.draws_["0.bias"]) * widest


def _named(positions, hyper, num_inputs: int) -> dict[str, np.ndarray]:
    """Return draws of all chains together by name, without the weights of padded inputs."""
    draws = {
        f"{i}.{name}": values for i, layer in enumerate(positions) for name, values in layer.items()
    }
    draws["0.weight"] = draws["0.weight"][:, :, :num_inputs]
    draws |= {_PRECISION + name: values for name, values in hyper["prior"].items()}
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in draws.items()}
