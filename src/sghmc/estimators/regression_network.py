"""The network for regression: a potential of one vector whose prior is standard normal."""

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sghmc.estimators.predictive import Predictive
from sghmc.estimators.weighted_rows import Scaling, WeightedRows, padded, padded_size

_GAINS = {"relu": 2.0, "tanh": 1.6, "silu": 2.8}
"""Gains 1 / E[σ(z)²] for z ~ N(0, 1), with which a layer keeps the size of its inputs."""
ACTIVATIONS = tuple(_GAINS)
KINDS = ("constant", "input", "student")
_FIRST_SPREAD, _INNER_SPREAD, _LAST_SPREAD = 3.0, 2.0, 1.5
"""Standard deviations of the weights' prior, relative to weights that keep sizes.

Narrower priors are too smooth for tables such as concrete, and wider ones gave no more.
"""
_LOG_SCALE, _LOG_SCALE_SPREAD = -2.0, 2.0
_LOG_DEGREES, _LOG_DEGREES_SPREAD = 2.0, 1.5
_MIN_DEGREES = 3.0
"""Least degrees of freedom: from 3 up the variance is at most three times the squared scale."""
_MIN_SCALE, _MAX_SCALE, _MAX_LOG_SCALE = 1e-4, 10.0, 20.0
"""Bounds of the noise, in standard deviations of the target: float32 resolves no less, and far from
all rows a draw's noise should be bounded. A rounded target has a larger least scale."""
_START_LOG_SCALE = -1.0
_START_HEAD = 0.1
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Kind(NamedTuple):
    """The kind of noise in numbers, so that one compiled program serves all.

    `log_least` is the logarithm of the scale that σ is never below: σ² ← σ² + least².
    """

    is_input: Any
    is_student: Any
    log_least: Any

    @classmethod
    def of(cls, name: str, least_scale: float = 0.0) -> "Kind":
        found = name != "constant", name == "student", np.log(max(least_scale, _MIN_SCALE))
        return cls(*(np.float32(value) for value in found))

    def plain(self) -> "Kind":
        """Return one Gaussian noise for all rows."""
        return self._replace(is_input=0 * self.is_input, is_student=0 * self.is_student)


class Table(NamedTuple):
    """Standardized rows as columns: x (input, row), y and weight (row)."""

    x: Any
    y: Any
    weight: Any


class RegressionLaw(NamedTuple):
    """The distribution of y at each row: location, 1/scale², Student's degrees of freedom."""

    location: Any
    precision: Any
    degrees: Any


