"""Which noise a target has, as rows tell that were not seen."""

import jax
import numpy as np

from sghmc.estimators.mlp.held_out import clearly_likeliest
from sghmc.estimators.mlp.number_chains import NumberChains, Plan
from sghmc.estimators.mlp.number_network import Kind, NumberNetwork, columns
from sghmc.estimators.rows import Rows, rounding

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
