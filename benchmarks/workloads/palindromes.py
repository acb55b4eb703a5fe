"""What the order of minibatches costs: passes over the data for standard deviations right to 1 %.

    python benchmarks/samplers.py palindromes [--batch 1000 …]
    python benchmarks/samplers.py palindromes --measure UBU:palindrome … [--chains N] [--passes N]

The posterior is a logistic regression on 100,000 made-up rows with 10 parameters, in coordinates
where the Laplace approximation has spread 1 (`Whitened`). No control variates, nothing subtracted.

First the law, linearized at the mode and without sampling: a step is z' = Fz + g·f + noise with f
the force of a batch, F and g from the step that runs, and the covariance of the forces of a period
known for each order of batches. From it, for every sampler and order, the step size and friction
with which a chain gets to a root mean square error of 1 % of a standard deviation in the fewest
passes; bias and chance count both. (Times are those of the linear map, without what forces do.)

`--measure` then runs chains of the settings it names, from draws of the Laplace approximation on:
the bias of their second moments around the mean, its Monte Carlo bar, and the passes that bias and
scatter of the chains ask for. The reference is that approximation corrected by importance weights.
"""

import argparse
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc import theory

NUM_ROWS, SIZE = 100_000, 10
TOLERANCE = 0.01
SAMPLERS = {
    "SGHMC": sghmc.SGHMC,
    'SGHMC, observe="middle"': functools.partial(sghmc.SGHMC, observe="middle"),
    "BAOAB": sghmc.BAOAB,
    "UBU": sghmc.UBU,
}
ORDERS = {"independent": True, "shuffled": "epochs", "palindrome": "palindrome"}
FRICTIONS = (1.0, 1.5, 2.0, 2.25, 3.0, 4.0, 6.0)
LONGER = np.r_[np.geomspace(0.2, 2.0, 16), np.geomspace(2.0, 4.0, 14)[1:]]
PASS_TIMES = {
    "independent": np.geomspace(0.02, 0.4, 14),
    "shuffled": LONGER,
    "palindrome": LONGER,
}
"""εN/n: the time that a pass takes, in units where the posterior has spread 1."""


@dataclasses.dataclass(frozen=True)
class Choice:
    step_size: float
    friction: float
    bias: float
    passes: float


@functools.cache
def linear_step(kind: str, step_size: float, friction: float):
    step = theory.affine_map(SAMPLERS[kind](step_size, friction), 1.0, 1.0)
    return step.transition, step.noise[:, :-1], step.noise[:, -1], step.view[0]


def force_covariance(order: str, num_batches: int) -> np.ndarray:
    """Of the forces of a period, in units of spread 1: N/n for a batch, of a pass none is left."""
    if order == "independent":
        return np.array([[float(num_batches)]])
    of_pass = num_batches * np.eye(num_batches) - 1.0
    if order == "shuffled":
        return of_pass
    there_and_back = np.r_[np.arange(num_batches), np.arange(num_batches)[::-1]]
    return of_pass[np.ix_(there_and_back, there_and_back)]


def linear_law(kind, step_size, friction, order, num_batches) -> tuple[float, float] | None:
    """The bias of the standard deviation, and 1 + 2Σρ² in steps."""
    transition, noise, force, view = linear_step(kind, step_size, friction)
    if np.max(np.abs(np.linalg.eigvals(transition))) > 1 - 1e-6:
        return None
    forces = force_covariance(order, num_batches)
    powers = [np.eye(2)]
    for _ in forces:
        powers.append(transition @ powers[-1])
    responses = np.stack([power @ force for power in powers[:-1]], 1)
    heats = [np.zeros((2, 2))]
    for _ in forces:
        heats.append(transition @ heats[-1] @ transition.T + noise @ noise.T)

    def added(count):
        """What the forces of the first steps of a period add."""
        own = responses[:, :count][:, ::-1]
        return heats[count] + own @ forces[:count, :count] @ own.T

    length = len(forces)
    both = np.eye(4) - np.kron(powers[length], powers[length])
    start = np.linalg.solve(both, added(length).ravel()).reshape(2, 2)
    steps = np.unique(np.linspace(0, length - 1, 50).astype(int))
    covariance = np.mean([powers[j] @ start @ powers[j].T + added(j) for j in steps], 0)
    return math.sqrt(view @ covariance @ view) - 1, squared_time(transition, start, view)


def squared_time(transition, covariance, view) -> float:
    """1 + 2Σρ², the time of the squares of a Gaussian process, by the linear map of z ⊗ z."""
    start = covariance @ view / (view @ covariance @ view)
    twice = np.kron(transition, transition)
    total = np.linalg.solve(np.eye(4) - twice, twice @ np.kron(start, start))
    return 1 + 2 * float(np.kron(view, view) @ total)


def best(kind: str, order: str, num_batches: int) -> Choice:
    found = []
    for friction in FRICTIONS:
        for pass_time in PASS_TIMES[order]:
            step_size = float(pass_time / num_batches)
            if kind.startswith("SGHMC") and step_size * friction >= 2:  # which it refuses
                continue
            law = linear_law(kind, step_size, friction, order, num_batches)
            if law is None or abs(law[0]) >= TOLERANCE:
                continue
            num_steps = law[1] / (2 * (TOLERANCE**2 - law[0] ** 2))
            found.append(Choice(step_size, friction, law[0], num_steps / num_batches))
    return min(found, key=lambda choice: choice.passes)


