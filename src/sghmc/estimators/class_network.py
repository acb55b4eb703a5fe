"""The posterior of a classification network, sampled by rounds of SGHMC that set their own scales.

Inputs and targets are standardized, and the network is written so that weights of size 1 make
outputs of size 1. Before each warm-up round the curvature of every layer is measured and taken as
that layer's mass; so a step means the same for ten rows and for a hundred thousand. All rounds are
one compiled program.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.networks import largest_curvatures
from sghmc.estimators.weighted_rows import Scaling, WeightedRows, padded, padded_size
from sghmc.gradients import FullBatch, Minibatch
from sghmc.models.networks import MLP
from sghmc.posterior.gibbs import GaussianPrior
from sghmc.posterior.posterior import Posterior
from sghmc.results.samples import DivergenceError, Samples
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample
from sghmc.types import PyTree

_STEP_SIZE, _MOMENTUM_DECAY = 0.3, 0.1
"""Step size relative to the layers' curvatures, and momentum decay; the curvature of four layers is
at most four times their mass."""
_MAX_HALVINGS = 8
_MIN_MASS_RATIO = 0.5
_ROUND_DRAWS = 10
_NUM_CURVATURE_ROWS = 512


def relu(z: jax.Array) -> jax.Array:
    """Rectify, and scale so that a layer of weights of size 1 keeps the size of its inputs."""
    return jax.nn.relu(z) * (2 / z.shape[-1]) ** 0.5


def tanh(z: jax.Array) -> jax.Array:
    return jnp.tanh(z) * (1 / z.shape[-1]) ** 0.5


def silu(z: jax.Array) -> jax.Array:
    return jax.nn.silu(z) * (2.8 / z.shape[-1]) ** 0.5


_ACTIVATIONS = {"relu": relu, "tanh": tanh, "silu": silu}


class ClassChains(NamedTuple):
    """Positions and precisions of the chains, all with a leading chain axis."""

    positions: PyTree
    hyper: PyTree


@dataclasses.dataclass(frozen=True)
class RoundPlan:
    """Length of the sampling: rounds of `round_draws` draws a chain, `thinning` steps a draw."""

    round_draws: int
    thinning: int
    num_warmup_rounds: int
    num_rounds: int
    batch_size: int
    progress: bool = False

    @classmethod
    def of(cls, num_draws: int, num_steps: int, batch_size: int, progress: bool):
        """Return a plan: half of the steps warm up, the others make `num_draws` draws."""
        num_rounds = -(-num_draws // _ROUND_DRAWS)
        round_draws = -(-num_draws // num_rounds)
        thinning = max(1, num_steps // (2 * num_rounds * round_draws))
        warmup = max(1, -(-num_steps // (2 * round_draws * thinning)))
        return cls(round_draws, thinning, warmup, num_rounds, batch_size, progress)

    def trial(self) -> "RoundPlan":
        """Return a plan of fewer draws, to judge a setting by."""
        return dataclasses.replace(self, num_rounds=-(-self.num_rounds // 3))

    def settling(self) -> "RoundPlan":
        """Return a plan with half the warm-up, for chains that go on with more data."""
        return dataclasses.replace(self, num_warmup_rounds=-(-self.num_warmup_rounds // 2))


class Network:
    """A network's posterior given standardized rows, with weights of the rows for each chain."""

    def __init__(
        self,
        rows: WeightedRows,
        hidden: tuple[int, ...],
        num_classes: int,
        activation: str,
        precision: float | None = None,
    ):
        """Take rows whose weights have the axes (chain, row).

        `precision` is that of the weights' priors; None: learned.
        """
        self.activation = activation
        self.precision = precision
        self.num_inputs = rows.x.shape[1]
        self.num_chains = len(rows.weight)
        width = padded_size(self.num_inputs, 2)
        self.model = MLP(
            (width, *hidden, num_classes), _ACTIVATIONS[activation], "categorical", GaussianPrior()
        )
        self.rows = self._prepared(rows, width)
        # Always a stack: with and without rows held out the compiled program is the same.
        self.posterior = Posterior.stack(
            [self.model.posterior(self.rows.x, self.rows.y, weight) for weight in self.rows.weight]
        )

    def _prepared(self, rows: WeightedRows, width: int) -> WeightedRows:
        """Return rows padded to shapes that programs are compiled for, inputs divided by √d."""
        length = padded_size(len(rows.x), 1 if len(rows.x) <= 256 else 4)
        x = padded(padded(rows.x / self.num_inputs**0.5, width, axis=1), length)
        y = padded(rows.y.astype(np.int32), length)
        weight = padded(rows.weight, length, axis=1)
        return WeightedRows(x.astype(np.float32), y, weight.astype(np.float32))

    def start(self, key: jax.Array) -> ClassChains:
        keys = jax.random.split(key, self.num_chains)
        precision = 1.0 if self.precision is None else self.precision
        positions = jax.vmap(lambda k: self.model.init(k, precision**-0.5))(keys)
        hyper = dict(self.posterior.chains.hyper)
        hyper["prior"] = jax.tree.map(lambda ones: precision * ones, hyper["prior"])
        return ClassChains(*jax.tree.map(np.asarray, (positions, hyper)))

    def run(
        self, key: jax.Array, chains: ClassChains, plan: RoundPlan
    ) -> tuple[PyTree, PyTree, ClassChains]:
        """Return draws of positions and precisions, axes (chain, draw, …), and the chains' ends.

        If a chain becomes non-finite, everything is done again with half the step size.
        """
        for attempt in range(_MAX_HALVINGS):
            step_size = _STEP_SIZE / 2**attempt
            try:
                return self._attempt(jax.random.fold_in(key, attempt), chains, plan, step_size)
            except DivergenceError:
                if attempt == _MAX_HALVINGS - 1:
                    raise
        raise AssertionError

    def _attempt(self, key, chains: ClassChains, plan: RoundPlan, step_size: float):
        kept, masses = [], None
        for number in range(plan.num_warmup_rounds + plan.num_rounds):
            if number <= plan.num_warmup_rounds:
                masses = self._masses(chains, masses)
            samples = self._round(jax.random.fold_in(key, number), chains, plan, masses, step_size)
            chains = _end(samples)
            if number >= plan.num_warmup_rounds:
                kept.append((samples.positions, samples.hyper))
        positions, hyper = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *kept)
        return positions, hyper, chains

    def _round(
        self, key, chains: ClassChains, plan: RoundPlan, masses, step_size: float
    ) -> Samples:
        friction = jax.tree.map(lambda mass: mass * _MOMENTUM_DECAY / step_size, masses)
        is_full = plan.batch_size >= len(self.rows.x)
        hyper = jax.tree.map(jnp.asarray, chains.hyper)
        gibbs = self.model.gibbs(every=min(plan.thinning, 20))
        samples = sample(
            key,
            eqx.tree_at(lambda stack: stack.chains.hyper, self.posterior, hyper),
            SGHMC(step_size, friction, masses),
            chains.positions,
            init_axis=0,
            posterior_axis=0,
            gradient=FullBatch() if is_full else Minibatch(plan.batch_size, replacement="epochs"),
            num_samples=plan.round_draws,
            thinning=plan.thinning,
            num_chains=self.num_chains,
            gibbs=gibbs if self.precision is None else None,
            progress=plan.progress,
        )
        # Ctrl-C ends a run with what was drawn so far: half a round is no model.
        if samples.positions[0]["bias"].shape[1] < plan.round_draws:
            raise KeyboardInterrupt
        return samples

    def _masses(self, chains: ClassChains, before: PyTree) -> PyTree:
        """Return each leaf's largest curvature, of likelihood and prior, over all chains.

        A chain that has become sure of its rows has little curvature there, and may have more a
        step further: so a mass does not fall by more than half from round to round.
        """
        chosen = np.random.default_rng(0).permutation(len(self.rows.x))[:_NUM_CURVATURE_ROWS]
        x, y = (array[chosen].astype(np.float64) for array in self.rows[:2])
        measured = []
        for c, all_weights in enumerate(self.rows.weight.astype(np.float64)):
            weight = all_weights[chosen]
            share = weight.sum() / all_weights.sum()
            rows = WeightedRows(x, y, weight / max(share, np.finfo(float).tiny))
            here = jax.tree.map(lambda leaf, c=c: leaf[c].astype(np.float64), chains.positions)
            measured.append(largest_curvatures(here, rows, self.activation))
        largest = jax.tree.map(lambda *values: max(values), *measured)
        masses = [
            {
                name: value + float(chains.hyper["prior"][f"{i}.{name}"].max())
                for name, value in layer.items()
            }
            for i, layer in enumerate(largest)
        ]
        if before is None:
            return masses
        return jax.tree.map(lambda new, old: max(new, _MIN_MASS_RATIO * old), masses, before)


def _end(samples: Samples) -> ClassChains:
    last = jax.tree.map(lambda leaf: leaf[:, -1], (samples.positions, samples.hyper))
    return ClassChains(*last)


def rescaled(positions: PyTree, old: Scaling, new: Scaling) -> Any:
    """Return weights for rows standardized anew, with the same functions of raw inputs."""
    layers = [dict(layer) for layer in positions]
    first = layers[0]
    (m, s), (new_m, new_s) = old, new
    width = first["weight"].shape[1]
    shift = padded((new_m - m) / s / len(m) ** 0.5, width)
    stretch = padded(new_s / s - 1, width) + 1
    first["bias"] = first["bias"] + shift @ first["weight"]
    first["weight"] = first["weight"] * stretch[:, None]
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), layers)
