"""Chains of the regression network: trained starts, exploration, then exact sampling.

Microcanonical trajectories with large steps find the typical set from a trained start; with an
accept step they sample it, so that their law is exact and more steps never make it worse.

Rows that were held out say which noise a target has.
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from sghmc.core import random
from sghmc.engine.options import RunOptions
from sghmc.engine.run import run
from sghmc.estimators.networks import clearly_likeliest
from sghmc.estimators.regression_network import Kind, RegressionNetwork, Table, columns, train
from sghmc.estimators.weighted_rows import WeightedRows, rounding
from sghmc.gradients import Oracle
from sghmc.posterior.target import Potential
from sghmc.samplers import Sampler, Traits
from sghmc.samplers.microcanonical import MCHMC, MCHMCKernel, MCHMCNoise, MCHMCState
from sghmc.types import Evaluation, Normals, PyTree, Step, StepInfo

_TRAJECTORY_STEPS = 20
_MAX_FULL_BATCH = 2048
"""Largest number of rows for training with all of them in every step."""
_FULL_STEPS = 300
"""Training steps with all rows: with more of them, chains see less of the posterior."""
_TRAIN_STEPS, _TRAIN_BATCH = 4000, 512
_FIRST_ERROR, _LAST_ERROR = 5.0, 0.05
"""Variances of a step's energy error for each dimension: exploration begins with large steps."""
_FIRST_STEP = 0.01
_EXACT_SHARE = 0.3
"""Share of the explorer's step size with which exact sampling begins."""
_ACCEPTANCE, _JITTER = 0.85, 0.4
_MIN_ACCEPTANCE = 0.3
_MAX_RERUNS = 3
_RERUN_SHARE = 0.05
"""Share of the exploration that a run is repeated with: enough to find its step size."""
_MAX_EXCESS = 1.0
"""How much higher than the median a chain's potential may be, for each parameter."""
_MAX_LOG_CHANGE = 0.5
"""Largest change of the step size's logarithm after a trajectory of exploration."""
_ERROR_DECAY = 0.8
_GAIN, _GAIN_DECAY = 2.0, 0.6
_MAX_ERROR = 1e8
_TINY = 1e-30


