"""A character-level transformer: an SGHMC ensemble beside what is usual, at equal gradients.

    python benchmarks/transformer.py --data shakespeare.txt.gz --size 1e5 --seeds 3
    python benchmarks/transformer.py --size 1e8 --speed             # a step and memory beside AdamW
    python benchmarks/transformer.py --size 1e9 --adapters 16       # 16 chains beside one network
    python benchmarks/transformer.py --report                       # only the tables

Every method may take `--gradients` gradients of a batch: training, tuning and sampling together;
the deep ensemble shares them among its members ("full ensemble": each has them all). Rates,
temperatures and decays of momenta are tried one after another, each with all the gradients, and
the best on the validation text is taken: AdamW's over checkpoints, too. Then the test text is
looked at, once.

The first 90 % of a text are trained on (`--characters`: only the last so many of them), 5 % are for
validation and 5 % for test. Scores are bits per character; the calibration error of the likeliest
character and of all characters; entropy and mutual information, on the test text and on text of
other kinds; seconds and peak memory of the process that did it all, grid included.

Each result is a line of `results/transformer/results.jsonl` as soon as it is there: a run that was
stopped goes on. Every method of a seed has a process of its own, `--jobs` of them at a time; this
one leaves the device to them.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from sghmc.models import Transformer
from workloads import text, text_methods, text_speed

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "transformer"


class Size(NamedTuple):
    """A configuration: the network, a batch, gradients of a method, characters to train on.

    `rates` are those that are tried for AdamW; large networks want small ones.
    """

    width: int
    depth: int
    num_heads: int
    context: int
    batch: int
    num_gradients: int
    characters: int | None = None
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)


_LOW_RATES = (3e-4, 1e-3, 3e-3)
SIZES = {
    "tiny": Size(16, 2, 2, 8, 16, 800, 5_000),
    "1e5": Size(64, 2, 2, 32, 16, 3_000, 50_000),
    "1e6": Size(128, 5, 4, 64, 16, 3_000, 200_000),
    "1e7": Size(384, 6, 6, 256, 64, 3_000, None, _LOW_RATES),
    "1e8": Size(768, 14, 12, 256, 32, 3_000, None, _LOW_RATES),
    "1e9": Size(2048, 20, 16, 128, 1, 3_000, None, _LOW_RATES),
}
DEFAULT_METHODS = ("AdamW", "SGD with momentum", "ensemble", "SWAG", "SGHMC")
COLUMNS = {
    "bits": "bits per character",
    "ece": "calibration error",
    "ece_all": "of all characters",
    "error": "error",
    "seconds": "seconds",
    "peak_bytes": "peak, GB",
}
_NUM_TIMED = 5


def model_of(options: argparse.Namespace, num_symbols: int) -> Transformer:
    size = SIZES[options.size]
    return Transformer(
        num_symbols,
        options.context or size.context,
        size.width,
        size.depth,
        size.num_heads,
        prior_scale=text_methods.PRIOR_SCALE,
        compute_type=options.compute,
        remat=options.remat,
    )


# Scores


def judged(options: argparse.Namespace, method: str, seed: int) -> list[dict[str, Any]]:
    """What a method found and, for what it chose, the scores on the test text."""
    started, size = time.perf_counter(), SIZES[options.size]
    split = text.read(options.data, options.characters or size.characters)
    model = model_of(options, len(split.symbols))
    setup = text_methods.Setup(
        model,
        split,
        options.batch or size.batch,
        options.gradients or size.num_gradients,
        options.draws,
        seed,
        tuple(options.rates or size.rates),
        tuple(options.temperatures),
        tuple(options.decays),
    )
    outcomes = text_methods.METHODS[method](setup)
    seconds, peak = time.perf_counter() - started, _peak()
    predict = text.predictor(model, split.test)
    predict_others = {
        kind: text.predictor(model, other) for kind, other in text.other_kinds(split).items()
    }
    lines = []
    for outcome in outcomes:
        others = {kind: one(outcome.members) for kind, one in predict_others.items()}
        lines.append(
            identity(options, _named(method, outcome), seed)
            | {
                "device": jax.devices()[0].device_kind,
                "validation_bits": outcome.bits,
                "num_gradients": outcome.num_gradients,
                "num_parameters": text_speed.num_parameters(model),
                "setting": outcome.setting,
                "seconds": seconds,
                "peak_bytes": peak,
            }
            | text.scores(predict(outcome.members), others)
        )
    return lines


def _named(method: str, outcome: text_methods.Outcome) -> str:
    """At temperature 1 it is the posterior; else a cold one, and it is called so."""
    temperature = outcome.setting.get("temperature")
    if temperature is None:
        return method
    return f"{method}, temperature {'1' if temperature == 1 else 'chosen'}"


def _peak() -> int:
    statistics = jax.devices()[0].memory_stats()
    if statistics:
        return statistics["peak_bytes_in_use"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def identity(options: argparse.Namespace, method: str, seed: int) -> dict[str, Any]:
    size = SIZES[options.size]
    return {
        "method": method,
        "size": options.size,
        "seed": seed,
        "gradients": options.gradients or size.num_gradients,
        "characters": options.characters or size.characters,
        "batch": options.batch or size.batch,
        "context": options.context or size.context,
        "compute": options.compute,
        "draws": options.draws,
    }


def compare(options: argparse.Namespace, file: pathlib.Path) -> None:
    """Every method of every seed that is not there yet, each in a process of its own."""
    known = {_name(line) for line in read(file)}
    missing = [
        (method, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for method in options.methods
        if not known & _names(options, method, seed)
    ]
    with futures.ThreadPoolExecutor(options.jobs) as pool:
        begun = [
            pool.submit(_in_process, ["--worker", "judge", method, str(seed)])
            for method, seed in missing
        ]
        for ended in futures.as_completed(begun):
            lines = ended.result()
            with file.open("a", encoding="utf-8") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
            for line in lines:
                print(f"{line['method']}, seed {line['seed']}: {_shown(line)}", flush=True)


def _names(options: argparse.Namespace, method: str, seed: int) -> set[tuple]:
    """Those that lines of a method may have."""
    names = (method, f"{method}, temperature 1", f"{method}, temperature chosen")
    return {_name(identity(options, name, seed)) for name in names}


def _name(line: dict[str, Any]) -> tuple:
    return tuple(str(line[name]) for name in (
        "method", "size", "seed", "gradients", "characters", "batch", "context", "compute", "draws"
    ))  # fmt: skip


def _shown(line: dict[str, Any]) -> str:
    return ", ".join(f"{COLUMNS[name]} {_number(name, line[name])}" for name in COLUMNS)


def _number(name: str, value: float) -> str:
    if name == "peak_bytes":
        return f"{value / 1e9:.2f}"
    return f"{value:.0f}" if name == "seconds" else f"{value:.4f}"


def _in_process(worker: list[str]) -> Any:
    """What this script, called again with the same options, prints in its last line."""
    command = [sys.executable, __file__, *sys.argv[1:], *worker]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # Else the first on a GPU takes three quarters of its memory from the others.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(worker)} ended with {done.returncode}:\n{done.stdout}")
    return json.loads(done.stdout.splitlines()[-1])


def read(file: pathlib.Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


# Tables


def report(lines: list[dict[str, Any]]) -> str:
    """Means over seeds with standard errors, a table for each setting; then the bars."""
    parts = []
    settings = {_name(line)[1:2] + _name(line)[3:]: line for line in lines}
    for setting, like in settings.items():
        of_setting = [line for line in lines if _name(line)[1:2] + _name(line)[3:] == setting]
        methods = list(dict.fromkeys(line["method"] for line in of_setting))
        by_method = {
            method: sorted(
                (line for line in of_setting if line["method"] == method),
                key=lambda line: line["seed"],
            )
            for method in methods
        }
        parts.append(
            f"### {like['num_parameters']:,} parameters, {like['gradients']:,} gradients of "
            f"{like['batch']} × {like['context']} characters, {like['device']}\n"
        )
        parts += [_scores_table(by_method), _uncertainty_table(by_method), *_bars(by_method), ""]
    return "\n".join(parts)


def _scores_table(by_method: dict[str, list[dict[str, Any]]]) -> str:
    head = ["method", "seeds", "gradients", *COLUMNS.values()]
    rows = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for method, lines in by_method.items():
        cells = [method, str(len(lines)), f"{lines[0]['num_gradients']:,}"]
        cells += [_mean(name, lines) for name in COLUMNS]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def _mean(name: str, lines: list[dict[str, Any]]) -> str:
    values = [line[name] for line in lines]
    if name in ("peak_bytes", "seconds") or len(values) < 2:
        return _number(name, float(np.mean(values)))
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.4f} ± {error:.4f}"


def _uncertainty_table(by_method: dict[str, list[dict[str, Any]]]) -> str:
    """Bits of entropy and information, here and on other text; how well windows are told apart."""
    first = next(iter(by_method.values()))[0]
    kinds = [name.removeprefix("entropy, ") for name in first if name.startswith("entropy, ")]
    rows = [
        f"| method | test | {' | '.join(kinds)} |",
        f"| --- | ---: |{' ---: |' * len(kinds)}",
    ]
    for method, lines in by_method.items():

        def mean(name: str, lines=lines) -> float:
            return float(np.mean([line[name] for line in lines]))

        cells = [f"{mean('entropy'):.2f} / {mean('information'):.3f}"]
        cells += [
            f"{mean(f'entropy, {kind}'):.2f} / {mean(f'information, {kind}'):.3f}; "
            f"{mean(f'told apart by entropy, {kind}'):.3f} / "
            f"{mean(f'told apart by information, {kind}'):.3f}"
            for kind in kinds
        ]
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def _bars(by_method: dict[str, list[dict[str, Any]]]) -> list[str]:
    bars = []
    for method, lines in by_method.items():
        if not method.startswith("SGHMC") or "AdamW" not in by_method:
            continue
        theirs = {line["seed"]: line for line in by_method["AdamW"]}
        pairs = [(line, theirs[line["seed"]]) for line in lines if line["seed"] in theirs]
        if not pairs:
            continue
        gaps = [mine["bits"] - other["bits"] for mine, other in pairs]
        shares = [mine["ece"] / other["ece"] for mine, other in pairs]
        bars.append(
            f"- {method} against AdamW's best checkpoint, seed by seed: bits "
            f"{', '.join(f'{gap:+.4f}' for gap in gaps)} (bar: below 0: "
            f"{'met' if max(gaps) < 0 else 'missed'}); calibration error × "
            f"{', '.join(f'{share:.2f}' for share in shares)} (bar: 0.5: "
            f"{'met' if max(shares) <= 0.5 else 'missed'})"
        )
    return bars


# Speed and memory


def time_steps(options: argparse.Namespace, out: pathlib.Path) -> None:
    """The memory of each program in a process of its own; then programs in turns, here."""
    case, num_chains = _case(options), options.adapters
    names = (
        {"AdamW": "one full fine-tune by AdamW", "adapters": f"{num_chains} chains"}
        if num_chains
        else {"AdamW": "AdamW", "SGHMC": "SGHMC"}
    )
    limit = 1.1 if num_chains else 1.0
    peaks = {name: _in_process(["--worker", "memory", name, "0"]) for name in names}
    if num_chains:
        table = text_speed.adapter_speed(case, num_chains, options.repeats)
    else:
        table = text_speed.speed(case, options.repeats)
    count = text_speed.num_parameters(case.model)
    print(f"{count:,} parameters, batches of {case.batch} × {case.model.context}, "
          f"{options.compute}, {jax.devices()[0].device_kind}\n\n{table.markdown()}")  # fmt: skip
    base, other = (peaks[name]["bytes"] for name in names)
    judged_bars = table.judged()
    judged_bars.append({
        "title": "memory", "what": f"{names[list(names)[1]]} / {names['AdamW']}",
        "measured": other / base, "limit": limit, "is_met": other / base <= limit,
    })  # fmt: skip
    for name, label in names.items():
        print(f"- {label}: {peaks[name]['bytes'] / 1e9:.2f} GB, peak of {peaks[name]['of']}")
    for bar in judged_bars:
        verdict = "met" if bar["is_met"] else "missed"
        print(
            f"- {bar['title']}: {bar['what']} {bar['measured']:.3g} (bar {bar['limit']}: {verdict})"
        )
    found = {
        "size": options.size, "num_parameters": count, "batch": case.batch,
        "context": case.model.context, "compute": options.compute, "remat": options.remat,
        "device": jax.devices()[0].device_kind, "seconds": table.seconds, "peaks": peaks,
        "bars": judged_bars,
    }  # fmt: skip
    kind = f"adapters-{num_chains}" if num_chains else "speed"
    (out / f"{kind}-{options.size}.json").write_text(json.dumps(found, indent=1) + "\n")


def _case(options: argparse.Namespace) -> text_speed.Case:
    model = model_of(options, text_speed.NUM_SYMBOLS)
    return text_speed.Case(model, options.batch or SIZES[options.size].batch, options.steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="A text, .txt or .txt.gz.")
    parser.add_argument("--size", choices=list(SIZES), default="1e5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", choices=list(text_methods.METHODS),
                        default=list(DEFAULT_METHODS))  # fmt: skip
    parser.add_argument("--gradients", type=int, help="Of a batch, for each method.")
    parser.add_argument("--characters", type=int, help="Of the training part.")
    parser.add_argument("--batch", type=int, help="Windows of a batch.")
    parser.add_argument("--context", type=int)
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--rates", type=float, nargs="+", help="That AdamW tries.")
    parser.add_argument("--temperatures", type=float, nargs="+",
                        default=list(text_methods.TEMPERATURES))  # fmt: skip
    parser.add_argument("--decays", type=float, nargs="+", default=list(text_methods.DECAYS),
                        help="Of SGHMC's momenta, that it tries.")  # fmt: skip
    parser.add_argument("--compute", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--adapters", type=int, default=0, metavar="CHAINS")
    parser.add_argument("--steps", type=int, default=200, help="Of a turn of --speed.")
    parser.add_argument("--repeats", type=int, default=_NUM_TIMED)
    parser.add_argument("--report", action="store_true", help="Only print what is there.")
    parser.add_argument("--jobs", type=int, default=1, help="Methods and seeds at a time.")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="Folder of results.")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        what, name, seed = options.worker
        found = (
            judged(options, name, int(seed))
            if what == "judge"
            else text_speed.peak_bytes(name, _case(options), options.adapters)
        )
        print(json.dumps(found))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.speed or options.adapters:
        time_steps(options, options.out)
        return
    file = options.out / "results.jsonl"
    if not options.report:
        if options.data is None:
            parser.error("--data FILE is needed, unless --report, --speed or --adapters.")
        compare(options, file)
    tables = report(read(file))
    (options.out / "tables.md").write_text(tables, encoding="utf-8")
    print(tables)


if __name__ == "__main__":
    main()
