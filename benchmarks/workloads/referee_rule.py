"""The referee's rule: settings from pilot runs in a share of the budget, the same for all samplers.

It is told curvatures where chains start, and knows nothing of the truth.
"""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import sghmc
from sghmc.results import convergence
from workloads.referee_targets import Case

NUM_CHAINS, NUM_RUNGS, MOST_DRAWS = 4, 10, 4_000
LARGEST = 1.2
"""The first step of the ladder: 2 would be unstable on a Gaussian, √2 for Langevin."""
PILOT_SHARE, BURN_IN = 1 / 3, 0.2
RELAXATIONS = 8
"""Of a first pilot, where the budget allows it for three steps."""
NUM_ROUNDS = 3
"""In which the pilots of the best step and of its half grow."""
LEAST_EFFECTIVE = 20
"""Independent draws, below which a pilot is no witness against another."""
BARS = 2
"""Monte Carlo errors that chance is granted."""
LEAST_DRAWS = 16
NUM_LOOKS = 8
"""At the exact potential of all chains in a last run, where batches do not tell it."""
WORST = 1.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A sampler by its step size x, in units of the stiffest direction, and its friction."""

    make: Callable[[float, float, Case], Any]
    is_diffusive: bool = False
    """Without momentum: steps go with x²."""
    is_exact: bool = False
    """It needs all data, and a step is a trajectory."""
    num_gradients: int = 1
    """Of each step of a trajectory."""

    def x(self, rung: int) -> float:
        """Half the step size at each rung."""
        return LARGEST / 2 ** (rung / 2 if self.is_diffusive else rung)

    def num_steps(self, x: float, case: Case) -> int:
        """Return the steps of a trajectory, a quarter of the slowest period; 1 for others."""
        ratio = math.sqrt(case.stiffest / case.softest)
        return max(1, round(math.pi / 2 * ratio / x)) if self.is_exact else 1

    def length(self, x: float, case: Case) -> int:
        """Return the gradients of a sampler step."""
        return self.num_gradients * self.num_steps(x, case)

    @property
    def num_rungs(self) -> int:
        """An accept step needs none of the small ones."""
        return 5 if self.is_exact else NUM_RUNGS

    def relaxation(self, x: float, case: Case) -> float:
        """Steps in which the softest direction forgets."""
        ratio = math.sqrt(case.stiffest / case.softest)
        if self.is_exact:
            return 1.0
        return (ratio / x) ** 2 if self.is_diffusive else 2 * ratio / x


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How batches are made, and how many of them a gradient sees; None: all data."""

    make: Callable[[Case], Any]
    batches: int | None = 1


