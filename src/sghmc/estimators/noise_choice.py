"""Which noise a target has, as rows tell that were not seen."""

import jax
import numpy as np

from sghmc.estimators.number_chains import NumberChains, Plan
from sghmc.estimators.number_network import KINDS, NumberNetwork, Table

_SHARE = 0.15
_FEWEST_ROWS = 40
_JUDGED = 0.5
"""The share of a trial's trajectories that is judged: the last ones."""
_PLAIN = "constant"


def choose(
    key: jax.Array, network: NumberNetwork, table: Table, num_rows: int, num_chains: int, plan: Plan
) -> str:
    """Chains with each kind of noise explore most of the rows; the others say which is likeliest.

    Of few rows none can be spared: their noise is constant.
    """
    if num_rows < _FEWEST_ROWS:
        return _PLAIN
    logs = held_out_logs(key, network, table, num_rows, num_chains, plan)
    return max(logs, key=lambda name: float(logs[name].sum()))


def held_out_logs(
    key: jax.Array, network: NumberNetwork, table: Table, num_rows: int, num_chains: int, plan: Plan
) -> dict[str, np.ndarray]:
    """Weighted log-likelihoods of held-out rows under each kind of noise."""
    weight = np.asarray(table.weight)
    held = np.random.default_rng(0).permutation(num_rows)[: round(_SHARE * num_rows)]
    seen = weight.copy()
    seen[held] = 0
    rows = Table(table.x[:, held], table.y[held], weight[held])
    logs = {}
    for first in range(0, len(KINDS), num_chains):
        names = [KINDS[first:][i % len(KINDS[first:])] for i in range(num_chains)]
        chains = NumberChains(network, table._replace(weight=seen), names)
        train_key, run_key = jax.random.split(jax.random.fold_in(key, first))
        position = chains.train(train_key)
        _, passed = chains.explore(run_key, position, plan.trial())
        draws = passed.position[-int(_JUDGED * len(passed.position)) :]
        for name in dict.fromkeys(names):
            mine = draws[:, [each == name for each in names]].reshape(-1, draws.shape[-1])
            logs[name] = rows.weight * network.predictive(mine, rows.x, name).log_density(rows.y)
    return logs
