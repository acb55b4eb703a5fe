"""Parameters cut into pieces, the threads that step them, and a fused kick and drift.

All operations of a step go over one piece before the next, so that noise needs little memory. On a
CPU a piece stays in the cache: a pass over it comes from memory once, and pieces go to as many
threads as torch has. What is in the cache as a whole there is one piece, with noise that was drawn
in blocks.

A step costs what it reads and writes. Torch's fused kernel of SGD with momentum reads gradients,
momenta and positions once, where operations one by one read momenta and positions three times.
"""

import collections
import concurrent.futures
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from sghmc.torch.normals import NormalBlock, Normals, NormalSource, shard

# pyright: reportPrivateImportUsage=false


def run_in_threads(tasks: Iterable[Callable[[], None]]) -> None:
    """Do all tasks, each in one thread; an error in one is raised once all have ended."""
    left = collections.deque(tasks)
    count = min(len(left), torch.get_num_threads())
    others = [_pool().submit(_work_in_thread, left) for _ in range(count - 1)]
    try:
        _work_in_thread(left)
    finally:
        # One that has not begun has nothing left to do: torch's own threads, which wait for work
        # without sleeping, may keep it from a core for longer than all tasks take.
        for other in others:
            if not other.cancel():
                other.result()


def _work_in_thread(left: collections.deque[Callable[[], None]]) -> None:
    with torch.no_grad():  # a thread has its own mind about that
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "sghmc-pieces")


if hasattr(os, "register_at_fork"):  # threads stay behind when a process forks
    os.register_at_fork(after_in_child=_pool.cache_clear)


# Parameters in pieces, which all operations of a step go over one after the other.

_MAX_CPU_PIECE_NUMBERS = 1 << 15
"""Largest piece on a CPU, in numbers: they stay in a core's cache, and operations on as many stay
in the thread that calls them."""
_MAX_CACHED_NUMBERS = 1 << 20
"""Most numbers on a CPU that are in its cache with what belongs to them: passes over all of
them, which wake all threads, then cost less than as many calls for every piece."""
_MAX_VIEWS = 256
"""Most views into a block of noise that a piece keeps: making one takes longer than adding it."""
_LAUNCH_NUMBERS, _MAX_PIECE_SHARE, _MIN_PIECE_NUMBERS = 320 << 16, 1 / 5, 1 << 22
"""Sizes of pieces elsewhere: a launch of torch's kernels for lists takes 320 blocks of 65,536
numbers, since fewer leave processors idle; but at most a fifth of all, so that the noise needs
little memory."""
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)

Scale = float | torch.Tensor | list[torch.Tensor]
"""A scale of noise: one number for all, in a tensor or not, or a tensor for each."""


class ParameterPart(NamedTuple):
    """A range of entries of the parameter at a place of a list, or all: `start` is None."""

    place: int
    size: int
    start: int | None


