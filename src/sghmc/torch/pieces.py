"""Parameters in pieces, which all operations of a step go over one after the other.

The noise of a piece needs little memory. On a CPU a piece stays in the cache, so that a pass over
it comes from memory once, and pieces go to as many threads as torch has.
"""

# pyright: reportPrivateImportUsage=false

import concurrent.futures
import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from sghmc.torch.normals import Normals, Source, shard

_CPU_SIZE = 1 << 15
"""Numbers of a piece on a CPU, at most: they stay in a core's cache, and operations on as many stay
in the thread that calls them."""
_CACHED = 1 << 20
"""Numbers on a CPU that are in its cache with what belongs to them: passes over all of them, which
wake all threads, then cost less than as many calls for every piece."""
_LAUNCH, _SHARE, _FEW = 320 << 16, 1 / 5, 1 << 22
"""Elsewhere: what a launch of torch's kernels for lists takes, 320 blocks of 65,536 numbers, since
fewer leave processors idle; but at most a fifth of all, so that the noise needs little memory."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)

Scale = float | torch.Tensor | list[torch.Tensor]
"""A number for all, in a tensor or not, or a tensor for each."""


class Part(NamedTuple):
    """Some entries of the parameter at a place of a list, or all of them: `start` is None."""

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
        parts: list[Part],
        positions: list[torch.Tensor],
        states: list[dict[str, Any]],
        source: Source | None,
        stream: int = 0,
    ):
        """Without a source it has no noise."""
        self.parts, self.stream = parts, stream
        self.is_fused = source is None or len(source.generators) == 1
        self.positions = self.cut(positions)
        self.state = {
            name: self.cut([state[name] for state in states])
            for name, value in states[0].items()
            if isinstance(value, torch.Tensor)
        }
        if source is None:
            return
        sizes = [part.size for part in parts]
        self.generator = source.generators[stream]
        self._noise = source.buffer(stream, sum(sizes), self.positions[0].dtype)
        drawn = zip(self._noise.split(sizes), self.positions, strict=True)
        self._drawn = [each.view(position.shape) for each, position in drawn]

    def cut(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for place, size, start in self.parts:
            tensor = local(tensors[place])
            if start is not None:
                tensor = tensor.contiguous().view(-1).narrow(0, start, size)
            found.append(tensor)
        return found

    def normals(self) -> list[torch.Tensor]:
        """Standard normals like the positions, until the next are asked for."""
        self._noise.normal_(generator=self.generator)
        return self._drawn

    def add_noise(self, targets: list[torch.Tensor], scale: Scale) -> None:
        """target ← target + scale · N(0, 1), entry by entry, in place."""
        drawn = self.normals()
        if isinstance(scale, list):
            torch._foreach_addcmul_(targets, drawn, scale)
        elif isinstance(scale, torch.Tensor):
            torch._foreach_mul_(drawn, scale)
            torch._foreach_add_(targets, drawn)
        else:
            torch._foreach_add_(targets, drawn, alpha=scale)


class Plan:
    """All pieces of some parameters, and which thread each goes to.

    `whole`, where it is asked for and they are few, has all of them in one piece without noise, and
    is then the one that has gradients.
    """

    def __init__(self, pieces: list[Piece], whole: Piece | None = None):
        self.pieces, self.whole = pieces, whole
        # The pieces of a generator stay in order, and so in one thread.
        self._streams = sorted({piece.stream for piece in pieces})
        self._shares: dict[int, list[list[Piece]]] = {1: [pieces]}

    def run(self, work: Callable[[Piece], None]) -> None:
        """Do something to every piece, by as many threads as torch has where they are on a CPU."""
        num_streams = len(self._streams)
        num_threads = 1 if num_streams == 1 else min(num_streams, torch.get_num_threads())
        if num_threads not in self._shares:
            self._shares[num_threads] = [
                [piece for piece in self.pieces if piece.stream % num_threads == number]
                for number in range(num_threads)
            ]
        own, *rest = self._shares[num_threads]
        others = [_pool().submit(_run_beside, work, share) for share in rest]
        try:
            for piece in own:
                work(piece)
        finally:
            for other in others:
                other.result()

    def hand_out(self, grads: list[torch.Tensor], prior_grads: list[torch.Tensor] | None) -> None:
        """Give pieces their gradients."""
        for piece in self.pieces if self.whole is None else [self.whole]:
            piece.grads = piece.cut(grads)
            piece.prior_grads = None if prior_grads is None else piece.cut(prior_grads)

    def forget(self) -> None:
        """Let go of the gradients: the next ones need their memory."""
        for piece in self.pieces if self.whole is None else [self.whole]:
            piece.grads, piece.prior_grads = [], None


def cut(
    positions: list[torch.Tensor],
    states: list[dict[str, Any]],
    normals: Normals,
    *,
    has_whole: bool = False,
) -> Plan:
    """All positions in pieces, of one device, type and shard each."""
    alike: dict[Any, list[int]] = {}
    for place, position in enumerate(positions):
        alike.setdefault((position.device, position.dtype, shard(position)), []).append(place)
    found = []
    for places in alike.values():
        source = normals.source(positions[places[0]])
        for number, parts in enumerate(_parts(positions, places, source)):
            found.append(Piece(parts, positions, states, source, number % len(source.generators)))
    is_small = sum(local(position).numel() for position in positions) <= _CACHED
    is_host = all(len(normals.source(each).generators) > 1 for each in positions)
    if not (has_whole and is_small and is_host and len(alike) == 1):
        return Plan(found)
    parts = [Part(place, local(each).numel(), None) for place, each in enumerate(positions)]
    return Plan(found, Piece(parts, positions, states, None))


def _parts(positions: list[torch.Tensor], places: list[int], source: Source) -> list[list[Part]]:
    found: list[list[Part]] = []
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
            found[-1].append(Part(place, taken, None if taken == size else start))
            room -= taken
            start += taken
    return found


def piece_size(total: int, num_streams: int) -> int:
    """Numbers of a piece, so that generators have equal shares of `total`.

    >>> from sghmc.torch.pieces import piece_size
    >>> piece_size(20_000, 8), piece_size(79_510, 8), piece_size(100_000_000, 1)
    (20000, 19878, 20000000)
    """
    most = _CPU_SIZE if num_streams > 1 else min(_LAUNCH, max(_FEW, total * _SHARE))
    count = max(1, math.ceil(total / most))
    if num_streams > 1:  # a power of 2, or a multiple of the streams
        shares = min(num_streams, 1 << (count - 1).bit_length())
        count = shares * math.ceil(count / shares)
    return max(1, math.ceil(total / count))


def _run_beside(work: Callable[[Piece], None], pieces: list[Piece]) -> None:
    with torch.no_grad():  # a thread has its own mind about that
        for piece in pieces:
            work(piece)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "sghmc-pieces")


if hasattr(os, "register_at_fork"):  # threads stay behind when a process forks
    os.register_at_fork(after_in_child=_pool.cache_clear)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The shard that this rank holds."""
    if type(tensor) in _PLAIN:
        return tensor
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore
