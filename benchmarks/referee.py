"""Every sampler × every batch scheme on eight targets, at an equal number of gradients on examples.

    python benchmarks/referee.py [--out FOLDER] [--data UCI_FOLDER] [--jobs 2] [--seeds 8]
                                 [--targets NAME …] [--samplers NAME …] [--schemes NAME …]
                                 [--minutes 9] [--page docs/evidence/referee.md]

Results are lines of FOLDER/referee.jsonl, one for each target, sampler, scheme and seed, written as
soon as they are there. What is there is not run again; `--minutes` starts nothing new after that
time. At the end tables and a picture are made of all that is there: FOLDER/referee.md and
FOLDER/referee.png; `--page` puts the overview, the picture and a CSV file of all errors into the
documentation, too. The network needs `--data`, the folder with yacht.npz. A job is a process that
computes on one core.

**Budget.** A run has `passes` times N gradients on single examples, whatever they are used for. A
step costs its batch for each gradient; around a control variate twice that, and a pass for the
center. A third goes to pilot runs, by which the step is chosen; the rest to four chains, which
begin where the pilots ended and whose first fifth is burn-in. Chains begin near the mode, or the
mean: off by a standard deviation of the stiffest direction.

**Settings.** All are told the largest and the smallest curvature where chains start, k and s.
Friction is 2√s, critical for the softest direction. Against gradient noise a larger one would do
no better: its bias goes with ε/C, and the time to relax with C/ε. HMC's trajectories go a quarter
of the slowest period, ± 20 %. Steps are x/√k (x²/k for Langevin), from x = 1.2 on, each half of the
one before.

A pilot is lost where a chain becomes non-finite, or where after burn-in its potential, exact, is
above that of the start by more than ten times the dimension, and 100. A lost step takes all larger
ones with it, and the next smaller one, too, which a longer run might lose. Half of the pilots'
budget goes to as many steps as can relax eight times in it, by what was told, three at least; the
other half, in three rounds, to the step that is best so far and its half. The best has the least
sum of two estimates, over means and standard deviations of all that is asked about and of the
potential. One is its squared bias, from a line through the moments at double the step, the step and
its half: what two Monte Carlo errors do not explain. Quantities with fewer than 20 effective draws
are no witnesses; where none is left, it is a quarter of the double step's, squared. The other is
the variance that the run will have, by the pilot's Monte Carlo errors. Without any pilot, the
largest step is taken. A run that is lost all the same, which its user would see, goes on with half
the step and the gradients that are left. The truth decides nothing.

**Error.** Root mean square over the quantities asked about: of means, in standard deviations, and
of standard deviations, relative; the mean over seeds and its standard error. 1.0 stands for what
was lost: a chain that is not finite, or worse errors than that. "chance" is what the run's own
Monte Carlo errors are: an error well above it is bias, or a chain that has not seen all.
"""

import argparse
import csv
import functools
import json
import math
import multiprocessing
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import sghmc
from workloads.referee_rule import Row, Scheme, Task
from workloads.referee_targets import CASES, Case, Folders

MARK = "<!-- the rest is made by benchmarks/referee.py -->"
NO_DATA = ("funnel", "banana", "double well")
SLOW = [*NO_DATA, "Gaussian", "hierarchical", "mixture", "logistic", "network"]
"""In the order of what their truth takes."""


def _leapfrog(x: float, _: float, case: Case) -> sghmc.HMC:
    num_steps = SAMPLERS["HMC"].num_steps(x, case)
    # Jitter: else directions whose period divides the trajectory would not move.
    return sghmc.HMC(x / math.sqrt(case.stiffest), num_steps, jitter=0.2, most_steps=4_000)


def _microcanonical(x: float, _: float, case: Case) -> sghmc.MCHMC:
    """Steps that move as far as those of a Hamiltonian at temperature 1, whose speed is √d."""
    num_steps = SAMPLERS["MCHMC"].num_steps(x, case)
    return sghmc.MCHMC(x * math.sqrt(case.start.size / case.stiffest), num_steps, jitter=0.2)


