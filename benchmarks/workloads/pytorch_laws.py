"""The exact laws of published PyTorch samplers, from their updates as published.

    python benchmarks/pytorch.py laws

A tensor of two parameters, N = 50,000 rows, a mean loss ½‖θ‖²: so U = ½N‖θ‖², and draws should
have variance 1/N and no correlation. Gradients are exact. On this target every update below is an
affine map of (θ, v), z' = F z + L n, with n standard normals; its stationary covariance solves
S = F S Fᵀ + L Lᵀ. The updates are formulas here, from the sources linked; nothing of theirs is
installed or run. N is handed over where there is a place for it, and settings are the defaults
where there are any. Our own rows are differences of the optimizer that runs.
"""

import argparse
import dataclasses
import inspect
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from sghmc.torch import BAOAB, SGHMC, SGLD

NUM_DATA = 50_000
ONE, NOTHING = np.eye(2), np.zeros((2, 2))
SHARED = np.array([[1.0, 0.0], [1.0, 0.0]])
"""One random number for both parameters of a tensor."""


@dataclasses.dataclass(frozen=True)
class Step:
    """z' = F z + L n for z = (θ, v) or θ alone."""

    transition: np.ndarray
    noise: np.ndarray


def momentum(
    rate: float, decay: float, variance: float, *, drift: float = 1.0, noise=ONE
) -> list[Step]:
    """v ← (1 − decay) v − rate θ + N(0, variance), θ ← θ + drift v: the new v."""
    kick = np.block([[ONE, NOTHING], [-rate * ONE, (1 - decay) * ONE]])
    move = np.block([[ONE, drift * ONE], [NOTHING, ONE]])
    return [Step(move @ kick, move @ np.vstack([NOTHING, math.sqrt(variance) * noise]))]


def langevin(rate: float, variance: float) -> list[Step]:
    """θ ← θ − rate θ + N(0, variance)."""
    return [Step((1 - rate) * ONE, math.sqrt(variance) * ONE)]


def pybnn(lr=0.01, mdecay=0.01) -> list[Step]:
    """v ← v − lr ∇loss − mdecay v + N(0, 2 lr mdecay / N), one number for a tensor; θ ← θ + v."""
    return momentum(lr, mdecay, 2 * lr * mdecay / NUM_DATA, noise=SHARED)


def pybnn_adaptive(lr=0.01, mdecay=0.05) -> list[Step]:
    """With m = 1/√E[∇U²], frozen after burn-in, here √N⁻¹:

    v ← v − lr² m ∇U − mdecay v + N(0, 2 lr² mdecay m − lr⁴), θ ← θ + v.
    """
    m = NUM_DATA**-0.5
    return momentum(lr**2 * m * NUM_DATA, mdecay, 2 * lr**2 * mdecay * m - lr**4)


def torch_uncertainty(lr=0.01, friction=0.05, factor=0.01) -> list[Step]:
    """With m = 1, where it starts:

    v ← v − lr² m ∇loss − friction v + f N(0, max(2 lr² m friction − lr⁴, 10⁻⁸/f²)), θ ← θ + v.
    """
    variance = max(2 * lr**2 * friction - lr**4, 1e-8 / factor**2)
    return momentum(lr**2, friction, factor**2 * variance)


def torch_uncertainty_sgld(lr=0.001, factor=0.01) -> list[Step]:
    """θ ← θ − lr ∇loss + f N(0, 2 lr)."""
    return langevin(lr, factor**2 * 2 * lr)


def dal_toolbox(lr=0.001, friction=10.0, resample_each=100) -> list[Step]:
    """θ ← θ + lr r; r ← r − lr ∇U(old θ) − lr C r + N(0, 2 C lr); every 100 steps r ~ N(0, 1)."""
    both = np.block([[ONE, lr * ONE], [-lr * NUM_DATA * ONE, (1 - lr * friction) * ONE]])
    step = Step(both, np.vstack([NOTHING, math.sqrt(2 * friction * lr) * ONE]))
    forget = np.block([[ONE, NOTHING], [NOTHING, NOTHING]])
    fresh = Step(forget, np.vstack([NOTHING, ONE]))
    first = Step(
        step.transition @ fresh.transition,
        np.hstack([step.noise, step.transition @ fresh.noise]),
    )
    return [first, *[step] * (resample_each - 1)]


