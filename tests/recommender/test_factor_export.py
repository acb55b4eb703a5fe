"""Factors in files: turned alike, and as they are told to be."""

import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from handmade_factors import SIZES, handmade_draws
from sghmc.recommender.factor_draws import aligned_factors, write
from sghmc.recommender.ratings import Ratings

RATINGS = Ratings(
    np.zeros(1, np.int32),
    np.zeros(1, np.int32),
    np.ones(1, np.float32),
    np.array([f"u{i}" for i in range(SIZES["user"])]),
    10 * np.arange(SIZES["item"]),
)
SCALE = np.array([3.0, 1.7])


def turned_draws() -> dict[str, np.ndarray]:
    """One draw turned in five ways, biases as they are: all say the same."""
    draws = handmade_draws()
    for i in range(len(draws["user"])):
        turn = stats.ortho_group.rvs(3, random_state=i)
        for side in SIZES:
            draws[side][i] = draws[side][0]
            if i:
                draws[side][i, :, :-1] = draws[side][0, :, :-1] @ turn
    return draws


def test_a_turned_draw_is_turned_back():
    draws = turned_draws()
    factors = aligned_factors(draws)
    for side, (mean, std) in factors.items():
        np.testing.assert_allclose(mean, draws[side][-1], atol=1e-5)
        np.testing.assert_allclose(std, 0, atol=1e-5)


def test_turning_changes_no_rating():
    """What is averaged are the rows of draws that predict as before."""
    draws = {name: part[:1] for name, part in handmade_draws().items()}
    (user, _), (item, std) = aligned_factors(draws).values()
    expected = predictions(draws["user"][0][:, None], draws["item"][0][None])
    np.testing.assert_allclose(predictions(user[:, None], item[None]), expected, atol=1e-5)
    assert not std.any()
    several = aligned_factors(handmade_draws())
    assert several["user"].std.min() > 0
    biases = handmade_draws()["item"][..., -1].astype(float)
    np.testing.assert_allclose(several["item"].std[:, -1], biases.std(0, ddof=1), rtol=1e-6)


def test_the_file_holds_the_factors(tmp_path):
    draws = handmade_draws()
    write(tmp_path / "factors.npz", draws, RATINGS, SCALE)
    arrays = np.load(tmp_path / "factors.npz")
    for side, part in aligned_factors(draws).items():
        np.testing.assert_array_equal(arrays[f"{side}_factors"], part.mean[:, :-1])
        np.testing.assert_array_equal(arrays[f"{side}_factor_stds"], part.std[:, :-1])
        np.testing.assert_array_equal(arrays[f"{side}_bias"], part.mean[:, -1])
        np.testing.assert_array_equal(arrays[f"{side}_bias_std"], part.std[:, -1])
    np.testing.assert_array_equal(arrays["scale"], SCALE)
    assert arrays["users"].tolist() == RATINGS.users.tolist()


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        write(tmp_path / "factors.txt", handmade_draws(), RATINGS, SCALE)
    assert not list(tmp_path.iterdir())
