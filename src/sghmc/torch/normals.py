"""Sources of standard normals: random words, blocks for small networks, torch's generators.

Word i of a stream is h(k + iγ) modulo 2⁶⁴, with the h of SplitMix64, a key k and an odd γ (Steele,
Lea & Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; Java's SplittableRandom).
No word needs the one before it, so that passes of NumPy make many at once, in two thirds of the
time of its own generators. With u and v uniform, √(−2 ln u) cos 2πv and √(−2 ln u) sin 2πv are
independent normals (Box & Muller, Annals of Mathematical Statistics 1958).

Passes of NumPy over the numbers of one step of a small network are mostly calls: they pay in a
block for many steps. One thread draws it. The others of torch wait for work without sleeping, for
milliseconds after a backward pass, and a thread of our own would have to share a core with them.

An accelerator has one of torch's generators, a CPU eight: they run side by side, and the numbers
are the same however many threads there are.

Ranks that hold the same parameters draw the same numbers (DDP: equal seeds are enough). Where
parameters are sharded (`fully_shard`, tensor parallel: a `DTensor`), each shard has its own.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

# pyright: reportPrivateImportUsage=false


_PASS_WORDS = 1 << 15
"""Largest number of words of a pass: they stay in the cache for the next one."""
_MASK = (1 << 64) - 1
_MIN_BIT_CHANGES, _ALTERNATING = 24, 0xAAAAAAAAAAAAAAAA


class Words:
    """A stream of 64-bit words that are found by their number."""

    def __init__(self, key: int, gamma: int):
        self.key, self.gamma = key, gamma
        self._ramp = self._shifted = _vector(0)

    @classmethod
    def seeded(cls, seeds: np.random.SeedSequence) -> "Words":
        key, gamma = seeds.generate_state(2, np.uint64).tolist()
        gamma |= 1
        if (gamma ^ gamma >> 1).bit_count() < _MIN_BIT_CHANGES:  # bits too regular, by the paper
            gamma ^= _ALTERNATING
        return cls(key, gamma)

    def read(self, first: int, words: np.ndarray) -> None:
        """Write word number `first` and those after it into a vector."""
        self._reserve(min(words.size, _PASS_WORDS))
        for start in range(0, words.size, _PASS_WORDS):
            lanes = words[start : start + _PASS_WORDS]
            begin = np.uint64(self.key + (first + start) * self.gamma & _MASK)
            np.add(self._ramp[: lanes.size], begin, out=lanes)
            _hash(lanes, self._shifted[: lanes.size])

    def _reserve(self, size: int) -> None:
        if self._ramp.size < size:
            self._ramp, self._shifted = _vector(size), _vector(size)
            np.multiply(np.arange(size, dtype=np.uint64), np.uint64(self.gamma), out=self._ramp)


def _vector(size: int) -> np.ndarray:
    """Return memory of torch for words, which begins where a line of the cache does.

    NumPy's own does not, and passes over it take a tenth longer.
    """
    return torch.empty(size, dtype=torch.int64).numpy().view(np.uint64)


def _hash(words: np.ndarray, shifted: np.ndarray) -> None:
    """Hash words in place by Stafford's variant 13 of the finalizer of MurmurHash3."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        np.bitwise_xor(words, shifted, out=words)
        np.multiply(words, np.uint64(factor), out=words)
    np.right_shift(words, np.uint64(31), out=shifted)
    np.bitwise_xor(words, shifted, out=words)


# Standard normals from random bits, a pass of NumPy after the other.

_INTEGERS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}