def csgmcmc(lr=0.01, alpha=0.9, temperature=1 / 50_000) -> list[Step]:
    """v ← (1 − α) v − lr ∇loss + N(0, 2 lr α T / N), θ ← θ + v: the sampling part of a cycle."""
    return momentum(lr, alpha, 2 * lr * alpha * temperature / NUM_DATA)


def antoran_sgld(lr=2e-2 / NUM_DATA) -> list[Step]:
    """θ ← θ − lr (½ ∇U + N(0, 1/lr)), the loss being U."""
    return langevin(lr / 2 * NUM_DATA, lr)


def devinterp_sgld(lr=1e-5) -> list[Step]:
    """θ ← θ − ½ lr N ∇loss / log N + N(0, lr), at its own temperature, log N."""
    return langevin(lr / 2 * NUM_DATA / math.log(NUM_DATA), lr)


def bnn_priors(lr=0.01, retained=0.9) -> list[Step]:
    """m ← μ m − √(lr N) ∇loss + N(0, 2(1 − μ)), θ ← θ + √(lr/N) m."""
    kick, drift = math.sqrt(lr * NUM_DATA), math.sqrt(lr / NUM_DATA)
    return momentum(kick, 1 - retained, 2 * (1 - retained), drift=drift)


class Published(NamedTuple):
    """Where an update stands, at the commit that was read."""

    name: str
    repository: str
    commit: str
    path: str
    setting: str
    steps: Callable[..., list[Step]]

    @property
    def link(self) -> str:
        place = f"{self.repository}/blob/{self.commit}/{self.path}"
        return f"[{self.name}](https://github.com/{place})"


PUBLISHED = [
    Published(
        "pybnn `SGHMC`",
        "automl/pybnn",
        "626062d984194f75e8448858faca1026a2a5b55c",
        "pybnn/sampler/sghmc.py",
        "lr 0.01, mdecay 0.01",
        pybnn,
    ),
    Published(
        "pybnn `AdaptiveSGHMC`",
        "automl/pybnn",
        "6632569f1e93351ceb7f02c220147085270595a2",
        "pybnn/sampler/adaptive_sghmc.py",
        "lr 0.01, mdecay 0.05, after burn-in",
        pybnn_adaptive,
    ),
    Published(
        "torch-uncertainty `SGHMC`",
        "torch-uncertainty/torch-uncertainty",
        "59626448eea5d6df5b449a3588ddb4bc53e5836a",
        "src/torch_uncertainty/optim/sghmc.py",
        "lr 0.01, friction 0.05, noise_factor 0.01",
        torch_uncertainty,
    ),
    Published(
        "torch-uncertainty `SGLD`",
        "torch-uncertainty/torch-uncertainty",
        "93652078b71bc4a1fe48507a824962fdd51f54e3",
        "src/torch_uncertainty/optim/sgld.py",
        "lr 0.001, noise_factor 0.01",
        torch_uncertainty_sgld,
    ),
    Published(
        "dal-toolbox `SGHMC`",
        "dhuseljic/dal-toolbox",
        "b19ad3c3f474dd98aa0df4a289917df9a96fe570",
        "dal_toolbox/models/utils/sghmc.py",
        "lr 0.001, C 10, resample_each 100",
        dal_toolbox,
    ),
    Published(
        "csgmcmc, cSGHMC",
        "ruqizhang/csgmcmc",
        "462fe45c71ae671c276ed2fcb48da9d9ba7d7af7",
        "experiments/cifar_csghmc.py",
        "lr 0.01 of its cycle, alpha 0.9, temperature 1/N",
        csgmcmc,
    ),
    Published(
        "devinterp `SGLD`",
        "timaeus-research/devinterp",
        "09d7cd5a4c6f38b614d158d9ad5386f2f77f3bd8",
        "src/devinterp/optim/sgld.py",
        'lr 10⁻⁵, temperature "adaptive"',
        devinterp_sgld,
    ),
    Published(
        "Bayesian-Neural-Networks `SGLD`",
        "JavierAntoran/Bayesian-Neural-Networks",
        "7b2c79c433a0e8a1f4910377f41757953923d5b4",
        "src/Stochastic_Gradient_Langevin_Dynamics/optimizers.py",
        "lr 0.02/N",
        antoran_sgld,
    ),
    Published(
        "bnn_priors `SGLD`",
        "ratschlab/bnn_priors",
        "0fa6ff34015c5dcd46e98a6c40d1920e898dffe7",
        "bnn_priors/mcmc/sgld.py",
        "lr 0.01, momentum 0.9",
        bnn_priors,
    ),
]
GIVEN: dict[str, Any] = {"num_data": NUM_DATA, "prior": None, "seed": 0}


