"""A Gaussian target, and matrices of every kind for samplers on it: none is 1 or the identity."""

from typing import Any

import numpy as np

import laws

SIZE = 3
PRECISION = laws.positive(0, SIZE, 0.4, 3.0)
DENSE_MASS = laws.positive(1, SIZE, 0.6, 2.2)
DENSE_FRICTION = laws.positive(2, SIZE, 0.5, 2.5)
DENSE_NOISE = laws.positive(3, SIZE, 0.3, 1.5)
DIAGONAL_MASS = np.array([0.7, 1.9, 1.2])
DIAGONAL_FRICTION = np.array([0.8, 2.3, 1.4])
DIAGONAL_NOISE = np.array([1.6, 0.4, 1.3])

MATRICES = {  # friction, mass, gradient noise V̂
    "scalar": (1.3, 0.8, 2.1),
    "diagonal": (DIAGONAL_FRICTION, DIAGONAL_MASS, DIAGONAL_NOISE),
    "dense": (DENSE_FRICTION, DENSE_MASS, DENSE_NOISE),
    "dense friction": (DENSE_FRICTION, DIAGONAL_MASS, 1.7),
    "dense mass": (1.6, DENSE_MASS, DIAGONAL_NOISE),
    "dense noise": (DIAGONAL_FRICTION, 1.4, DENSE_NOISE),
    "nothing subtracted": (DENSE_FRICTION, DENSE_MASS, 0.0),
}


def falling(start: float) -> Any:
    return lambda t: start * 0.8**t
