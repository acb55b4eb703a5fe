"""Chains for a network of numbers that look at a batch a step: for tables of many rows.

Starts are trained, then SGHMC samples with a mass and a noise estimate for each parameter, both
from the squares of the rows' gradients. The step is a part of the shortest period that these masses
leave: measured before every round, since a noise that shrinks makes periods shorter. It keeps the
noise of the batches at half of what friction takes out, and where momenta are too hot it is halved.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators import network_training
from sghmc.estimators.regression_chains import Run
from sghmc.estimators.regression_network import Kind, NumberNetwork, Table
from sghmc.gradients.minibatch import Minibatch
from sghmc.posterior.posterior import Posterior
from sghmc.results.samples import DivergenceError
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample

_DECAY = 0.05
"""Of the momentum in a step."""
_NOISE_SHARE = 0.5
_LARGEST_STEP = 0.1
_LARGEST_ANGLE = 0.6
"""Of the fastest oscillation, in a step: from 2 on it grows without end, and a round whose noise
falls to a third of what it was is still below that."""
_POWER_STEPS = 30
_HOTTEST = 1.2
_LARGEST_LOSS, _LOSS = 1.0, 0.1
"""Of log-likelihood a row in a round: so much for each parameter and row, and so much besides.

From the best fit to the typical set it is half of the first. Where a step is much too large a
chain may leave what it has learned for good, and be calm there.
"""
_MOST_HALVINGS = 8
_NUM_ROUNDS = 4
"""Of warm-up, and as many that are kept."""
_FISHER_ROWS = 1024
_TRAIN_FACTOR, _TRAIN_SHARE = 4, 2
"""Steps of training for one of sampling, and how much smaller their batches are."""


@functools.partial(jax.jit, static_argnames="network")
def _squares(network: NumberNetwork, position, table: Table, kind: Kind):
    """Mean over rows of the squared gradients of their log-likelihoods, and over chains."""
    grads = jax.lax.map(
        lambda each: jnp.mean(_row_grads(network, each[0], each[1], table) ** 2, axis=0),
        (position, kind),
    )
    return jnp.mean(grads, axis=0)


@functools.partial(jax.jit, static_argnames="network")
def _frequencies(network: NumberNetwork, position, table: Table, kind: Kind, mass, num_rows):
    """Of each chain's fastest oscillation, the root of the largest eigenvalue of M⁻¹(I + N E[ggᵀ]).

    By power iteration, never formed: the curvature is that of the rows' gradients g.
    """

    def of_chain(each):
        grads = _row_grads(network, each[0], each[1], table) / jnp.sqrt(mass)[None]

        def times(vector):
            return vector / mass + grads.T @ (grads @ vector) * (num_rows / len(grads))

        def step(_, carry):
            product = times(carry[0])
            size = jnp.linalg.norm(product)
            return product / size, size

        start = jax.random.normal(jax.random.key(0), mass.shape)
        first = start / jnp.linalg.norm(start), jnp.zeros(())
        return jax.lax.fori_loop(0, _POWER_STEPS, step, first)[1]

    return jnp.sqrt(jax.lax.map(of_chain, (position, kind)))


def _row_grads(network: NumberNetwork, z, kind: Kind, table: Table):
    """(row, parameter)"""

    def of_row(z, x, y, weight):
        return network.log_likelihood(z, Table(x[:, None], y[None], weight[None]), kind)

    return jax.vmap(jax.grad(of_row), in_axes=(None, 1, 0, 0))(z, table.x, table.y, table.weight)


@functools.partial(jax.jit, static_argnames="network")
def _levels(network: NumberNetwork, position, table: Table, kind: Kind):
    """The mean log-likelihood of rows under each chain."""
    of_chains = jax.vmap(network.log_likelihood, in_axes=(0, None, 0))
    return of_chains(position, table, kind) / jnp.sum(table.weight)


class NumberBatches:
    """The chains of one fit."""

    def __init__(
        self,
        network: NumberNetwork,
        table: Table,
        kind: Kind,
        batch_size: int,
        progress: bool = False,
    ):
        """`kind` is the noise of each chain, the same for all."""
        self.network, self.table, self.kind = network, table, kind
        self.num_chains, self.batch_size, self.progress = len(kind.is_input), batch_size, progress

    def train(self, key: jax.Array, num_steps: int) -> jax.Array | np.ndarray:
        """With one noise first, then with the right one: many steps, of small batches."""
        start_key, *keys = jax.random.split(key, 3)
        position = self.network.start(start_key, self.num_chains)
        count, size = num_steps * _TRAIN_FACTOR // 2, -(-self.batch_size // _TRAIN_SHARE)
        for kind, each in zip((self.kind.plain(), self.kind), keys, strict=True):
            position = network_training.of_batches(
                self.network, each, position, self.table, kind, count, size
            )
        return position

    def sample(self, key: jax.Array, position, num_steps: int, num_draws: int) -> Run:
        """Rounds of the same length: half of them warm up, the others make the draws.

        Masses are measured anew before each round of warm-up, the step before every round. A round
        that is too hot, that leaves the finite numbers, or that loses what was learned, is done
        again with half the step.
        """
        per_round = -(-num_draws // _NUM_ROUNDS)
        thinning = max(1, num_steps // (2 * _NUM_ROUNDS * per_round))
        position, squares, kept = np.asarray(position), None, []
        num_halvings, number = 0, 0
        part = self._part()
        level = np.asarray(_levels(self.network, position, part, self.kind))
        allowed = _LARGEST_LOSS * self.network.num_parameters / self.table.x.shape[1] + _LOSS
        while number < 2 * _NUM_ROUNDS:
            if number < _NUM_ROUNDS or squares is None:
                squares = self._fisher(position)
            step = self._step(position, squares) / 2**num_halvings
            round_key = jax.random.fold_in(jax.random.fold_in(key, number), num_halvings)
            run = self._round(round_key, position, step, squares, thinning, per_round)
            reached = self._reached(run, part)
            if reached is None or np.any(reached < level - allowed):
                num_halvings += 1
                if num_halvings > _MOST_HALVINGS:
                    raise FloatingPointError(
                        f"Batches of {self.batch_size} rows heat the chains at every step, however "
                        f"small: take a larger batch_size, or noise='student'."
                    )
                continue
            position, level = run.draws[:, -1], np.maximum(level, reached)
            kept += [run] if number >= _NUM_ROUNDS else []
            number += 1
        draws, potentials = (
            np.concatenate([each[i] for each in kept], axis=1)[:, :num_draws] for i in (0, 1)
        )
        heat = float(np.mean([each.temperature for each in kept]))
        return Run(draws, potentials, np.empty(0), temperature=heat)

    def _step(self, position, squares) -> float:
        """So that friction takes out more than batches bring in, and no oscillation grows."""
        num_rows = self.table.x.shape[1]
        mass, ratio = 1 + num_rows * squares, num_rows / self.batch_size
        quiet = (2 * _NOISE_SHARE * _DECAY / ratio) ** 0.5
        frequencies = _frequencies(self.network, position, self._part(), self.kind, mass, num_rows)
        return min(_LARGEST_STEP, quiet, _LARGEST_ANGLE / float(frequencies.max()))

    def _reached(self, run: Any, part: Table) -> np.ndarray | None:
        """Levels at the end of a round; None where it is not finite, or was too hot."""
        if run is None or run.temperature > _HOTTEST:
            return None
        return np.asarray(_levels(self.network, run.draws[:, -1], part, self.kind))

    def _round(self, key, position, step: float, squares, thinning: int, count: int) -> Any:
        """None where a chain is not finite."""
        num_rows = self.table.x.shape[1]
        mass, noise = 1 + num_rows * squares, num_rows**2 / self.batch_size * squares
        try:
            samples = sample(
                key,
                self._posterior,
                SGHMC(step, mass * _DECAY / step, mass, gradient_noise=noise),
                jnp.asarray(position),
                init_axis=0,
                gradient=Minibatch(self.batch_size),
                num_samples=count,
                thinning=thinning,
                num_chains=self.num_chains,
                progress=self.progress,
            )
        except DivergenceError:
            return None
        # Ctrl-C ends a run with what was drawn so far: half a round is no model.
        if samples.positions.shape[1] < count:
            raise KeyboardInterrupt
        heat = samples.info.kinetic_temperature
        assert heat is not None
        potentials = np.asarray(samples.info.potential)
        return Run(
            np.asarray(samples.positions), potentials, np.empty(0), temperature=float(heat.mean())
        )

    @functools.cached_property
    def _posterior(self) -> Posterior:
        network, kind = self.network, self.kind.of_one()

        def log_likelihood(z, row):
            table = Table(row["x"][:, None], row["y"][None], row["weight"][None])
            return network.log_likelihood(z, table, kind)

        x, y, weight = self.table
        data = {"x": np.ascontiguousarray(x.T), "y": y, "weight": weight}
        return Posterior(log_likelihood, lambda z: -0.5 * jnp.sum(z**2), data)

    def _fisher(self, position) -> np.ndarray:
        return np.asarray(_squares(self.network, position, self._part(), self.kind))

    def _part(self) -> Table:
        """Some rows, always the same."""
        count = self.table.x.shape[1]
        rows = np.random.default_rng(0).permutation(count)[:_FISHER_ROWS]
        return Table(self.table.x[:, rows], self.table.y[rows], self.table.weight[rows])
