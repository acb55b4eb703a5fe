"""Settings of SGHMC for a network, from its curvature, its gradients' noise and held-out rows."""

import collections
import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from sghmc.torch.collector import Collector
from sghmc.torch.curvature import LayerCurvature, Loss, mean_loss, num_rows, passes, restart
from sghmc.torch.predict import Link
from sghmc.torch.priors import GaussianPrior
from sghmc.torch.settings import half_precision, whole_number
from sghmc.torch.sghmc import SGHMC

_DESCENT_SHARE, _MAX_DESCENT_STEPS = 0.1, 1_000
_MIN_STEPS_PER_START = 250
_BURNIN_SHARE, _NUM_DRAWS = 0.25, 200
_MOMENTUM_DECAY = 0.1
_FIRST_SPREAD = 10.0
"""First guess of the prior's standard deviation, in units of that of fresh weights."""
_FIRST_TEMPERATURE, _FIRST_PACE = 0.1, 2.0
"""Temperature and pace of the first trial: at 1, some thousand steps leave a network unsure."""
_MOVES = (
    ("last_spread", 2.0),
    ("pace", 2.0),
    ("temperature", 0.25),
    ("spread", 2.0),
    ("num_starts", 2),
    ("spread", 0.5),
    ("pace", 0.5),
    ("last_spread", 0.5),
    ("temperature", 4.0),
)
"""Settings that trials change, one after the other, and by which factor."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """Settings of the parameters of one module of a network.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `names` | | of the parameters |
    | `mass` | M | mean curvature of U over the layer, and its standard error |
    | `precision` | λ | of the normal prior |
    | `gradient_noise` | V | mean variance of the gradient of U, from batch to batch |
    """

    names: tuple[str, ...]
    mass: float
    precision: float
    gradient_noise: float


class Trial(NamedTuple):
    """Settings of a run, and how it predicted held-out rows.

    | field | meaning |
    | --- | --- |
    | `spread` | of the prior: standard deviation in units of that of fresh weights |
    | `last_spread` | the same of the last layer, as a factor of the others' |
    | `temperature`, `num_starts` | as in `Tuned` |
    | `pace` | factor of the step size that curvature gives |
    | `nll` | mean of −log p(y) over held-out rows; infinite where the chain diverged |
    """

    spread: float = _FIRST_SPREAD
    last_spread: float = 1.0
    temperature: float = 1.0
    num_starts: int = 1
    pace: float = 1.0
    nll: float = math.inf


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Settings that `tune` chose, and what they were chosen from.

    | field | symbol | meaning |
    | --- | --- | --- |
    | `layers` | M, λ, V | masses, precisions and gradient noise, by the module's name |
    | `step_size` | ε | |
    | `momentum_decay` | α | share of a momentum that friction takes in a step: C = αM/ε |
    | `temperature` | τ | |
    | `num_starts` | | chains one after the other, each from fresh weights |
    | `num_gradients` | | of all chains together |
    | `burnin`, `every` | | steps of a chain before its first draw, and between two |
    | `is_gibbs` | | precisions are drawn in the run, once a pass: nobody chose them |
    | `trials` | | runs on held-out rows, the best first |
    """

    layers: dict[str, Layer]
    step_size: float
    temperature: float
    num_starts: int
    num_gradients: int
    is_gibbs: bool = False
    trials: tuple[Trial, ...] = ()
    momentum_decay: float = _MOMENTUM_DECAY

    @property
    def num_steps(self) -> int:
        """Number of steps of one chain."""
        return self.num_gradients // self.num_starts

    @property
    def burnin(self) -> int:
        """Number of steps of a chain before its first draw."""
        return int(_BURNIN_SHARE * self.num_steps)

    @property
    def every(self) -> int:
        """Number of steps from one draw of a chain to the next."""
        return max(1, (self.num_steps - self.burnin) * self.num_starts // _NUM_DRAWS)

    def __str__(self) -> str:
        lines = [
            f"SGHMC: step size {self.step_size:.3g}, momentum decay {self.momentum_decay:g}, "
            f"temperature {self.temperature:g}; {self.num_starts} × {self.num_steps:,} steps, "
            f"draws every {self.every} after {self.burnin:,}"
        ]
        prior = "prior precision, drawn from" if self.is_gibbs else "prior precision"
        lines += [
            f"  {name or 'the model'}: mass {layer.mass:.3g}, {prior} {layer.precision:.3g}"
            for name, layer in self.layers.items()
        ]
        if self.trials:
            best, *_, worst = (*self.trials, self.trials[-1])
            lines += [f"{len(self.trials)} trials: held-out nll {best.nll:.4f} to {worst.nll:.4f}"]
        return "\n".join(lines)

    def sampler(self, model: torch.nn.Module, num_data: int, seed: int) -> SGHMC:
        """Return the sampler of a model's parameters, for a loop of one's own."""
        named = dict(model.named_parameters())
        groups = [
            {
                "params": [named[name] for name in layer.names],
                "name": name,
                "mass": layer.mass,
                "friction": self.momentum_decay * layer.mass / self.step_size,
                "prior": GaussianPrior(layer.precision),
            }
            for name, layer in self.layers.items()
        ]
        return SGHMC(
            groups, self.step_size, friction=1.0, temperature=self.temperature,
            num_data=num_data, prior=None, seed=seed,
        )  # fmt: skip

    def run(
        self, model: torch.nn.Module, loss: Loss, loader: Iterable[Any], *, seed: int, **kept: Any
    ) -> Collector:
        """Sample, start after start, and return the draws; `kept` are arguments of `Collector`."""
        collector = Collector(model, every=self.every, burnin=self.burnin, **kept)
        for start in range(self.num_starts):
            own_seed = seed * self.num_starts + start
            if self.num_starts > 1:
                restart(model, own_seed)
            sampler = self.sampler(model, num_rows(loader), own_seed)
            if start:
                collector.next_chain()
            collector.sampler = sampler
            num_passes = 0
            for at_pass, batch in itertools.islice(passes(loader), self.num_steps):
                if self.is_gibbs and at_pass > num_passes:
                    sampler.gibbs()
                num_passes = at_pass
                sampler.zero_grad()
                value = mean_loss(model, loss, batch)
                value.backward()
                sampler.step()
                collector.step(value)
        return collector


def tune(
    model: torch.nn.Module,
    loss: Loss,
    loader: Iterable[Any],
    held_out: Iterable[Any] | None = None,
    link: Link | None = None,
    *,
    seed: int,
    num_gradients: int = 10_000,
    num_trials: int = 12,
    restarts: bool = True,
    noise: float | str | None = None,
) -> Tuned:
    """Choose settings of SGHMC for a network and a number of gradients.

        M = mean of ∂²U/∂θ² over a layer, and its standard error
        ε² = min(0.35²/h, 0.2 α min M/V),  h the largest eigenvalue of M^{−½} ∇²U M^{−½}

    | argument | meaning |
    | --- | --- |
    | `loss` | of outputs and targets: the *mean* of −log p(y | x, θ) over a batch |
    | `loader` | batches of training rows, (inputs, targets) or dicts with "labels" |
    | `held_out` | batches of other rows, on which trials of temperature, prior and starts are \
compared; None: temperature 1, one start, and precisions drawn by Gibbs updates |
    | `link`, `noise` | as in `Collector.predict`; needed for `held_out` |
    | `num_gradients` | of the later run, and of each trial |
    | `num_trials` | how many runs the choice may take |
    | `restarts` | False: the weights that the model has are kept, and every chain starts there |

    Scales differ between the layers of a network far more than inside one. Curvature and noise are
    those at weights to which a short run without noise leads; the model has them afterwards. Where
    `temperature` comes out below 1 the draws predict better than those of the posterior do, but are
    not draws of it.

    >>> import torch
    >>> from sghmc.torch import tune
    >>> data = torch.utils.data.TensorDataset(torch.randn(60, 2), torch.zeros(60).long())
    >>> loader, model = torch.utils.data.DataLoader(data, 20), torch.nn.Linear(2, 2)
    >>> tuned = tune(model, torch.nn.functional.cross_entropy, loader, seed=0, num_gradients=500)
    >>> collector = tuned.run(model, torch.nn.functional.cross_entropy, loader, seed=0)
    >>> collector.samples().num_draws
    375
    """
    whole_number(num_gradients, "num_gradients", least=2 * _MIN_STEPS_PER_START)
    whole_number(num_trials, "num_trials", least=1)
    if half := half_precision([p for p in model.parameters() if p.requires_grad]):
        raise TypeError(
            f"tune takes differences of gradients, for which {half[0].dtype} has too few digits: "
            f"tune in single precision, and build the sampler of the other weights."
        )
    if (held_out is None) != (link is None):
        raise TypeError(
            'held_out and link belong together: give both, tune(…, held_out, "softmax") say, or '
            "neither."
        )
    network = LayerCurvature(model, loss, loader, seed)
    network.measure()
    # Curvature at fresh weights says little of that at trained ones.
    num_steps = min(_MAX_DESCENT_STEPS, int(_DESCENT_SHARE * num_gradients))
    descent = _settings(network, Trial(temperature=0.0), num_steps)
    descent.run(model, loss, loader, seed=seed, keep=lambda _: {"nothing": torch.zeros(1)})
    network.measure()
    trained = copy.deepcopy(model.state_dict())
    if held_out is None or link is None:
        return dataclasses.replace(_settings(network, Trial(), num_gradients), is_gibbs=True)
    score = {"noise": noise} if link == "gaussian" else {}

    most_starts = num_gradients // _MIN_STEPS_PER_START if restarts else 1

    def nll(**given: Any) -> float:
        trial = Trial(**given)
        if trial.temperature > 1 or trial.num_starts > most_starts:
            return math.inf
        model.load_state_dict(trained)
        try:
            draws = _settings(network, trial, num_gradients).run(model, loss, loader, seed=seed)
            return draws.predict(held_out, link, **score).nll()  # pyright: ignore
        except FloatingPointError:  # a chain that diverged
            return math.inf

    first = Trial(temperature=_FIRST_TEMPERATURE, pace=_FIRST_PACE)._asdict()
    del first["nll"]
    found = search(nll, first, _MOVES, num_trials)
    trials = tuple(Trial(**given, nll=value) for value, given in found)
    model.load_state_dict(trained)
    if math.isinf(trials[0].nll):
        raise FloatingPointError(
            f"All {len(trials)} trials diverged: look at the loss, and at the scale of the inputs."
        )
    return dataclasses.replace(_settings(network, trials[0], num_gradients), trials=trials)


def _settings(network: LayerCurvature, trial: Trial, num_gradients: int) -> Tuned:
    """Return the settings of a trial, from what was measured and at the present weights."""
    spreads = trial.spread * torch.tensor(network.widths, dtype=torch.float64)
    spreads[-1] *= trial.last_spread
    precisions = spreads**-2
    masses = network.curvatures + precisions
    if not torch.all(torch.isfinite(masses)):
        raise FloatingPointError(
            f"The curvatures of {list(network.names)} are {masses.tolist()}: look at the loss, and "
            f"at the scale of the inputs."
        )
    step_size = trial.pace * network.largest_step(masses, precisions, _MOMENTUM_DECAY)
    numbers = zip(*(each.tolist() for each in (masses, precisions, network.noises)), strict=True)
    pairs = zip(network.names.items(), numbers, strict=True)
    layers = {layer: Layer(names, *of_layer) for (layer, names), of_layer in pairs}
    return Tuned(layers, step_size, trial.temperature, trial.num_starts, num_gradients)


def search(
    score: Callable[..., float],
    first: dict[str, Any],
    moves: Sequence[tuple[str, float]],
    num_trials: int,
) -> list[tuple[float, dict[str, Any]]]:
    """Return scores and settings, the least first, of trials that move one setting at a time.

    A move multiplies a setting, and is made again for as long as that helps. A score that is not
    finite is the worst.
    """
    best, tried = first, {}
    moves, num_vain = collections.deque(moves), 0
    tried[tuple(first.values())] = score(**first)
    while num_vain < len(moves) and len(tried) < num_trials:
        name, factor = moves[0]
        other = best | {name: type(best[name])(factor * best[name])}
        key = tuple(other.values())
        if key not in tried:
            found = score(**other)
            tried[key] = found if math.isfinite(found) else math.inf
        if tried[key] < tried[tuple(best.values())]:
            best, num_vain = other, 0
        else:
            moves.rotate(-1)
            num_vain += 1
    ordered = sorted(tried.items(), key=lambda each: each[1])
    return [(found, dict(zip(first, values, strict=True))) for values, found in ordered]
