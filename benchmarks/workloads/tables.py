"""Ratings made up at scale, and the steps of samplers on tables of users and items."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import sghmc

NOISE = 0.5
"""Standard deviation of a rating around its mean: no prediction errs less."""


class MadeUp(NamedTuple):
    """Codes of users and items, and ratings."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray

    def part(self, rows: slice) -> "MadeUp":
        return MadeUp(*(column[rows] for column in self))


def made_up_ratings(seed: int, num_users: int, num_items: int, rank: int, count: int) -> MadeUp:
    """From the model, each pair once: biases and products of standard deviation ½, mean 3.5.

    Users' activity and items' popularity are lognormal, with 1 and 1.5 for the spread of their
    logarithms: a few items have a thousand times as many ratings as others.
    """
    rng = np.random.default_rng(seed)
    ends = [
        np.cumsum(rng.lognormal(0, spread, size))
        for spread, size in ((1.0, num_users), (1.5, num_items))
    ]
    pairs = np.empty(0, np.int64)
    while len(pairs) < count:
        more = int(1.2 * (count - len(pairs))) + 1000
        user, item = (np.searchsorted(end, rng.random(more) * end[-1]) for end in ends)
        pairs = np.unique(np.concatenate([pairs, user * num_items + item]))
    rng.shuffle(pairs)
    user, item = (part.astype(np.int32) for part in np.divmod(pairs[:count], num_items))
    scale = (NOISE**2 / rank) ** 0.25
    rows = [
        scale * rng.standard_normal((size, rank), np.float32) for size in (num_users, num_items)
    ]
    biases = [0.5 * rng.standard_normal(size, np.float32) for size in (num_users, num_items)]
    rating = NOISE * rng.standard_normal(count, np.float32) + np.float32(3.5)
    for first in range(0, count, 1 << 20):
        some = slice(first, first + (1 << 20))
        product = np.sum(rows[0][user[some]] * rows[1][item[some]], axis=1)
        rating[some] += product + biases[0][user[some]] + biases[1][item[some]]
    return MadeUp(user, item, rating)


class Cost(NamedTuple):
    """Seconds, on the clock and of the processor's cores."""

    clock: float
    cores: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.clock - other.clock, self.cores - other.cores)

    def over(self, count: float) -> "Cost":
        return Cost(self.clock / count, self.cores / count)


def cost_of(work: Callable[[], object]) -> Cost:
    clock, cores = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - clock, time.process_time() - cores)


class StepCosts(NamedTuple):
    """Of one step, and of bringing all rows to the end of one: 0 where every step does that."""

    step: Cost
    settling: Cost


def step_costs(
    num_users: int, num_items: int, rank: int, batch_size: int, num_steps: int, *, is_lazy: bool
) -> StepCosts:
    """Of SGHMC on a factorization, from draws that are so many and four times so many steps apart.

    Each is the difference of a run with three draws and one with one, of the same program.
    """
    target, init = _factorization(num_users, num_items, rank, num_ratings=2_000_000)
    sampler: sghmc.Sampler = sghmc.SGHMC(0.01, friction=10.0, mass=100.0)
    sampler = sghmc.Lazy(sampler) if is_lazy else sampler

    def of_draw(thinning: int) -> Cost:
        def run(num_samples: int) -> Cost:
            return cost_of(
                lambda: sghmc.sample(
                    jax.random.key(0),
                    target,
                    sampler,
                    init,
                    gradient=sghmc.Minibatch(batch_size),
                    num_samples=num_samples,
                    thinning=thinning,
                    keep=_nothing,
                    info=False,
                    progress=False,
                )
            )

        run(1)
        return (run(3) - run(1)).over(2)

    short, long = of_draw(num_steps), of_draw(4 * num_steps)
    step = (long - short).over(3 * num_steps)
    return StepCosts(step, short - step.over(1 / num_steps))


def _nothing(params) -> tuple[()]:
    return ()


def _factorization(num_users: int, num_items: int, rank: int, num_ratings: int):
    rng = np.random.default_rng(0)
    data = {
        "user": rng.integers(num_users, size=num_ratings).astype(np.int32),
        "item": rng.integers(num_items, size=num_ratings).astype(np.int32),
        "rating": rng.standard_normal(num_ratings, np.float32),
    }

    def log_likelihood(rows, example):
        user, item = rows["user"], rows["item"]
        mean = jnp.sum(user[:-1] * item[:-1]) + user[-1] + item[-1]
        return -0.5 * (example["rating"] - mean) ** 2

    likelihood = sghmc.RowLikelihood(
        log_likelihood, lambda example: {"user": example["user"], "item": example["item"]}
    )
    prior = sghmc.RowPrior(lambda rows: (0.0, 2.0))
    sizes = {"user": num_users, "item": num_items}
    init = {name: jnp.zeros((size, rank + 1)) for name, size in sizes.items()}
    return sghmc.Posterior(likelihood, prior, data), init
