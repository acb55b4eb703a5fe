"""Chains for a network of numbers: trained starts, exploration, then exact sampling.

Isokinetic trajectories with large steps find the typical set from a trained start, and such with an
accept step sample it: their law is exact, so that more steps never make it worse. All chains are
one compiled program, and no number that a fit may change is part of it.

Which noise a target has, as rows tell that were not seen.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.engine.chain import NEVER
from sghmc.engine.progress import Bar
from sghmc.estimators import isokinetic, network_training
from sghmc.estimators.isokinetic import Noise, Passed, Phase, Walkers
from sghmc.estimators.network_training import clearly_likeliest
from sghmc.estimators.regression_network import Kind, NumberNetwork, Table, columns, host_generator
from sghmc.estimators.weighted_rows import Rows, rounding

_BLOCK = 5
"""Trajectories of one call: between calls Ctrl-C is heard and the bar moves."""
_TRAJECTORY = 20
_MOST_AT_ONCE = 2048
"""Rows that training looks at together."""
_TRAIN_STEPS, _TRAIN_BATCH = 4000, 512
_FIRST_ERROR, _LAST_ERROR = 5.0, 0.05
"""Energy variance a dimension in exploration, from large steps to smaller ones."""
_FIRST_STEP = 0.01
_NO_STEP = -60.0
"""Of the logarithm of a step: no position moves by it."""
_EXACT_SHARE = 0.3
"""Of the explorer's step, where exact sampling begins."""
_ACCEPT_RATE, _JITTER = 0.85, 0.4
_LEAST_ACCEPTANCE = 0.3
_MOST_RERUNS = 3
_FAR = 1.0
"""How much higher than the median a chain's potential may be, for each parameter."""


