"""MNIST in PyTorch: `sghmc.torch.tune` beside SGD, an ensemble of four and MC dropout.

    python benchmarks/pytorch.py mnist --data FOLDER                # all methods
    python benchmarks/pytorch.py mnist --data FOLDER --methods sgd --json sgd.json

FOLDER holds the four MNIST files (IDX, gzipped or not). The network is 784-100-10 with rectifiers,
and sees 10,000 of the training digits. Every method takes 12,000 gradients of batches of 100 for a
result, and as many runs of that length for its settings, by the same search: fit on 8,000 of the
rows, scored on the other 2,000. Then the settings are fixed, all 10,000 rows are fit with five
seeds, and the test digits are looked at once. `defaults` is `tune` without held-out rows.

Files that were written by `--json` are put together by `--table FILES`: differences are to the best
of the others, paired by seed, with a 95 % interval for the mean over seeds.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from sghmc.data.archives import load_mnist
from sghmc.torch import tune
from sghmc.torch.tune import Tuned, search

NUM_ROWS, NUM_HELD_OUT, BATCH_SIZE = 10_000, 2_000, 100
NUM_GRADIENTS, NUM_TRIALS, SEEDS = 12_000, 5, range(1, 6)
NUM_MEMBERS, NUM_PASSES = 4, 50
QUANTILE = 2.776
"""0.975-quantile of Student's t with four degrees of freedom, for five seeds."""
LOSS = torch.nn.functional.cross_entropy
Settings = dict[str, Any]


