"""How often a verdict of "auto" is wrong, on posteriors whose answers are known.

    python benchmarks/verdicts.py [--only WORD …] [--draws 1000] [--json FILE]
    python benchmarks/verdicts.py --engines       # what the engine that was not chosen costs

Wrong is an answer with a mean more than 0.2 standard deviations off, or a standard deviation more
than 10 %, beyond Monte Carlo error. Every posterior is one call `sample(key, target, "auto", init,
num_chains=4)`; a refusal is a verdict, too. `$SGHMC_DATA` holds posteriordb.
"""

import argparse
import collections
import json
import time
import warnings
from typing import Any

import jax
import numpy as np

import sghmc
from sghmc.results.convergence import by_quantity, summarize
from workloads import posteriordb
from workloads.known import FORMULAS, Known

_MAX_MEAN_ERROR, _MAX_SD_ERROR = 0.2, 0.1
"""Errors, in standard deviations and relative, from which on an answer is wrong."""
_NUM_ERRORS = 3.0
"""Monte Carlo standard errors that are allowed beside these: of some 250 numbers none is beyond."""


def errors(known: Known, draws: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return the worst error of a mean and of a standard deviation, beyond Monte Carlo error."""
    worst = [0.0, 0.0]
    if known.sd is None:
        return np.inf, np.inf
    for name in known.mean:
        found = summarize(list(by_quantity(np.asarray(draws[name], np.float64))))
        mean, sd = np.ravel(known.mean[name]), np.ravel(known.sd[name])
        of_mean = np.abs(found["mean"] - mean) - _NUM_ERRORS * found["mcse_mean"]
        of_sd = np.abs(found["sd"] - sd) - _NUM_ERRORS * found["mcse_sd"]
        for i, part in enumerate((of_mean / sd, of_sd / sd)):
            worst[i] = max(worst[i], float(np.nanmax(np.where(np.isnan(part), np.inf, part))))
    return worst[0], worst[1]


def judge(known: Known, key: jax.Array, num_draws: int, engine: Any = "auto") -> dict:
    """Run "auto" on one posterior: level and words of its verdict, and whether it was right."""
    began, before = time.perf_counter(), time.process_time()
    try:
        samples = sghmc.sample(
            key, known.target, engine, known.init,
            num_samples=num_draws, num_chains=4, progress=False,
        )  # fmt: skip
    except (ValueError, TimeoutError) as error:  # what cannot be judged is refused
        return {"level": "refused", "words": str(error), "is_right": False}
    verdict = samples.verdict
    found = jax.jit(jax.vmap(jax.vmap(known.read)))(samples.positions)
    mean_error, sd_error = errors(known, found)
    return {
        "level": verdict.level,
        "words": verdict.verdict,
        "is_right": mean_error <= _MAX_MEAN_ERROR and sd_error <= _MAX_SD_ERROR,
        "mean_error": mean_error,
        "sd_error": sd_error,
        "engine": samples.tuning.engine,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - before,
    }


def count(rows: dict[str, dict]) -> str:
    """Return a table of verdicts: right and wrong answers by level."""
    counted = collections.Counter((row["level"], row["is_right"]) for row in rows.values())
    lines = ["| verdict | right answers | wrong answers |", "| --- | --- | --- |"]
    for level in ("trustworthy", "usable with care", "not trustworthy", "refused"):
        lines.append(f"| {level} | {counted[level, True]} | {counted[level, False]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json")
    parser.add_argument("--engines", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=sghmc.HealthWarning)
    cases, rows = FORMULAS | posteriordb.posteriors(), {}
    for name, make in cases.items():
        if not any(word in name for word in options.only):
            continue
        jax.clear_caches()
        key, known = jax.random.key(options.seed), make()
        rows[name] = row = judge(known, key, options.draws)
        if options.engines and "engine" in row:
            other = {"exact": "auto:minibatch", "minibatch": "auto:exact"}[row["engine"]]
            if isinstance(known.target, sghmc.Posterior):
                jax.clear_caches()
                row["other"] = judge(known, key, options.draws, other)
        answer = "right" if row["is_right"] else "WRONG"
        seconds = f"{row.get('seconds', 0):.1f} s"
        off = f"mean {row.get('mean_error', 0):+.2f}, sd {row.get('sd_error', 0):+.1%}"
        print(f"{name}: {answer} ({off}), {seconds}, {row['words']}", flush=True)
    print(count(rows))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
