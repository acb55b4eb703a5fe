"""The options of a run: one object, from `sample` to the compiled loop and to a checkpoint."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sghmc.adapt import Adaptation
from sghmc.checkpoint.checkpoint import Checkpoint
from sghmc.engine.partition import Rules
from sghmc.engine.tracing import trace_target
from sghmc.gradients.base import Gradient
from sghmc.gradients.exact import FullBatch
from sghmc.posterior.gibbs import Gibbs
from sghmc.types import PyTree

_WITHOUT_EFFECT = ("progress", "checkpoint", "mesh", "sharding", "throw")
"""Options on which draws do not depend."""


@dataclasses.dataclass(frozen=True, eq=False)
class RunOptions:
    """The keyword arguments of `sample`, whose docstring describes them."""

    gradient: Gradient = dataclasses.field(default_factory=FullBatch)
    num_samples: int = 1000
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

    def identity(self, key: Any, target: Any, sampler: Any, init: PyTree) -> dict[str, Any]:
        """All that the draws of a run depend on, by argument: a checkpoint knows its run by it."""
        names = [field.name for field in dataclasses.fields(self)]
        options = {name: getattr(self, name) for name in names if name not in _WITHOUT_EFFECT}
        axes = 0 if self.init_axis is None else 1
        like = jax.tree.map(
            lambda leaf: jax.eval_shape(lambda: jnp.asarray(leaf)[(0,) * axes]), init
        )
        given = {"key": key, "target": target, "sampler": sampler, "init": init}
        return given | options | trace_target(target, like)
