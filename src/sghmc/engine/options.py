"""RunOptions, the options of a run, and parameters that do not move but are held fixed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sghmc.adapt import Adaptation
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.checkpoint.fingerprint import target_hashes
from sghmc.core.checks import as_array
from sghmc.engine.devices import Rules, check_mesh, placed
from sghmc.gradients import FullBatch, Gradient
from sghmc.posterior.gibbs import Gibbs
from sghmc.posterior.posterior import RowPosterior, StackedPosterior
from sghmc.posterior.target import Potential, Target
from sghmc.results.until import Until
from sghmc.samplers import Sampler
from sghmc.types import PyTree

_WITHOUT_EFFECT = ("progress", "checkpoint", "mesh", "sharding", "throw", "until")
"""Options on which draws do not depend."""


@dataclasses.dataclass(frozen=True, eq=False)
class RunOptions:
    """The keyword arguments of `sample`, whose docstring describes them."""

    gradient: Gradient = dataclasses.field(default_factory=FullBatch)
    num_samples: int | None = 1000
    num_burnin: int = 0
    thinning: int = 1
    num_chains: int = 1
    init_axis: int | None = None
    posterior_axis: int | None = None
    keep: Callable[..., PyTree] | None = None
    averages: dict[str, Callable[..., PyTree]] | None = None
    trace: Callable[[dict[str, PyTree]], PyTree] | None = None
    gibbs: Gibbs | None = None
    adapt: Adaptation | None = None
    info: bool = True
    progress: bool = True
    checkpoint: Checkpoint | None = None
    mesh: jax.sharding.Mesh | None = None
    sharding: Rules | None = None
    throw: bool = True
    until: Until | None = None

    def identity(self, key: Any, target: Any, sampler: Any, init: PyTree) -> dict[str, Any]:
        """Return all that the draws of a run depend on, by argument, for its checkpoint."""
        names = {field.name for field in dataclasses.fields(self)}.difference(_WITHOUT_EFFECT)
        if why_not_longer(sampler, target) is None:
            names.remove("num_samples")
        options = {name: getattr(self, name) for name in names}
        axes = 0 if self.init_axis is None else 1
        like = jax.tree.map(
            lambda leaf: jax.eval_shape(lambda: as_array(leaf, "init")[(0,) * axes]), init
        )
        given = {"key": key, "target": target, "sampler": sampler, "init": init}
        return given | options | target_hashes(target, like)


def why_not_longer(sampler: Any, target: Any) -> str | None:
    """Return why draws depend on the length of a run, which then cannot go on; None if it can."""
    source = getattr(target, "source", None)
    if source is not None and source.is_growing:
        return "the stream's rows grow in windows, which are cut by the length of the run"
    if isinstance(sampler, Sampler) and (sampler.schedules or any(map(callable, sampler.dynamics))):
        return f"{sampler.name} follows a schedule or cycles, which are made for a run's length"
    return None


# Some parameters move, the rest is held: one copy for all chains, and none in the draws.


class Completed(eqx.Module):
    """Function of all parameters as one of those that move; given all, it does the same."""

    function: Callable
    fixed: PyTree

    def __call__(self, params: PyTree, *args: Any) -> Any:
        return self.function(eqx.combine(params, self.fixed), *args)


class CompletedUpdate(eqx.Module):
    """Gibbs update of all parameters as one of those that move; it takes a key first."""

    function: Callable
    fixed: PyTree

    def __call__(self, key: jax.Array, params: PyTree, posterior: Any) -> PyTree:
        return self.function(key, eqx.combine(params, self.fixed), posterior)


def hold_fixed(
    target: Target | StackedPosterior, init: PyTree, trainable: PyTree, options: RunOptions
) -> tuple[Target, PyTree, RunOptions]:
    """Return target, start and options of a run in which the leaves that `trainable` names move."""
    moving, fixed = _split(init, trainable)
    if options.sharding is not None:
        fixed = _placed(fixed, options)
    # Once, and not in every function that holds it.
    fixed = jax.tree.map(lambda leaf: as_array(leaf, "init") if _is_array(leaf) else leaf, fixed)
    averages, gibbs, keep = options.averages, options.gibbs, options.keep
    return (
        _held(target, fixed),
        moving,
        dataclasses.replace(
            options,
            keep=None if keep is None else Completed(keep, fixed),
            averages=averages and {name: Completed(f, fixed) for name, f in averages.items()},
            gibbs=gibbs and dataclasses.replace(gibbs, update=CompletedUpdate(gibbs.update, fixed)),
        ),
    )


def _split(init: PyTree, trainable: PyTree) -> tuple[PyTree, PyTree]:
    try:
        moving, fixed = eqx.partition(init, trainable)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"trainable must be a filter of init as equinox has them: True, False or a function of "
            f"a leaf, such as eqx.is_inexact_array, or a pytree of these that is a prefix of init, "
            f"but is {trainable!r}: {error}"
        ) from error
    if not jax.tree.leaves(moving):
        raise ValueError(
            f"trainable names no leaf of init, so that nothing would move: it is {trainable!r}."
        )
    return moving, fixed


def _placed(fixed: PyTree, options: RunOptions) -> PyTree:
    """Put the parameters that are held on the devices of a mesh, as its rules say."""
    check_mesh(options.mesh, options.sharding)
    assert options.mesh is not None
    assert options.sharding is not None
    arrays, rest = eqx.partition(fixed, _is_array)
    return eqx.combine(placed(options.sharding, arrays, options.mesh), rest)


def _held(target: Target | StackedPosterior, fixed: PyTree) -> Target:
    if isinstance(target, Potential):
        return eqx.tree_at(lambda t: t.function, target, Completed(target.function, fixed))
    if isinstance(target, RowPosterior):
        return eqx.tree_at(
            lambda t: (t.log_likelihood, t.log_prior),
            target,
            (Completed(target.log_likelihood, fixed), Completed(target.log_prior, fixed)),
        )
    raise TypeError(
        f"trainable needs a Posterior or a Potential, not a {type(target).__name__}: for others, "
        f"write a target of the parameters that move."
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)
