"""Seconds until the first step: a deep network's run beside one training step of optax.

    python benchmarks/scaling.py compile [--turns 5] [--width 880] [--depth 12]

Two networks of about 10⁷ parameters, each layer an array of its own and written out one after
another: an MLP of `--depth` layers with residuals, and the same with attention before every layer.
Beside each other, in one process and in turns, with all of jax's caches emptied before:

- what a training step has before it first runs: `jax.jit` of value_and_grad and adamw, traced,
  lowered and compiled;
- what `sghmc.sample` has: checks, the initial state, and the loop with burn-in, draws and averages.

Both are the seconds of a first call less those of a second. The bar is on the median ratio. The
last column has the two calls of `sample` themselves: two draws, whatever goes before them included.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sghmc

BAR = 1.5
NUM_ROWS, BATCH, TOKENS = 64, 8, 4


def network(width: int, depth: int, *, attends: bool) -> list[dict[str, jax.Array]]:
    rng = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    names = ("query", "key", "value", "up") if attends else ("up",)
    inner = width // 2 if attends else width
    return [
        {name: array(inner, inner) for name in names} | {"bias": jnp.zeros(inner)}
        for _ in range(depth)
    ]


def answer(params, x):
    """Return the network's number for one row (token, feature)."""
    for layer in params:
        if "query" in layer:
            query, key, value = (x @ layer[name] for name in ("query", "key", "value"))
            weights = jax.nn.softmax(query @ key.T / np.sqrt(x.shape[-1]))
            x = x + weights @ value
        x = x + jax.nn.gelu(x @ layer["up"] + layer["bias"])
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x.mean()


def log_likelihood(params, row):
    return -0.5 * (row["y"] - answer(params, row["x"])) ** 2


def log_prior(params):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def rows_for(params) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    size = params[0]["up"].shape[0]
    x = rng.normal(size=(NUM_ROWS, TOKENS, size)).astype(np.float32)
    return {"x": x, "y": rng.normal(size=NUM_ROWS).astype(np.float32)}


def nothing(params):
    return ()


def first_bias(params):
    return params[0]["bias"]


def sampling(params, rows) -> Callable[[], None]:
    posterior = sghmc.Posterior(log_likelihood, log_prior, rows)
    sampler = sghmc.SGHMC(1e-4, friction=1.0)

    def run():
        sghmc.sample(
            jax.random.key(0),
            posterior,
            sampler,
            params,
            gradient=sghmc.Minibatch(BATCH),
            num_samples=1,
            num_burnin=1,
            keep=nothing,
            averages={"bias": first_bias},
            progress=False,
        )

    return run


def training(params, rows) -> Callable[[], None]:
    optimizer = optax.adamw(1e-4)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[:BATCH]), rows)

    def loss(params, batch):
        each = jax.vmap(functools.partial(log_likelihood, params))(batch)
        return -NUM_ROWS / BATCH * jnp.sum(each) - log_prior(params)

    @jax.jit
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state = jax.tree.map(jnp.asarray, optimizer.init(params))
    return lambda: jax.block_until_ready(step(params, state, batch))


class Seconds(NamedTuple):
    """Seconds of two calls, one after another."""

    first: float
    second: float

    @property
    def startup(self) -> float:
        return self.first - self.second


def timed(make: Callable[[], Callable[[], None]]) -> Seconds:
    jax.clear_caches()
    call, seconds = make(), []
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return Seconds(*seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds to compile, beside one step of adamw.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--width", type=int, default=880)
    parser.add_argument("--depth", type=int, default=12)
    given = parser.parse_args()
    print(
        "| network | parameters | adamw's step | sample | ratio, median (least to most) | bar | "
        "sample: first call, second |"
    )
    print("| --- | ---: | ---: | ---: | ---: | --- | ---: |")
    for name, attends in (("MLP", False), ("with attention", True)):
        params = network(given.width, given.depth, attends=attends)
        rows = rows_for(params)
        turns = [
            [
                timed(functools.partial(training, params, rows)),
                timed(functools.partial(sampling, params, rows)),
            ]
            for _ in range(given.turns)
        ]
        step, ours = (
            statistics.median(each.startup for each in column)
            for column in zip(*turns, strict=True)
        )
        first, second = (
            statistics.median(call) for call in zip(*(ours for _, ours in turns), strict=True)
        )
        ratios = sorted(ours.startup / step.startup for step, ours in turns)
        ratio, size = statistics.median(ratios), sum(x.size for x in jax.tree.leaves(params))
        verdict = "met" if ratio <= BAR else "missed"
        print(
            f"| {name}, {given.depth} layers | {size:,} | {step:.2f} s | {ours:.2f} s | "
            f"{ratio:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | ≤ {BAR}: {verdict} | "
            f"{first:.2f} s, {second:.2f} s |",
            flush=True,
        )