class Rows:
    """A loader of rows in memory, in another order in every pass."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, seed: int):
        self.dataset = torch.utils.data.TensorDataset(x, y)
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        order = torch.randperm(len(self.dataset), generator=self._generator)
        return (self.dataset[rows] for rows in order.split(BATCH_SIZE))


def network(seed: int, inputs: float = 0.0, hidden: float = 0.0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Dropout(inputs),
        torch.nn.Linear(784, 100),
        torch.nn.ReLU(),
        torch.nn.Dropout(hidden),
        torch.nn.Linear(100, 10),
    )


def train(rows: Rows, seed: int, given: Settings, num_steps: int) -> torch.nn.Sequential:
    """Return a network trained by SGD with momentum, weight decay and a cosine schedule."""
    model = network(seed, given.get("inputs", 0.0), given.get("hidden", 0.0))
    optimizer = torch.optim.SGD(
        model.parameters(), given["rate"], momentum=0.9, weight_decay=given["decay"]
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    step = 0
    while step < num_steps:
        for x, y in rows:
            optimizer.zero_grad()
            LOSS(model(x), y).backward()
            optimizer.step()
            schedule.step()
            step += 1
    return model


@torch.no_grad()
def probabilities(models: list[torch.nn.Sequential], x: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.softmax(model(x), -1) for model in models]).mean(0)


def sgd(rows: Rows, x: torch.Tensor, seed: int, given: Settings) -> torch.Tensor:
    return probabilities([train(rows, seed, given, NUM_GRADIENTS).eval()], x)


def ensemble(rows: Rows, x: torch.Tensor, seed: int, given: Settings) -> torch.Tensor:
    num_steps = NUM_GRADIENTS // NUM_MEMBERS
    seeds = range(NUM_MEMBERS * seed, NUM_MEMBERS * (seed + 1))
    return probabilities([train(rows, each, given, num_steps).eval() for each in seeds], x)


def dropout(rows: Rows, x: torch.Tensor, seed: int, given: Settings) -> torch.Tensor:
    model = train(rows, seed, given, NUM_GRADIENTS).train()
    return probabilities([model] * NUM_PASSES, x)


def nll(p: torch.Tensor, y: torch.Tensor) -> float:
    return -p.gather(1, y[:, None]).clamp_min(1e-30).log().mean().item()


RIVALS: dict[str, tuple[Callable[..., torch.Tensor], Settings, list[tuple[str, float]]]] = {
    "sgd": (
        sgd,
        {"rate": 0.05, "decay": 1e-3},
        [("decay", 2.0), ("rate", 2.0), ("decay", 0.5), ("rate", 0.5)],
    ),
    "ensemble": (
        ensemble,
        {"rate": 0.1, "decay": 1e-3},
        [("decay", 2.0), ("rate", 2.0), ("decay", 0.5), ("rate", 0.5)],
    ),
    "dropout": (
        dropout,
        {"rate": 0.1, "decay": 2e-4, "hidden": 0.5, "inputs": 0.1},
        [
            ("hidden", 0.5),
            ("decay", 2.0),
            ("rate", 2.0),
            ("inputs", 2.0),
            ("rate", 0.5),
            ("decay", 0.5),
            ("inputs", 0.5),
        ],
    ),
}
METHODS = (*RIVALS, "tune", "defaults")
Data = tuple[torch.Tensor, torch.Tensor]


def choose(method: str, fit: Data, held_out: Data) -> tuple[Any, Any]:
    """Return the settings of a method, and its trials, from training rows alone."""
    x, y = held_out
    if method in RIVALS:
        predict, first, moves = RIVALS[method]
        found = search(
            lambda **given: nll(predict(Rows(*fit, 0), x, 0, given), y), first, moves, NUM_TRIALS
        )
        return found[0][1], found
    rows = Rows(*fit, 0)
    if method == "defaults":
        return tune(network(0), LOSS, rows, seed=0, num_gradients=NUM_GRADIENTS), []
    given: dict[str, Any] = {"num_gradients": NUM_GRADIENTS, "num_trials": NUM_TRIALS}
    tuned = tune(network(0), LOSS, rows, [held_out], "softmax", seed=0, **given)
    return tuned, [trial._asdict() for trial in tuned.trials]


def predict(method: str, settings: Any, train: Data, x: torch.Tensor, seed: int) -> torch.Tensor:
    rows = Rows(*train, seed)
    if method in RIVALS:
        return RIVALS[method][0](rows, x, seed, settings)
    draws = settings.run(network(seed), LOSS, rows, seed=seed)
    return draws.predict([x], "softmax").probabilities


def load(folder: pathlib.Path | None) -> tuple[Data, Data]:
    train, test = load_mnist(folder)
    rows = np.random.default_rng(0).permutation(len(train.y))[:NUM_ROWS]

    def tensors(x: np.ndarray, y: np.ndarray) -> Data:
        return torch.as_tensor(x.astype(np.float32) / 256), torch.as_tensor(y.astype(np.int64))

    return tensors(train.x[rows], train.y[rows]), tensors(*test)


def run(method: str, folder: pathlib.Path | None) -> dict[str, Any]:
    """Choose settings, then look at the test digits."""
    train, test = load(folder)
    start = time.process_time()
    fit, held_out = ([each[part] for each in train] for part in
                     (slice(NUM_HELD_OUT, None), slice(NUM_HELD_OUT)))  # fmt: skip
    settings, trials = choose(method, (fit[0], fit[1]), (held_out[0], held_out[1]))
    print(f"{method}: {settings}, {(time.process_time() - start) / 60:.1f} CPU minutes", flush=True)
    found: dict[str, Any] = {"method": method, "trials": trials, "nll": [], "error": []}
    found["settings"] = dataclasses.asdict(settings) if isinstance(settings, Tuned) else settings
    for seed in SEEDS:
        p = predict(method, settings, train, test[0], seed)
        found["nll"].append(nll(p, test[1]))
        found["error"].append((p.argmax(1) != test[1]).float().mean().item())
        print(f"{method}, seed {seed}: {found['nll'][-1]:.4f}", flush=True)
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return a row for each method, and how far `tune` and its defaults are from the best other."""
    lines = ["| method | nll | error |", "| --- | --- | --- |"]
    for method, seen in found.items():
        mean, spread = statistics.fmean(seen["nll"]), statistics.stdev(seen["nll"])
        error = 100 * statistics.fmean(seen["error"])
        lines.append(f"| {method} | {mean:.4f} ± {spread:.4f} | {error:.2f} % |")
    best = min(RIVALS, key=lambda method: statistics.fmean(found[method]["nll"]))
    for method in ("tune", "defaults"):
        if method in found:
            pairs = zip(found[method]["nll"], found[best]["nll"], strict=True)
            apart = [ours - theirs for ours, theirs in pairs]
            reach = QUANTILE * statistics.stdev(apart) / len(apart) ** 0.5
            mean = statistics.fmean(apart)
            lines.append(
                f"{method} − {best}: {mean:+.4f} ({mean - reach:+.4f} to {mean + reach:+.4f})"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--table", type=pathlib.Path, nargs="+", help="files of --json")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.table:
        found = {k: v for file in given.table for k, v in json.loads(file.read_text()).items()}
    else:
        found = {method: run(method, given.data) for method in given.methods}
        if given.json is not None:
            given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if found.keys() >= RIVALS.keys():
        print(table(found))


if __name__ == "__main__":
    main()
