"""Curvature and gradient noise of a network's layers, from gradients of its batches alone."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from sghmc.torch.gradients import check_loss
from sghmc.torch.predict import call, parts

# pyright: reportPrivateImportUsage=false

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_STEP_SHARE = 0.35
"""Step size in units of 1/√h: on a Gaussian it is stable below 2, and its bias is ε²h/4, 3 %."""
_MAX_HEAT = 0.1
"""Largest share of temperature 1 by which the gradient's noise may heat a layer."""
_NUM_PROBES, _NUM_PRODUCTS, _DISPLACEMENT = 16, 12, 1e-2
"""Random vectors for mean curvatures, products for the largest one, and how far apart the gradients
of a difference are, in units of the weights' length."""


class LayerCurvature:
    """Mean curvature of the likelihood and gradient noise, layer by layer, at a network's weights.

    A layer is the parameters of one module that move; `names` has theirs, `widths` the root mean
    square of its weights where they are fresh.
    """

    def __init__(self, model: torch.nn.Module, loss: Loss, loader: Iterable[Any], seed: int):
        self.model, self.loss, self.loader, self.seed = model, loss, loader, seed
        self.num_data = num_rows(loader)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not named:
            raise ValueError("All parameters of the model are frozen: there is nothing to tune.")
        self.params = list(named.values())
        layers = itertools.groupby(named, key=lambda name: name.rpartition(".")[0])
        self.names = {layer: tuple(names) for layer, names in layers}
        counts = [sum(named[name].numel() for name in names) for names in self.names.values()]
        self._sizes = torch.tensor(counts)
        self._generator = torch.Generator().manual_seed(seed)
        fresh = copy.deepcopy(model)
        restart(fresh, seed)
        weights = dict(fresh.named_parameters())
        # Its matrix says how wide the weights of a layer are meant to be: biases may begin at 0.
        matrices = [
            max((weights[n] for n in names), key=torch.Tensor.dim) for names in self.names.values()
        ]
        self.widths = [matrix.square().mean().sqrt().item() or 1.0 for matrix in matrices]

    def measure(self) -> None:
        """Measure at the present weights, by one random vector for each of some batches."""
        bends, total, squares = [], torch.zeros(()), torch.zeros(())
        for _, batch in itertools.islice(passes(self.loader), _NUM_PROBES):
            signs = self._normals().sign()
            product, gradient = self._product(batch, signs)
            bends.append(self._means(signs * product))
            total, squares = total + gradient, squares + gradient**2
        bend = torch.stack(bends)
        # What large layers add to the estimate of a small one may hide all of it.
        self.curvatures = bend.mean(0).clamp_min(0) + bend.std(0) / _NUM_PROBES**0.5
        self.noises = self._means(squares - total**2 / _NUM_PROBES) / (_NUM_PROBES - 1)

    def largest_step(self, masses: torch.Tensor, precisions: torch.Tensor, decay: float) -> float:
        """Return the largest ε for masses and priors of layers, at the present weights."""
        stiffest = self._largest_curvature(masses, precisions)
        noise = (self.noises / masses).max().item()
        return min(_STEP_SHARE**2 / stiffest, 2 * _MAX_HEAT * decay / max(noise, 1e-30)) ** 0.5

    def _largest_curvature(self, masses: torch.Tensor, precisions: torch.Tensor) -> float:
        """Return |h| of the stiffest direction of M^{−½} ∇²U M^{−½}, by power iteration."""
        vector = self._normals()
        roots, priors = (
            each.repeat_interleave(self._sizes).to(vector) for each in (masses**0.5, precisions)
        )
        _, batch = next(passes(self.loader))
        for _ in range(_NUM_PRODUCTS):
            vector = vector / (vector.norm() * roots)
            vector = (self._product(batch, vector)[0] + priors * vector) / roots
        return vector.norm().item()

    @torch.no_grad()
    def _product(self, batch: Any, vector: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the likelihood's Hessian times a vector, and its gradient.

        By a difference of gradients, which all modules have.
        """
        center = torch.cat([param.reshape(-1) for param in self.params])
        kept = copy.deepcopy(self.model.state_dict())
        length = center.norm().item() or len(center) ** 0.5
        size = _DISPLACEMENT * length / vector.norm()
        ahead, behind = (self._gradient(batch, center + way * size * vector) for way in (1, -1))
        self.model.load_state_dict(kept)
        return (ahead - behind) / (2 * size), (ahead + behind) / 2

    def _gradient(self, batch: Any, weights: torch.Tensor) -> torch.Tensor:
        """Return N times the gradient of a batch's loss; dropout draws the same in all calls."""
        of_params = weights.split([param.numel() for param in self.params])
        for param, value in zip(self.params, of_params, strict=True):
            param.copy_(value.view_as(param))
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(self.seed)
            value = self.num_data * mean_loss(self.model, self.loss, batch)
            grads = torch.autograd.grad(value, self.params, materialize_grads=True)
        return torch.cat([grad.reshape(-1) for grad in grads])

    def _normals(self) -> torch.Tensor:
        size = int(self._sizes.sum())
        return torch.randn(size, generator=self._generator).to(self.params[0])

    def _means(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the mean entry of each layer."""
        of_layers = vector.double().split(self._sizes.tolist())
        return torch.stack([each.mean() for each in of_layers]).cpu()


def restart(model: torch.nn.Module, seed: int) -> None:
    """Give all modules that have `reset_parameters` fresh weights, by a seed of their own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()


def mean_loss(model: torch.nn.Module, loss: Loss, batch: Any) -> torch.Tensor:
    """Return the loss of a batch, (inputs, targets) or a dict with "labels"."""
    inputs, targets = parts(batch)
    if targets is None:
        raise ValueError('The loader\'s batches must be (inputs, targets), or have "labels".')
    value = loss(call(model, inputs), targets.to(next(model.parameters()).device))
    check_loss(value)
    return value


def passes(loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the batches of a loader again and again, each with the number of its pass."""
    for number in itertools.count():
        batch = None
        for batch in loader:
            yield number, batch
        if batch is None:
            raise ValueError("The loader has no batches, or can be read only once.")


def num_rows(loader: Any) -> int:
    """Return the number of rows of a loader's whole dataset."""
    dataset = getattr(loader, "dataset", None)
    if not hasattr(dataset, "__len__"):
        raise TypeError(
            "The loader must have a dataset with a length, the number of rows of the posterior: "
            "give a torch.utils.data.DataLoader of a map-style dataset."
        )
    return len(dataset)  # pyright: ignore
