"""Standard normals from random bits, a pass of NumPy after the other.

With u and v uniform, √(−2 ln u) cos 2πv and √(−2 ln u) sin 2πv are independent normals (Box &
Muller, Annals of Mathematical Statistics 1958).
"""

import math

import numpy as np

_INTEGERS = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.int64)}


def transform(numbers: np.ndarray, room: np.ndarray) -> None:
    """Random bits become standard normals, in single or double precision, in place.

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
