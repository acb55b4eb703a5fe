"""Seconds a step and peak memory of transformers: AdamW beside SGHMC, adapters beside fine-tuning.

Times are of programs that take turns in one process; memory is that of a process of its own.
"""

import resource
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sghmc
from sghmc.core import random
from sghmc.models import Adapters, Transformer
from workloads.timing import Bar, Program, Table, clocked, take_turns

NUM_SYMBOLS, NUM_CODES = 65, 100_000
RANK = 8
_STEP_SIZE, _DECAY = 1e-6, 0.1
"""So small that nothing moves: what a step costs does not depend on it."""


class Case(NamedTuple):
    """A transformer, a batch, and how many steps a turn takes."""

    model: Transformer
    batch: int
    num_steps: int

    def posterior(self, log_prior=None) -> sghmc.Posterior:
        codes = np.random.default_rng(0).integers(0, NUM_SYMBOLS, NUM_CODES, np.uint8)
        return self.model.posterior(codes, log_prior=log_prior)

    def start(self) -> Any:
        return jax.block_until_ready(jax.jit(self.model.init)(jax.random.key(0)))


def nothing(params):
    return ()


def adamw(case: Case) -> Program:
    """All parameters, by optax: batches by the same generator, the same loss and prior."""
    posterior, optimizer = case.posterior(), optax.adamw(1e-6)
    words = jnp.asarray([1, 2], jnp.uint32)

    def run(carry):
        def step(t, carry):
            params, state = carry
            rows = random.integers(words, t, 1, case.batch, posterior.num_rows)
            grad = jax.grad(posterior.estimate)(params, posterior.rows(rows))
            updates, state = optimizer.update(grad, state, params)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, case.num_steps, step, carry)

    compiled = jax.jit(run, donate_argnums=0)
    held: list[Any] = []

    def turn():
        if not held:
            params = case.start()
            held.append((params, optimizer.init(params)))
            del params
        held[0] = jax.block_until_ready(compiled(held[0]))

    return clocked(turn, case.num_steps)


def sampled(case: Case) -> Program:
    """All parameters, by SGHMC through `sample`, nothing kept.

    They start from arrays of the host, where a file that they were read from would have put them;
    where the host is the device, that would only be a copy more.
    """
    like = jax.eval_shape(case.model.init, jax.random.key(0))
    mass, is_host = case.model.precisions(like), jax.default_backend() == "cpu"
    start = case.start if is_host else lambda: jax.device_get(case.start())
    return _of_sample(case, case.posterior(), mass, start, {})


def adapters(case: Case, num_chains: int) -> Program:
    """Adapters of so many chains beside one network, by SGHMC through `sample`."""
    of_layers = Adapters(RANK, where=lambda name: name.startswith("blocks"))
    network, trainable = of_layers.insert(jax.random.key(1), case.start())
    return _of_sample(
        case,
        case.posterior(of_layers.log_prior),
        of_layers.precisions(network),
        lambda: network,
        {"trainable": trainable, "num_chains": num_chains},
    )


def _of_sample(case: Case, posterior, mass, start, options: dict[str, Any]) -> Program:
    friction = jax.tree.map(lambda of_leaf: _DECAY / _STEP_SIZE * of_leaf, mass)
    sampler = sghmc.SGHMC(_STEP_SIZE, friction, mass)
    thinning = max(1, case.num_steps // 4)

    def run() -> float:
        samples = sghmc.sample(
            jax.random.key(0),
            posterior,
            sampler,
            start(),
            gradient=sghmc.Minibatch(case.batch),
            num_samples=5,
            thinning=thinning,
            keep=nothing,
            progress=False,
            **options,
        )
        return (samples.seconds - samples.startup_seconds) / (4 * thinning)

    return run


PROGRAMS = {
    "AdamW": adamw,
    "SGHMC": sampled,
    "one chain of adapters": lambda case: adapters(case, 1),
}


def speed(case: Case, repeats: int) -> Table:
    programs = {name: PROGRAMS[name](case) for name in ("AdamW", "SGHMC")}
    seconds = take_turns(programs, repeats)
    return Table("A step", "ms", "AdamW", seconds, [Bar("SGHMC", "AdamW", 1.10)])


def adapter_speed(case: Case, num_chains: int, repeats: int) -> Table:
    many = f"{num_chains} chains"
    programs = {"one chain": adapters(case, 1), many: adapters(case, num_chains)}
    seconds = take_turns(programs, repeats)
    bars = [Bar(many, "one chain", 4.0)]
    return Table("A step of all chains of adapters", "ms", "one chain", seconds, bars)


def peak_bytes(name: str, case: Case, num_chains: int) -> dict[str, Any]:
    """What this process needed at most, after two turns of a program."""
    program = adapters(case, num_chains) if name == "adapters" else PROGRAMS[name](case)
    for _ in range(2):
        program()
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        return {"bytes": statistics["peak_bytes_in_use"], "of": "the device"}
    # Linux counts kilobytes. Compilation is part of it.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"bytes": peak, "of": "the process"}


def num_parameters(model: Transformer) -> int:
    like = jax.eval_shape(model.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(like))
