"""posteriors' SGHMC, BAOA and SGLD: what their updates do on a Gaussian."""

import importlib.metadata
import json
import sys

import numpy as np
import torch
from posteriors.sgmcmc import baoa, sghmc, sgld

from workloads.affine import Setting, Step, look

torch.set_default_dtype(torch.float64)


def log_posterior(theta, noise):
    """−θ²/2, many chains at once, and an error of its gradient."""
    return torch.sum(-0.5 * theta**2 + noise * theta), torch.tensor([])


def stepper(sampler, setting: Setting) -> Step:
    def step(seed: int, states: np.ndarray) -> np.ndarray:
        torch.manual_seed(seed)
        columns = [torch.tensor(column) for column in states.T]
        state = sampler.init(columns[0])
        if len(columns) > 1:
            state = state.replace(momenta=columns[1])
        noise = setting.noise**0.5 * torch.randn(len(states))
        state, _ = sampler.update(state, noise)
        parts = [state.params] if len(columns) == 1 else [state.params, state.momenta]
        return torch.stack(parts, dim=1).numpy()

    return step


def main() -> None:
    settings = [Setting(*numbers) for numbers in json.loads(sys.argv[1])]
    makers = {
        "sghmc.build(log_posterior, lr=ε, alpha=α, beta=β)": (
            lambda s: sghmc.build(log_posterior, lr=s.step_size, alpha=s.friction, beta=s.noise),
            2,
        ),
        "baoa.build(log_posterior, lr=ε, alpha=α)": (
            lambda s: baoa.build(log_posterior, lr=s.step_size, alpha=s.friction),
            2,
        ),
        "sgld.build(log_posterior, lr=ε, beta=β)": (
            lambda s: sgld.build(log_posterior, lr=s.step_size, beta=s.noise),
            1,
        ),
    }
    samplers = {
        name: [look(stepper(make(setting), setting), size) for setting in settings]
        for name, (make, size) in makers.items()
    }
    version = importlib.metadata.version("posteriors")
    print(json.dumps({"version": version, "samplers": samplers}))


if __name__ == "__main__":
    main()