class Regression:
    """The posterior, its mode and curvature, and the moments of the exact law around them."""

    def __init__(self):
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=(NUM_ROWS, SIZE)).astype(np.float32)
        weights = rng.normal(size=SIZE) / 3
        labels = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-inputs @ weights))
        self.inputs, self.labels = inputs, labels.astype(np.float32)
        self.posterior = sghmc.Posterior(
            lambda w, row: row["y"] * (row["x"] @ w) - jnp.logaddexp(0.0, row["x"] @ w),
            lambda w: -0.5 * jnp.sum(w**2),
            {"x": self.inputs, "y": self.labels},
        )
        x, mode, hessian = inputs.astype(np.float64), np.zeros(SIZE), np.eye(SIZE)
        for _ in range(20):
            chance = 1 / (1 + np.exp(-x @ mode))
            hessian = (x * (chance * (1 - chance))[:, None]).T @ x + np.eye(SIZE)
            mode = mode - np.linalg.solve(hessian, x.T @ (chance - labels) + mode)
        self.mode = mode
        self.factor = np.linalg.inv(np.linalg.cholesky(hessian)).T

    def starts(self, count: int) -> jax.Array:
        z = np.random.default_rng(2).normal(size=(count, SIZE))
        return jnp.asarray(self.mode + z @ self.factor.T, jnp.float32)

    def moments(self, num_draws: int = 4000) -> tuple[np.ndarray, np.ndarray]:
        """Mean and second moment around it of z, θ = θ̂ + Fz, by importance weights.

        The unweighted moments of the same draws, known to be 0 and 1, are control variates.
        """
        z = np.random.default_rng(1).normal(size=(num_draws // 2, SIZE))
        z = np.concatenate([z, -z])
        x, y = self.inputs.astype(np.float64), self.labels.astype(np.float64)
        potential = np.concatenate(
            [self._potential(x, y, part) for part in np.array_split(z, num_draws // 50)]
        )
        log_weight = np.sum(z**2, 1) / 2 - potential
        weight = np.exp(log_weight - log_weight.max())
        weight = weight / weight.mean()
        mean = np.mean((weight - 1)[:, None] * z, 0)
        square = 1 + np.mean((weight - 1)[:, None] * z**2, 0)
        print(f"importance weights: effective share {1 / np.mean(weight**2):.4f}")
        return mean, square - mean**2

    def _potential(self, x, y, z) -> np.ndarray:
        theta = self.mode + z @ self.factor.T
        score = x @ theta.T
        return np.sum(np.logaddexp(0, score), 0) - y @ score + np.sum(theta**2, 1) / 2


def measure(regression: Regression, moments, kind, order, batch, choice: Choice, given) -> str:
    mean, variance = (jnp.asarray(each, jnp.float32) for each in moments)
    center = jnp.asarray(regression.mode, jnp.float32)
    back = jnp.asarray(np.linalg.inv(regression.factor), jnp.float32)
    sampler = sghmc.Whitened(
        SAMPLERS[kind](choice.step_size, choice.friction), regression.mode, regression.factor
    )
    num_steps = given.passes * NUM_ROWS // batch
    samples = sghmc.sample(
        jax.random.key(5),
        regression.posterior,
        sampler,
        regression.starts(given.chains),
        init_axis=0,
        gradient=sghmc.Minibatch(batch, ORDERS[order]),
        num_samples=num_steps,
        num_burnin=num_steps // 10,
        num_chains=given.chains,
        keep=lambda theta: (),
        averages={"square": lambda theta: (back @ (theta - center) - mean) ** 2 / variance},
        info=False,
        progress=False,
    )
    squares = np.asarray(samples.averages["square"], np.float64)
    bias = np.mean(squares - 1) / 2
    bar = np.std(np.mean(squares, 1), ddof=1) / math.sqrt(given.chains) / 2
    scatter = np.mean(np.var(squares, axis=0, ddof=1)) / 4
    room = TOLERANCE**2 - bias**2
    passes = given.passes * scatter / room if room > 0 else math.inf
    return f"{bias:+.2%} ± {bar:.2%} | {passes:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--measure", nargs="+", default=(), metavar="SAMPLER:BATCHES")
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--passes", type=int, default=400)
    parser.add_argument("--batch", type=int, nargs="+", default=[1000])
    given = parser.parse_args()
    regression = Regression() if given.measure else None
    moments = None if regression is None else regression.moments()
    more = " bias, measured | passes, measured |" if given.measure else ""
    print(
        f"| n | batches | sampler | εN/n | C | bias | passes for 1 % | shuffled SGHMC's over it |"
        f"{more}"
    )
    print("| ---: | --- | --- |" + " ---: |" * (5 + 2 * bool(given.measure)))
    for batch in given.batch:
        show(batch, regression, moments, given)


def show(batch: int, regression: Regression | None, moments, given) -> None:
    num_batches = NUM_ROWS // batch
    chosen = {
        (kind, order): best(kind, order, num_batches) for kind in SAMPLERS for order in ORDERS
    }
    base = chosen["SGHMC", "shuffled"].passes
    for (kind, order), choice in chosen.items():
        cells = [
            f"{batch:,}",
            order,
            f"`{kind}`",
            f"{choice.step_size * num_batches:.2f}",
            f"{choice.friction:g}",
            f"{choice.bias:+.2%}",
            f"{choice.passes:,.0f}",
            f"{base / choice.passes:.2f}",
        ]
        if given.measure and f"{kind}:{order}" not in given.measure:
            cells.append(" | ")
        elif regression is not None:
            cells.append(measure(regression, moments, kind, order, batch, choice, given))
        print(f"| {' | '.join(cells)} |", flush=True)
