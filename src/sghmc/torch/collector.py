"""Collection of draws in a training loop, and predictions averaged over them."""

import functools
import itertools
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, overload

import numpy as np
import torch

from sghmc.results.prediction import SavedOrigin
from sghmc.results.samples import Info, Samples
from sghmc.torch import gradients as losses
from sghmc.torch import predict as prediction
from sghmc.torch.base import Sampler, unwrapped, unwrapped_model
from sghmc.torch.draws import Chains, Draw, Folder, Memory, Store
from sghmc.torch.gradients import NUM_ESTIMATES
from sghmc.torch.predict import (
    BUFFER,
    STATISTIC,
    ClassLink,
    GaussianPrediction,
    Link,
    Prediction,
)
from sghmc.torch.priors import GaussianPrior, whole
from sghmc.torch.settings import moving, whole_number


class Collector:
    """Stores the parameters of a model after every so many steps of its sampler.

    | argument | meaning |
    | --- | --- |
    | `model` | what is sampled: a module, or `Chains` of them |
    | `sampler` | tells potential, temperature and precisions of each draw; may be left out |
    | `every` | steps from one draw to the next |
    | `burnin` | steps of each chain before its first draw |
    | `keep` | what of a draw: all parameters (None), those with these names, or a function of \
the model that returns tensors by name |
    | `folder` | where draws go, if not to memory |

    Call `step(loss)` after each step of the sampler. Steps are those that the sampler has made: a
    batch of which it made none (accumulated, or skipped by a GradScaler) does not count. A folder
    that has draws is opened with all of its chains. For several chains one after the other call
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
        sampler: Any = None,
        *,
        every: int = 1,
        burnin: int = 0,
        keep: Sequence[str] | Callable[[torch.nn.Module], dict[str, torch.Tensor]] | None = None,
        folder: str | pathlib.Path | None = None,
    ):
        self.model, self.sampler = unwrapped_model(model), sampler
        self.every = whole_number(every, "every", least=1)
        self.burnin = whole_number(burnin, "burnin", least=0)
        self.keep, self.folder = keep, None if folder is None else pathlib.Path(folder)
        _check_names(self.model, keep)
        self._start, self._num_steps, self._is_resumed = time.perf_counter(), 0, False
        count = 0 if self.folder is None else len(_chain_folders(self.folder))
        self._stores = [self._store(number) for number in range(max(1, count))]

    @property
    def sampler(self) -> Sampler | None:
        """The sampler that moves the model, out of what wraps it."""
        return self._sampler

    @sampler.setter
    def sampler(self, sampler: Any) -> None:
        sampler = unwrapped(sampler)
        if sampler is not None:
            _check_sampler(sampler, self.model)
        self._sampler: Sampler | None = sampler
        self._sampler_steps = 0 if sampler is None else sampler.num_steps

    def next_chain(self) -> None:
        """Begin another chain, with its own burn-in."""
        self._stores.append(self._store(len(self._stores)))
        self._num_steps, self._is_resumed = 0, False

    def _num_new_steps(self) -> int:
        """Return how many steps the sampler has made since the last call."""
        if self._sampler is None:
            return 1
        before, self._sampler_steps = self._sampler_steps, self._sampler.num_steps
        return self._sampler_steps - before if self._sampler_steps >= before else 1

    def _store(self, number: int) -> Store:
        return Memory() if self.folder is None else Folder(self.folder / f"chain{number}")

    @property
    def num_draws(self) -> int:
        """Number of draws of the present chain."""
        return self._stores[-1].num_draws

    @torch.no_grad()
    def step(self, loss: Any = None) -> None:
        """Count a step of the sampler, and keep a draw where one is due.

        `loss` is the mean loss of the step's batch, from which the potential is estimated: that
        of the data where the step began, that of the prior where it ended.
        """
        losses.check_loss(loss, getattr(self._sampler, "num_data", None))
        if self._num_steps == 0 and self.num_draws and not self._is_resumed:
            raise ValueError(
                f"{self.folder} has draws of another run: give another folder, or go on from a "
                f"state of that run by load_state_dict."
            )
        new = self._num_new_steps()
        self._num_steps += new
        since = self._num_steps - self.burnin
        if since <= 0 or new == 0 or since // self.every == max(0, since - new) // self.every:
            return
        if self.sampler is not None:
            self.sampler.settle()
        kept = {name: _array(tensor) for name, tensor in _kept(self.model, self.keep).items()}
        if not isinstance(self.model, Chains):
            kept = {name: array[None] for name, array in kept.items()}
        self._stores[-1].append(kept | _statistics(self.sampler, loss, kept))

    def samples(self) -> Samples:
        """Return the draws of all chains, as `sghmc.sample` does.

        `health`, `summary`, `to_arviz` and `report` work on them. The kinetic temperature is
        relative to that of the sampler; precisions that changed are in `hyper`.
        """
        if not any(store.num_draws for store in self._stores):
            raise ValueError(
                f"There are no draws yet, after {self._num_steps} steps with burnin="
                f"{self.burnin} and every={self.every}: call step() after each step of the sampler "
                f"that the collector was given."
            )
        seconds = time.perf_counter() - self._start
        return _as_samples(_together(self._stores), self._num_steps, seconds, self._sampler)

    @overload
    def predict(
        self, loader: Iterable[Any], link: Literal["gaussian"], *, noise: float | str
    ) -> GaussianPrediction: ...

    @overload
    def predict(
        self, loader: Iterable[Any], link: ClassLink, *, axis: int | None = None
    ) -> Prediction: ...

    def predict(
        self,
        loader: Iterable[Any],
        link: Link,
        *,
        axis: int | None = None,
        noise: float | str | None = None,
    ) -> Prediction | GaussianPrediction:
        """Return predictions for the rows of a loader, averaged over all draws of all chains.

        | `link` | what the model's outputs are | returns |
        | --- | --- | --- |
        | "softmax" | logits of classes, along `axis` (of two axes the last) | `Prediction` |
        | "sigmoid" | logits of yes or no | `Prediction` |
        | "gaussian" | means; `noise` is σ, or the name of the parameter that is log σ | \
