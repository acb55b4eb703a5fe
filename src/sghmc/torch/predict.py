"""Predictions averaged over draws, by a named link, and how they do on known targets."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from sghmc.torch.draws import Chains, Store
from sghmc.torch.settings import number

# pyright: reportPrivateImportUsage=false

Draw = dict[str, torch.Tensor]
ClassLink = Literal["softmax", "sigmoid"] | Callable[[torch.Tensor], torch.Tensor]
Link = ClassLink | Literal["gaussian"]
_LINKS = ("softmax", "sigmoid", "gaussian")
_MIN_PROBABILITY = 1e-30
_LABELS = ("labels", "label")
_IGNORED = -100
"""Target of a row that has none, as in torch.nn.functional.cross_entropy."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Probabilities of classes that all draws together give to each row.

    | field | formula | meaning |
    | --- | --- | --- |
    | `probabilities` | p̄ = mean of p(y \\| x, θ) over draws | of each class |
    | `entropy` | H(p̄) = −Σ p̄ log p̄ | all uncertainty of a row's class, in nats |
    | `mutual_information` | H(p̄) − mean of H(p) | the part of it that more data would remove |
    | `targets` | y | those of the loader's batches, or None |
    | `axis` | | that of the classes; None by "sigmoid" |
    """

    probabilities: torch.Tensor
    entropy: torch.Tensor
    mutual_information: torch.Tensor
    targets: torch.Tensor | None = None
    axis: int | None = -1

    def nll(self) -> float:
        """Return the mean of −log p̄(y), in nats."""
        p, targets = self.probabilities, _known(self.targets)
        if self.axis is None:
            y = _alike(targets, p).to(p)
            return torch.nn.functional.binary_cross_entropy(p, y).item()
        is_known = targets != _IGNORED
        places = targets.long().where(is_known, 0).unsqueeze(self.axis)
        of_target = p.gather(self.axis, places).squeeze(self.axis)[is_known]
        return -of_target.clamp_min(_MIN_PROBABILITY).log().mean().item()

    def calibration_error(self, num_bins: int = 15) -> float:
        """Return the expected calibration error of the most probable class, in equal bins."""
        p, targets = self.probabilities, _known(self.targets)
        if self.axis is None:
            sure, is_right = torch.maximum(p, 1 - p), (p > 0.5) == (_alike(targets, p) > 0.5)
        else:
            sure, chosen = p.max(self.axis)
            is_right = chosen == targets
            sure, is_right = (each[targets != _IGNORED] for each in (sure, is_right))
        sure, right = sure.flatten(), is_right.flatten().to(sure)
        bins = (sure * num_bins).long().clamp_max(num_bins - 1)
        gaps = torch.zeros(num_bins).to(sure).index_add_(0, bins, right - sure)
        return gaps.abs().sum().item() / sure.numel()


@dataclasses.dataclass(frozen=True)
class GaussianPrediction:
    """The mixture of N(f(x, θ), σ²) over all draws, for each row and output.

    | field | meaning |
    | --- | --- |
    | `mean` | of the mixture |
    | `standard_deviation` | of the mixture: noise, and what the draws disagree on |
    | `model_deviation` | of the means of draws: the part that more data would remove |
    | `targets` | those of the loader's batches, or None |
    | `log_density` | of the targets under the mixture, in nats, or None |
    | `cdf` | of the mixture at the targets, uniform where all is right, or None |
    """

    mean: torch.Tensor
    standard_deviation: torch.Tensor
    model_deviation: torch.Tensor
    targets: torch.Tensor | None = None
    log_density: torch.Tensor | None = None
    cdf: torch.Tensor | None = None

    def nll(self) -> float:
        """Return the mean of −log p(y), in nats for each number."""
        return -_known(self.log_density).mean().item()

    def coverage(self, level: float = 0.9) -> float:
        """Return the share of targets in the central interval of this probability."""
        return ((_known(self.cdf) - 0.5).abs() <= level / 2).double().mean().item()


@torch.no_grad()
def predict(
    apply: Callable[[Draw, Any], Any],
    draws: Callable[[], Iterator[Draw]],
    batches: Iterable[Any],
    link: Link,
    axis: int | None = None,
    noise: float | str | None = None,
) -> Any:
    """Predict batch by batch; `apply(draw, inputs)` are the outputs that the link takes."""
    _check(link, noise)
    found: list[list[torch.Tensor]] = []
    targets: list[torch.Tensor] = []
    for batch in batches:
        inputs, target = parts(batch)
        if target is not None:
            targets.append(target.cpu())
        if link == "gaussian":
            assert noise is not None
            found.append(_gaussian(apply, draws, inputs, target, noise))
        else:
            to_probabilities, axis = _of_classes(link, axis)
            found.append(_classes(apply, draws, inputs, to_probabilities, axis))
    if not found:
        raise ValueError("There is nothing to predict: the loader has no batches.")
    first, second, third, *of_targets = (torch.cat(each) for each in zip(*found, strict=True))
    known = torch.cat(targets) if targets else None
    if link == "gaussian":
        return GaussianPrediction(first, second, third, known, *of_targets)
    axis = None if link == "sigmoid" else -1 if axis is None else axis
    return Prediction(first, second, third, known, axis)


def _classes(apply, draws, inputs, to_probabilities, axis: int | None) -> list[torch.Tensor]:
    total, doubt, count = torch.zeros(()), torch.zeros(()), 0
    for draw in draws():
        probabilities = to_probabilities(outputs_of(apply(draw, inputs))).cpu()
        total, doubt = total + probabilities, doubt + entropy(probabilities, axis)
        count += 1
    mean = total / count
    return [mean, entropy(mean, axis), entropy(mean, axis) - doubt / count]


def _gaussian(apply, draws, inputs, target, noise: float | str) -> list[torch.Tensor]:
    """Return mean, deviations and, with targets, log density and CDF of the mixture of draws."""
    means: list[torch.Tensor] = []
    count, variance, shift, second = 0, 0.0, None, 0.0
    log_density = cdf = None
    for draw in draws():
        mean = outputs_of(apply(draw, inputs)).double().cpu()
        scale = torch.as_tensor(_scale(draw, noise)).double().cpu()
        # Sums are of differences to the first draw, which are small.
        shift = mean if shift is None else shift
        means = [mean - shift if not means else means[0] + mean - shift]
        second = second + (mean - shift) ** 2
        variance = variance + scale**2
        count += 1
        if target is not None:
            z = (_alike(target.cpu(), mean) - mean) / scale
            density = -0.5 * z**2 - scale.log() - 0.5 * math.log(2 * math.pi)
            log_density = density if log_density is None else torch.logaddexp(log_density, density)
            below = 0.5 * torch.special.erfc(-z / math.sqrt(2))
            cdf = below if cdf is None else cdf + below
    assert shift is not None
    away = means[0] / count
    between = (second / count - away**2).clamp_min(0)
    found = [shift + away, (between + variance / count).sqrt(), between.sqrt()]
    if log_density is not None and cdf is not None:
        found += [log_density - math.log(count), cdf / count]
    return found


def gaussian_loss(
    outputs: torch.Tensor, targets: torch.Tensor, noise: float | torch.Tensor
) -> torch.Tensor:
    """Return the mean over rows of −log N(y; f(x, θ), σ²), with σ = `noise`.

    `torch.nn.MSELoss()` has a variance, too, which it does not say: ½ for one output a row.

    >>> import torch
    >>> from sghmc.torch import gaussian_loss
    >>> round(gaussian_loss(torch.zeros(3, 1), torch.ones(3), noise=0.5).item(), 3)
    2.226
    """
    scale = torch.as_tensor(noise, dtype=outputs.dtype, device=outputs.device)
    if not torch.compiler.is_compiling() and not bool((scale > 0).all()):
        raise ValueError(f"noise must be a positive standard deviation, but is {noise!r}.")
    z = (_alike(targets, outputs) - outputs) / scale
    each = 0.5 * z**2 + scale.log() + 0.5 * math.log(2 * math.pi)
    return each.sum() / len(outputs)


def entropy(probabilities: torch.Tensor, axis: int | None = -1) -> torch.Tensor:
    """Return the entropy of classes along an axis or, without one, of each yes or no."""
    if axis is None:
        return entropy(torch.stack([probabilities, 1 - probabilities], -1))
    return -(probabilities * probabilities.clamp_min(_MIN_PROBABILITY).log()).sum(axis)


def _check(link: Link, noise: float | str | None) -> None:
    if not (callable(link) or link in _LINKS):
        raise ValueError(
            f'link must be "softmax", "sigmoid", "gaussian" or a function that takes outputs to '
            f"probabilities of classes, but is {link!r}."
        )
    if noise is not None and not isinstance(noise, str):
        number(noise, "noise", positive=True)
    if (link == "gaussian") == (noise is None):
        raise TypeError(
            'link="gaussian" needs noise, the standard deviation σ of the data as a number, or the '
            "name of the model's parameter that is log σ; other links have none. The loss belongs "
            "to it: sghmc.torch.gaussian_loss says it, torch.nn.MSELoss() has σ² = 1/2."
        )


def _of_classes(link: Link, axis: int | None) -> tuple[Callable, int | None]:
    """Return the function from outputs to probabilities, and the axis of the classes."""
    if link == "sigmoid":
        return lambda outputs: torch.sigmoid(outputs.float()), None
    where = -1 if axis is None else axis
    if callable(link):
        return link, where

    def softmax(outputs: torch.Tensor) -> torch.Tensor:
        if outputs.ndim > 2 and axis is None:
            raise ValueError(
                f"The outputs have shape {tuple(outputs.shape)}: give axis=, that of the classes "
                f"(1 for images and sequences of channels)."
            )
        if outputs.ndim == 0 or outputs.size(where) == 1:
            raise ValueError(
                f"The outputs have shape {tuple(outputs.shape)}: a softmax of one class is always "
                f'1. Take "sigmoid" for one logit, "gaussian" for a regression.'
            )
        return torch.softmax(outputs.float(), where)

    return softmax, where


def parts(batch: Any) -> tuple[Any, torch.Tensor | None]:
    """Return the inputs of a batch, and its targets where it has them."""
    if isinstance(batch, Mapping):
        labels = [batch[name] for name in _LABELS if name in batch]
        inputs = {name: value for name, value in batch.items() if name not in _LABELS}
        return inputs, labels[0] if labels else None
    if isinstance(batch, tuple | list):
        if len(batch) > 2:
            raise ValueError(
                f"A batch has {len(batch)} parts, but must be (inputs, targets), or a dict of the "
                f'model\'s arguments and of "labels": give a loader with a collate_fn that says so.'
            )
        inputs, target, *_ = (*batch, None)
        return inputs, target if isinstance(target, torch.Tensor) else None
    return batch, None


def outputs_of(outputs: Any) -> torch.Tensor:
    """Return the tensor of what a model returned, which may be a dict or an object of `logits`."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    return outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits


