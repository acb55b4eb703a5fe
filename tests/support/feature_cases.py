"""Features of a small side, sparse and as the matrix that they are."""

import jax.numpy as jnp
import numpy as np

from sghmc.recommender.factor_gibbs import Features

NUM_ROWS, GROUPS = 7, np.array([0, 0, 0, 1, 1])


def feature_matrix(seed: int = 0) -> np.ndarray:
    """(row, feature): two fifths are 0, and a row has none."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(NUM_ROWS, len(GROUPS))) * (rng.random((NUM_ROWS, len(GROUPS))) < 0.6)
    matrix[3] = 0
    return matrix


def sparse_features(matrix: np.ndarray, groups: np.ndarray = GROUPS) -> Features:
    """Entries in a mixed order, two of them padding, one in two halves."""
    row, column = np.nonzero(matrix)
    value = matrix[row, column]
    row, column = np.append(row, [row[0], 2, 2]), np.append(column, [column[0], 1, 1])
    value = np.append(value, [value[0] / 2, 0, 0])
    value[0] /= 2
    order = np.random.default_rng(1).permutation(len(row))
    return Features(
        jnp.asarray(row[order], jnp.int32),
        jnp.asarray(column[order], jnp.int32),
        jnp.asarray(value[order], jnp.float32),
        jnp.asarray(groups, jnp.int32),
        jnp.asarray(np.bincount(groups), jnp.float32),
    )
