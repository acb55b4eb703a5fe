"""posteriors' SGHMC (torch), updating in place, as a user would loop over it."""

import sys

import numpy as np
import torch
from posteriors.sgmcmc import sghmc

from workloads import images
from workloads.peers import answer
from workloads.timing import Program, clocked

PRECISION = torch.tensor(np.linalg.inv(np.array([[1.0, 0.9], [0.9, 1.0]])), dtype=torch.float32)
STEP_SIZE, FRICTION = 0.02, 1.0
"""Its integrator diverges at the step of the other programs; a step costs the same at any size."""


def gaussian(num_chains: int, num_steps: int) -> Program:
    """Many chains as one batched parameter."""

    def log_posterior(theta, noise):
        return -0.5 * torch.sum((theta @ PRECISION) * theta) + torch.sum(
            noise * theta
        ), torch.tensor([])

    sampler = sghmc.build(log_posterior, lr=STEP_SIZE, alpha=FRICTION)

    def run() -> None:
        state = sampler.init(torch.zeros(num_chains, 2))
        draws = torch.empty(num_steps, num_chains, 2)
        for t in range(num_steps):
            state, _ = sampler.update(state, torch.randn(num_chains, 2), inplace=True)
            draws[t] = state.params

    return clocked(run, num_steps * num_chains)


def network(num_steps: int) -> Program:
    x, y = (torch.from_numpy(part) for part in images.make())
    params = {
        "a": 0.01 * torch.randn(images.NUM_INPUTS, images.NUM_HIDDEN),
        "b": torch.zeros(images.NUM_HIDDEN),
        "c": 0.01 * torch.randn(images.NUM_HIDDEN, images.NUM_CLASSES),
        "d": torch.zeros(images.NUM_CLASSES),
    }

    def log_posterior(p, batch):
        x, y = batch
        scores = torch.sigmoid(x @ p["a"] + p["b"]) @ p["c"] + p["d"]
        fit = -images.NUM_ROWS * torch.nn.functional.cross_entropy(scores, y)
        return fit - 0.5 * sum((leaf**2).sum() for leaf in p.values()), torch.tensor([])

    rate = images.LEARNING_RATE**0.5
    sampler = sghmc.build(log_posterior, lr=rate, alpha=images.MOMENTUM_DECAY / rate, momenta=0.0)

    def run() -> None:
        state = sampler.init({name: leaf.clone() for name, leaf in params.items()})
        for _ in range(num_steps):
            rows = torch.randint(images.NUM_ROWS, (images.BATCH,))
            state, _ = sampler.update(state, (x[rows], y[rows]), inplace=True)

    return clocked(run, num_steps)


if __name__ == "__main__":
    workload, *numbers = sys.argv[1:]
    answer({"gaussian": gaussian, "network": network}[workload](*map(int, numbers)))
