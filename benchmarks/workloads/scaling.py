"""What a step costs against the number of parameters, rows in a batch, chains, rows of data."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from workloads import gaussian
from workloads.options import Options
from workloads.timing import Program, take_turns

NUM_COLUMNS = 50
FITTED = 3
"""How many of the largest sizes the exponent is fitted to."""


class Curve(NamedTuple):
    """Seconds a step of all chains, for each size; `expected` is the exponent it should have."""

    against: str
    sizes: Sequence[int]
    seconds: Sequence[float]
    expected: float

    @property
    def exponent(self) -> float:
        """Of the largest sizes: below, a step has costs that do not depend on them."""
        x, y = (np.log(values[-FITTED:]) for values in (self.sizes, self.seconds))
        return float(np.polyfit(x, y, 1)[0])

    def as_json(self) -> dict[str, Any]:
        return self._asdict() | {"exponent": self.exponent}

    def markdown(self) -> str:
        points = ", ".join(
            f"{size:,}: {1e6 * seconds:,.3g}"
            for size, seconds in zip(self.sizes, self.seconds, strict=True)
        )
        return f"| {self.against} | {points} | {self.exponent:.2f} | {self.expected:g} |"


HEADER = """| against | size: µs a step | exponent, largest three | expected |
| --- | --- | ---: | ---: |"""


def curves(options: Options) -> list[Curve]:
    return [
        _curve(options, "parameters", _parameters(options), of_parameters, 1),
        _curve(options, "rows in a batch", _powers(2, 4 if options.quick else 5), of_batch, 1),
        _curve(options, "chains", _chains(options), of_chains, 1),
        _curve(options, "rows of data", _powers(3, 5 if options.quick else 6), of_rows, 0),
    ]


def _parameters(options: Options) -> list[int]:
    return _powers(2, (8 if options.gpu else 7) - options.quick)


def _powers(first: int, last: int) -> list[int]:
    return [10**power for power in range(first, last + 1)]


def _chains(options: Options) -> list[int]:
    return [4**power for power in range(2, 10 if options.gpu else 8)]


def _curve(
    options: Options,
    against: str,
    sizes: Sequence[int],
    program: Callable[[int, Options], Program],
    expected: float,
) -> Curve:
    programs = {str(size): program(size, options) for size in sizes}
    times = take_turns(programs, 1 if options.quick else 3)
    return Curve(against, list(sizes), [min(times[str(size)]) for size in sizes], expected)


def nothing(position):
    return ()


def squares(theta):
    return 0.5 * jnp.sum(theta**2)


def _run(target, start, gradient, num_draws: int, thinning: int, num_chains: int = 1) -> Program:
    """A step of all chains; the first draw, which compiles or loads, is left out."""
    sampler = sghmc.SGHMC(1e-3, friction=1.0)

    def run() -> float:
        samples = sghmc.sample(
            jax.random.key(0),
            target,
            sampler,
            start,
            gradient=gradient,
            num_samples=num_draws + 1,
            thinning=thinning,
            num_chains=num_chains,
            keep=nothing,
            progress=False,
        )
        return (samples.seconds - samples.startup_seconds) / (num_draws * thinning)

    return run


def _thinning(work: float, options: Options) -> int:
    """Steps of a draw, so that a run of ten draws takes some tenths of a second."""
    return int(
        np.clip((2e9 if options.gpu else 2e7) / work / (5 if options.quick else 1), 2, 10_000)
    )


def of_parameters(size: int, options: Options) -> Program:
    target, start = sghmc.Potential(squares), jnp.zeros(size)
    return _run(target, start, None, 10, _thinning(size, options))


def of_chains(size: int, options: Options) -> Program:
    gradient = sghmc.NoisyGradient(1.0)
    return _run(gaussian.TARGET, jnp.zeros(2), gradient, 10, _thinning(4 * size, options), size)


def of_batch(size: int, options: Options) -> Program:
    return _regression(100_000, size, options)


def of_rows(size: int, options: Options) -> Program:
    return _regression(size, 500, options)


def log_likelihood(weights, row):
    logit = row["x"] @ weights
    return row["y"] * logit - jax.nn.softplus(logit)


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


def _regression(num_rows: int, batch: int, options: Options) -> Program:
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal((num_rows, NUM_COLUMNS), np.float32),
        "y": rng.integers(0, 2, num_rows).astype(np.float32),
    }
    posterior = sghmc.Posterior(log_likelihood, log_prior, data)
    thinning = _thinning(NUM_COLUMNS * batch, options)
    return _run(posterior, jnp.zeros(NUM_COLUMNS), sghmc.Minibatch(batch), 10, thinning)
