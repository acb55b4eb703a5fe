"""Minibatch chains of the regression network, for tables of many rows.

SGHMC samples from trained starts, with a mass and a noise estimate for each parameter, both from
the squared gradients of the rows. The step size is a share of the shortest period that these masses
leave, measured before every round, since noise that shrinks makes periods shorter. It keeps the
noise of the batches at half of what friction takes out; where momenta are too hot it is halved.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.estimators.regression_chains import Run
from sghmc.estimators.regression_network import Kind, RegressionNetwork, Table, train
from sghmc.gradients import Minibatch
from sghmc.posterior.posterior import Posterior
from sghmc.results.samples import DivergenceError
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample

_MOMENTUM_DECAY = 0.05
_NOISE_SHARE = 0.5
_MAX_STEP_SIZE = 0.1
_MAX_ANGLE = 0.6
"""Largest angle of the fastest oscillation in a step: from 2 on it grows without end, and a round
whose noise falls to a third of what it was is still below that."""
_NUM_POWER_STEPS = 30
_MAX_TEMPERATURE = 1.2
_MAX_LOSS_PER_PARAMETER, _MAX_LOSS = 1.0, 0.1
"""Largest loss of log-likelihood a row in a round: for each parameter and row, and besides.

From the best fit to the typical set it is half of the first. Where a step is much too large a
chain may leave what it has learned for good, and be calm there.
"""
_MAX_HALVINGS = 8
_NUM_ROUNDS = 4
"""Number of rounds of warm-up, and as many that are kept."""
_NUM_FISHER_ROWS = 1024
_TRAIN_FACTOR, _TRAIN_DIVISOR = 4, 2
"""Steps of training for one of sampling, and how much smaller their batches are."""


@functools.partial(jax.jit, static_argnames="network")
def _squares(network: RegressionNetwork, position, table: Table, kind: Kind):
    """Return the squared gradients of the rows' log-likelihoods, averaged over rows and chains."""

    def of_chain(z):
        return jnp.mean(_row_grads(network, z, kind, table) ** 2, axis=0)

    return jnp.mean(jax.lax.map(of_chain, position), axis=0)


@functools.partial(jax.jit, static_argnames="network")
def _frequencies(network: RegressionNetwork, position, table: Table, kind: Kind, mass, num_rows):
    """Return each chain's fastest frequency, √ of the largest eigenvalue of M⁻¹(I + N E[ggᵀ]).

    Power iteration never forms the matrix; g are the gradients of the rows' log-likelihoods.
    """

    def of_chain(z):
        grads = _row_grads(network, z, kind, table) / jnp.sqrt(mass)[None]

        def times(vector):
            return vector / mass + grads.T @ (grads @ vector) * (num_rows / len(grads))

        def step(_, carry):
            product = times(carry[0])
            size = jnp.linalg.norm(product)
            return product / size, size

        start = jax.random.normal(jax.random.key(0), mass.shape)
        first = start / jnp.linalg.norm(start), jnp.zeros(())
        return jax.lax.fori_loop(0, _NUM_POWER_STEPS, step, first)[1]

    return jnp.sqrt(jax.lax.map(of_chain, position))


def _row_grads(network: RegressionNetwork, z, kind: Kind, table: Table):
    """Return the gradients of the rows' log-likelihoods, axes (row, parameter)."""

    def of_row(z, x, y, weight):
        return network.log_likelihood(z, Table(x[:, None], y[None], weight[None]), kind)

    return jax.vmap(jax.grad(of_row), in_axes=(None, 1, 0, 0))(z, table.x, table.y, table.weight)


@functools.partial(jax.jit, static_argnames="network")
def _levels(network: RegressionNetwork, position, table: Table, kind: Kind):
    """Return the mean log-likelihood of rows under each chain."""
    of_chains = jax.vmap(network.log_likelihood, in_axes=(0, None, None))
    return of_chains(position, table, kind) / jnp.sum(table.weight)


