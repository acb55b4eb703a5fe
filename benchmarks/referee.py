"""Every sampler × every batch scheme on eight targets, at an equal number of gradients on examples.

    python benchmarks/referee.py [--out FOLDER] [--data UCI_FOLDER] [--jobs 2] [--seeds 4]
                                 [--targets NAME …] [--samplers NAME …] [--schemes NAME …]
                                 [--page docs/evidence/referee.md]

Results are lines of FOLDER/referee.jsonl, one for each target, sampler, scheme and seed. What is
there is not run again. At the end the table and the picture are made of all that is there:
FOLDER/referee.md and FOLDER/referee.png; `--page` puts them into the documentation, too. The
network needs `--data`, the folder with yacht.npz.

**Budget.** A run has `passes` times N gradients on single examples, whatever they are used for. A
step costs its batch for each gradient; around a control variate twice that, and a pass for the
center. A fifth goes to pilot runs, by which settings are chosen; the rest to four chains, whose
first fifth is burn-in.

**Settings.** All are told the largest and the smallest curvature where chains start, k and s. Step
sizes are x/√k (x²/k for Langevin), x from 1.2 to 0.005 by thirds, as far as the run could relax
ten times in its slowest direction: below that chance outweighs any bias. Frictions are 2√s and
2(sk)^¼. For each the largest step is taken whose pilot agrees with the next: standard deviations to
10 %, means to 0.2 of them, beyond two Monte Carlo errors; where none does, the smallest. Of the two
frictions, that with the larger effective size. HMC has an accept step and so no bias: trajectories
go a quarter of the slowest period, and the step with the largest acceptance × x is taken. A run
that is lost, which its user would see, goes on with the next smaller step and half of what is left.
The truth decides nothing.

**Error.** Root mean square over the quantities asked about: of means, in standard deviations, and
of standard deviations, relative; the mean over seeds and its standard error. 1.0 stands for what
was lost: a chain that is not finite, or worse errors than that.
"""

import argparse
import dataclasses
import functools
import json
import math
import multiprocessing
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import sghmc
from sghmc.results import convergence
from workloads.referee_targets import CASES, Case

STEPS = (1.2, 0.4, 0.13, 0.04, 0.015, 0.005)
NUM_CHAINS, NUM_PILOT_DRAWS, NUM_DRAWS = 4, 60, 500
PILOT_SHARE, BURN_IN = 0.2, 0.2
RELAXATIONS = 10
LEAST_DRAWS = 4
"""For moments with errors: the budgets of all targets allow them."""
WORST = 1.0
MARK = "<!-- the rest is made by benchmarks/referee.py -->"


def trajectory(x: float, case: Case) -> int:
    """Leapfrog steps in a quarter of the slowest period, between 1 and 200."""
    return int(min(200, max(1, round(math.pi / 2 * math.sqrt(case.stiffest / case.softest) / x))))


@dataclasses.dataclass(frozen=True)
class Row:
    """A sampler by its step x, in units of the stiffest direction, and its friction."""

    make: Callable[[float, float, Case], Any]
    has_friction: bool = True
    is_diffusive: bool = False
    """Without momentum: steps go with x²."""
    is_exact: bool = False
    """It needs all data."""


