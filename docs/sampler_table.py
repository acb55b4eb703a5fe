"""Make the table "which sampler when" (`python docs/sampler_table.py` prints it).

Gradients a step are counted in a step that runs, and numbers in the state from its shapes. The
other columns are the `traits` of each sampler's class.
"""

import jax
import jax.numpy as jnp

from sghmc.core import tree
from sghmc.gradients import Oracle
from sghmc.samplers import Sampler
from sghmc.samplers.hmc import HMC
from sghmc.samplers.langevin import PSGLD, SGLD
from sghmc.samplers.lazy import Lazy
from sghmc.samplers.microcanonical import MCHMC
from sghmc.samplers.nose_hoover import SGNHT
from sghmc.samplers.optimizers import SGD, Momentum
from sghmc.samplers.replicas import ReplicaExchange
from sghmc.samplers.riemannian import SGRHMC
from sghmc.samplers.rounding import StochasticRounding
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.splitting import BAOAB, OBABO, UBU
from sghmc.samplers.wrappers import Cyclical, Whitened
from sghmc.types import Evaluation

_SIZE = 3
"""Number of parameters of the examples: above one, so that "2d + 1" differs from "3d"."""

EXAMPLES = {
    "`SGHMC`": SGHMC(0.1, friction=1.0),
    "`BAOAB`": BAOAB(0.1, friction=1.0),
    "`OBABO`": OBABO(0.1, friction=1.0),
    "`UBU`": UBU(0.1, friction=1.0),
    "`SGNHT`": SGNHT(0.1),
    '`SGNHT(thermostat="diagonal")`': SGNHT(0.1, thermostat="diagonal"),
    "`SGRHMC`": SGRHMC(0.1, metric=lambda theta: 1 + theta**2),
    "`SGLD`": SGLD(0.1),
    "`PSGLD`": PSGLD(0.1),
    "`HMC`, m leapfrog steps": HMC(0.1, num_steps=4),
    "`MCHMC`, m steps": MCHMC(0.1, num_steps=4),
    "`Cyclical`": Cyclical(SGHMC(0.1, friction=1.0), cycle_length=10),
    "`ReplicaExchange`, 3 temperatures": ReplicaExchange(SGHMC(0.1, friction=1.0), [1, 3, 9]),
    "`Whitened`": Whitened(SGHMC(0.1, friction=1.0), jnp.zeros(_SIZE), 1.0),
    "`Lazy`, d rows of one entry": Lazy(SGHMC(0.1, friction=1.0)),
    "`StochasticRounding`": StochasticRounding(SGHMC(0.1, friction=1.0)),
    "`SGD`": SGD(0.1),
    "`Momentum`": Momentum(0.1, 0.1),
}


def num_gradients(sampler: Sampler) -> int:
    """Count the gradients of a step that runs and moves all parameters."""
    sampler, evaluations = sampler.eager, []

    def evaluate(i, position):
        # Counts when the step runs, not when it is traced, and for each of several replicas.
        jax.debug.callback(evaluations.append, position)
        return Evaluation(jnp.sum(position**2) / 2, position)

    position = jnp.ones(_SIZE)
    kernel = sampler.prepare(position)
    oracle = Oracle(evaluate, lambda position: jnp.sum(position**2) / 2, is_exact=True)
    state = kernel.init([jnp.zeros(_SIZE)], position)
    noise = kernel.draw(jnp.zeros(2, jnp.uint32), 0, 1, position)
    with jax.disable_jit():  # so that every turn of a loop is counted
        kernel.step(0, noise, state, oracle)
    jax.effects_barrier()
    return len(evaluations)


def state_size(sampler: Sampler) -> str:
    """Return how many numbers a chain carries, in terms of the number of parameters d."""
    like = jax.ShapeDtypeStruct((_SIZE,), jnp.float32)
    kernel = sampler.prepare(like)
    state = jax.eval_shape(lambda: kernel.init([jnp.zeros(_SIZE)], jnp.zeros(_SIZE)))
    copies, more = divmod(tree.size(state), _SIZE)
    return f"{copies if copies > 1 else ''}d" + (f" + {more}" if more else "")


def _gradients(sampler: Sampler) -> str:
    count = num_gradients(sampler)
    if isinstance(sampler, HMC | MCHMC):
        each, more = divmod(count, sampler.num_steps)
        return f"{each if each > 1 else ''}m + {more}"
    return str(count)


def markdown() -> str:
    """Return the table in Markdown."""
    lines = [
        "| sampler | bias | gradients a step | state | to tune | when |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, sampler in EXAMPLES.items():
        bias, tuning, use = sampler.traits
        cells = (name, bias, _gradients(sampler), state_size(sampler), tuning, use)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
