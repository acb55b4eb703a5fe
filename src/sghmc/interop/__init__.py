"""Interfaces to other libraries, each in a file that is imported when it is first used.

The NUTS of NumPyro or blackjax on our targets, an exact reference, is here.
"""

import importlib
import math
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from sghmc.core.checks import require
from sghmc.engine import checks
from sghmc.engine.layout import InitialPositions
from sghmc.posterior.posterior import RowPosterior, StackedPosterior
from sghmc.posterior.target import Potential
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info
from sghmc.types import PyTree

__all__ = ["nuts"]


def __getattr__(name: str) -> ModuleType:
    """Import the file of a library when it is first used."""
    if name in ("numpyro", "optax", "pymc"):
        return importlib.import_module(f"sghmc.interop.{name}")
    raise AttributeError(f"module 'sghmc.interop' has no attribute {name!r}")


# NUTS on our targets.


class _Draws(NamedTuple):
    """The results of a library's NUTS; axes (chain, draw, …)."""

    positions: PyTree
    potential: Any
    acceptance: Any
    is_divergent: Any


def nuts(
    key: jax.Array,
    target: RowPosterior | Potential,
    init: PyTree,
    *,
    num_samples: int = 1000,
    num_burnin: int = 1000,
    num_chains: int = 1,
    init_axis: int | None = None,
    target_acceptance: float = 0.8,
    backend: Literal["numpyro", "blackjax"] = "numpyro",
) -> Samples:
    """Draw with the NUTS of NumPyro or blackjax: exact, all data at every gradient.

    Step size and mass adapt during the `num_burnin` draws, by that library's rules. Returns
    `Samples`, as `sample` does, with `summary`, `to_arviz` and `plot`, potentials and acceptances;
    `startup_seconds` and `clock` are not known.

        from sghmc.interop import nuts
        nuts(jax.random.key(0), posterior, init, num_chains=4).summary()
    """
    checks.check_key(key)
    checks.check_counts(num_samples, num_burnin, 1, num_chains)
    if isinstance(target, StackedPosterior) or not isinstance(target, RowPosterior | Potential):
        raise TypeError(f"nuts needs a Posterior or a Potential, not {target!r}.")
    if getattr(target, "hyper", None) is not None:
        raise ValueError(
            "NUTS moves parameters only and would keep the hyperparameters fixed: write a "
            "Posterior that has them among its parameters, with their prior in log_prior."
        )
    if not 0 < target_acceptance < 1:
        raise ValueError(
            f"target_acceptance must be above 0 and below 1, but is {target_acceptance!r}."
        )
    if backend not in _BACKENDS:
        raise ValueError(f'backend must be "numpyro" or "blackjax", but is {backend!r}.')
    checks.check_init(init, init_axis, num_chains)
    positions = InitialPositions(init, init_axis).of_chains(num_chains)
    started = time.perf_counter()
    # Other libraries may break under jax's strict modes, which a user may have switched on.
    with jax.debug_key_reuse(False), jax.numpy_rank_promotion("allow"):
        draws = _BACKENDS[backend](
            key, target.potential, positions, num_samples, num_burnin, target_acceptance
        )
    draws = _Draws(*jax.tree.map(np.asarray, tuple(draws)))
    num_divergent = int(draws.is_divergent.sum())
    if num_divergent:
        warnings.warn(
            f"{num_divergent} of {draws.is_divergent.size} trajectories of NUTS diverged: its "
            f"draws are no exact reference where the posterior is narrow. Raise target_acceptance.",
            stacklevel=2,
        )
    return Samples(
        positions=draws.positions,
        hyper=None,
        averages={},
        trace=None,
        info=Info(draws.potential, np.isfinite(draws.potential), None, draws.acceptance),
        num_steps=num_burnin + num_samples,
        seconds=time.perf_counter() - started,
        startup_seconds=math.nan,
    )


def _numpyro(
    key, potential: Callable, positions: PyTree, num_samples: int, num_burnin: int, acceptance
) -> _Draws:
    infer = require("numpyro.infer", extra="numpyro")
    num_chains = len(jax.tree.leaves(positions)[0])
    mcmc = infer.MCMC(
        infer.NUTS(potential_fn=potential, target_accept_prob=acceptance),
        num_warmup=num_burnin,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    one = jax.tree.map(lambda leaf: leaf[0], positions)
    fields = ("potential_energy", "accept_prob", "diverging")
    mcmc.run(key, init_params=positions if num_chains > 1 else one, extra_fields=fields)
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return _Draws(mcmc.get_samples(group_by_chain=True), *(extra[name] for name in fields))


def _blackjax(
    key, potential: Callable, positions: PyTree, num_samples: int, num_burnin: int, acceptance
) -> _Draws:
    blackjax = require("blackjax", extra="blackjax")

    def log_density(position):
        return -potential(position)

    def chain(key, position):
        of_burnin, of_draws = jax.random.split(key)
        warmup = blackjax.window_adaptation(
            blackjax.nuts, log_density, target_acceptance_rate=acceptance
        )
        (state, settings), _ = warmup.run(of_burnin, position, num_steps=num_burnin)
        kernel = blackjax.nuts(log_density, **settings)

        def draw(state, key):
            state, info = kernel.step(key, state)
            draw = (state.position, -state.logdensity, info.acceptance_rate, info.is_divergent)
            return state, _Draws(*draw)

        return jax.lax.scan(draw, state, jax.random.split(of_draws, num_samples))[1]

    num_chains = len(jax.tree.leaves(positions)[0])
    return jax.jit(jax.vmap(chain))(jax.random.split(key, num_chains), positions)


_BACKENDS = {"numpyro": _numpyro, "blackjax": _blackjax}