class Plan(NamedTuple):
    """Trajectories of each phase, and the steps of one."""

    explore: int
    settle: int
    keep: int
    length: int

    @classmethod
    def of(cls, num_steps: int, num_draws: int) -> "Plan":
        """Two thirds of the steps explore, a ninth settles the step, the rest makes draws."""
        keep_steps = max(2 * num_steps // 9, 1)
        length = int(np.clip(keep_steps // num_draws, 1, _TRAJECTORY))
        settle = _blocks(num_steps / 9 / length)
        explore = _blocks(2 * num_steps / 3 / length)
        return cls(explore, settle, _blocks(max(keep_steps / length, num_draws)), length)

    def trial(self) -> "Plan":
        """To judge a model by."""
        return self._replace(explore=_blocks(self.explore / 4), settle=0, keep=0)

    def going_on(self) -> "Plan":
        """For chains that take more rows in."""
        return self._replace(explore=_blocks(self.explore / 4))


def _blocks(count: float) -> int:
    return max(1, -(-int(np.ceil(count)) // _BLOCK)) * _BLOCK


class Run(NamedTuple):
    """Draws (chain, draw, parameter), potentials (chain, draw), each chain's accept rate."""

    draws: np.ndarray
    potentials: np.ndarray
    acceptance: np.ndarray
    num_replaced: int = 0
    """Chains that were left behind in exploration, and began again where another was."""
    temperature: float | None = None
    """Of the momenta, where there are such."""


def _gradient(network: NumberNetwork, table: Table, kind: Kind):
    function = jax.vmap(jax.value_and_grad(network.potential), in_axes=(0, None, 0))
    return lambda position: function(position, table, kind)


@functools.partial(jax.jit, static_argnames="network")
def _block(network: NumberNetwork, noise: Noise, walkers, table: Table, kind: Kind, phases: Phase):
    gradient = _gradient(network, table, kind)
    return jax.lax.scan(
        lambda carry, each: isokinetic.trajectory(each[0], carry, gradient, each[1]),
        walkers,
        (noise, phases),
    )


class NumberChains:
    """The chains of one fit."""

    def __init__(self, network: NumberNetwork, table: Table, kind: Kind, progress: bool = False):
        """`kind` is the noise of each chain."""
        self.network, self.table = network, Table(*map(jnp.asarray, table))
        self.kind, self.num_chains = kind, len(kind.is_input)
        self.progress = progress
        self._is_compiled = False

    def train(self, key: jax.Array) -> jax.Array:
        """The mean of each chain, by few steps with all rows, or by batches of many."""
        start_key, key = jax.random.split(key)
        start = self.network.start(start_key, self.num_chains)
        if self.table.x.shape[1] <= _MOST_AT_ONCE:
            return network_training.of_all_rows(self.network, start, self.table, self.kind.plain())
        return network_training.of_batches(
            self.network, key, start, self.table, self.kind.plain(), _TRAIN_STEPS, _TRAIN_BATCH
        )

    def explore(self, key: jax.Array, position, plan: Plan) -> tuple[Walkers, Passed]:
        start_key, key = jax.random.split(key)
        walkers = self._begun(start_key, position)
        share = np.minimum(1, np.arange(plan.explore) / (0.8 * plan.explore))
        errors = _FIRST_ERROR * (_LAST_ERROR / _FIRST_ERROR) ** share
        return self._pass(key, walkers, plan.explore, plan.length, errors=errors)

    def _begun(self, key: jax.Array, position) -> Walkers:
        """Walkers that know potential and gradient, by steps of no length.

        By the program that runs anyhow: one of its own would take seconds to compile.
        """
        key, pass_key = jax.random.split(key)
        noise = host_generator(key).standard_normal(position.shape, np.float32)
        walkers = isokinetic.start(noise, position, _FIRST_STEP)
        still = walkers._replace(log_step=np.full(self.num_chains, _NO_STEP, np.float32))
        looked, _ = self._pass(pass_key, still, _BLOCK, 1, errors=np.ones(_BLOCK))
        return walkers._replace(potential=looked.potential, grad=looked.grad)

    def sample(self, key: jax.Array, position, plan: Plan) -> Run:
        """Exploration, then exact draws; chains that accept too few draw again by smaller steps."""
        key, explore_key = jax.random.split(key)
        walkers, _ = self.explore(explore_key, position, plan)
        walkers, num_replaced = _together(walkers)
        begin = walkers.log_step + np.float32(np.log(_EXACT_SHARE))
        walkers = walkers._replace(log_step=begin, log_step_mean=begin)
        settle_key, key = jax.random.split(key)
        walkers, _ = self._pass(settle_key, walkers, plan.settle, plan.length, is_adapting=True)
        kept: Any = None
        is_low = np.ones(self.num_chains, bool)
        for attempt in range(1 + _MOST_RERUNS):
            keep_key = jax.random.fold_in(key, attempt)
            walkers, drawn = self._pass(keep_key, walkers, plan.keep, plan.length)
            # Chains that did well keep what they have: another pass could go worse.
            kept = drawn if kept is None else _of_each(is_low, drawn, kept)
            is_low = kept.acceptance.mean(0) < _LEAST_ACCEPTANCE
            if not is_low.any():
                break
            smaller = np.where(is_low, np.log(3.0), 0.0).astype(np.float32)
            walkers = walkers._replace(log_step_mean=walkers.log_step_mean - smaller)
        position, potential, acceptance = kept
        return Run(
            position.swapaxes(0, 1), potential.swapaxes(0, 1), acceptance.mean(0), num_replaced
        )

    def _pass(self, key, walkers: Walkers, count: int, length: int, errors=None, is_adapting=False):
        """So many trajectories, exact ones unless wanted `errors` are given."""
        numbers = np.arange(count)
        phases = Phase(
            np.full(count, errors is None),
            np.full(count, is_adapting),
            numbers.astype(np.float32),
            np.ones(count, np.float32) if errors is None else errors.astype(np.float32),
            np.full(count, length, np.int32),
            np.full(count, _ACCEPT_RATE, np.float32),
            np.full(count, _JITTER, np.float32),
        )
        generator, parts = host_generator(key), []
        shape, groups = walkers.position.shape, self._groups()
        each = [_of_chains(group, walkers) for group in groups]
        kinds = [_of_chains(group, self.kind) for group in groups]
        with Bar(self.progress, count) as bar, ThreadPoolExecutor(len(groups)) as pool:
            for i in range(0, count, _BLOCK):
                now = Phase(*(column[i : i + _BLOCK] for column in phases))
                noise = Noise.draw(generator, _BLOCK, shape)
                noises = [noise.of_chains(group) for group in groups]
                blocks = functools.partial(_block_on_host, self.network, self.table, now)
                # One after the other until it is compiled: else each thread would compile it.
                over = pool.map if self._is_compiled and len(groups) > 1 else map
                done = list(over(blocks, noises, each, kinds))
                self._is_compiled = True
                each = [walkers for walkers, _ in done]
                parts.append(_joined([passed for _, passed in done], axis=1))
                bar.update(i + _BLOCK, np.full(self.num_chains, NEVER))
        return _joined(each), _joined(parts)

    def _groups(self) -> list[slice]:
        """Halves of the chains, for two threads: on a host a program as small takes one core."""
        is_cut = jax.default_backend() == "cpu" and self.num_chains % 2 == 0
        size = self.num_chains // 2 if is_cut else self.num_chains
        return [slice(first, first + size) for first in range(0, self.num_chains, size)]


def _block_on_host(network: NumberNetwork, table: Table, phases: Phase, noise, walkers, kind):
    return jax.tree.map(np.asarray, _block(network, noise, walkers, table, kind, phases))


def _of_chains(group: slice, tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[group], tree)


def _joined(trees: list, axis: int = 0):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *trees)


def _of_each(is_new: np.ndarray, new: Passed, old: Passed) -> Passed:
    """Trajectories of some chains from one pass, of the others from another."""
    return jax.tree.map(
        lambda one, other: np.where(is_new[:, None] if one.ndim == 3 else is_new, one, other),
        new,
        old,
    )


def _together(walkers: Walkers) -> tuple[Walkers, int]:
    """A chain that is left far behind the others begins again where the median chain is."""
    potential = np.asarray(walkers.potential)
    size = walkers.position.shape[1]
    middle = np.argsort(potential)[len(potential) // 2]
    is_behind = potential > potential[middle] + _FAR * size
    source = np.where(is_behind, middle, np.arange(len(potential)))
    return jax.tree.map(lambda leaf: leaf[source], walkers), int(is_behind.sum())


# Which noise a target has, as rows tell that were not seen.

_SHARE = 0.15
_FEWEST_ROWS, _MOST_ROWS = 40, 2048
"""Of few rows none can be spared; of many some are enough to choose by."""
_JUDGED = 0.5
"""The share of a trial's trajectories that is judged: the last ones."""
_PLAIN, _USUAL = "constant", "student"
_TRIED = (_PLAIN, _USUAL)
"""Not "input": Student's t has it as its limit, and where it seems likelier on the rows held out, a
single row far off undoes that."""


def choose(
    key: jax.Array, network: NumberNetwork, rows: Rows, num_chains: int, num_steps: int
) -> str:
    """Chains with each kind of noise explore most rows; the others say which is likeliest.

    Student's t is taken unless one noise for all rows is clearly better.
    """
    if len(rows.x) < _FEWEST_ROWS:
        return _PLAIN
    order = np.random.default_rng(0).permutation(len(rows.x))[:_MOST_ROWS]
    held, seen = np.split(order, [round(_SHARE * len(order))])
    logs = held_out_logs(key, network, _part(rows, seen), _part(rows, held), num_chains, num_steps)
    return clearly_likeliest(logs, _USUAL)


def _part(rows: Rows, places: np.ndarray) -> Rows:
    return Rows(*(column[np.sort(places)] for column in rows))


def held_out_logs(
    key: jax.Array,
    network: NumberNetwork,
    seen: Rows,
    held: Rows,
    num_chains: int,
    num_steps: int,
) -> dict[str, np.ndarray]:
    """Weighted log-likelihoods of held-out rows under each kind of noise tried."""
    # Of the length that the fit of all rows has: its program serves the trial, too.
    table = columns(seen, room=len(seen.x) + len(held.x))
    plan, least_scale, logs = Plan.of(num_steps, 1).trial(), rounding(seen.y), {}
    for first in range(0, len(_TRIED), num_chains):
        names = [_TRIED[first:][i % len(_TRIED[first:])] for i in range(num_chains)]
        chains = NumberChains(network, table, Kind.of(names, least_scale))
        train_key, run_key = jax.random.split(jax.random.fold_in(key, first))
        position = chains.train(train_key)
        _, passed = chains.explore(run_key, position, plan)
        draws = passed.position[-int(_JUDGED * len(passed.position)) :]
        for name in dict.fromkeys(names):
            mine = draws[:, [each == name for each in names]].reshape(-1, draws.shape[-1])
            law = network.predictive(mine, held.x.T, name, least_scale)
            logs[name] = held.weight * law.log_density(held.y)
    return logs