SAMPLERS = {
    "SGHMC": Row(lambda x, c, case: sghmc.SGHMC(x / math.sqrt(case.stiffest), friction=c)),
    "BAOAB": Row(lambda x, c, case: sghmc.BAOAB(x / math.sqrt(case.stiffest), friction=c)),
    "OBABO": Row(lambda x, c, case: sghmc.OBABO(x / math.sqrt(case.stiffest), friction=c)),
    "UBU": Row(lambda x, c, case: sghmc.UBU(x / math.sqrt(case.stiffest), friction=c)),
    "SGNHT": Row(lambda x, c, case: sghmc.SGNHT(x / math.sqrt(case.stiffest), friction=c)),
    "SGLD": Row(lambda x, c, case: sghmc.SGLD(x**2 / case.stiffest), is_diffusive=True),
    "PSGLD": Row(
        lambda x, c, case: sghmc.PSGLD(x**2 / math.sqrt(case.stiffest)), is_diffusive=True
    ),
    "HMC": Row(_leapfrog, is_exact=True),
    "MCHMC": Row(_microcanonical, is_exact=True, num_gradients=2),
}
"""A new sampler is a row here."""
SCHEMES = {
    "all data": Scheme(lambda case: sghmc.FullBatch(), None),
    "independent": Scheme(lambda case: sghmc.Minibatch(case.batch_size)),
    "no replacement": Scheme(lambda case: sghmc.Minibatch(case.batch_size, replacement=False)),
    "shuffled": Scheme(lambda case: sghmc.Minibatch(case.batch_size, replacement="epochs")),
    "palindrome": Scheme(lambda case: sghmc.Minibatch(case.batch_size, replacement="palindrome")),
    "control variate": Scheme(
        lambda case: sghmc.ControlVariate(case.batch_size, center=case.start), 2
    ),
}
"""A new scheme is a row here."""


@functools.cache
def _case(target: str, folders: Folders) -> Case:
    return CASES[target](folders)


def work(call: tuple[str, str, str, list[int], Folders, float]) -> list[dict]:
    """In a process of its own: a sampler and a scheme on a target, with their seeds."""
    target, sampler, scheme, seeds, folders, stop = call
    if time.time() > stop:
        return []
    case = _case(target, folders)
    if not seeds:  # only to have it remembered
        return []
    name = {"target": target, "sampler": sampler, "scheme": scheme}
    task = Task(name, SAMPLERS[sampler], SCHEMES[scheme], case)
    return [task.run(seed) for seed in seeds]


def wanted(
    arguments: argparse.Namespace, done: list[dict]
) -> Iterator[tuple[str, str, str, list[int]]]:
    """What is still to run: for each target and sampler with its scheme, the seeds."""
    seen = {(row["target"], row["sampler"], row["scheme"], row["seed"]) for row in done}
    for target in sorted(arguments.targets, key=SLOW.index):
        if target == "network" and arguments.data is None:
            continue
        for sampler in arguments.samplers:
            if (target, sampler) == ("double well", "MCHMC"):
                continue  # one parameter has no direction that could turn
            for scheme in arguments.schemes:
                if scheme != "all data" and (target in NO_DATA or SAMPLERS[sampler].is_exact):
                    continue
                seeds = range(arguments.seeds)
                left = [s for s in seeds if (target, sampler, scheme, s) not in seen]
                if left:
                    yield target, sampler, scheme, left


def _mean_known(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


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
            "chance": [
                _mean_known([row[f"chance_{what}"] for row in group])
                for what in ("means", "deviations")
            ],
            "num": len(group),
            "seconds": float(np.mean([row["cpu"] for row in group])),
            "steps": sorted({row["step"] for row in group}),
        }
        for name, group in groups.items()
    }  # fmt: skip


MOMENTUM = ("SGHMC", "BAOAB", "OBABO", "UBU")