@dataclasses.dataclass(frozen=True)
class RegressionNetwork:
    """y = f(x) + σ(x) e for standardized x and y, all of it one vector z with prior N(0, I).

        f, g = W_L s(… s(W_1 x + b_1) …) + b_L          two outputs
        "constant": e ~ N(0, 1), log σ = l
        "input":    e ~ N(0, 1), log σ(x) = l + g(x)
        "student":  e ~ t_ν,     log σ(x) = l + g(x),  log(ν − 3) ~ N(2, 1.5²)
        W_ij ~ N(0, spread² · gain / fan in),  l ~ N(−2, 2²)

    What rounding of y leaves unknown adds to the noise: σ² + least². Inputs come as columns: such
    products are twice as fast on a processor as those of rows.

    | field | meaning |
    | --- | --- |
    | `num_inputs` | columns of the table |
    | `hidden` | units of each hidden layer |
    | `activation` | s: "relu", "tanh" or "silu" |
    """

    num_inputs: int
    hidden: tuple[int, ...]
    activation: str

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Return the shapes (output, input and bias) of the layers' matrices."""
        sizes = (self.num_inputs, *self.hidden, 2)
        return [(after, before + 1) for before, after in itertools.pairwise(sizes)]

    @property
    def num_parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.shapes) + 2

    def start_spreads(self) -> list[np.ndarray]:
        """Return standard deviations of starting weights; those of the noise are small."""
        spreads = []
        for i, (rows, columns) in enumerate(self.shapes):
            gain = 1.0 if i == 0 else _GAINS[self.activation]
            spread = np.full((rows, columns), (gain / max(columns - 1, 1)) ** 0.5)
            spread[:, -1] = 1.0 if i == 0 and self.hidden else 0.0
            spreads.append(spread)
        spreads[-1][1] *= _START_HEAD
        return spreads

    def prior_spreads(self) -> list[np.ndarray]:
        last = len(self.hidden)
        spreads = []
        for i, (rows, columns) in enumerate(self.shapes):
            gain = 1.0 if i == 0 else _GAINS[self.activation]
            factor = _LAST_SPREAD if i == last else _FIRST_SPREAD if i == 0 else _INNER_SPREAD
            spread = np.full((rows, columns), factor * (gain / max(columns - 1, 1)) ** 0.5)
            spread[:, -1] = _FIRST_SPREAD if i == 0 and self.hidden else 1.0
            spreads.append(spread)
        return spreads

    def start(self, key: jax.Array, num_chains: int) -> np.ndarray:
        """Draw small weights for each chain, far inside the prior."""
        ratio = [
            (small / wide).ravel()
            for small, wide in zip(self.start_spreads(), self.prior_spreads(), strict=True)
        ]
        size = self.num_parameters - 2
        z = host_generator(key).standard_normal((num_chains, size)) * np.concatenate(ratio)
        scale = (_START_LOG_SCALE - _LOG_SCALE) / _LOG_SCALE_SPREAD
        tail = np.broadcast_to([scale, 0.0], (num_chains, 2))
        return np.concatenate([z, tail], axis=1).astype(np.float32)

    def layers(self, z) -> list:
        """Return matrices (…, output, input and bias) of vectors z (…, parameter), jax or numpy."""
        found, place = [], 0
        for (rows, columns), spread in zip(self.shapes, self.prior_spreads(), strict=True):
            part = z[..., place : place + rows * columns]
            found.append(part.reshape(*z.shape[:-1], rows, columns) * spread.astype(np.float32))
            place += rows * columns
        return found

    def law(self, z, x, kind: Kind, numpy=jnp) -> RegressionLaw:
        """Return the law of y for one z, or with numpy for several (…, parameter) at once."""
        value = x
        layers = self.layers(z)
        for i, layer in enumerate(layers):
            value = layer[..., :-1] @ value + layer[..., -1:]
            if i < len(self.hidden):
                value = _activated(self.activation, value, numpy)
        log_scale = (
            _LOG_SCALE + _LOG_SCALE_SPREAD * z[..., -2:-1] + kind.is_input * value[..., 1, :]
        )
        # Far above the upper bound, so that nothing overflows and no gradient is NaN.
        variance = numpy.exp(2 * numpy.minimum(log_scale, _MAX_LOG_SCALE))
        variance = variance + numpy.exp(2 * kind.log_least)
        precision = 1 / variance + np.float32(_MAX_SCALE**-2)
        degrees = _MIN_DEGREES + numpy.exp(_LOG_DEGREES + _LOG_DEGREES_SPREAD * z[..., -1])
        return RegressionLaw(value[..., 0, :], precision, degrees)

    def log_likelihood(self, z: jax.Array, table: Table, kind: Kind) -> jax.Array:
        """Return the weighted sum of the rows' log-likelihoods."""
        law = self.law(z, table.x, kind)
        squares = (table.y - law.location) ** 2 * law.precision
        bell = -0.5 * squares - _HALF_LOG_TAU
        degrees, log_gamma = law.degrees, jax.scipy.special.gammaln
        norm = log_gamma((degrees + 1) / 2) - log_gamma(degrees / 2)
        norm = norm - 0.5 * jnp.log(degrees * np.pi)
        tail = norm - (degrees + 1) / 2 * jnp.log1p(squares / degrees)
        logs = jnp.where(kind.is_student > 0, tail, bell) + 0.5 * jnp.log(law.precision)
        return jnp.sum(table.weight * logs)

    def potential(self, z: jax.Array, table: Table, kind: Kind) -> jax.Array:
        return 0.5 * jnp.sum(z**2) - self.log_likelihood(z, table, kind)

    def predictive(
        self, z: np.ndarray, x: np.ndarray, name: str, least_scale: float = 0.0
    ) -> Predictive:
        """Return the law on the host, for draws (draw, parameter) and inputs as columns."""
        kind = Kind.of(name, least_scale)
        law = self.law(z, x, kind, np)
        location, precision, degrees = (part.astype(np.float64) for part in law)
        degrees = degrees if kind.is_student > 0 else np.full_like(degrees, np.inf)
        return Predictive(location, precision**-0.5, degrees[:, None])

    def constant(self, key: jax.Array, count: int, num_rows: float) -> np.ndarray:
        """Return draws whose mean is 0 everywhere, with the noise that `num_rows` rows of 0 allow.

        Its precision is Gamma(1 + n/2, 0.1): such a target tells nothing else.
        """
        normal_key, gamma_key = jax.random.split(key)
        z = np.array(jax.random.normal(normal_key, (count, self.num_parameters)))
        rows, columns = self.shapes[-1]
        first = self.num_parameters - 2 - rows * columns
        z[:, first : first + columns] = 0
        precision = np.asarray(jax.random.gamma(gamma_key, 1 + num_rows / 2, (count,))) / 0.1
        z[:, -2] = (-0.5 * np.log(precision) - _LOG_SCALE) / _LOG_SCALE_SPREAD
        return z.astype(np.float32)

    def named(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Return draws by name: weights (draw, input, unit), biases, log σ, degrees of freedom."""
        found = {}
        for i, layer in enumerate(self.layers(z)):
            found[f"{i}.weight"] = layer[..., :-1].swapaxes(1, 2)
            found[f"{i}.bias"] = layer[..., -1]
        found["log_scale"] = _LOG_SCALE + _LOG_SCALE_SPREAD * z[:, -2]
        found["degrees"] = _MIN_DEGREES + np.exp(
            _LOG_DEGREES + _LOG_DEGREES_SPREAD * z[:, -1].astype(np.float64)
        )
        return found

    def rescaled(
        self, z: np.ndarray, old: tuple[Scaling, Scaling], new: tuple[Scaling, Scaling]
    ) -> np.ndarray:
        """Return z for rows standardized anew, with the same law of raw targets and inputs."""
        z = np.array(z, np.float64)
        layers = [layer.astype(np.float64) for layer in self.layers(z)]
        (m, s), (new_m, new_s) = old[0], new[0]
        (c, k), (new_c, new_k) = old[1], new[1]
        layers[0][..., -1] += layers[0][..., :-1] @ ((new_m - m) / s)
        layers[0][..., :-1] *= new_s / s
        layers[-1][:, 0] *= k / new_k
        layers[-1][:, 0, -1] += (c - new_c) / new_k
        pairs = zip(layers, self.prior_spreads(), strict=True)
        flat = [(layer / spread).reshape(len(z), -1) for layer, spread in pairs]
        z[:, -2] += np.log(k / new_k) / _LOG_SCALE_SPREAD
        return np.concatenate([*flat, z[:, -2:]], axis=1).astype(np.float32)


def host_generator(key: jax.Array) -> np.random.Generator:
    """Return a numpy generator for a few draws, which jax would compile a program for."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


def _activated(name: str, value, numpy):
    if name == "relu":
        return numpy.maximum(value, 0)
    if name == "tanh":
        return numpy.tanh(value)
    if numpy is jnp:
        return jax.nn.silu(value)
    with np.errstate(over="ignore"):
        return value / (1 + np.exp(-value))


def columns(rows: WeightedRows, room: int = 0) -> Table:
    """Return standardized rows as columns, padded to lengths that programs are compiled for.

    The length is that of a table of `room` rows, if these are more.
    """
    count = max(len(rows.x), room)
    length = padded_size(count, 1 if count <= 256 else 4)
    parts = (padded(rows.x, length).T, padded(rows.y, length), padded(rows.weight, length))
    return Table(*(np.ascontiguousarray(part, np.float32) for part in parts))


# Starts for chains: each trains by itself.
#
# The mean comes first, with one noise for all rows: where the noise may depend on the input from
# the beginning, it explains rows that the mean could learn (Seitzer et al. 2022).

_RATE = 0.005


@functools.partial(jax.jit, static_argnames=("network", "batch_size"))
def train(
    network: RegressionNetwork,
    key: jax.Array,
    position: jax.Array | np.ndarray,
    table: Table,
    kind: Kind,
    num_steps: int | jax.Array,
    batch_size: int | None,
) -> jax.Array:
    """Return positions (chain, parameter) after Adam's steps with a rate that falls as a cosine.

    Each step has random rows, the same for all chains, or all rows if `batch_size` is None.
    """
    num_rows, total = table.x.shape[1], jnp.sum(table.weight)
    optimizer = optax.adam(lambda t: _RATE * 0.5 * (1 + jnp.cos(jnp.pi * t / num_steps)))

    def loss(z, batch: Table):
        scale = num_rows / batch.x.shape[1]
        likelihood = jax.vmap(network.log_likelihood, in_axes=(0, None, None))(z, batch, kind)
        return (0.5 * jnp.sum(z**2) - scale * jnp.sum(likelihood)) / total

    def step(t, carry):
        z, state = carry
        batch = table
        if batch_size is not None:
            rows = jax.random.randint(jax.random.fold_in(key, t), (batch_size,), 0, num_rows)
            batch = Table(table.x[:, rows], table.y[rows], table.weight[rows])
        updates, state = optimizer.update(jax.grad(loss)(z, batch), state)
        return z + updates, state

    position = jnp.asarray(position)
    carry = jax.lax.fori_loop(0, num_steps, step, (position, optimizer.init(position)))
    return carry[0]