SAMPLERS = {
    "SGHMC": Row(lambda x, c, case: sghmc.SGHMC(x / math.sqrt(case.stiffest), friction=c)),
    "BAOAB": Row(lambda x, c, case: sghmc.BAOAB(x / math.sqrt(case.stiffest), friction=c)),
    "OBABO": Row(lambda x, c, case: sghmc.OBABO(x / math.sqrt(case.stiffest), friction=c)),
    "UBU": Row(lambda x, c, case: sghmc.UBU(x / math.sqrt(case.stiffest), friction=c)),
    "SGNHT": Row(lambda x, c, case: sghmc.SGNHT(x / math.sqrt(case.stiffest), friction=c)),
    "SGLD": Row(lambda x, c, case: sghmc.SGLD(x**2 / case.stiffest),
                has_friction=False, is_diffusive=True),
    "PSGLD": Row(lambda x, c, case: sghmc.PSGLD(x**2 / math.sqrt(case.stiffest)),
                 has_friction=False, is_diffusive=True),
    "HMC": Row(
        lambda x, c, case: sghmc.HMC(x / math.sqrt(case.stiffest), trajectory(x, case)),
        has_friction=False, is_exact=True,
    ),
}  # fmt: skip
"""A new sampler is a row here."""
SCHEMES = {
    "all data": (lambda case: sghmc.FullBatch(), None),
    "independent": (lambda case: sghmc.Minibatch(case.batch_size), 1),
    "no replacement": (lambda case: sghmc.Minibatch(case.batch_size, replacement=False), 1),
    "shuffled": (lambda case: sghmc.Minibatch(case.batch_size, replacement="epochs"), 1),
    "palindrome": (lambda case: sghmc.Minibatch(case.batch_size, replacement="palindrome"), 1),
    "control variate": (
        lambda case: sghmc.ControlVariate(case.batch_size, center=case.start), 2
    ),
}  # fmt: skip
"""A new scheme is a row here: how it is made, and batches that a gradient sees; None: all data."""


class Task:
    """A sampler and a scheme on a target."""

    def __init__(self, target: str, sampler: str, scheme: str, case: Case):
        self.name = {"target": target, "sampler": sampler, "scheme": scheme}
        self.row, self.case = SAMPLERS[sampler], case
        make, batches = SCHEMES[scheme]
        self.gradient = make(case)
        self.cost = case.num_examples if batches is None else batches * case.batch_size
        self.total = case.passes * case.num_examples
        if batches == 2:
            self.total -= case.num_examples  # the gradient at the center

    def step_cost(self, x: float) -> int:
        return self.cost * (trajectory(x, self.case) + 1 if self.row.is_exact else 1)

    @property
    def steps(self) -> tuple[float, ...]:
        """Step sizes with which the run can relax; two of them at least."""
        ratio = math.sqrt(self.case.softest / self.case.stiffest)
        num_steps = self.total / NUM_CHAINS / self.cost

        def relaxations(x: float) -> float:
            return num_steps * ((ratio * x) ** 2 if self.row.is_diffusive else ratio * x)

        if self.row.is_exact:
            return STEPS
        return tuple(x for i, x in enumerate(STEPS) if i < 2 or relaxations(x) > RELAXATIONS)

    def draw(self, key, x: float, friction: float, budget: float, num_draws: int):
        """Draws of four chains for this budget; a fifth is thrown away. None where one is lost."""
        case, steps = self.case, max(1, int(budget / NUM_CHAINS / self.step_cost(x)))
        kept = max(LEAST_DRAWS, min(num_draws, int(steps * (1 - BURN_IN))))
        thinning = max(1, int(steps * (1 - BURN_IN) / kept))
        samples = sghmc.sample(
            key, case.target, self.row.make(x, friction, case), case.start,
            gradient=self.gradient, num_samples=kept,
            num_burnin=int(kept * BURN_IN / (1 - BURN_IN)), thinning=thinning,
            num_chains=NUM_CHAINS, keep=case.keep, progress=False, throw=False,
        )  # fmt: skip
        if not np.all(samples.info.is_finite):
            return None, 0.0
        accepted = samples.info.acceptance
        draws = np.asarray(samples.positions, np.float64).reshape(NUM_CHAINS, kept, -1)
        return np.moveaxis(draws, -1, 0), 0.0 if accepted is None else float(np.mean(accepted))

    def choose(self, key) -> tuple[float, float]:
        """Step and friction, by pilots in a fifth of the budget."""
        case = self.case
        frictions = [2 * math.sqrt(case.softest)]
        if self.row.has_friction:
            frictions.append(2 * (case.softest * case.stiffest) ** 0.25)
        steps = self.steps
        share = PILOT_SHARE * self.total / len(steps) / len(frictions)
        best = (-math.inf, steps[-1], frictions[-1])
        for number, friction in enumerate(frictions):
            pilots = [
                self.draw(
                    jax.random.fold_in(key, 10 * number + i), x, friction, share, NUM_PILOT_DRAWS
                )
                for i, x in enumerate(steps)
            ]
            if self.row.is_exact:
                worth, x = max((rate * x, x) for x, (_, rate) in zip(steps, pilots, strict=True))
                best = max(best, (worth, x, friction))
                continue
            for i, x in enumerate(steps[:-1]):
                one, half = pilots[i][0], pilots[i + 1][0]
                if one is not None and half is not None and agree(one, half):
                    best = max(best, (float(convergence.effective_size(one).min()), x, friction))
                    break
        return best[1:]

    def run(self, seed: int) -> dict:
        key, began = jax.random.key(seed), time.perf_counter()
        x, friction = self.choose(jax.random.fold_in(key, 0))
        budget, draws = (1 - PILOT_SHARE) * self.total, None
        ladder = [each for each in STEPS if each <= x]
        for attempt, x in enumerate(ladder):
            draws, _ = self.draw(
                jax.random.fold_in(key, 1 + attempt), x, friction, budget, NUM_DRAWS
            )
            if draws is not None:
                break
            budget /= 2
        errors = (WORST, WORST) if draws is None else self.errors(draws)
        return {
            **self.name, "seed": seed, "step": x, "friction": friction, "of_means": errors[0],
            "of_deviations": errors[1], "seconds": time.perf_counter() - began,
            "gradients": self.total, "host": os.uname().machine,
        }  # fmt: skip

    def errors(self, draws: np.ndarray) -> tuple[float, float]:
        pooled, case = draws.reshape(len(draws), -1), self.case
        means = (pooled.mean(1) - case.mean) / case.deviation
        deviations = pooled.std(1) / case.deviation - 1
        worst = [min(WORST, float(np.sqrt(np.mean(e**2)))) for e in (means, deviations)]
        return worst[0], worst[1]