def sghmc(rate: float) -> Callable:
    return lambda params: SGHMC.from_learning_rate(params, rate / NUM_DATA, 0.1, **GIVEN)


def baoab(rate: float) -> Callable:
    epsilon = (rate / NUM_DATA) ** 0.5
    return lambda params: BAOAB(params, epsilon, 0.1 / epsilon, **GIVEN)


def sgld(rate: float) -> Callable:
    return lambda params: SGLD(params, rate / NUM_DATA, **GIVEN)


OURS = {
    "`SGHMC.from_learning_rate`": ("η 0.01/N, α 0.1", sghmc),
    "`BAOAB`": ("ε² 0.01/N, εC 0.1", baoab),
    "`SGLD`": ("ε 0.01/N", sgld),
}


def ours(make: Callable) -> list[Step]:
    """A step of ours, by differences of the optimizer that runs: no formula of it."""
    theta = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    sampler = make([theta])
    theta.grad = torch.zeros(2, dtype=torch.float64)
    sampler.step()
    (piece,) = sampler._planned(sampler.param_groups[0], [theta]).pieces
    momenta = sampler.state[theta].get("momentum")

    def stepped(z: np.ndarray, n: np.ndarray) -> np.ndarray:
        def normals():
            return piece.shaped(torch.as_tensor(n))

        piece.normals = normals
        with torch.no_grad():
            theta.copy_(torch.as_tensor(z[:2]))
            if momenta is not None:
                momenta.copy_(torch.as_tensor(z[2:]))
        theta.grad = theta.detach().clone()
        sampler.step()
        parts = [theta.detach()] + ([] if momenta is None else [momenta])
        return torch.cat(parts).numpy().copy()

    size = 2 if momenta is None else 4
    columns = [stepped(e, np.zeros(2)) for e in np.eye(size)]
    noise = [stepped(np.zeros(size), e) for e in np.eye(2)]
    return [Step(np.stack(columns, 1), np.stack(noise, 1))]


def law(steps: list[Step]) -> tuple[float, float] | None:
    """N times the variance of θ, averaged over a cycle, and the correlation; None: unstable."""
    size = len(steps[0].transition)
    transition, noise = np.eye(size), np.zeros((size, size))
    for step in steps:
        transition = step.transition @ transition
        noise = step.transition @ noise @ step.transition.T + step.noise @ step.noise.T
    if np.max(np.abs(np.linalg.eigvals(transition))) >= 1:
        return None
    kronecker = np.eye(size**2) - np.kron(transition, transition)
    covariance = np.linalg.solve(kronecker, noise.reshape(-1)).reshape(size, size)
    total = np.zeros((size, size))
    for step in steps:
        covariance = step.transition @ covariance @ step.transition.T + step.noise @ step.noise.T
        total += covariance / len(steps)
    return NUM_DATA * total[0, 0], total[0, 1] / total[0, 0]


def row(steps: list[Step], smaller: list[Step]) -> list[str]:
    seen, finer = law(steps), law(smaller)
    known = seen or finer
    correlation = "" if known is None else f"{known[1] + 0.0:.2f}"
    return [_variance(seen), _variance(finer), correlation]


def _variance(found: tuple[float, float] | None) -> str:
    if found is None:
        return "none: unstable"
    return f"{found[0]:.4f}" if abs(found[0] - 1) < 0.1 else f"{found[0]:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    table = {
        f"sghmc.torch {name}": [setting, *row(ours(make(0.01)), ours(make(0.001)))]
        for name, (setting, make) in OURS.items()
    }
    for each in PUBLISHED:
        first_default = inspect.signature(each.steps).parameters["lr"].default
        smaller = each.steps(lr=first_default / 10)
        table[each.link] = [each.setting, *row(each.steps(), smaller)]
    print("| sampler | setting | N × variance | at a tenth of lr | correlation in a tensor |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, cells in table.items():
        print(f"| {name} | {' | '.join(cells)} |")
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=1, ensure_ascii=False), encoding="utf-8")
