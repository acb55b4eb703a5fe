from typing import Any

import numpy as np
import pytest

from sghmc.posterior import mode
from sghmc.posterior.mode import minimize


class Objective:
    look: Any

    def evaluate(self, points):
        values, slopes = zip(*map(self.look, points), strict=True)
        return np.array(values), np.array(slopes)


class Quadratic(Objective):
    """½(x − center)ᵀA(x − center), of badly scaled parameters."""

    def __init__(self, matrix, center):
        self.matrix, self.center, self.num_hessians = matrix, center, 0

    def look(self, x):
        slope = self.matrix @ (x - self.center)
        return float(slope @ (x - self.center) / 2), slope

    def hessian(self, x):
        self.num_hessians += 1
        return self.matrix


def test_a_quadratic_takes_one_step_and_a_hessian_at_each_end_whatever_the_units():
    scale = np.array([1e-6, 1.0, 1e5])
    matrix = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.5]]) / np.outer(scale, scale)
    center = np.array([3e-6, -2.0, 4e5])
    objective = Quadratic(matrix, center)
    found = minimize(objective, np.zeros(3))
    np.testing.assert_allclose(found.x, center, rtol=1e-8)
    assert found.distance < 1e-6
    assert objective.num_hessians == 2


class Rosenbrock(Objective):
    def look(self, x):
        a, b = x
        slope = np.array([-400 * a * (b - a**2) - 2 * (1 - a), 200 * (b - a**2)])
        return float(100 * (b - a**2) ** 2 + (1 - a) ** 2), slope

    def hessian(self, x):
        a, b = x
        return np.array([[1200 * a**2 - 400 * b + 2, -400 * a], [-400 * a, 200.0]])


@pytest.mark.parametrize("start", [(-1.2, 1.0), (3.0, -4.0), (0.0, 5.0)])
def test_a_bent_valley_is_followed_to_its_end(start):
    found = minimize(Rosenbrock(), np.array(start))
    np.testing.assert_allclose(found.x, [1, 1], rtol=1e-3)
    assert found.value < 1e-6


class Saddle(Objective):
    def look(self, x):
        return float(x[0] ** 2 - x[1] ** 2 + x[1] ** 4), np.array(
            [2 * x[0], -2 * x[1] + 4 * x[1] ** 3]
        )

    def hessian(self, x):
        return np.diag([2.0, -2.0 + 12 * x[1] ** 2])


def test_a_direction_that_bends_down_is_left():
    found = minimize(Saddle(), np.array([1.0, 0.1]))
    np.testing.assert_allclose(np.abs(found.x), [0, 0.5**0.5], atol=1e-3)


def test_a_search_that_is_not_finite_ends():
    class Broken(Saddle):
        def look(self, x):
            return float("nan"), np.full(2, np.nan)

    found = minimize(Broken(), np.ones(2))
    assert not np.isfinite(found.value)
    assert found.distance == np.inf


def test_a_search_among_hills_ends_soon():
    """Every Hessian bends down somewhere: after some of them there is no use in more."""

    class Hills(Quadratic):
        def look(self, x):
            return float(-np.sum(x**2) / 2), -x

    hills = Hills(-np.eye(2), np.zeros(2))
    found = minimize(hills, np.ones(2))
    assert found.distance == np.inf
    assert hills.num_hessians <= 11


def test_a_start_without_curvature_is_left():
    """Where the Hessian is 0, the slope tells how far to go; as both sides of a kink have it."""

    class Kink(Objective):
        def look(self, x):
            return float(np.sum(np.abs(x) * [1e3, 1.0])), np.sign(x) * [1e3, 1.0]

        def hessian(self, x):
            return np.zeros((2, 2))

    found = minimize(Kink(), np.array([1e-3, 3.0]))
    assert found.value < 1e-3
    assert found.distance == np.inf


class Told:
    """A value that is told at the first point looked at, and a larger one everywhere else."""

    def __init__(self, value):
        self.left = [value]

    def evaluate(self, points):
        values = np.array([self.left.pop() if self.left else 65.0 for _ in points])
        return values, np.ones((len(points), 1))

    def hessian(self, x):
        return np.eye(1)


def test_a_fall_that_is_just_enough_is_taken():
    """A slope of 8 and a curvature of 1 promise a fall of 64; of that a share will do."""
    slope = np.full(1, 8.0)
    bowl = mode._QuadraticModel(np.eye(1), slope)
    for share, is_taken in ((1.0, True), (0.99, False)):
        value = 64.0 - share * mode._ARMIJO_SHARE * 64.0
        found = mode._downhill(Told(value), bowl, np.zeros(1), 64.0, slope, 0.0)
        assert found is not None
        assert (found[1] == value) == is_taken


def test_a_search_that_ends_thirty_times_too_far_has_found_no_mode():
    at_the_edge = mode.Mode(None, 0.0, None, mode.MAX_MODE_DISTANCE)
    assert not at_the_edge.is_found
    assert at_the_edge._replace(distance=0.99 * mode.MAX_MODE_DISTANCE).is_found


def test_the_hessian_is_that_of_the_minimum_though_a_step_landed_there():
    """Neal's funnel is quadratic along its axis: Newton's first step ends at its very tip."""

    class Funnel:
        def evaluate(self, points):
            v, x = points[:, 0], points[:, 1]
            shrunk = np.exp(-v) * x**2 / 2
            slopes = np.stack([v / 9 + 0.5 - shrunk, np.exp(-v) * x], axis=1)
            return v**2 / 18 + v / 2 + shrunk, slopes

        def hessian(self, x):
            slope = np.exp(-x[0]) * x[1]
            curvature = 1 / 9 + np.exp(-x[0]) * x[1] ** 2 / 2
            return np.array([[curvature, -slope], [-slope, np.exp(-x[0])]])

    found = minimize(Funnel(), np.array([18.0, 0.0]))
    np.testing.assert_allclose(found.x, [-4.5, 0.0], atol=1e-6)
    assert found.hessian is not None
    np.testing.assert_allclose(found.hessian[1, 1], np.exp(4.5))
