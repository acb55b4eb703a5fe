"""Plans of the exact chains, and choices between their passes."""

import numpy as np
import pytest

from sghmc.estimators import regression_chains
from sghmc.estimators.isokinetic import Passed
from sghmc.estimators.regression_chains import Plan


@pytest.mark.parametrize(
    ("num_steps", "num_draws", "plan"),
    [
        (9000, 50, Plan(explore=300, settle=50, keep=100, length=20)),
        (9000, 400, Plan(explore=1200, settle=200, keep=400, length=5)),
        (90, 50, Plan(explore=60, settle=10, keep=50, length=1)),
    ],
)
def test_two_thirds_explore_a_ninth_settles_and_two_ninths_are_kept(num_steps, num_draws, plan):
    found = Plan.of(num_steps, num_draws)
    assert found == plan
    assert found.trial() == plan._replace(
        explore=regression_chains._blocks(plan.explore / 4), settle=0, keep=0
    )
    assert found.going_on() == plan._replace(explore=regression_chains._blocks(plan.explore / 4))


def test_counts_are_whole_blocks_of_five():
    assert [regression_chains._blocks(count) for count in (0, 0.5, 5, 5.1, 11)] == [5, 5, 5, 10, 15]


def test_each_chain_keeps_the_pass_that_it_did_well_in():
    new, old = (
        Passed(*(np.full(shape, value) for shape in ((4, 3, 2), (4, 3), (4, 3))))
        for value in (1, 2)
    )
    found = regression_chains._of_each(np.array([True, False, True]), new, old)
    for part in (found.position[..., 0], found.potential, found.acceptance):
        np.testing.assert_array_equal(part, np.tile([1, 2, 1], (4, 1)))