def agree(one: np.ndarray, half: np.ndarray) -> bool:
    """Whether two pilots' moments are the same but for chance, of every quantity."""
    a, b = (convergence.summarize(list(draws)) for draws in (one, half))
    noise = np.hypot(a["mcse_sd"] / a["sd"], b["mcse_sd"] / b["sd"])
    apart = np.abs(np.log(a["sd"] / b["sd"]))
    shift = np.abs(a["mean"] - b["mean"]) / b["sd"]
    chance = np.hypot(a["mcse_mean"], b["mcse_mean"]) / b["sd"]
    return bool(np.all(apart < 0.1 + 2 * noise) and np.all(shift < 0.2 + 2 * chance))


@functools.cache
def _case(target: str, data: pathlib.Path | None) -> Case:
    return CASES[target](data)


def work(call: tuple[str, list[tuple[str, str, int]], pathlib.Path | None]) -> list[dict]:
    """In a process of its own: some pairs of sampler and scheme on a target, with their seeds."""
    target, pairs, data = call
    case = _case(target, data)
    return [Task(target, sampler, scheme, case).run(seed) for sampler, scheme, seed in pairs]


def wanted(arguments: argparse.Namespace, done: list[dict]) -> list[tuple[str, list]]:
    """What is still to run: for each target and sampler with its scheme, the seeds."""
    seen = {(row["target"], row["sampler"], row["scheme"], row["seed"]) for row in done}
    jobs = []
    for target in arguments.targets:
        if target == "network" and arguments.data is None:
            continue
        has_data = target not in ("funnel", "banana", "double well")
        for sampler in arguments.samplers:
            for scheme in arguments.schemes:
                if scheme != "all data" and (not has_data or SAMPLERS[sampler].is_exact):
                    continue
                seeds = range(arguments.seeds)
                left = [s for s in seeds if (target, sampler, scheme, s) not in seen]
                if left:
                    jobs.append((target, [(sampler, scheme, seed) for seed in left]))
    return jobs


