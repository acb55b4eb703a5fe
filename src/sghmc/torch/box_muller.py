"""Standard normals from random bits, a pass of NumPy after the other.

With u and v uniform, √(−2 ln u) cos 2πv and √(−2 ln u) sin 2πv are independent normals (Box &
Muller, Annals of Mathematical Statistics 1958). Torch's own numbers on a CPU are made so too, but
their bits by a generator that takes three times as long.
"""

import math

import numpy as np

_CHUNK = 1 << 17
"""Numbers of a pass, which stay in the cache for the next one."""
_INTEGERS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def fill(generator: np.random.Generator, numbers: np.ndarray) -> None:
    """Write standard normals into a vector of even length, in single or double precision."""
    for start in range(0, numbers.size, _CHUNK):
        _fill(generator, numbers[start : start + _CHUNK])


def _fill(generator: np.random.Generator, numbers: np.ndarray) -> None:
    size, dtype = numbers.size, numbers.dtype.type
    integers = _INTEGERS[numbers.dtype]
    num_words = size * integers.itemsize // 8
    words = generator.integers(_LOWEST, _HIGHEST, num_words, np.dtype(np.int64), endpoint=True)
    np.copyto(numbers, words.view(integers), casting="unsafe")
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
    cosine = np.cos(angle)
    np.sin(angle, out=angle)
    np.multiply(angle, radius, out=angle)
    np.multiply(radius, cosine, out=radius)
