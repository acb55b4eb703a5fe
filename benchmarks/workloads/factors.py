"""W3: SGHMC on matrix factorization in MovieLens 1M's shape, rank 20, batches of 4,000."""

import jax
import numpy as np

import sghmc
from sghmc.models import MatrixFactorization
from workloads import bare, native
from workloads.options import Options
from workloads.timing import Bar, Program, Table, clocked, take_turns

NUM_USERS, NUM_ITEMS, NUM_RATINGS, RANK, BATCH = 6_040, 3_706, 800_000, 20, 4_000
NUM_FOLDS, NUM_TEST, GIBBS_EVERY, AVERAGE_EVERY = 5, 200_000, 2_000, 2_000
LEARNING_RATE, MOMENTUM_DECAY = 4e-7, 0.05
MODEL = MatrixFactorization(NUM_USERS, NUM_ITEMS, RANK)
SAMPLER = sghmc.SGHMC.from_learning_rate(LEARNING_RATE, MOMENTUM_DECAY)


def nothing(params, hyper):
    return ()


def tables(options: Options) -> list[Table]:
    return [gpu_table(options)] if options.gpu else [table(options)]


def made_up_ratings(seed: int = 0, count: int = NUM_RATINGS) -> tuple[np.ndarray, ...]:
    """Popularity as skewed as with real ratings: some items are rated a thousand times as often."""
    rng = np.random.default_rng(seed)
    user, item = (
        np.minimum(most * rng.random(count) ** 2, most - 1).astype(np.int32)
        for most in (NUM_USERS, NUM_ITEMS)
    )
    return user, item, 0.28 * rng.standard_normal(count, np.float32)


def table(options: Options) -> Table:
    ratings, num_steps = made_up_ratings(), options.scaled(2_000)
    posterior = MODEL.posterior(*ratings)
    programs: dict[str, Program] = {"sghmc.sample": ours(posterior, num_steps)}
    for threads, name in ((2, "bare C, two threads"), (1, "bare C, one core")):
        program = native.compiled("factors.c", num_steps, threads)
        if program is not None:
            programs[name] = program
    programs |= parts(posterior, num_steps)
    programs["NumPy"] = numpy_loop(ratings, options.scaled(100))
    bars = [
        Bar("sghmc.sample", "bare C, two threads", 2.5),
        Bar("sghmc.sample", "bare scan of our step", 1.03),
    ]
    seconds = take_turns(programs, options.repeats)
    return Table("W3: a step", "µs", "bare C, two threads", seconds, bars)


def parts(posterior: sghmc.Posterior, num_steps: int) -> dict[str, Program]:
    rates, start = (LEARNING_RATE, MOMENTUM_DECAY), MODEL.init(jax.random.key(1))
    return bare.scans(posterior, SAMPLER, rates, sghmc.Minibatch(BATCH), start, num_steps)


def ours(posterior: sghmc.Posterior, num_steps: int) -> Program:
    def run() -> float:
        samples = sghmc.sample(
            jax.random.key(0),
            posterior,
            SAMPLER,
            MODEL.init(jax.random.key(1)),
            gradient=sghmc.Minibatch(BATCH),
            num_samples=5,
            thinning=num_steps // 4,
            keep=nothing,
            progress=True,
        )
        return (samples.seconds - samples.startup_seconds) / (num_steps // 4 * 4)

    return run


def gpu_table(options: Options) -> Table:
    """Five folds at once as in Table 1: Gibbs steps and averages of predictions included."""
    folds = sghmc.Posterior.stack(
        [MODEL.posterior(*made_up_ratings(fold)) for fold in range(NUM_FOLDS)]
    )
    user, item, _ = (jax.numpy.asarray(part) for part in made_up_ratings(9, NUM_TEST))
    starts = jax.vmap(MODEL.init)(jax.random.split(jax.random.key(1), NUM_FOLDS))
    num_draws = options.scaled(50)
    averages = {"rating": lambda params, hyper: MODEL.predict(params, user, item)}
    gibbs = MODEL.gibbs(GIBBS_EVERY)

    def run() -> float:
        samples = sghmc.sample(
            jax.random.key(0),
            folds,
            SAMPLER,
            starts,
            init_axis=0,
            posterior_axis=0,
            num_chains=NUM_FOLDS,
            gradient=sghmc.Minibatch(BATCH, replacement="epochs"),
            num_samples=1 + num_draws,
            thinning=AVERAGE_EVERY,
            gibbs=gibbs,
            averages=averages,
            keep=nothing,
            progress=True,
        )
        return (samples.seconds - samples.startup_seconds) / (num_draws * AVERAGE_EVERY)

    seconds = take_turns({"sghmc.sample": run}, options.repeats)
    seconds["30 µs"] = [3e-5] * options.repeats
    bars = [Bar("sghmc.sample", "30 µs", 1.0)]
    return Table("W3, five folds: a step of all", "µs", "30 µs", seconds, bars)


def numpy_loop(ratings: tuple[np.ndarray, ...], num_steps: int) -> Program:
    rng = np.random.default_rng(0)
    position = 0.03 * rng.standard_normal((NUM_USERS + NUM_ITEMS, RANK + 1), np.float32)
    velocity = np.zeros_like(position)
    scale = np.float32((2 * LEARNING_RATE * MOMENTUM_DECAY) ** 0.5)

    def gradient():
        rows = rng.integers(0, NUM_RATINGS, BATCH)
        user, item, rating = (column[rows] for column in ratings)
        u, v = position[user], position[NUM_USERS + item]
        error = np.einsum("nk,nk->n", u[:, :-1], v[:, :-1]) + u[:, -1] + v[:, -1] - rating
        error = error[:, None] * np.float32(NUM_RATINGS / BATCH)
        u[:, -1] = v[:, -1] = 1
        grad = position.copy()
        np.add.at(grad, user, error * v)
        np.add.at(grad, NUM_USERS + item, error * u)
        return grad

    def run():
        for _ in range(num_steps):
            velocity[:] *= 1 - MOMENTUM_DECAY
            velocity[:] -= LEARNING_RATE * gradient()
            velocity[:] += scale * rng.standard_normal(velocity.shape, np.float32)
            position[:] += velocity

    return clocked(run, num_steps)
