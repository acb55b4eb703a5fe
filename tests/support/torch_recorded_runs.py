"""Short runs of every sampler of `sghmc.torch`, whose results `recorded_runs.json` keeps."""

from typing import Any

import numpy as np
import torch

from recorded_runs import Run
from sghmc.torch import BAOAB, PSGLD, SGHMC, SGLD, SGNHT, Chains, Collector, Cyclical, GaussianPrior

_TOLERANCE = 1e-6
"""All runs here are in float64, and have a dozen steps; seven digits are stored."""
_NUM_DATA, _NUM_STEPS = 20, 12


def by_name() -> dict[str, Run]:
    """Names begin with "torch ", so that they stay recorded where there is no PyTorch."""
    samplers = {
        "sghmc": lambda params, **given: SGHMC(params, 0.05, friction=2.0, mass=1.7, **given),
        "sghmc, learning rate": lambda params, **given: SGHMC.from_learning_rate(
            params, 0.003, 0.2, 0.3, **given
        ),
        "sghmc, estimated noise": lambda params, **given: SGHMC(
            params, 0.05, friction=20.0, gradient_noise="estimate", **given
        ),
        "baoab": lambda params, **given: BAOAB(params, 0.05, friction=2.0, mass=1.7, **given),
        "sgld": lambda params, **given: SGLD(params, 0.002, **given),
        "psgld": lambda params, **given: PSGLD(params, 0.002, **given),
        "psgld, uncorrected": lambda params, **given: PSGLD(
            params, 0.002, correction=False, **given
        ),
        "sgnht": lambda params, **given: SGNHT(params, 0.05, friction=2.0, mass=1.7, **given),
        "sgnht, diagonal": lambda params, **given: SGNHT(
            params, 0.05, friction=2.0, mass=1.7, thermostat="diagonal", **given
        ),
    }
    runs = {
        f"torch {name}": Run(lambda make=make: _chain(make), _TOLERANCE)
        for name, make in samplers.items()
    }
    return runs | {
        "torch cycles of sghmc": Run(lambda: _chain(samplers["sghmc"], cycles=True), _TOLERANCE),
        "torch gibbs": Run(lambda: _chain(samplers["sghmc"], gibbs=True), _TOLERANCE),
        "torch chains": Run(_chains, _TOLERANCE),
        "torch predictions": Run(_predictions, _TOLERANCE),
    }


def _numbers(seed: int, *shape: int) -> torch.Tensor:
    """Made by numpy, whose generators are the same on all machines."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def _network(seed: int = 1) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = model.to(torch.float64)
    with torch.no_grad():
        for i, param in enumerate(model.parameters()):
            param.copy_(0.5 * _numbers(10 * seed + i, *param.shape))
    return model


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    x = _numbers(2, _NUM_DATA, 3)
    return x, (x[:, 0] + x[:, 1] ** 2 > 0.5).long()


def _losses(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, y)


def _sampler(make: Any, model: torch.nn.Module, temperature: float = 0.8) -> Any:
    prior = GaussianPrior(1.5)
    given = {"num_data": _NUM_DATA, "prior": prior, "seed": 3, "temperature": temperature}
    return make(model.parameters(), **given)


def _rows(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, _NUM_DATA, size=8)


def _chain(make: Any, *, cycles: bool = False, gibbs: bool = False) -> dict[str, Any]:
    model = _network()
    sampler, (x, y) = _sampler(make, model), _data()
    schedule = Cyclical(sampler, cycle_length=5) if cycles else None
    collector = Collector(model, sampler, every=3)
    for step in range(_NUM_STEPS):
        rows = _rows(step)
        loss = _step(sampler, model, x[rows], y[rows])
        if gibbs and step % 4 == 3:
            sampler.gibbs()
        collector.step(loss)
        if schedule is not None:
            schedule.step()
    samples = collector.samples()
    found = {"position": samples.positions, "potential": samples.info.potential}
    if gibbs:
        found["hyper"] = samples.hyper
    if samples.info.kinetic_temperature is not None:
        found["kinetic temperature"] = samples.info.kinetic_temperature
    return found


def _step(sampler: Any, model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step, with microbatches where the noise is estimated and a closure for PSGLD."""
    if sampler.param_groups[0].get("gradient_noise") == "estimate":
        sampler.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for part in (slice(0, 4), slice(4, 8)):
            each = _losses(model(x[part]), y[part]) / 2
            each.backward()
            loss = loss + each.detach()
        sampler.step()
        return loss

    def closure():
        sampler.zero_grad()
        loss = _losses(model(x), y)
        if not getattr(sampler, "correction", False):
            loss.backward()
        return loss

    loss = sampler.step(closure)
    return loss.detach()


def _chains() -> dict[str, Any]:
    chains = Chains([_network(1), _network(2)])
    sampler, (x, y) = _sampler(lambda p, **given: SGHMC(p, 0.05, 2.0, **given), chains), _data()
    collector = Collector(chains, sampler, every=3)
    for step in range(_NUM_STEPS):
        rows = _rows(step)
        sampler.zero_grad()
        loss = torch.stack([_losses(each, y[rows]) for each in chains(x[rows])]).sum()
        loss.backward()
        sampler.step()
        collector.step(loss)
    return collector.samples().positions


def _predictions() -> Any:
    model = _network()
    sampler, (x, y) = _sampler(lambda p, **given: SGHMC(p, 0.05, 2.0, **given), model), _data()
    collector = Collector(model, sampler, every=3)
    for _ in range(_NUM_STEPS):
        collector.step(_step(sampler, model, x, y))
    found = collector.predict([x[:5]], "softmax")
    names = ("probabilities", "entropy", "mutual_information")
    return {name: np.asarray(getattr(found, name)) for name in names}
