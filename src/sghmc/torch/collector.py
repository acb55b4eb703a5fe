"""Draws from a training loop: kept, looked at, and averaged into predictions."""

import functools
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sghmc.results.prediction import SavedOrigin
from sghmc.results.samples import Info, Samples
from sghmc.torch import draws as prediction
from sghmc.torch import gradients as losses
from sghmc.torch.base import Sampler
from sghmc.torch.draws import Chains, Draw, Folder, Memory, Prediction, Store
from sghmc.torch.gradients import NUM_ESTIMATES
from sghmc.torch.priors import GaussianPrior, whole
from sghmc.torch.settings import whole_number

_BUFFER, _STATISTIC = "buffer/", "statistic/"
"""What the names of arrays begin with that are no parameters."""


class Collector:
    """Keeps what a model is after some of the steps of its sampler.

    | argument | meaning |
    | --- | --- |
    | `model` | what is sampled: a module, or `Chains` of them |
    | `sampler` | tells potential, temperature and precisions of each draw; may be left out |
    | `every` | steps from one draw to the next |
    | `burnin` | steps of each chain before its first draw |
    | `keep` | what of a draw: all parameters (None), those with these names, or a function of \
the model that returns tensors by name |
    | `folder` | where draws go, if not to memory |

    Call `step(loss)` after each step of the sampler. For several chains one after the other call
    `next_chain()` in between; they must be equally long.

    >>> import torch
    >>> from sghmc.torch import SGHMC, Collector
    >>> model = torch.nn.Linear(1, 1)
    >>> sampler = SGHMC(model.parameters(), 0.3, friction=1.0, num_data=1, prior=None, seed=0)
    >>> collector = Collector(model, sampler, every=2, burnin=10)
    >>> for _ in range(30):
    ...     sampler.zero_grad()
    ...     loss = sum((param**2).sum() / 2 for param in model.parameters())
    ...     loss.backward()
    ...     sampler.step()
    ...     collector.step(loss)
    >>> {name: draws.shape for name, draws in collector.samples().positions.items()}
    {'weight': (1, 10, 1, 1), 'bias': (1, 10, 1)}
    """

    def __init__(
        self,
        model: torch.nn.Module,
        sampler: Sampler | None = None,
        *,
        every: int = 1,
        burnin: int = 0,
        keep: Sequence[str] | Callable[[torch.nn.Module], dict[str, torch.Tensor]] | None = None,
        folder: str | pathlib.Path | None = None,
    ):
        if sampler is not None and not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be one of sghmc.torch, not {sampler!r}.")
        self.model, self.sampler = model, sampler
        self.every = whole_number(every, "every", least=1)
        self.burnin = whole_number(burnin, "burnin", least=0)
        self.keep, self.folder = keep, None if folder is None else pathlib.Path(folder)
        if keep is not None and not callable(keep):
            _check_names(model, keep)
        self._start, self._num_steps, self._is_resumed = time.perf_counter(), 0, False
        self._stores: list[Store] = []
        self.next_chain()

    def next_chain(self) -> None:
        """Begin another chain, with its own burn-in."""
        self._stores.append(self._store(len(self._stores)))
        self._num_steps = 0

    def _store(self, number: int) -> Store:
        return Memory() if self.folder is None else Folder(self.folder / f"chain{number}")

    @property
    def num_draws(self) -> int:
        """Draws of the present chain."""
        return self._stores[-1].num_draws

    @torch.no_grad()
    def step(self, loss: Any = None) -> None:
        """Count a step of the sampler, and keep a draw where one is due.

        `loss` is the mean loss of the step's batch, from which the potential is estimated: that
        of the data where the step began, that of the prior where it ended.
        """
        losses.check_loss(loss)
        if self._num_steps == 0 and self.num_draws and not self._is_resumed:
            raise ValueError(
                f"{self.folder} has draws of another run: give another folder, or go on from a "
                f"state of that run by load_state_dict."
            )
        self._num_steps += 1
        since = self._num_steps - self.burnin
        if since <= 0 or since % self.every:
            return
        if self.sampler is not None:
            self.sampler.settle()
        kept = {name: _array(tensor) for name, tensor in _kept(self.model, self.keep).items()}
        if not isinstance(self.model, Chains):
            kept = {name: array[None] for name, array in kept.items()}
        self._stores[-1].append(kept | _statistics(self.sampler, loss, kept))

    def samples(self) -> Samples:
        """The draws of all chains, as `sghmc.sample` returns them.

        `health`, `summary`, `to_arviz` and `report` work on them. The kinetic temperature is
        relative to that of the sampler; precisions that changed are in `hyper`.
        """
        draws = self._draws()
        statistics = {
            name.removeprefix(_STATISTIC): draws.pop(name)
            for name in list(draws)
            if name.startswith(_STATISTIC)
        }
        precision, heat = statistics.get("precision"), statistics.get("kinetic_temperature")
        is_learned = precision is not None and np.any(precision != precision[:, :1])
        return Samples(
            positions={name: array for name, array in draws.items() if _BUFFER not in name},
            hyper={"precision": precision} if is_learned else None,
            averages={},
            trace=None,
            info=Info(
                statistics.get("potential"),
                statistics["is_finite"],
                None if heat is None or np.any(np.isnan(heat)) else heat,
            ),
            num_steps=self._num_steps,
            seconds=time.perf_counter() - self._start,
            startup_seconds=0.0,
            origin=None if self.sampler is None else SavedOrigin(_in_words(self.sampler), 1.0),
        )

    def _draws(self) -> Draw:
        """All draws; axes (chain, draw, …)."""
        counts = {store.num_draws for store in self._stores}
        if counts == {0}:
            raise ValueError(
                f"There are no draws yet, after {self._num_steps} steps with burnin="
                f"{self.burnin} and every={self.every}: call step() after each step of the sampler."
            )
        if len(counts) > 1:
            lengths = [store.num_draws for store in self._stores]
            raise ValueError(f"Chains must be equally long, but have {lengths} draws.")
        chains = [store.arrays() for store in self._stores]
        names = chains[0]
        found = {name: [np.moveaxis(chain[name], 1, 0) for chain in chains] for name in names}
        # One chain stays where it is, which may be a file.
        return {n: np.concatenate(a) if len(a) > 1 else a[0] for n, a in found.items()}

    def predict(
        self,
        loader: Iterable[Any],
        link: Callable[[torch.Tensor], torch.Tensor] = prediction.softmax,
    ) -> Prediction:
        """Predictions for the rows of a loader, averaged over all draws of all chains.

        A batch is what the model takes, or a tuple or list whose first entry is. `link` takes
        the model's outputs to probabilities of classes. The model is in `eval()` mode meanwhile.
        """
        if callable(self.keep):
            raise TypeError(
                "predict needs parameters, but keep is a function: average what it "
                "returns, or collect with keep=None."
            )
        is_training = self.model.training
        self.model.eval()
        try:
            return prediction.predict(
                functools.partial(_apply, self.model), self._positions, loader, link
            )
        finally:
            self.model.train(is_training)

    def _positions(self) -> Iterator[dict[str, torch.Tensor]]:
        """Draw by draw, chain by chain: what the model is to be called with."""
        device = next(self.model.parameters()).device
        for store in self._stores:
            arrays = {n: a for n, a in store.arrays().items() if not n.startswith(_STATISTIC)}
            for draw in range(store.num_draws):
                for chain in range(next(iter(arrays.values())).shape[1]):
                    kept = {
                        name.removeprefix(_BUFFER): torch.from_numpy(array[draw, chain].copy())
                        for name, array in arrays.items()
                    }
                    kept = {name: tensor.to(device) for name, tensor in kept.items()}
                    whole = self.model.chain(chain) if isinstance(self.model, Chains) else {}
                    yield whole | kept

    def state_dict(self) -> dict[str, Any]:
        """Where the collector is; with the draws, if they are in memory."""
        in_memory = [
            {name: torch.from_numpy(array) for name, array in store.arrays().items()}
            for store in self._stores
            if isinstance(store, Memory)
        ]
        return {
            "num_steps": self._num_steps,
            "num_draws": [store.num_draws for store in self._stores],
            "draws": in_memory,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; draws that a folder has gained since are forgotten."""
        self._num_steps, self._is_resumed = state["num_steps"], True
        self._stores = [self._store(number) for number in range(len(state["num_draws"]))]
        for number, (store, count) in enumerate(zip(self._stores, state["num_draws"], strict=True)):
            if isinstance(store, Memory):
                arrays = {n: t.numpy() for n, t in state["draws"][number].items()}
                for draw in range(count):
                    store.append({name: array[draw] for name, array in arrays.items()})
            store.keep(count)


def _members(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters, and buffers that are real numbers, by name."""
    names = model.names if isinstance(model, Chains) else {}
    params = {names.get(name, name): param.detach() for name, param in model.named_parameters()}
    buffers = {names.get(name, name): buffer for name, buffer in model.named_buffers()}
    return params, {name: each for name, each in buffers.items() if each.is_floating_point()}


def _check_names(model: torch.nn.Module, names: Sequence[str]) -> None:
    known = _members(model)[0]
    missing = [name for name in names if name not in known]
    if missing or isinstance(names, str):
        raise ValueError(
            f"keep has {missing or names!r}, but must be a list of names among {sorted(known)}, a "
            f"function of the model, or None for all parameters."
        )


def _array(tensor: torch.Tensor) -> np.ndarray:
    tensor = whole(tensor.detach())
    tensor = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return tensor.cpu().numpy().copy()


def _precision(prior: Any) -> float:
    return prior.precision if isinstance(prior, GaussianPrior) else np.nan


def _in_words(sampler: Sampler) -> dict[str, str]:
    hidden = ("params", "param_names", "prior", "initial_lr", NUM_ESTIMATES)
    named = {"sampler": type(sampler).__name__, "rows of data": f"{sampler.num_data:,}"}
    for number, group in enumerate(sampler.param_groups):
        settings = {name: value for name, value in group.items() if name not in hidden}
        words = [f"{'step_size' if n == 'lr' else n} {v}" for n, v in settings.items()]
        named[f"parameter group {number}"] = ", ".join([*words, f"prior {group['prior']}"])
    return named


def _statistics(sampler: Sampler | None, loss: Any, kept: Draw) -> Draw:
    """What the sampler says of a draw, for each chain."""
    count = next(iter(kept.values())).shape[0]
    finite = [np.isfinite(array).reshape(count, -1).all(1) for array in kept.values()]
    found = {"is_finite": np.all(finite, axis=0)}
    if sampler is not None:
        if loss is not None and count == 1:  # of several chains only the sum is known
            found["potential"] = np.array([sampler.potential(loss)])
        heat = sampler.kinetic_temperature()
        found["kinetic_temperature"] = np.full(count, np.nan if heat is None else heat)
        groups = sampler.param_groups
        precisions = [_precision(group["prior"]) for group in groups]
        found["precision"] = np.tile(precisions, (count, 1))
    return {_STATISTIC + name: array for name, array in found.items()}


def _apply(model: torch.nn.Module, draw: dict[str, torch.Tensor], x: Any) -> torch.Tensor:
    module = model.template if isinstance(model, Chains) else model
    x = x.to(next(iter(draw.values())).device) if isinstance(x, torch.Tensor) else x
    return torch.func.functional_call(module, draw, (x,))


def _kept(model: torch.nn.Module, keep: Any) -> dict[str, torch.Tensor]:
    """What `keep` says of a draw."""
    if callable(keep):
        kept: Any = keep(model)
        if not isinstance(kept, dict) or not kept:
            raise TypeError(f"keep must return tensors by name, but returned {kept!r}.")
        return kept
    params, buffers = _members(model)
    if keep is not None:
        return {name: params[name] for name in keep}
    return params | {_BUFFER + name: buffer for name, buffer in buffers.items()}
