"""Parameters with constraints, sampled without them: maps from real numbers, and their Jacobians.

A density of y = f(x) is one of x with log |∂f/∂x| added. `Space` does that to the functions of a
posterior, so that they can be written in the parameters' own terms.
"""

from sghmc.transforms.base import Transform
from sghmc.transforms.cholesky import CholeskyCorrelation, CholeskyCovariance
from sghmc.transforms.numbers import Interval, Ordered, Positive
from sghmc.transforms.simplex import Simplex
from sghmc.transforms.space import Space

__all__ = [
    "CholeskyCorrelation",
    "CholeskyCovariance",
    "Interval",
    "Ordered",
    "Positive",
    "Simplex",
    "Space",
    "Transform",
]
