"""How sure to be, as held-out rows say."""

import numpy as np
import pytest

from sghmc.estimators.networks import HeldOut, clearly_likeliest, random_parts


def test_the_likeliest_sharpness_undoes_a_wrong_one():
    """Labels drawn from p, judged by p²: half the sharpness is right.

    Its standard error is 0.02 for 4000 rows: once in ten thousand seeds it is off by 0.08.
    """
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(3), 4000)
    y = (p.cumsum(1) < generator.random((4000, 1))).sum(1)
    found = HeldOut(2 * np.log(p), y, np.ones(4000)).likeliest_sharpness()
    assert found == pytest.approx(0.5, abs=0.08)
    sure = HeldOut(np.log([[0.9, 0.1]] * 10), np.zeros(10, int), np.ones(10))
    assert 1 < sure.likeliest_sharpness() < np.e


def test_an_unusual_power_must_be_clearly_better():
    usual, errors = np.zeros(100), np.tile([1.0, -1.0], 50)

    def chosen(low, high):
        return clearly_likeliest({3.0: low, 30.0: usual, 300.0: high}, 30.0)

    assert chosen(usual - 1, 0.3 + errors) == 300
    # One standard error; then many, but only 2 in all.
    assert chosen(usual - 1, 0.1 + errors) == 30
    assert chosen(usual - 1, 0.02 + 0.001 * errors) == 30
    assert chosen(usual + 0.4, 0.3 + errors) == 3


def test_every_class_is_in_every_part():
    y = np.repeat([0, 1, 2], [8, 40, 13])
    part = random_parts(y, 4)
    for label in range(3):
        counts = np.bincount(part[y == label], minlength=4)
        assert counts.max() - counts.min() <= 1


def test_likelihoods_are_weighted_and_sharpened():
    logs = np.log([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    held = HeldOut(logs, np.array([2, 1]), np.array([1.5, 0.4]))
    p = np.exp(2 * logs)
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(held.log_likelihoods(2.0), [1.5, 0.4] * np.log([p[0, 2], p[1, 1]]))


def test_the_likeliest_sharpness_is_where_prior_and_rows_balance():
    """log s ~ N(0, 0.5²): at the mode, log s / 0.25 is the slope of the log-likelihood."""
    held = HeldOut(np.log([[0.9, 0.1], [0.3, 0.7]]), np.array([0, 1]), np.array([2.0, 3.0]))
    log_s = np.log(held.likeliest_sharpness())
    up, down = (held.log_likelihoods(np.exp(log_s + e)).sum() for e in (1e-4, -1e-4))
    assert log_s / 0.25 == pytest.approx((up - down) / 2e-4, rel=1e-3)
    assert log_s > 0.1