def overview(found: dict) -> str:
    """Samplers on all data, and schemes by the samplers with momentum: both errors together."""

    def whole(target: str, samplers: tuple[str, ...], scheme: str) -> str:
        rows = [found.get((target, sampler, scheme)) for sampler in samplers]
        errors = [math.hypot(row["of_means"][0], row["of_deviations"][0]) for row in rows if row]
        # Geometric, so that no single one decides.
        return f"{math.exp(np.mean(np.log(errors))):.3f}" if errors else ""

    def of(names: list[str], targets: list[str], cell, first: str) -> list[str]:
        lines = [f"| {first} | {' | '.join(targets)} |", "| --- " * (len(targets) + 1) + "|"]
        return lines + [f"| {n} | {' | '.join(cell(n, each) for each in targets)} |" for n in names]

    targets = [name for name in CASES if any(key[0] == name for key in found)]
    with_data = [name for name in targets if name not in NO_DATA]
    lines = of(list(SAMPLERS), targets, lambda s, t: whole(t, (s,), "all data"), "all data")
    lines += [""]
    lines += of(list(SCHEMES), with_data, lambda b, t: whole(t, MOMENTUM, b), ", ".join(MOMENTUM))
    return "\n".join(["", *lines, ""])


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
            "| sampler | batches | error of means | chance | of deviations | chance | x | "
            "seconds | seeds |",
            "| --- " * 9 + "|",
        ]
        for (sampler, scheme), value in sorted(
            rows.items(), key=lambda item: item[1]["of_means"][0] + item[1]["of_deviations"][0]
        ):
            total = value["of_means"][0] + value["of_deviations"][0]
            mark = "**" if total <= 1.5 * best else ""
            cells = [f"{mark}{sampler}{mark}", scheme]
            for name, chance in zip(("of_means", "of_deviations"), value["chance"], strict=True):
                cells += ["{:.3f} ± {:.3f}".format(*value[name]), f"{chance:.3f}"]
            cells += [", ".join(f"{x:.2g}" for x in value["steps"]), f"{value['seconds']:.1f}"]
            cells.append(str(value["num"]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


COLUMNS = (
    "target", "sampler", "batches", "mean_error", "mean_error_se", "mean_monte_carlo",
    "sd_error", "sd_error_se", "sd_monte_carlo", "steps", "seconds", "seeds",
)  # fmt: skip


def write_csv(found: dict, file: pathlib.Path) -> None:
    """Write the errors of every sampler and scheme, the best of a target first."""

    def total(name: tuple[str, str, str]) -> tuple[int, float]:
        value = found[name]
        return list(CASES).index(name[0]), value["of_means"][0] + value["of_deviations"][0]

    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name in sorted(found, key=total):
            value = found[name]
            means, deviations = value["of_means"], value["of_deviations"]
            errors = *means, value["chance"][0], *deviations, value["chance"][1]
            steps = " ".join(f"{x:.2g}" for x in value["steps"])
            numbers = *(f"{error:.3f}" for error in errors), steps, f"{value['seconds']:.1f}"
            writer.writerow((*name, *numbers, value["num"]))


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
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    names = ("target", "sampler", "scheme", "seed")
    return list({tuple(row[name] for name in names): row for row in rows}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Who wins at an equal number of gradients.")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results/referee"))
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--targets", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--page", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "referee.jsonl"
    jobs = list(wanted(arguments, read(file)))
    print(f"{len(jobs)} to run", flush=True)
    stop, folders = time.time() + 60 * arguments.minutes, Folders(arguments.data, arguments.out)
    # Before its processes begin: each computes on one core, beside the others.
    os.environ |= {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    # Processes are fresh after some tasks: compiled programs are not let go otherwise.
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=10) as pool:
        known = {
            target: pool.apply_async(work, ((target, "", "", [], folders, math.inf),))
            for target in sorted({job[0] for job in jobs}, key=SLOW.index, reverse=True)
        }

        def calls() -> Iterator[tuple]:
            for job in jobs:
                known[job[0]].wait()  # its truth may take a while, meanwhile others run
                yield *job, folders, stop

        for number, rows in enumerate(pool.imap_unordered(work, calls())):
            if not rows:
                continue
            with file.open("a") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows)
            last, cpu = rows[-1], sum(row["cpu"] for row in rows)
            print(
                f"{number + 1}/{len(jobs)} {last['target']}, {last['sampler']}, {last['scheme']}: "
                f"{last['of_means']:.3f}, {last['of_deviations']:.3f}, x {last['step']:.3g}, "
                f"{cpu:.0f} s", flush=True,
            )  # fmt: skip
    rows = read(file)
    print(f"{sum(row['cpu'] for row in rows) / 60:.1f} core-minutes for {len(rows)} runs")
    found = summary(rows)
    (arguments.out / "referee.md").write_text(overview(found) + table(found))
    draw_picture(found, arguments.out / "referee.png")
    if arguments.page is not None:
        before = arguments.page.read_text("utf-8").partition(MARK)[0]
        arguments.page.write_text(before + MARK + "\n" + overview(found), "utf-8")
        write_csv(found, arguments.page.with_suffix(".csv"))
        draw_picture(found, arguments.page.parents[1] / "images" / "referee.png")


if __name__ == "__main__":
    main()
