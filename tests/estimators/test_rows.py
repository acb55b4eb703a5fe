"""Rows as a weighted set."""

import numpy as np

from sghmc.estimators.rows import Rows


def test_rows_are_a_weighted_set():
    rows = Rows(np.array([[1.0], [0.0], [1.0], [-0.0]]), np.array([1, 0, 1, 0]), np.arange(4.0))
    merged = rows.merged()
    assert (merged.x.ravel().tolist(), merged.weight.tolist()) == ([0.0, 1.0], [4.0, 2.0])
