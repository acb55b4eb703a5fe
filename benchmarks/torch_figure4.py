"""Fig. 4's SGHMC row in PyTorch: the paper's network and settings, an ordinary training loop.

    python benchmarks/torch_figure4.py --data FOLDER --device cuda --jobs 4   # 800 epochs, 4 seeds
    python benchmarks/torch_figure4.py --data FOLDER --epochs 30 --burnin 5  # a short one

FOLDER holds the four MNIST files (IDX, gzipped or not). The chains are those of `sghmc reproduce
figure4`: 784-100-10 with sigmoids, batches of 500 in shuffled epochs of 50,000 digits, learning
rate 0.2·10⁻⁵, momentum decay 0.01, the first epoch without noise, precisions by Gibbs draws after
every epoch, probabilities averaged over draws after burn-in. What is compared is the row of that
command in docs/evidence/paper.md, 16 seeds on an H200: 800 epochs with a burn-in of 50. A step is
so small that Python is what it waits for: `--jobs` seeds run at once, each in a process.
"""

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import pathlib
import re
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch

from sghmc.data.archives import load_mnist
from sghmc.results.scores import class_scores
from sghmc.torch import SGHMC, GaussianPrior

jax.config.update("jax_platforms", "cpu")  # it scores; the accelerator's memory is torch's
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "evidence" / "paper.md"
NUM_SEEDS = 16
"""Of the row on that page."""
BATCH_SIZE, NUM_VALIDATION = 500, 10_000
LEARNING_RATE, MOMENTUM_DECAY = 0.2e-5, 0.01


def tensors(x: np.ndarray, y: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.as_tensor(x.astype(np.float32) / 256, device=device)
    return pixels, torch.as_tensor(y.astype(np.int64), device=device)


def load(folder: pathlib.Path | None, device: str):
    """Training and test digits; the rest of the training set is for validation, as there."""
    train, test = load_mnist(folder)
    order = np.random.default_rng(0).permutation(len(train.y))[NUM_VALIDATION:]
    return tensors(train.x[order], train.y[order], device), tensors(*test, device)


def network(device: str) -> torch.nn.Sequential:
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 100), torch.nn.Sigmoid(), torch.nn.Linear(100, 10)
    )
    for name, param in model.named_parameters():
        torch.nn.init.normal_(param, std=0.01 if name.endswith("weight") else 0.0)
    return model.to(device)


def chain(seed: int, train, test, num_epochs: int, num_burnin: int, device: str) -> np.ndarray:
    """The average of the test set's probabilities over the draws of one seed."""
    torch.manual_seed(seed)
    (x, y), (test_x, _) = train, test
    model = network(device)
    sampler = SGHMC.from_learning_rate(
        [{"params": [param], "prior": GaussianPrior(1.0)} for param in model.parameters()],
        LEARNING_RATE,
        MOMENTUM_DECAY,
        temperature=0.0,
        num_data=len(y),
        prior=None,
        seed=seed,
    )
    total = torch.zeros(len(test_x), 10, device=device)
    for epoch in range(num_epochs):
        for rows in torch.randperm(len(y), device=device).split(BATCH_SIZE):
            sampler.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            sampler.step()
        for group in sampler.param_groups:
            group["temperature"] = 1.0
        sampler.gibbs()
        if epoch >= num_burnin:
            with torch.no_grad():
                total += torch.softmax(model(test_x), -1)
    sampler.settle()
    return (total / (num_epochs - num_burnin)).cpu().numpy()


def run(seed: int, given: argparse.Namespace) -> dict[str, float]:
    """The test scores of a seed, and how long it took."""
    train, test = load(given.data, given.device)
    start = time.perf_counter()
    average = chain(seed, train, test, given.epochs, given.burnin, given.device)
    scores = class_scores(jnp.asarray(average), jnp.asarray(test[1].cpu().numpy()))
    taken = time.perf_counter() - start
    return {"error": float(scores.error), "nll": float(scores.nll), "seconds": taken}


def jax_row() -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over seeds, from the page that has them."""
    (row,) = re.findall(r"^\| SGHMC \| the paper \|.*", PAGE.read_text("utf-8"), re.MULTILINE)
    error, nll = ((float(m), float(s)) for m, s in re.findall(r"([\d.]+) ± ([\d.]+)", row))
    return {"error": (error[0] / 100, error[1] / 100), "nll": nll}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=800)
    parser.add_argument("--burnin", type=int, default=50)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    found: dict[str, list[float]] = {"error": [], "nll": [], "seconds": []}
    spawned = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with concurrent.futures.ProcessPoolExecutor(given.jobs, spawned) as pool:
        for seed, scores in enumerate(
            pool.map(functools.partial(run, given=given), range(given.seeds))
        ):
            for name, value in scores.items():
                found[name].append(value)
            shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
            print(f"seed {seed}: {shown}", flush=True)
    is_comparable = (given.epochs, given.burnin) == (800, 50) and given.seeds > 1
    for name, (mean, deviation) in jax_row().items():
        seen = statistics.fmean(found[name])
        spread = statistics.stdev(found[name]) if given.seeds > 1 else 0.0
        print(f"{name}: {seen:.4f} ± {spread:.4f} over {given.seeds} seeds")
        if is_comparable:
            error = (deviation**2 / NUM_SEEDS + spread**2 / given.seeds) ** 0.5
            print(f"  JAX's row: {mean:.4f} ± {deviation:.4f}; {(seen - mean) / error:+.1f} se off")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