class Pilot:
    """The draws of a step so far, axes (quantity, chain, draw); the potential is the last one."""

    def __init__(self):
        self.draws: np.ndarray | None = None
        self.positions: Any = None
        """Where its chains have come to."""
        self.is_lost = False

    @property
    def has_draws(self) -> bool:
        return self.draws is not None and not self.is_lost

    def add(self, draws: np.ndarray, positions: Any) -> None:
        self.draws = draws if self.draws is None else np.concatenate([self.draws, draws], axis=2)
        self.positions = positions
        self.__dict__.pop("moments", None)

    @functools.cached_property
    def moments(self) -> dict[str, np.ndarray]:
        assert self.draws is not None
        return convergence.summarize(list(self.draws))

    @property
    def is_witness(self) -> np.ndarray:
        """Of each quantity: whether it has moved enough for its Monte Carlo error to be one."""
        found = self.moments
        with np.errstate(divide="ignore", invalid="ignore"):
            return (found["sd"] / found["mcse_mean"]) ** 2 >= LEAST_EFFECTIVE

    @property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and logarithms of standard deviations, and their Monte Carlo errors."""
        found = self.moments
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.stack([found["mean"], np.log(found["sd"])])
            errors = np.stack([found["mcse_mean"], found["mcse_sd"] / found["sd"]])
        return numbers, np.where(self.is_witness & (errors > 0), errors, np.inf)

    def variance(self) -> float:
        """Monte Carlo variance of means and standard deviations, for one draw of each chain."""
        found = self.moments
        with np.errstate(divide="ignore", invalid="ignore"):
            both = (found["mcse_mean"] ** 2 + found["mcse_sd"] ** 2) / found["sd"] ** 2
        assert self.draws is not None
        # No more than its draws: of few, effective numbers come out above them.
        each = max(float(np.mean(both)) * self.draws.shape[2], 1.5 / NUM_CHAINS)
        return each if math.isfinite(each) else math.inf


def squared_bias(pilots: list[Pilot], steps: list[float], step: float) -> float | None:
    """Of a step, from pilots with several: beyond what chance explains. None: nobody knows.

    A line through their moments, by weighted least squares: biases are of the first order, or
    smaller than a line makes them.
    """
    numbers, errors = (np.stack(each) for each in zip(*(p.numbers for p in pilots), strict=True))
    at = np.array(steps)[:, None, None]
    weights = errors**-2.0
    is_known = np.sum(weights > 0, axis=0) >= 2
    if not is_known.any():
        return None
    weights = np.where(is_known, weights, 1.0)
    total = weights.sum(0)
    away = at - np.sum(weights * at, axis=0) / total
    spread = np.sum(weights * away**2, axis=0)
    slope = np.sum(weights * away * np.where(weights > 0, numbers, 0), axis=0) / spread
    bias = step * np.maximum(0, np.abs(slope) - BARS / np.sqrt(spread))
    # Means in standard deviations, those of the smallest step.
    bias[0] /= pilots[-1].moments["sd"]
    return float(np.mean(np.sum(np.where(is_known, bias, 0) ** 2, axis=0)[is_known.any(0)]))


class Task:
    """A sampler and a scheme on a target."""

    def __init__(self, name: dict[str, str], row: Row, scheme: Scheme, case: Case):
        self.name, self.row, self.case = name, row, case
        self.gradient = scheme.make(case)
        batches = scheme.batches
        self.cost = case.num_examples if batches is None else batches * case.batch_size
        self.total = case.passes * case.num_examples
        if batches == 2:
            self.total -= case.num_examples  # the gradient at the center
        most = self.total / NUM_CHAINS / self.cost
        # One for all step sizes: numbers of draws are arguments of a program, thinning is not.
        self.thinning = 1 if row.is_exact else max(1, int(most / MOST_DRAWS))
        self.look = jax.jit(jax.vmap(jax.vmap(case.keep)))
        self.has_potential = batches is None
        self.potential = jax.jit(jax.vmap(case.target.potential))
        # A Gaussian's is above its least by half the dimension, give or take its root.
        self.highest = float(case.target.potential(case.start)) + 10 * case.start.size + 100

    def run(self, seed: int) -> dict:
        began, seconds = time.perf_counter(), time.process_time()
        self.key, self.calls, self.spent = jax.random.key(seed), 0, 0.0
        rung, pilots = self.choose()
        known = [p.positions for p in pilots[: rung + 1] if p.positions is not None]
        draws, lost = None, 0
        while rung < self.row.num_rungs and self.left >= self.least_cost(rung, NUM_LOOKS):
            draws, _ = self.draw(rung, self.left, known[-1] if known else None, NUM_LOOKS)
            if draws is not None:
                break
            rung, lost = rung + 1, lost + 1
        errors = (WORST, WORST) if draws is None else self.errors(draws)
        chance = (math.nan, math.nan) if draws is None else self.chance(draws)
        return {
            **self.name, "seed": seed, "step": self.row.x(min(rung, self.row.num_rungs - 1)),
            "lost": lost, "of_means": errors[0], "of_deviations": errors[1],
            "chance_means": chance[0], "chance_deviations": chance[1],
            "gradients": self.total, "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - seconds, "jax": jax.__version__,
            "host": os.uname().machine,
        }  # fmt: skip

    @property
    def left(self) -> float:
        return self.total - self.spent

    # Pilots

    def choose(self) -> tuple[int, list[Pilot]]:
        """The rung with the least squared bias and variance together, by pilots."""
        budget = PILOT_SHARE * self.total
        pilots: list[Pilot] = []
        count, times = self.first_rungs(budget / 2)
        for rung in range(count):
            pilots.append(Pilot())
            self.grow(pilots, rung, times)
        for left in range(NUM_ROUNDS, 0, -1):
            best = self.best(pilots)
            while best >= len(pilots) - 1 and len(pilots) < self.row.num_rungs:
                pilots.append(Pilot())
            pair = [min(best, len(pilots) - 2), min(best, len(pilots) - 2) + 1]
            cost = sum(self.relaxation_cost(rung) for rung in pair)
            times = (budget - self.spent) / left / cost
            if times <= 0:
                break
            for rung in pair:
                self.grow(pilots, rung, times)
        return self.best(pilots), pilots

    def first_rungs(self, budget: float) -> tuple[int, float]:
        """How many steps are tried first, and for how many relaxations each."""
        for count in range(self.row.num_rungs, 2, -1):
            times = budget / sum(self.relaxation_cost(rung) for rung in range(count))
            if times >= RELAXATIONS:
                return count, times
        return 3, budget / sum(self.relaxation_cost(rung) for rung in range(3))

    def relaxation_cost(self, rung: int) -> float:
        """Gradients on examples in which all chains forget once."""
        x = self.row.x(rung)
        return NUM_CHAINS * self.step_cost(rung) * self.row.relaxation(x, self.case)

    def step_cost(self, rung: int) -> int:
        return self.cost * self.row.length(self.row.x(rung), self.case)

    def least_cost(self, rung: int, num_looks: int = 1) -> float:
        """Of a run that has moments."""
        looks = 0 if self.has_potential else NUM_CHAINS * self.case.num_examples
        return LEAST_DRAWS * NUM_CHAINS * self.step_cost(rung) * self.thinning + num_looks * looks

    def grow(self, pilots: list[Pilot], rung: int, times: float) -> None:
        """The pilot of this step goes on where it, or one with a larger step, has come to."""
        pilot = pilots[rung]
        budget = max(times * self.relaxation_cost(rung), self.least_cost(rung))
        if pilot.is_lost or self.spent + budget > PILOT_SHARE * self.total:
            return
        known = [p.positions for p in pilots[: rung + 1] if p.positions is not None]
        draws, positions = self.draw(rung, budget, known[-1] if known else None)
        if draws is None:
            # No larger step is trusted, whatever its own pilot saw.
            for each in pilots[: rung + 1]:
                each.is_lost = True
        else:
            pilot.add(draws, positions)

    def best(self, pilots: list[Pilot]) -> int:
        """Where no pilot is a witness, the largest step that none has lost."""
        first = sum(pilot.is_lost for pilot in pilots)
        # A step whose double was lost may be lost in a longer run: one notch of safety.
        first = min(first + (first > 0), self.row.num_rungs - 1)
        costs, bias = {}, 0.0
        tried = [rung for rung in range(first, len(pilots)) if pilots[rung].has_draws]
        for rung in tried:
            around = [each for each in (rung - 1, rung, rung + 1) if each in tried]
            steps = [2.0**-each for each in around]
            found = squared_bias([pilots[each] for each in around], steps, 2.0**-rung)
            # Of first order, from the double step.
            bias = bias / 4 if found is None else found
            num_draws = (1 - PILOT_SHARE) * self.total * (1 - BURN_IN) / NUM_CHAINS
            num_draws /= self.step_cost(rung) * self.thinning
            costs[rung] = bias + pilots[rung].variance() / num_draws
        best = min(costs, key=costs.__getitem__, default=first)
        return best if math.isfinite(costs.get(best, math.inf)) else first

    # Runs

    def draw(
        self, rung: int, budget: float, positions: Any, num_looks: int = 1
    ) -> tuple[np.ndarray | None, Any]:
        """Draws of all chains for this budget, less burn-in, and where they end.

        None where a chain is lost: the run is then stopped, and only what it took is spent.
        """
        case, x = self.case, self.row.x(rung)
        cost = NUM_CHAINS * self.step_cost(rung) * self.thinning
        look_cost = 0 if self.has_potential else NUM_CHAINS * case.num_examples
        count = max(LEAST_DRAWS, int((budget - num_looks * look_cost) / cost))
        self.calls += 1
        key = jax.random.fold_in(self.key, self.calls)
        if positions is None:
            # A mode has no gradient, which samplers that scale by gradients would stumble over.
            away = jax.random.normal(
                jax.random.fold_in(self.key, 0), (NUM_CHAINS, *case.start.shape)
            )
            positions = case.start + away / math.sqrt(case.stiffest)
        samples = sghmc.sample(
            key, case.target, self.row.make(x, 2 * math.sqrt(case.softest), case), positions,
            init_axis=0, gradient=self.gradient, num_samples=count, thinning=self.thinning,
            num_chains=NUM_CHAINS, progress=False, throw=False,
        )  # fmt: skip
        potential = np.asarray(samples.info.potential, np.float64)
        is_good = np.array(np.all(samples.info.is_finite, axis=0), ndmin=1)
        first = int(count * BURN_IN)
        if self.has_potential:
            is_good[first:] &= (potential[:, first:] < self.highest).all(0)
        else:
            looks = np.linspace(first, count - 1, num_looks + 1).astype(int)[1:]
            for draw in looks:
                energies = np.asarray(self.potential(samples.positions[:, draw]))
                is_good[draw:] &= bool(np.all(energies < self.highest))
        first_bad = count if is_good.all() else int(np.argmin(is_good))
        self.spent += cost * min(count, first_bad + 1) + look_cost * num_looks
        if not is_good.all():
            return None, None
        looked = np.asarray(self.look(samples.positions[:, first:]), np.float64)
        looked = looked.reshape(NUM_CHAINS, count - first, -1)
        draws = np.concatenate([looked, potential[:, first:, None]], axis=2)
        draws = np.moveaxis(draws, -1, 0)
        return (draws, samples.positions[:, -1]) if np.isfinite(draws).all() else (None, None)

    # What is said

    def errors(self, draws: np.ndarray) -> tuple[float, float]:
        """Of means, in standard deviations, and of these, relative."""
        pooled, case = draws[:-1].reshape(len(draws) - 1, -1), self.case
        means = (pooled.mean(1) - case.mean) / case.deviation
        deviations = pooled.std(1) / case.deviation - 1
        worst = [min(WORST, float(np.sqrt(np.mean(e**2)))) for e in (means, deviations)]
        return worst[0], worst[1]

    def chance(self, draws: np.ndarray) -> tuple[float, float]:
        """What of these errors the run itself would call chance."""
        found = convergence.summarize(list(draws[:-1]))
        shares = [found[name] / self.case.deviation for name in ("mcse_mean", "mcse_sd")]
        both = [float(np.sqrt(np.mean(share**2))) for share in shares]
        return both[0], both[1]