class Piece:
    """Parts of parameters; `state` has the same parts of what belongs to them.

    `grads` are those of the loss, `prior_grads` those of a log prior that is a function, or None:
    both are new in every step. `is_fused` says that operations may wake all threads of a CPU.
    """

    is_fused: bool
    positions: list[torch.Tensor]
    state: dict[str, list[torch.Tensor]]
    grads: list[torch.Tensor]
    prior_grads: list[torch.Tensor] | None

    def __init__(
        self,
        parts: list[ParameterPart],
        positions: list[torch.Tensor],
        states: list[dict[str, Any]],
        source: NormalSource | NormalBlock,
        stream: int = 0,
    ):
        self.parts, self.stream = parts, stream
        self.positions = self.cut(positions)
        self.state = {
            name: self.cut([state[name] for state in states])
            for name, value in states[0].items()
            if isinstance(value, torch.Tensor) and all(name in state for state in states)
        }
        self._sizes = [part.size for part in parts]
        self._size = sum(self._sizes)
        self._shapes = [position.shape for position in self.positions]
        self.is_fused = isinstance(source, NormalBlock) or len(source.generators) == 1
        self._source = source
        if isinstance(source, NormalSource):
            self._noise = source.buffer(stream, self._size, self.positions[0].dtype)
            self._drawn = self.shaped(self._noise)
        self._block = torch.empty(0)
        self._views: dict[int, list[torch.Tensor]] = {}

    def cut(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for place, size, start in self.parts:
            tensor = local(tensors[place])
            if start is not None:
                tensor = tensor.contiguous().view(-1).narrow(0, start, size)
            found.append(tensor)
        return found

    def normals(self) -> list[torch.Tensor]:
        """Return standard normals like the positions, valid until the next call."""
        if isinstance(self._source, NormalBlock):
            return self._view(self._source.take(self._size), self._source.numbers)
        self._noise.normal_(generator=self._source.generators[self.stream])
        return self._drawn

    def _view(self, start: int, numbers: torch.Tensor) -> list[torch.Tensor]:
        """Return numbers of a block like the positions; a block reuses the memory of the last."""
        if numbers is not self._block or len(self._views) > _MAX_VIEWS:
            self._block, self._views = numbers, {}
        if start not in self._views:
            self._views[start] = self.shaped(numbers.narrow(0, start, self._size))
        return self._views[start]

    def shaped(self, numbers: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a vector in the shapes of the positions."""
        pairs = zip(numbers.split(self._sizes), self._shapes, strict=True)
        return [each.view(shape) for each, shape in pairs]

    def add_noise(self, targets: list[torch.Tensor], scale: Scale) -> None:
        """Add scale · N(0, 1) to `targets`, entry by entry, in place."""
        drawn = self.normals()
        if isinstance(scale, list):
            torch._foreach_addcmul_(targets, drawn, scale)
        elif isinstance(scale, torch.Tensor):
            torch._foreach_mul_(drawn, scale)
            torch._foreach_add_(targets, drawn)
        else:
            torch._foreach_add_(targets, drawn, alpha=scale)


class StepPlan:
    """The pieces of some parameters; those of a generator stay in order, and so in one thread."""

    def __init__(self, pieces: list[Piece]):
        self.pieces = pieces
        self._streams: dict[Any, list[Piece]] = {}
        for piece in pieces:
            self._streams.setdefault(piece.stream, []).append(piece)

    def run(self, work: Callable[[Piece], None]) -> None:
        """Call `work` with every piece, by as many threads as torch has where they are on a CPU."""
        if len(self._streams) == 1:
            _run(work, self.pieces)
        else:
            run_in_threads(functools.partial(_run, work, each) for each in self._streams.values())

    def hand_out(self, grads: list[torch.Tensor], prior_grads: list[torch.Tensor] | None) -> None:
        """Give pieces their gradients."""
        for piece in self.pieces:
            piece.grads = piece.cut(grads)
            piece.prior_grads = None if prior_grads is None else piece.cut(prior_grads)

    def forget(self) -> None:
        """Let go of the gradients: the next ones need their memory."""
        for piece in self.pieces:
            piece.grads, piece.prior_grads = [], None


def _run(work: Callable[[Piece], None], pieces: list[Piece]) -> None:
    for piece in pieces:
        work(piece)


def cut(positions: list[torch.Tensor], states: list[dict[str, Any]], normals: Normals) -> StepPlan:
    """Cut all positions into pieces, of one device, type and shard each."""
    alike: dict[Any, list[int]] = {}
    for place, position in enumerate(positions):
        alike.setdefault((position.device, position.dtype, shard(position)), []).append(place)
    found = []
    for places in alike.values():
        first = positions[places[0]]
        sizes = [local(positions[place]).numel() for place in places]
        if first.device.type == "cpu" and sum(sizes) <= _MAX_CACHED_NUMBERS:
            whole = [
                ParameterPart(place, size, None) for place, size in zip(places, sizes, strict=True)
            ]
            found.append(Piece(whole, positions, states, normals.block(first)))
            continue
        source = normals.source(first)
        for number, parts in enumerate(_parts(positions, places, source)):
            found.append(Piece(parts, positions, states, source, number % len(source.generators)))
    return StepPlan(found)


def _parts(
    positions: list[torch.Tensor], places: list[int], source: NormalSource
) -> list[list[ParameterPart]]:
    found: list[list[ParameterPart]] = []
    shards = [local(positions[place]) for place in places]
    most = piece_size(sum(each.numel() for each in shards), len(source.generators))
    room = 0
    for place, tensor in zip(places, shards, strict=True):
        size, start = tensor.numel(), 0
        while start < size:
            if room <= 0:
                found.append([])
                room = most
            taken = min(size - start, room) if tensor.is_contiguous() else size
            found[-1].append(ParameterPart(place, taken, None if taken == size else start))
            room -= taken
            start += taken
    return found


def piece_size(total: int, num_streams: int) -> int:
    """Return the size of a piece, so that generators have equal shares of `total`.

    >>> from sghmc.torch.pieces import piece_size
    >>> piece_size(20_000, 8), piece_size(79_510, 8), piece_size(100_000_000, 1)
    (20000, 19878, 20000000)
    """
    most = (
        _MAX_CPU_PIECE_NUMBERS
        if num_streams > 1
        else min(_LAUNCH_NUMBERS, max(_MIN_PIECE_NUMBERS, total * _MAX_PIECE_SHARE))
    )
    count = max(1, math.ceil(total / most))
    if num_streams > 1:  # a power of 2, or a multiple of the streams
        shares = min(num_streams, 1 << (count - 1).bit_length())
        count = shares * math.ceil(count / shares)
    return max(1, math.ceil(total / count))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the shard of a tensor that this rank holds."""
    if type(tensor) in _PLAIN_TYPES:
        return tensor
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore


# Kick and drift in one pass over the memory.

Tensors = list[torch.Tensor]


def kick_and_drift(
    positions: Tensors,
    momenta: Tensors,
    grads: Tensors,
    *,
    inertia: float,
    force: float,
    pull: float,
    drift: float,
    is_fused: bool,
) -> None:
    """Set r ← inertia · r + force · g + pull · θ, then θ ← θ + drift · r, in place.

    `is_fused` asks for one pass, where that can be.
    """
    if is_fused and _is_exact(force, positions[0].dtype) and _are_alike(positions, momenta, grads):
        # SGD's words: b ← momentum · b + (1 − dampening)(g + weight_decay · p), p ← p − lr · b.
        torch._fused_sgd_(
            positions,
            grads,
            momenta,
            weight_decay=pull / force,
            momentum=inertia,
            lr=-drift,
            dampening=1 - force,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return
    torch._foreach_mul_(momenta, inertia)
    if pull:
        torch._foreach_add_(momenta, positions, alpha=pull)
    torch._foreach_add_(momenta, grads, alpha=force)
    torch._foreach_add_(positions, momenta, alpha=drift)


def _is_exact(force: float, dtype: torch.dtype) -> bool:
    """Return whether 1 − dampening gives the force back, up to a few of the last digits."""
    return abs(1 - (1 - force) - force) <= 16 * torch.finfo(dtype).eps * abs(force) > 0


def _are_alike(*lists: Tensors) -> bool:
    """Return whether all lists have the memory layout that the fused kernel takes for granted."""
    dtype = lists[0][0].dtype
    return all(each.dtype == dtype and each.is_contiguous() for each in itertools.chain(*lists))