def transform(numbers: np.ndarray, room: np.ndarray) -> None:
    """Turn random bits into standard normals, in single or double precision, in place.

    The vector has an even length, and `room` is for half of it.
    """
    size, dtype = numbers.size, numbers.dtype.type
    integers = _INTEGERS[numbers.dtype]
    np.copyto(numbers, numbers.view(integers), casting="unsafe")
    radius, angle = numbers[: size // 2], numbers[size // 2 :]
    # Not 0, whose logarithm is not finite; small ones have all their digits, which the tails need.
    unit = 2.0 ** (1 - 8 * integers.itemsize)
    np.abs(radius, out=radius)
    np.multiply(radius, dtype(unit), out=radius)
    np.add(radius, dtype(unit / 4), out=radius)
    np.log(radius, out=radius)
    np.multiply(radius, dtype(-2), out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(angle, dtype(math.pi * unit), out=angle)
    cosine = np.cos(angle, out=room[: size // 2])
    np.sin(angle, out=angle)
    np.multiply(angle, radius, out=angle)
    np.multiply(radius, cosine, out=radius)


# Normals for the next steps of a small network on a CPU, drawn many at once.

_MAX_BLOCK_STEPS, _MAX_BLOCK_NUMBERS = 64, 1 << 21
"""Largest number of steps that a block is for, and of numbers for more than one step."""
_CHUNK_NUMBERS = 1 << 17
"""Count of numbers that are made together, and stay in the cache meanwhile."""


class NormalBlock:
    """Numbers that a stream of words made last, and how many of them were taken.

    They depend on the seed and on the sizes that were asked for.
    """

    def __init__(self, dtype: torch.dtype, seeds: np.random.SeedSequence):
        self.numbers = torch.empty(0, dtype=dtype)
        self._words = Words.seeded(seeds)
        self._room = self.numbers
        self._first = 0
        """The number of the block's first word."""
        self._taken = 0

    def take(self, size: int) -> int:
        """Return where in `numbers` so many standard normals are, which no call gives again."""
        if self._taken + size > self.numbers.numel():
            num_steps = max(1, min(_MAX_BLOCK_STEPS, _MAX_BLOCK_NUMBERS // size))
            many = max(num_steps * size, self.numbers.numel())
            self._fill(self._first + self._num_words(self.numbers.numel()), many + many % 2)
            self._taken = 0
        self._taken += size
        return self._taken - size

    def _fill(self, first: int, size: int) -> None:
        self._first = first
        if size != self.numbers.numel():
            self.numbers = self.numbers.new_empty(size)
            self._room = self.numbers.new_empty(min(size, _CHUNK_NUMBERS) // 2)
        numbers, room = self.numbers.numpy(), self._room.numpy()
        for start in range(0, size, _CHUNK_NUMBERS):
            chunk = numbers[start : start + _CHUNK_NUMBERS]
            self._words.read(first + self._num_words(start), chunk.view(np.uint64))
            transform(chunk, room)

    def _num_words(self, size: int) -> int:
        """Return how many words make so many numbers, an even count."""
        return size * self.numbers.dtype.itemsize // 8

    def state(self) -> torch.Tensor:
        """Return the stream, where in it this block begins, its size, and how much was taken."""
        words = self._words
        stream = np.array([words.key, words.gamma], np.uint64).view(np.int64).tolist()
        return torch.tensor([*stream, self._first, self.numbers.numel(), self._taken])

    def load_state(self, state: torch.Tensor) -> None:
        *stream, first, size, self._taken = state.tolist()
        self._words = Words(*np.array(stream, np.int64).view(np.uint64).tolist())
        self._fill(first, size)


# Where the noise comes from: torch's generators, which `seed` alone determines.

_CPU_STREAMS = 8
_RESUMED_KEY = (1 << 32) - 1
"""Mark of keys for noise that a loaded state did not have; no device or shard has this index."""
_Made = TypeVar("_Made", "NormalSource", NormalBlock)


class Normals:
    """Sources of noise for all devices and shards."""

    def __init__(self, seed: int):
        self.seed = seed
        self._sources: dict[str, NormalSource | NormalBlock] = {}
        self._saved: dict[str, torch.Tensor] = {}
        self._loaded_at = 0
        """Number of steps of the run when a state was loaded."""
        self._devices: list[torch.device] = []

    def source(self, tensor: torch.Tensor) -> "NormalSource":
        """Return the source for the device and shard of a tensor."""
        name, key = self._place(tensor)
        return self._named(name, key, functools.partial(NormalSource, tensor.device))

    def block(self, tensor: torch.Tensor) -> NormalBlock:
        """Return the source for small networks of such tensors, on a CPU."""
        name, key = self._place(tensor)
        size = tensor.dtype.itemsize  # what tells single from double precision
        return self._named(
            f"{name}:{size}", (*key, size), functools.partial(NormalBlock, tensor.dtype)
        )

    def generator(self) -> torch.Generator:
        """Return the generator of numbers that all ranks have in common."""
        source = self._named("all", (0,), lambda seeds: NormalSource(torch.device("cpu"), seeds, 1))
        return source.generators[0]

    def _place(self, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
        """Return the name of a device and shard, and the key of its seeds."""
        # Not by the device's own number, which differs between ranks of one DDP.
        if tensor.device not in self._devices:
            self._devices.append(tensor.device)
        key = (self._devices.index(tensor.device), *shard(tensor))
        return ":".join([tensor.device.type, *map(str, key)]), (len(key), *key)

    def state_dict(self) -> dict[str, torch.Tensor]:
        self.generator()  # so that savers that load in place always find it
        return self._saved | {name: source.state() for name, source in self._sources.items()}

    def load_state_dict(self, saved: dict[str, torch.Tensor], num_steps: int) -> None:
        self._sources.clear()
        self._saved, self._loaded_at = dict(saved), num_steps

    def _named(
        self, name: str, key: tuple[int, ...], make: Callable[[np.random.SeedSequence], _Made]
    ) -> _Made:
        if name not in self._sources:
            self._sources[name] = self._made(name, key, make)
        return self._sources[name]  # pyright: ignore[reportReturnType]

    def _made(
        self, name: str, key: tuple[int, ...], make: Callable[[np.random.SeedSequence], _Made]
    ) -> _Made:
        """Return a source where it was saved, or else from its beginning."""
        if name not in self._saved and self._loaded_at:
            warnings.warn(
                f"The state that was loaded has noise for {sorted(self._saved)}, not for {name}: "
                f"the run goes on with new noise of its seed, not bit for bit. Save and load "
                f"sharded states, on as many devices of the same kind, to have the same noise.",
                stacklevel=2,
            )
            key = (*key, _RESUMED_KEY, self._loaded_at)
        source = make(np.random.SeedSequence(self.seed, spawn_key=key))
        if name in self._saved:
            source.load_state(self._saved.pop(name))
        return source


class NormalSource:
    """The generators of a device, each with a buffer for the numbers that it makes."""

    def __init__(
        self, device: torch.device, seeds: np.random.SeedSequence, count: int | None = None
    ):
        count = count or (_CPU_STREAMS if device.type == "cpu" else 1)
        self.generators = [torch.Generator(device) for _ in range(count)]
        for generator, seed in zip(self.generators, seeds.spawn(count), strict=True):
            generator.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def buffer(self, number: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a vector for a generator to fill; vectors of one generator overlap."""
        key = (number, dtype)
        if key not in self._buffers or self._buffers[key].numel() < size:
            device = self.generators[number].device
            self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return self._buffers[key][:size]

    def state(self) -> torch.Tensor:
        return torch.stack([generator.get_state() for generator in self.generators])

    def load_state(self, state: torch.Tensor) -> None:
        for generator, row in zip(self.generators, state.cpu(), strict=True):
            generator.set_state(row.clone())  # torch crashes on a view


def shard(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return which part of a sharded tensor this rank holds; () where it holds all of it."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return ()
    placements = enumerate(tensor.placements)  # pyright: ignore[reportAttributeAccessIssue]
    return tuple(mesh.get_local_rank(axis) for axis, kind in placements if kind.is_shard())
