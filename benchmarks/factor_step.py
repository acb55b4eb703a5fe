"""A step of SGHMC on matrix factorization: ours against a plain NumPy loop, the same batches.

    python benchmarks/factor_step.py [--batch 4000 40000] [--steps 500] [--repeats 5]

Made-up ratings in MovieLens 1M's shape (6,040 users, 3,706 items, 800,000 ratings), rank 20, single
precision. Both draw fresh shuffled epochs, take the gradient of a batch, and add noise to all
204,666 parameters; neither has Gibbs steps. The two take turns; a repeat is one turn of each. Ours
is timed after compilation. Prints Markdown: microseconds a step, the median over repeats of both,
and of the ratio in one repeat.
"""

import argparse
import time

import jax
import numpy as np

import sghmc
from sghmc.models import MatrixFactorization

NUM_USERS, NUM_ITEMS, NUM_RATINGS, RANK = 6_040, 3_706, 800_000, 20
LEARNING_RATE, MOMENTUM_DECAY, PRECISION, NOISE = 4e-7, 0.05, 1.0, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[4_000, 40_000])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    ratings = made_up_ratings()
    print(
        "| batch | ours, µs | NumPy, µs | ours / NumPy |", "| ---: | ---: | ---: | ---: |", sep="\n"
    )
    for batch in options.batch:
        loop = NumpyLoop(*ratings, batch)
        times = np.array(
            [
                (ours(ratings, batch, options.steps), loop.run(options.steps))
                for _ in range(options.repeats)
            ]
        )
        mine, theirs = 1e6 * np.median(times, axis=0)
        ratio = np.median(times[:, 0] / times[:, 1])
        print(f"| {batch:,} | {mine:,.0f} | {theirs:,.0f} | {ratio:.2f} |", flush=True)


def made_up_ratings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Popularity as skewed as with real ratings: some items are rated a thousand times as often."""
    rng = np.random.default_rng(0)
    user, item = (
        np.minimum(count * rng.random(NUM_RATINGS) ** 2, count - 1).astype(np.int32)
        for count in (NUM_USERS, NUM_ITEMS)
    )
    return user, item, 0.28 * rng.standard_normal(NUM_RATINGS, np.float32)


def ours(ratings: tuple[np.ndarray, ...], batch: int, num_steps: int) -> float:
    """Seconds a step, compilation left out."""
    model = MatrixFactorization(NUM_USERS, NUM_ITEMS, RANK)
    samples = sghmc.sample(
        jax.random.key(0),
        model.posterior(*ratings),
        sghmc.SGHMC.from_learning_rate(LEARNING_RATE, MOMENTUM_DECAY),
        model.init(jax.random.key(1)),
        gradient=sghmc.Minibatch(batch, replacement="epochs"),
        num_samples=11,
        thinning=num_steps // 10,
        keep=lambda params, hyper: (),
        progress=False,
    )
    return (samples.seconds - samples.startup_seconds) / (num_steps // 10 * 10)


class NumpyLoop:
    """What one would write without jax."""

    def __init__(self, user, item, rating, batch: int):
        self.data, self.batch = (user, item, rating), batch
        self.rng = np.random.default_rng(0)
        self.position = [
            0.03 * self.rng.standard_normal((count, RANK), np.float32)
            for count in (NUM_USERS, NUM_ITEMS)
        ] + [np.zeros(count, np.float32) for count in (NUM_USERS, NUM_ITEMS)]
        self.velocity = [np.zeros_like(part) for part in self.position]
        self.rows = np.zeros(0, np.int64)

    def run(self, num_steps: int) -> float:
        """Seconds a step."""
        start = time.perf_counter()
        for _ in range(num_steps):
            self.step()
        return (time.perf_counter() - start) / num_steps

    def step(self) -> None:
        scale = np.float32(np.sqrt(2 * LEARNING_RATE * MOMENTUM_DECAY))
        for i, grad in enumerate(self.gradient()):
            self.velocity[i] *= 1 - MOMENTUM_DECAY
            self.velocity[i] -= LEARNING_RATE * grad
            self.velocity[i] += scale * self.rng.standard_normal(grad.shape, np.float32)
            self.position[i] += self.velocity[i]

    def gradient(self) -> list[np.ndarray]:
        rows = self.next_rows()
        user, item, rating = (column[rows] for column in self.data)
        users, items, user_bias, item_bias = self.position
        u, v = users[user], items[item]
        error = np.einsum("nk,nk->n", u, v) + user_bias[user] + item_bias[item] - rating
        error *= NOISE * NUM_RATINGS / self.batch
        grads = [PRECISION * part for part in self.position]
        np.add.at(grads[0], user, error[:, None] * v)
        np.add.at(grads[1], item, error[:, None] * u)
        np.add.at(grads[2], user, error)
        np.add.at(grads[3], item, error)
        return grads

    def next_rows(self) -> np.ndarray:
        """The next batch of a pass in random order."""
        if len(self.rows) < self.batch:
            self.rows = self.rng.permutation(NUM_RATINGS)
        batch, self.rows = self.rows[: self.batch], self.rows[self.batch :]
        return batch


if __name__ == "__main__":
    main()
