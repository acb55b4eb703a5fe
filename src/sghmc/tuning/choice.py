"""Which engine will be the quicker one: a prediction of seconds from measured times."""

from typing import Literal, NamedTuple, TypeAlias, get_args

from sghmc.core import xla
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.row_posterior import RowPosterior
from sghmc.posterior.surface import Surface
from sghmc.tuning.budget import Budget, BudgetError
from sghmc.tuning.estimators import FEW_BATCHES
from sghmc.tuning.exact import NUM_DRAWS, Trajectories
from sghmc.tuning.region import Region

Engine: TypeAlias = Literal["auto", "exact", "minibatch"]
ENGINES = get_args(Engine)

# Measured on posteriors of `benchmarks/answer.py`, in units of what the search for the mode has
# measured of this very model: compiling its potential, and a pass over its data in double
# precision.
_COMPILING = {"exact": 12, "minibatch": 30}
_PASS, _HASTY_PASS = 1 / 4, 1 / 12
"""A pass of a chain, among several and in single precision; of one compiled in a hurry."""
_HASTY_COMPILING = 2.5
"""How many times as long compiling takes that is not done in a hurry."""
_GATHERING = 2.0
"""What a row of a batch costs, beside one of a pass."""
_STEP, _LAUNCHES = 3e-6, 4e-5
"""Seconds of a step besides its rows: of a chain, and on an accelerator of all chains."""
_WARM_UP = 800
_PILOT_STEPS, _DRAW_STEPS = 50_000, 16
"""Trajectories of all chains before the draws of one engine; steps of the other, and of a draw."""
_PREFERENCE = 2.5
"""An answer without bias is worth so many times the seconds."""


class Chosen(NamedTuple):
    engine: str
    reason: str


def choose_engine(
    engine: str,
    surface: Surface,
    region: Region,
    *,
    batch_size: int,
    num_draws: int,
    num_chains: int,
    gibbs: Gibbs | None,
) -> Chosen:
    """`num_draws` are those of all chains together."""
    target = surface.target
    if engine != "auto":
        return Chosen(engine, "as asked for")
    if gibbs is not None:
        return Chosen("minibatch", "Gibbs updates are counted in its short steps")
    if not isinstance(target, RowPosterior):
        return Chosen("exact", "a potential has no batches")
    if not region.is_dense:
        return Chosen("minibatch", "the parameters are many")
    count = int(target.num_examples)
    if count <= FEW_BATCHES * batch_size:
        return Chosen("exact", f"{count:,} examples are few beside batches of {batch_size:,}")
    seconds = predicted_seconds(
        surface.compile_seconds / (1 if surface.is_short else _HASTY_COMPILING),
        pass_seconds(surface),
        count,
        num_gradients=Trajectories.first(region).num_steps + 1,
        batch_size=batch_size,
        num_draws=num_draws,
        step_seconds=_LAUNCHES / num_chains if xla.has_accelerator() else _STEP,
    )
    best = "exact" if seconds["exact"] < _PREFERENCE * seconds["minibatch"] else "minibatch"
    told = ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())
    return Chosen(best, f"predicted: {told}")


def pass_seconds(surface: Surface) -> float:
    """What a pass over the data will cost a chain."""
    return surface.seconds * (_HASTY_PASS if surface.is_short else _PASS)


def check_pilots(surface: Surface, region: Region, budget: Budget) -> None:
    """Refuse pilot runs of the exact engine that would take more than there is."""
    settings = Trajectories.first(region)
    seconds = NUM_DRAWS * (settings.num_steps + 1) * pass_seconds(surface)
    if seconds > budget.left:
        raise BudgetError(
            f"A first pilot run over all data would take about {seconds:.3g} s, and of the budget "
            f"of {budget.seconds:g} s {max(budget.left, 0):.3g} s are left: give more by "
            f"sghmc.tune(…, budget={4 * (budget.spent + seconds):.2g}), or take "
            f'engine="minibatch".'
        )


def predicted_seconds(
    compile_seconds: float,
    pass_seconds: float,
    num_examples: int,
    *,
    num_gradients: int,
    batch_size: int,
    num_draws: int,
    step_seconds: float = _STEP,
) -> dict[str, float]:
    """Of tuning and run, by engine; `num_gradients` are those of a trajectory."""
    row = pass_seconds / num_examples
    passes = (_WARM_UP + num_draws) * num_gradients
    steps = _PILOT_STEPS + _DRAW_STEPS * num_draws
    # A control variate looks at every row of its batch twice.
    step = step_seconds + 2 * batch_size * _GATHERING * row
    work = {"exact": passes * (step_seconds + pass_seconds), "minibatch": steps * step}
    return {name: _COMPILING[name] * compile_seconds + work[name] for name in work}