def _scale(draw: Draw, noise: float | str) -> Any:
    if not isinstance(noise, str):
        return noise
    if noise not in draw:
        raise ValueError(f"noise={noise!r} is no parameter of the model: it has {sorted(draw)}.")
    return draw[noise].exp()


def _alike(targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return targets in the shape of outputs, which may have an axis of one output more."""
    if targets.numel() != outputs.numel():
        raise ValueError(
            f"The targets have shape {tuple(targets.shape)}, the outputs {tuple(outputs.shape)}: "
            f"they must have as many numbers."
        )
    return targets.reshape(outputs.shape)


def _known(values: torch.Tensor | None) -> torch.Tensor:
    if values is None:
        raise ValueError(
            "The targets are not known: the loader's batches must be (inputs, targets), or have "
            '"labels".'
        )
    return values


# A model is called with the draws of a run, one after the other.

BUFFER, STATISTIC = "buffer/", "statistic/"
"""Prefixes of the names of stored arrays that are no parameters."""


def positions(model: torch.nn.Module, stores: Sequence[Store]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the parameters and buffers of every draw of every chain."""
    device = next(model.parameters()).device
    names = model.names if isinstance(model, Chains) else {}
    members = itertools.chain(model.named_parameters(), model.named_buffers())
    types = {names.get(name, name): member.dtype for name, member in members}
    for store in stores:
        for place in range(store.num_draws):
            arrays = store.draw(place)
            arrays = {n: a for n, a in arrays.items() if not n.startswith(STATISTIC)}
            for chain in range(next(iter(arrays.values())).shape[0]):
                bare = {name.removeprefix(BUFFER): array[chain] for name, array in arrays.items()}
                kept = {
                    name: torch.from_numpy(np.array(array)).to(device, types[name])
                    for name, array in bare.items()
                }
                if isinstance(model, Chains):
                    kept = model.with_aliases(model.chain(chain) | kept)
                yield kept


def apply(model: torch.nn.Module, draw: dict[str, torch.Tensor], inputs: Any) -> Any:
    module = model.template if isinstance(model, Chains) else model
    given = _arguments(inputs, next(iter(draw.values())).device)
    return torch.func.functional_call(module, draw, *given)


def call(model: torch.nn.Module, inputs: Any) -> torch.Tensor:
    """Return the outputs of a model for the inputs of a batch, on the model's device."""
    plain, named = _arguments(inputs, next(model.parameters()).device)
    return outputs_of(model(*plain, **named))


def _arguments(inputs: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as the arguments of a model, those in a dict by name."""

    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        return (), {name: moved(value) for name, value in inputs.items()}
    return (moved(inputs),), {}
