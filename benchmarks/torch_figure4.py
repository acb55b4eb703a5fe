"""Fig. 4's SGHMC row in PyTorch: the paper's network and settings, an ordinary training loop.

    python benchmarks/torch_figure4.py --data FOLDER --device cuda           # 800 epochs, 4 seeds
    python benchmarks/torch_figure4.py --data FOLDER --epochs 30 --burnin 5  # a short one

FOLDER holds the four MNIST files (IDX, gzipped or not). The chains are those of `sghmc reproduce
figure4`: 784-100-10 with sigmoids, batches of 500 in shuffled epochs of 50,000 digits, learning
rate 0.2·10⁻⁵, momentum decay 0.01, the first epoch without noise, precisions by Gibbs draws after
every epoch, probabilities averaged over draws after burn-in. What is compared is the row of that
command, 16 seeds on an H200 (docs/evidence/paper.md): 800 epochs with a burn-in of 50.
"""

import argparse
import json
import pathlib
import statistics
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from sghmc.data.mnist import load_mnist
from sghmc.results.scores import class_scores
from sghmc.torch import SGHMC, GaussianPrior

ROW = {"error": (0.0172, 0.0005, 16), "nll": (0.0639, 0.0008, 16)}
"""Mean, standard deviation and number of seeds."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=800)
    parser.add_argument("--burnin", type=int, default=50)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    train, test = load(given.data, given.device)
    found: dict[str, Any] = {"error": [], "nll": [], "seconds": []}
    for seed in range(given.seeds):
        start = time.perf_counter()
        average = chain(seed, train, test, given.epochs, given.burnin, given.device)
        scores = class_scores(jnp.asarray(average), jnp.asarray(test[1].cpu().numpy()))
        for name, value in (("error", scores.error), ("nll", scores.nll)):
            found[name].append(float(value))
        found["seconds"].append(time.perf_counter() - start)
        shown = ", ".join(f"{name} {values[-1]:.4f}" for name, values in found.items())
        print(f"seed {seed}: {shown}", flush=True)
    is_comparable = (given.epochs, given.burnin) == (800, 50) and given.seeds > 1
    for name, (mean, deviation, count) in ROW.items():
        seen = statistics.fmean(found[name])
        spread = statistics.stdev(found[name]) if given.seeds > 1 else 0.0
        print(f"{name}: {seen:.4f} ± {spread:.4f} over {given.seeds} seeds")
        if is_comparable:
            error = (deviation**2 / count + spread**2 / given.seeds) ** 0.5
            print(f"  JAX's row: {mean:.4f} ± {deviation:.4f}; {(seen - mean) / error:+.1f} se off")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
