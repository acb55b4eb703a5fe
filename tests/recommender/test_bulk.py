"""The best items of all users, against one user's at a time."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from exact_factorization import predictions
from handmade_factors import NUM_DRAWS, SIZES, handmade_draws
from sghmc.recommender import factor_draws
from sghmc.recommender.factor_draws import best_items
from sghmc.recommender.ratings import Ratings

DRAWS = handmade_draws()
PAIRS = [(0, 1), (0, 4), (3, 0), (3, 2), *((6, item) for item in range(5))]
RATINGS = Ratings(
    np.array([user for user, _ in PAIRS], np.int32),
    np.array([item for _, item in PAIRS], np.int32),
    np.arange(len(PAIRS), dtype=np.float32),
    np.arange(SIZES["user"]),
    np.arange(SIZES["item"]),
)
SCORES = predictions(DRAWS["user"][:, :, None].astype(float), DRAWS["item"][:, None].astype(float))


def found(k=3, exclude_seen=True, by: Any = "mean", seed=0):
    generator = np.random.default_rng(seed)
    return best_items(DRAWS, RATINGS, k, exclude_seen, by, 0.7, generator)


def expected(score, k, exclude_seen=True):
    """(user, item), user after user."""
    pairs = []
    for user, row in enumerate(score):
        order = [item for item in np.argsort(-row) if not exclude_seen or (user, item) not in PAIRS]
        pairs += [(user, int(item)) for item in order[:k]]
    return pairs


@pytest.mark.slow_cases("False-1024", "False-8")
@pytest.mark.parametrize("most", [1024, 8])
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_every_user_gets_their_best_of_what_they_have_not_seen(most, exclude_seen, monkeypatch):
    """User 6 has one item left. Blocks of three users make the last one shorter."""
    monkeypatch.setattr(factor_draws, "_MAX_BLOCK_USERS", 3 if most == 8 else most)
    mean, std = SCORES.mean(0), SCORES.std(0, ddof=1)
    for by, score in (("mean", mean), ("upper", mean + 0.7 * std), ("lower", mean - 0.7 * std)):
        best = found(exclude_seen=exclude_seen, by=by)
        pairs = list(zip(best.user.tolist(), best.item.tolist(), strict=True))
        assert pairs == expected(score, 3, exclude_seen)
        at = best.user, best.item
        np.testing.assert_allclose(best.mean, mean[at], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(best.variance, std[at] ** 2, rtol=1e-4, atol=1e-5)


def test_everybody_has_a_draw_of_their_own():
    """Each user's order is that of a draw, every draw equally often: a false alarm in 10⁶ seeds."""
    orders = [dict.fromkeys(expected(score, 6, exclude_seen=False)) for score in SCORES]
    counts = np.zeros(NUM_DRAWS)
    used: list[int] = []
    for seed in range(40):
        best = found(6, exclude_seen=False, by="draw", seed=seed)
        pairs = list(zip(best.user.tolist(), best.item.tolist(), strict=True))
        used = []
        for user in range(SIZES["user"]):
            mine = pairs[6 * user : 6 * user + 6]
            fits = [list(order)[6 * user : 6 * user + 6] == mine for order in orders]
            assert any(fits)
            used.append(int(np.argmax(fits)))
            counts[used[-1]] += 1
    assert len(set(used)) > 1
    assert stats.chisquare(counts).pvalue > 1e-6