`GaussianPrediction` |
        | a function | what it takes to probabilities of classes | `Prediction` |

        A batch is what the model takes, a tuple or list of it and of targets, or a dict of its
        arguments and of "labels". The model is in `eval()` mode meanwhile.
        """
        _check_kept(self.model, self.keep, self._sampler)
        modes = _modes(self.model)
        self.model.eval()
        try:
            return prediction.predict(
                functools.partial(prediction.apply, self.model),
                functools.partial(prediction.positions, self.model, self._stores),
                loader,
                link,
                axis,
                noise,
            )
        finally:
            for module, mode in modes.items():
                module.training = mode

    def state_dict(self) -> dict[str, Any]:
        """Return where the collector is; with the draws, if they are in memory."""
        in_memory = [
            {name: torch.from_numpy(array) for name, array in store.arrays().items()}
            for store in self._stores
            if isinstance(store, Memory)
        ]
        return {
            "num_steps": self._num_steps,
            "sampler_steps": self._sampler_steps,
            "num_draws": [store.num_draws for store in self._stores],
            "draws": in_memory,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; draws that a folder has gained since are forgotten."""
        self._num_steps, self._is_resumed = state["num_steps"], True
        self._sampler_steps = state["sampler_steps"]
        if self.folder is not None:
            for number in range(len(state["num_draws"]), len(_chain_folders(self.folder))):
                self._store(number).keep(0)
        self._stores = [self._store(number) for number in range(len(state["num_draws"]))]
        for number, (store, count) in enumerate(zip(self._stores, state["num_draws"], strict=True)):
            if isinstance(store, Memory):
                arrays = {n: t.numpy() for n, t in state["draws"][number].items()}
                for draw in range(count):
                    store.append({name: array[draw] for name, array in arrays.items()})
            store.keep(count)


