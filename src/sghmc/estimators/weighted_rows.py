"""Weighted rows as the estimators store them, in an order that depends on their content alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_CONSTANT = 1e-12
"""Relative standard deviation below which a column varies by rounding alone."""
_MAX_DISTANCE, _MIN_DISTANCE = 1e150, 1e-150
"""Range of distances whose squares double precision can hold."""
_ON_GRID = 0.01
_FAR_SHARE, _LEAST_REST = 0.01, 0.01
_MIN_ROWS = 10
"""Least number of rows from which on some can be called outliers."""
_FAR_DISTANCE = 100.0
"""Distance from the mean, in standard deviations of the nearest 99 %, from which values are far.

One such value takes most of the scale. On the nine UCI sets the farthest is 96.
"""
_BEND = 3.0
"""Standard deviations up to which `bounded` takes inputs nearly as they are."""


class WeightedRows(NamedTuple):
    """Inputs (rows), labels or targets, and a weight for each row: how often it was seen."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray

    @property
    def total_weight(self) -> float:
        return float(self.weight.sum())

    def joined(self, other: "WeightedRows | None") -> "WeightedRows":
        if other is None:
            return self
        return WeightedRows(*(np.concatenate(pair) for pair in zip(other, self, strict=True)))

    def merged(self) -> "WeightedRows":
        """Return sorted rows, equal ones merged with their weights summed, without weights of 0.

        A posterior depends on the data as a weighted set. In this form so does every bit of a fit:
        a weight of 3 and a row given three times are the same, and the order does not matter.
        """
        counted = self.weight != 0
        # Adding 0 makes −0 and 0 the same bytes.
        table = np.column_stack([self.x[counted], self.y[counted]]).astype(np.float64) + 0.0
        table = np.ascontiguousarray(table)
        keys = table.view(np.dtype((np.void, table.itemsize * table.shape[1]))).ravel()
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        weight = np.bincount(group, weights=self.weight[counted], minlength=len(first))
        return WeightedRows(self.x[counted][first], self.y[counted][first], weight)


class Scaling(NamedTuple):
    """Center and scale of a quantity: x ↦ (x − center) / scale."""

    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, weight: np.ndarray, far: Sequence[int] = ()) -> "Scaling":
        """Return weighted mean and standard deviation; what does not vary keeps its scale.

        In `far` columns only the nearest values count.
        """
        share = weight / weight.sum()
        center = share @ values
        size = np.max(np.abs(values - center), axis=0)
        is_small = (size < _MIN_DISTANCE) & (size > _CONSTANT * np.abs(center))
        if np.any(is_small | (size > _MAX_DISTANCE)):
            raise ValueError(
                f"Some values are so large, or differ by so little, that double precision does not "
                f"hold their squares (sizes from {np.min(size):.0e} to {np.max(size):.0e}): choose "
                f"other units."
            )
        spread = np.sqrt(share @ (values - center) ** 2)
        is_constant = spread <= _CONSTANT * np.maximum(np.abs(center), np.finfo(float).tiny)
        scale = np.where(is_constant, 1.0, spread)
        for column in far:
            near = _nearest(values[:, [column]])[:, 0]
            center[column], scale[column] = cls.of(values[near, column], weight[near])
        return cls(center, scale)

    def apply(self, values: np.ndarray) -> np.ndarray:
        return (values - self.center) / self.scale


def rounding(values: np.ndarray) -> float:
    """Return the standard deviation of the rounding error; 0 if values are not rounded.

    Rounded ones repeat, and lie on a grid whose unit is their smallest gap: the error is uniform
    inside it, with a standard deviation of gap / √12 (Sheppard's correction).
    """
    distinct = np.unique(values)
    if not 1 < len(distinct) <= len(values) / 2:
        return 0.0
    gaps = np.diff(distinct)
    steps = gaps / gaps.min()
    is_grid = np.all(np.abs(steps - steps.round()) < _ON_GRID)
    return float(gaps.min() / 12**0.5) if is_grid else 0.0


def hides_the_rest(values: np.ndarray) -> np.ndarray:
    """Tell of each column whether few distant values take nearly all of its scale.

    So it is where the standard deviation is a hundred times that of all but a hundredth of the
    rows: a code for "missing" such as 999999, or a slip of units. Once standardized, the others are
    all but equal. Where they are equal, as zeros of a rare category, nothing is hidden.
    """
    if len(values) < _MIN_ROWS:
        return np.zeros(values.shape[1], bool)
    rest = np.nanstd(np.take_along_axis(values, _nearest(values), axis=0), axis=0)
    return (rest > 0) & (rest < _LEAST_REST * np.nanstd(values, axis=0))


def far_columns(values: np.ndarray) -> list[int]:
    """Return the columns with values very far from all others, beside which these are all alike."""
    if len(values) < _MIN_ROWS:
        return []
    near = np.take_along_axis(values, _nearest(values), axis=0)
    farthest = np.abs(values - near.mean(0)).max(0)
    rest = near.std(0)
    return np.flatnonzero((rest > 0) & (farthest > _FAR_DISTANCE * rest)).tolist()


def _nearest(values: np.ndarray) -> np.ndarray:
    """Return the rows of each column's values, all but a hundredth, that are nearest its mean."""
    kept = len(values) - max(1, int(_FAR_SHARE * len(values)))
    distances = np.abs(values - np.nanmean(values, axis=0))
    return np.argpartition(distances, kept - 1, axis=0)[:kept]


def bounded(x: np.ndarray) -> np.ndarray:
    """Return 3 arcsinh(x/3): nearly x up to three standard deviations, its logarithm beyond."""
    return _BEND * np.arcsinh(x / _BEND)


def bent(z: np.ndarray, ends: np.ndarray, num_inputs: int) -> np.ndarray:
    """Return inputs with the logarithm of what is beyond the ends of the fitted rows.

    A network goes on in straight lines out there, which nobody has seen.
    """
    if len(ends):
        inside = np.clip(z[:, :num_inputs], *ends[:, :num_inputs])
        beyond = z[:, :num_inputs] - inside
        z[:, :num_inputs] = inside + np.sign(beyond) * np.log1p(np.abs(beyond))
    return z


def means(rows: WeightedRows) -> np.ndarray:
    """Return the weighted mean of each input's values that are there; 0 if there are none."""
    gaps = np.isnan(rows.x)
    counts = rows.weight @ ~gaps
    return rows.weight @ np.where(gaps, 0, rows.x) / np.where(counts > 0, counts, 1)


def completed(x: np.ndarray, center: np.ndarray, columns: Sequence[int]) -> np.ndarray:
    """Return inputs with `center` for what is missing, then an indicator for some columns."""
    gaps = np.isnan(x)
    if not gaps.any() and not columns:
        return x
    return np.column_stack([np.where(gaps, center, x), gaps[:, list(columns)]])


def padded_size(size: int, steps: int) -> int:
    """Return the next size that programs are compiled for, `steps` of them in every doubling.

    Every new shape compiles a new program; with few shapes most fits find theirs made. Padding
    never changes the law: a padded row has weight 0, and a weight on an input that is always 0 has
    its prior as its law, whatever the data.
    """
    unit = max(1, 2 ** (max(size, 1) - 1).bit_length() // (2 * steps))
    return -(-size // unit) * unit


def padded(array: np.ndarray, length: int, axis: int = 0) -> np.ndarray:
    """Pad an array with zeros up to `length` along an axis."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - array.shape[axis])
    return np.pad(array, widths)
