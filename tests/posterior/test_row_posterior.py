import jax.numpy as jnp
import numpy as np
import pytest

import sghmc


def test_data_may_be_numpy_lists_of_integers_or_booleans():
    target = sghmc.Posterior(
        lambda theta, row: theta * row["count"] * row["is_on"],
        lambda theta: 0.0 * theta,
        {"count": np.array([1, 2, 3]), "is_on": np.array([True, False, True])},
    )
    assert target.num_examples == 3
    assert target.potential(jnp.asarray(2.0)) == -8


def test_a_data_frame_is_its_columns_by_name():
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    posterior = sghmc.Posterior(
        lambda theta, row: -0.5 * (row["y"] - row["x"] * theta) ** 2,
        lambda theta: 0.0 * theta,
        pandas.DataFrame({"x": [1.0, 2.0], "y": [3, 4]}, index=[7, 7]),
    )
    assert float(posterior.potential(jnp.array(1.0))) == 0.5 * (2**2 + 2**2)