class ChainPlan(NamedTuple):
    """Numbers of trajectories in each phase, and the steps of one trajectory."""

    explore: int
    settle: int
    keep: int
    length: int

    @classmethod
    def of(cls, num_steps: int, num_draws: int) -> "ChainPlan":
        """Return a plan: two thirds of the steps explore, a ninth settles, the rest makes draws."""
        keep_steps = max(2 * num_steps // 9, 1)
        length = int(np.clip(keep_steps // num_draws, 1, _TRAJECTORY_STEPS))
        explore, settle = _up(2 * num_steps / 3 / length), _up(num_steps / 9 / length)
        return cls(explore, settle, _up(max(keep_steps / length, num_draws)), length)

    def going_on(self) -> "ChainPlan":
        """Return a plan that explores a quarter as long, for a trial or to take in rows."""
        return self._replace(explore=_up(self.explore / 4))


def _up(count: float) -> int:
    return max(1, int(np.ceil(count)))


class ExplorerState(NamedTuple):
    """`MCHMCState` with a step size of the chain's own and the memory of its energy errors.

    `error` is the energy variance for each dimension over ε⁶, a sum that fades, and `weight` is the
    sum of its weights.
    """

    position: PyTree
    direction: PyTree
    cached: Evaluation | None
    log_step: jax.Array
    log_mean: jax.Array
    error: jax.Array
    weight: jax.Array


class Explorer(Sampler):
    """`MCHMC` that warms up by itself: trajectories explore, settle the step size, then sample.

    | field | meaning |
    | --- | --- |
    | `step_size` | ε of the first trajectory |
    | `num_steps` | steps of a trajectory |
    | `explore` | trajectories without accept step, in which the energy error sets ε |
    | `settle` | trajectories with accept step, in which the acceptance sets ε |

    While it explores, the wanted variance of a step's energy error for each dimension falls from 5
    to 0.05. As it goes with ε⁶, log ε moves by a sixth of its logarithm's distance. From then on
    every trajectory has an accept step; after `settle` of them ε is the mean of those tried, and
    the law is exact. What comes before is burn-in.
    """

    traits: ClassVar[Traits] = Traits("0", "none", "networks of a few hundred weights")

    step_size: float
    num_steps: int
    explore: int
    settle: int

    @property
    def is_affine(self) -> bool:
        return False

    def prepare(self, like, num_steps=1):
        plain = MCHMC(self.step_size, self.num_steps, jitter=_JITTER).prepare(like, num_steps)
        given = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
        # Arrays, so that runs of any length share a compiled program.
        phases: Any = {name: jnp.asarray(getattr(self, name)) for name in ("explore", "settle")}
        return ExplorerKernel(**given, **phases)


class ExplorerKernel(MCHMCKernel):
    explore: jax.Array
    settle: jax.Array

    def init(self, normals: Normals, position: PyTree) -> Any:
        state, log = super().init(normals, position), jnp.log(self.constant_step_size())
        return ExplorerState(*state, log, log, jnp.zeros_like(log), jnp.zeros_like(log))

    def step(self, t: Step, noise: MCHMCNoise, state: Any, oracle: Oracle) -> Any:
        number, size = t - self.explore, state.position.size
        is_exact = number >= 0
        log_step = state.log_step + jnp.where(number == 0, np.float32(np.log(_EXACT_SHARE)), 0)
        log_mean = jnp.where(number <= 0, log_step, state.log_mean)
        state = state._replace(log_step=log_step, log_mean=log_mean)
        mean_step = jnp.exp(jnp.where(number < self.settle, log_step, log_mean))
        # Without accept step a direction is forgotten over a path of √d.
        path = self.num_steps * mean_step / self.decoherence
        kick = jnp.sqrt(jnp.expm1(2 * path) / size)
        normals = random.copy_of(noise.normals, 0, state.position)
        fresh = jnp.where(is_exact, normals, state.direction + kick * normals)
        fresh = fresh / jnp.linalg.norm(fresh)
        jitter = jnp.where(is_exact, self.jitter, 0)
        epsilon = mean_step * (1 + jitter * (2 * noise.uniforms[1] - 1))
        begun = MCHMCState(state.position, fresh, state.cached)
        proposal, start, end, work, squares = self.trajectory(epsilon, begun, oracle)
        loss = end - start + work
        is_finite = jnp.isfinite(loss) & jnp.isfinite(squares)
        acceptance = jnp.where(is_finite, jnp.exp(jnp.minimum(0, -loss)), 0)
        is_taken = jnp.where(is_exact, noise.uniforms[0] < acceptance, is_finite)
        old = begun._replace(direction=-fresh)
        moved = jax.tree.map(lambda new, old: jnp.where(is_taken, new, old), proposal, old)
        error = jnp.where(is_finite, jnp.minimum(squares / self.num_steps, _MAX_ERROR), _MAX_ERROR)
        state = state._replace(position=moved[0], direction=moved[1], cached=moved[2])
        state = self.with_new_step(t, state, error / (size * epsilon**6), acceptance)
        return state, StepInfo(jnp.where(is_taken, end, start), acceptance)

    def with_new_step(self, t, state: ExplorerState, error, acceptance) -> ExplorerState:
        """Return the state with the step size of the next trajectory, after number t."""
        number, old = t - self.explore, state.log_step
        errors, weight = _ERROR_DECAY * state.error + error, _ERROR_DECAY * state.weight + 1
        share = jnp.minimum(1, t / (0.8 * self.explore))
        wanted = _FIRST_ERROR * (_LAST_ERROR / _FIRST_ERROR) ** share
        free = jnp.log(wanted * weight / (errors + _TINY)) / 6
        free = jnp.clip(free, old - _MAX_LOG_CHANGE, old + _MAX_LOG_CHANGE)
        # The power of a negative number would be NaN, in the branch that exploration does not take.
        count = jnp.maximum(number, 0)
        gain = _GAIN / (count + 2) ** _GAIN_DECAY
        settled = old + (acceptance - _ACCEPTANCE) * gain
        mean = state.log_mean + jnp.minimum(1, 4 / (count + 1)) * (settled - state.log_mean)
        is_free, is_settling = number < 0, number < self.settle
        log_step = jnp.where(is_free, free, jnp.where(is_settling, settled, old))
        log_mean = jnp.where(is_free, free, jnp.where(is_settling, mean, state.log_mean))
        return state._replace(log_step=log_step, log_mean=log_mean, error=errors, weight=weight)

    def map_parameters(self, state: Any, shape: Callable[[PyTree], PyTree]) -> Any:
        return state._replace(position=shape(state.position), direction=shape(state.direction))


class Run(NamedTuple):
    """Draws (chain, draw, parameter), potentials (chain, draw), each chain's acceptance."""

    draws: np.ndarray
    potentials: np.ndarray
    acceptance: np.ndarray
    num_replaced: int = 0
    """Number of chains that were left behind and began again where another was."""
    temperature: float | None = None
    """Temperature of the momenta, if there are any."""


class _TablePotential(eqx.Module):
    """The network's potential; its arrays are arguments of the compiled loop."""

    network: RegressionNetwork = eqx.field(static=True)
    table: Table
    kind: Kind

    def __call__(self, z: jax.Array) -> jax.Array:
        return self.network.potential(z, self.table, self.kind)


class RegressionChains:
    """Chains of a network with one kind of noise; programs are shared by all of the same shapes."""

    def __init__(self, network: RegressionNetwork, table: Table, kind: Kind, progress=False):
        self.network, self.table, self.kind = network, Table(*map(jnp.asarray, table)), kind
        self.progress = progress

    def train(self, key: jax.Array, num_chains: int) -> jax.Array:
        """Train the mean of each chain, by few steps with all rows, or by batches of many."""
        start_key, key = jax.random.split(key)
        start = self.network.start(start_key, num_chains)
        is_small = self.table.x.shape[1] <= _MAX_FULL_BATCH
        steps, size = (_FULL_STEPS, None) if is_small else (_TRAIN_STEPS, _TRAIN_BATCH)
        return train(self.network, key, start, self.table, self.kind.plain(), steps, size)

    def draw(self, key: jax.Array, position, plan: ChainPlan, progress: bool = False) -> Run:
        """Return the draws of a plan; those of the exploration if it keeps no others."""
        warmup, count = (plan.explore + plan.settle, plan.keep) if plan.keep else (0, plan.explore)
        target = Potential(_TablePotential(self.network, self.table, self.kind))
        sampler = Explorer(_FIRST_STEP, plan.length, plan.explore, plan.settle)
        options = RunOptions(
            init_axis=0,
            num_burnin=warmup,
            num_samples=count,
            num_chains=len(position),
            progress=progress,
        )
        samples = run(key, target, sampler, jnp.asarray(position), options)
        # Ctrl-C ends a run with what was drawn so far: a part of a run is no model.
        if samples.positions.shape[1] < count:
            raise KeyboardInterrupt
        acceptance = samples.info.acceptance
        assert acceptance is not None
        return Run(samples.positions, np.asarray(samples.info.potential), acceptance.mean(1))

    def sample(self, key: jax.Array, num_chains: int, plan: ChainPlan, position=None) -> Run:
        """Return exact draws; chains that were left behind or accept too few draw again."""
        groups = num_groups(num_chains)
        size, keys = num_chains // groups, list(jax.random.split(key, groups))
        starts = groups * [None] if position is None else np.split(position, groups)
        runs = in_threads(groups * [self], keys, starts, size, plan)
        parts = zip(*(each[:3] for each in runs), strict=True)
        draws, potentials, acceptance = (np.concatenate(part) for part in parts)
        num_replaced = 0
        for attempt in range(_MAX_RERUNS):
            level = potentials.mean(1)
            middle = np.argsort(level)[num_chains // 2]
            is_behind = level > level[middle] + _MAX_EXCESS * draws.shape[2]
            is_bad = is_behind | (acceptance < _MIN_ACCEPTANCE)
            bad = [i for i in range(groups) if is_bad[i * size : (i + 1) * size].any()]
            if not bad:
                break
            num_replaced += int(is_behind.sum())
            source = np.where(is_behind, middle, np.arange(num_chains))
            start = np.split(draws[source, -1], groups)
            keys = [jax.random.fold_in(each, 3 + attempt) for each in keys]
            short = plan._replace(explore=_up(_RERUN_SHARE * plan.explore))
            some = [keys[i] for i in bad], [start[i] for i in bad]
            again = in_threads(len(bad) * [self], *some, size, short)
            for i, own in zip(bad, again, strict=True):
                # Chains that did well keep what they have: another run could go worse.
                for old, new in zip((draws, potentials, acceptance), own[:3], strict=True):
                    rows = np.flatnonzero(is_bad[i * size : (i + 1) * size])
                    old[i * size + rows] = new[rows]
        return Run(draws, potentials, acceptance, num_replaced)


def num_groups(num_chains: int) -> int:
    """Return the number of threads for the chains: one such program keeps one core busy."""
    return 2 if jax.default_backend() == "cpu" and num_chains % 2 == 0 else 1


def in_threads(
    chains: Sequence[RegressionChains], keys, starts: list, size: int, plan: ChainPlan
) -> list[Run]:
    """Run `size` chains of each of some models from their starts, trained where there are none."""

    def begun(i: int):
        if starts[i] is not None:
            return starts[i]
        return chains[i].train(jax.random.fold_in(keys[i], 0), size)

    def drawn(i: int) -> Run:
        key = jax.random.fold_in(keys[i], 1)
        position = first if i == 0 else begun(i)
        return chains[i].draw(key, position, plan, progress=chains[i].progress and i == 0)

    first = begun(0)
    if len(chains) > 1:
        # Compiled before the threads begin: each would do it by itself.
        chains[0].draw(jax.random.fold_in(keys[0], 2), first, ChainPlan(0, 0, 1, plan.length))
    with ThreadPoolExecutor(num_groups(2 * size)) as pool:
        return list(pool.map(drawn, range(len(chains))))


# Rows that were held out choose the noise.

_HELD_SHARE = 0.15
_MIN_ROWS, _MAX_ROWS = 40, 2048
"""Numbers of rows from which on some can be held out, and that are enough to choose by."""
_JUDGED_SHARE = 0.5
"""Share of a trial's trajectories that is judged: the last ones."""
_MAX_CRPS_RATIO = 0.75
"""Ratio of CRPS from which on one noise for all rows is better by far than Student's t."""
_PLAIN, _USUAL = "constant", "student"
_TRIED = (_PLAIN, _USUAL)
"""Kinds of noise that are tried; not "input": Student's t has it as its limit, and where it seems
likelier on the rows held out, a single row far off undoes that."""


class HeldOutScores(NamedTuple):
    """Weighted scores of held-out rows: log-likelihoods, CRPS and squared errors of the mean."""

    log: np.ndarray
    crps: np.ndarray
    square: np.ndarray


class Choice(NamedTuple):
    """A kind of noise and, if it was tried, its squared error on held-out rows.

    `error_ratio` is relative to that of the mean of the rows that were seen.
    """

    noise: str
    error_ratio: float | None = None


def choose(
    key: jax.Array, network: RegressionNetwork, rows: WeightedRows, num_chains: int, plan: ChainPlan
) -> Choice:
    """Choose the kind of noise on held-out rows, after some exploration.

    Student's t is taken unless one noise for all rows is clearly better, by log-likelihood or by
    far by CRPS: t may buy a good likelihood of most rows with a mean that gives up the others.
    """
    if len(rows.x) < _MIN_ROWS:
        return Choice(_PLAIN)
    order = np.random.default_rng(0).permutation(len(rows.x))[:_MAX_ROWS]
    parts = np.split(order, [round(_HELD_SHARE * len(order))])
    held, seen = (WeightedRows(*(column[np.sort(part)] for column in rows)) for part in parts)
    scores = held_out_scores(key, network, seen, held, num_chains, plan)
    chosen = clearly_likeliest({name: each.log for name, each in scores.items()}, _USUAL)
    plain, usual = scores[_PLAIN].crps, scores[_USUAL].crps
    gains, share = usual - plain, plain.sum() / max(usual.sum(), np.finfo(float).tiny)
    if share < _MAX_CRPS_RATIO and gains.sum() > 2 * gains.std() * len(gains) ** 0.5:
        chosen = _PLAIN
    constant = held.weight @ (held.y - np.average(seen.y, weights=seen.weight)) ** 2
    if constant == 0:
        return Choice(chosen)
    return Choice(chosen, float(scores[chosen].square.sum() / constant))


def held_out_scores(
    key: jax.Array,
    network: RegressionNetwork,
    seen: WeightedRows,
    held: WeightedRows,
    num_chains: int,
    plan: ChainPlan,
) -> dict[str, HeldOutScores]:
    """Return the scores of held-out rows under each kind of noise tried."""
    # Of the length that the fit of all rows has: its program serves the trial, too.
    table, least_scale = columns(seen, room=len(seen.x) + len(held.x)), rounding(seen.y)
    chains = [RegressionChains(network, table, Kind.of(name, least_scale)) for name in _TRIED]
    size, plan = num_chains // num_groups(num_chains), plan.going_on()._replace(settle=0, keep=0)
    keys = list(jax.random.split(key, len(chains)))
    runs = in_threads(chains, keys, len(chains) * [None], size, plan)
    scores, generator = {}, np.random.default_rng(0)
    for name, own in zip(_TRIED, runs, strict=True):
        draws = own.draws[:, -int(np.ceil(_JUDGED_SHARE * plan.explore)) :]
        law = network.predictive(draws.reshape(-1, draws.shape[-1]), held.x.T, name, least_scale)
        log, crps = law.log_density(held.y), law.crps(held.y, generator)
        square, weight = (law.mean() - held.y) ** 2, held.weight
        scores[name] = HeldOutScores(weight * log, weight * crps, weight * square)
    return scores