def summary(rows: list[dict]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Means over seeds and their errors, by target, sampler and scheme."""
    groups: dict[tuple[str, str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["target"], row["sampler"], row["scheme"]), []).append(row)

    def of(group: list[dict], name: str) -> tuple[float, float]:
        values = np.array([row[name] for row in group])
        return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5) if len(
            values
        ) > 1 else math.nan

    return {
        name: {
            "of_means": of(group, "of_means"),
            "of_deviations": of(group, "of_deviations"),
            "seconds": float(np.mean([row["seconds"] for row in group])),
            "steps": sorted({row["step"] for row in group}),
        }
        for name, group in groups.items()
    }  # fmt: skip


def table(found: dict) -> str:
    lines = []
    for target in CASES:
        rows = {key[1:]: value for key, value in found.items() if key[0] == target}
        if not rows:
            continue
        best = min(
            sum(value[name][0] for name in ("of_means", "of_deviations")) for value in rows.values()
        )
        lines += [f"\n### {target}\n", CASES[target].__doc__ or "", ""]
        lines += [
            "| sampler | batches | error of means | of deviations | x | seconds |",
            "| --- " * 6 + "|",
        ]
        for (sampler, scheme), value in sorted(
            rows.items(), key=lambda item: item[1]["of_means"][0] + item[1]["of_deviations"][0]
        ):
            total = value["of_means"][0] + value["of_deviations"][0]
            mark = "**" if total <= 1.5 * best else ""
            cells = [f"{mark}{sampler}{mark}", scheme]
            cells += [
                "{:.3f} ± {:.3f}".format(*value[name]) for name in ("of_means", "of_deviations")
            ]
            cells += [", ".join(f"{x:g}" for x in value["steps"]), f"{value['seconds']:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_picture(found: dict, file: pathlib.Path) -> None:
    """A field for each target and sampler with its scheme: light is a small error."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    targets = [name for name in CASES if any(key[0] == name for key in found)]
    names = [(s, b) for b in SCHEMES for s in SAMPLERS if any(key[1:] == (s, b) for key in found)]
    grid = np.full((len(names), len(targets)), np.nan)
    for (target, *name), value in found.items():
        place = names.index((name[0], name[1])), targets.index(target)
        grid[place] = max(value["of_means"][0], value["of_deviations"][0])
    figure, axes = plt.subplots(figsize=(1.1 * len(targets) + 3, 0.27 * len(names) + 1.2))
    shown = axes.imshow(np.log10(grid), cmap="viridis_r", vmin=-2, vmax=0, aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        if np.isfinite(value):
            axes.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize=7,
                      color="white" if value > 0.1 else "black")  # fmt: skip
    axes.set_xticks(range(len(targets)), targets, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), [f"{s}, {b}" for s, b in names], fontsize=8)
    bar = figure.colorbar(shown, ticks=[-2, -1, 0])
    bar.ax.set_yticklabels(["1 %", "10 %", "lost"])
    axes.set_title("Larger error, of means or standard deviations", fontsize=9)
    figure.tight_layout()
    figure.savefig(file, dpi=80)
    plt.close(figure)


def read(file: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description="Who wins at an equal number of gradients.")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/referee"))
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--targets", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--page", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "referee.jsonl"
    jobs = wanted(arguments, read(file))
    print(f"{len(jobs)} to run", flush=True)
    calls = [(target, pairs, arguments.data) for target, pairs in jobs]
    # Processes are fresh after some tasks: compiled programs are not let go otherwise.
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=10) as pool:
        for number, rows in enumerate(pool.imap_unordered(work, calls)):
            with file.open("a") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows)
            last = rows[-1]
            print(
                f"{number + 1}/{len(jobs)} {last['target']}, {last['sampler']}, {last['scheme']}: "
                f"{last['of_means']:.3f}, {last['of_deviations']:.3f}", flush=True,
            )  # fmt: skip
    found = summary(read(file))
    text = table(found)
    (arguments.out / "referee.md").write_text(text)
    draw_picture(found, arguments.out / "referee.png")
    print(text)
    if arguments.page is not None:
        before = arguments.page.read_text("utf-8").partition(MARK)[0]
        arguments.page.write_text(before + MARK + "\n" + text, "utf-8")
        draw_picture(found, arguments.page.parents[1] / "images" / "referee.png")


if __name__ == "__main__":
    main()