def _together(stores: list[Store]) -> Draw:
    """Return all draws; axes (chain, draw, …)."""
    lengths = [store.num_draws for store in stores]
    if len(set(lengths)) > 1:
        raise ValueError(f"Chains must be equally long, but have {lengths} draws.")
    chains = [store.arrays() for store in stores]
    found = {name: [np.moveaxis(chain[name], 1, 0) for chain in chains] for name in chains[0]}
    # One chain stays where it is, which may be a file.
    return {n: np.concatenate(a) if len(a) > 1 else a[0] for n, a in found.items()}


def _as_samples(draws: Draw, num_steps: int, seconds: float, sampler: Sampler | None) -> Samples:
    statistics = {
        name.removeprefix(STATISTIC): draws.pop(name)
        for name in list(draws)
        if name.startswith(STATISTIC)
    }
    precision, heat = statistics.get("precision"), statistics.get("kinetic_temperature")
    is_learned = precision is not None and np.any(precision != precision[:, :1])
    return Samples(
        positions={name: array for name, array in draws.items() if BUFFER not in name},
        hyper={"precision": precision} if is_learned else None,
        averages={},
        trace=None,
        info=Info(
            statistics.get("potential"),
            statistics["is_finite"],
            None if heat is None or np.any(np.isnan(heat)) else heat,
        ),
        num_steps=num_steps,
        seconds=seconds,
        startup_seconds=0.0,
        origin=None if sampler is None else SavedOrigin(_in_words(sampler), 1.0),
    )


def _modes(model: torch.nn.Module) -> dict[torch.nn.Module, bool]:
    """Return of every module whether it trains, as a BatchNorm that is frozen does not."""
    inner = model.template.modules() if isinstance(model, Chains) else ()
    return {module: module.training for module in (*model.modules(), *inner)}


def _chain_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of chains that are there."""
    numbered = (folder / f"chain{number}" for number in itertools.count())
    return list(itertools.takewhile(pathlib.Path.is_dir, numbered))


def _check_sampler(sampler: Any, model: torch.nn.Module) -> None:
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler must be one of sghmc.torch, not {sampler!r}.")
    moved = {param for group in sampler.param_groups for param in group["params"]}
    if not any(param in moved for param in model.parameters()):
        raise ValueError(
            "The sampler moves no parameter of this model, so that all draws would be the same: "
            "give the model whose parameters() the sampler was made of."
        )


def _check_kept(model: torch.nn.Module, keep: Any, sampler: Sampler | None) -> None:
    """Refuse predictions for which draws do not have all that was sampled."""
    if callable(keep):
        raise TypeError(
            "predict needs parameters, but keep is a function: average what it returns, or "
            "collect with keep=None."
        )
    if keep is None or sampler is None:
        return
    moved = {param for group in sampler.param_groups for param in moving(group)}
    names = model.names if isinstance(model, Chains) else {}
    named = {names.get(name, name): param for name, param in model.named_parameters()}
    missing = [name for name, param in named.items() if param in moved and name not in keep]
    if missing:
        raise ValueError(
            f"predict needs all parameters that the sampler moves, but keep has not {missing}: "
            f"collect with keep=None, or freeze them."
        )


def _members(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return parameters, and buffers that are real numbers, by name."""
    names = model.names if isinstance(model, Chains) else {}
    params = {names.get(name, name): param.detach() for name, param in model.named_parameters()}
    buffers = {names.get(name, name): buffer for name, buffer in model.named_buffers()}
    return params, {name: each for name, each in buffers.items() if each.is_floating_point()}


def _check_names(model: torch.nn.Module, names: Any) -> None:
    if names is None or callable(names):
        return
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
    """Return potential, temperature and precisions of a draw, for each chain."""
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
    return {STATISTIC + name: array for name, array in found.items()}


def _kept(model: torch.nn.Module, keep: Any) -> dict[str, torch.Tensor]:
    """Return the part of a draw that `keep` names."""
    if callable(keep):
        kept: Any = keep(model)
        if not isinstance(kept, dict) or not kept:
            raise TypeError(f"keep must return tensors by name, but returned {kept!r}.")
        return kept
    params, buffers = _members(model)
    if keep is not None:
        return {name: params[name] for name in keep}
    return params | {BUFFER + name: buffer for name, buffer in buffers.items()}