class RegressionBatches:
    """Minibatch chains of one fit."""

    def __init__(
        self,
        network: RegressionNetwork,
        table: Table,
        kind: Kind,
        batch_size: int,
        num_chains: int,
        progress: bool = False,
    ):
        self.network, self.table, self.kind = network, table, kind
        self.num_chains, self.batch_size, self.progress = num_chains, batch_size, progress

    def train(self, key: jax.Array, num_steps: int) -> jax.Array | np.ndarray:
        """Train by many small batches: with one noise for all rows, then with the right one."""
        start_key, *keys = jax.random.split(key, 3)
        position = self.network.start(start_key, self.num_chains)
        count, size = num_steps * _TRAIN_FACTOR // 2, -(-self.batch_size // _TRAIN_DIVISOR)
        for kind, each in zip((self.kind.plain(), self.kind), keys, strict=True):
            position = train(self.network, each, position, self.table, kind, count, size)
        return position

    def sample(self, key: jax.Array, position, num_steps: int, num_draws: int) -> Run:
        """Sample in rounds of the same length: half of them warm up, the others make the draws.

        Masses are measured before each round of warm-up, the step size before every round. A round
        that is too hot, non-finite, or loses what was learned is repeated with half the step size.
        """
        per_round = -(-num_draws // _NUM_ROUNDS)
        thinning = max(1, num_steps // (2 * _NUM_ROUNDS * per_round))
        position, squares, kept = np.asarray(position), None, []
        num_halvings, number = 0, 0
        part = self._part()
        level = np.asarray(_levels(self.network, position, part, self.kind))
        allowed = (
            _MAX_LOSS_PER_PARAMETER * self.network.num_parameters / self.table.x.shape[1]
            + _MAX_LOSS
        )
        while number < 2 * _NUM_ROUNDS:
            if number < _NUM_ROUNDS or squares is None:
                squares = self._fisher(position)
            step = self._step(position, squares) / 2**num_halvings
            round_key = jax.random.fold_in(jax.random.fold_in(key, number), num_halvings)
            run = self._round(round_key, position, step, squares, thinning, per_round)
            reached = self._reached(run, part)
            if reached is None or np.any(reached < level - allowed):
                num_halvings += 1
                if num_halvings > _MAX_HALVINGS:
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
        """Return a step size at which friction outweighs the noise and nothing oscillates."""
        num_rows = self.table.x.shape[1]
        mass, ratio = 1 + num_rows * squares, num_rows / self.batch_size
        quiet = (2 * _NOISE_SHARE * _MOMENTUM_DECAY / ratio) ** 0.5
        frequencies = _frequencies(self.network, position, self._part(), self.kind, mass, num_rows)
        return min(_MAX_STEP_SIZE, quiet, _MAX_ANGLE / float(frequencies.max()))

    def _reached(self, run: Any, part: Table) -> np.ndarray | None:
        """Return log-likelihoods at the end of a round; None if it is not finite or too hot."""
        if run is None or run.temperature > _MAX_TEMPERATURE:
            return None
        return np.asarray(_levels(self.network, run.draws[:, -1], part, self.kind))

    def _round(self, key, position, step: float, squares, thinning: int, count: int) -> Any:
        """Run one round; return None if a chain became non-finite."""
        num_rows = self.table.x.shape[1]
        mass, noise = 1 + num_rows * squares, num_rows**2 / self.batch_size * squares
        try:
            samples = sample(
                key,
                self._posterior,
                SGHMC(step, mass * _MOMENTUM_DECAY / step, mass, gradient_noise=noise),
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
        network, kind = self.network, self.kind

        def log_likelihood(z, row):
            table = Table(row["x"][:, None], row["y"][None], row["weight"][None])
            return network.log_likelihood(z, table, kind)

        x, y, weight = self.table
        data = {"x": np.ascontiguousarray(x.T), "y": y, "weight": weight}
        return Posterior(log_likelihood, lambda z: -0.5 * jnp.sum(z**2), data)

    def _fisher(self, position) -> np.ndarray:
        return np.asarray(_squares(self.network, position, self._part(), self.kind))

    def _part(self) -> Table:
        """Return a fixed random subset of the rows."""
        count = self.table.x.shape[1]
        rows = np.random.default_rng(0).permutation(count)[:_NUM_FISHER_ROWS]
        return Table(self.table.x[:, rows], self.table.y[rows], self.table.weight[rows])
