import numpy as np

from sghmc.results import selection as thinning
from sghmc.results.samples import Growth, Samples
from sghmc.results.selection import lasting, thinned
from sghmc.results.summaries import Info


def test_the_last_of_every_so_many_draws_is_kept_with_all_that_belongs_to_it():
    numbers = np.arange(14.0).reshape(2, 7)
    growth = (Growth(draw=5, num_examples=20, num_before=10),)
    samples = Samples(
        {"a": numbers, "b": numbers[..., None]}, 10 * numbers, {"mean": 3.0}, None,
        Info(-numbers, numbers > 2), 70, 1.0, 0.5, clock=np.arange(7.0), growth=growth,
    )  # fmt: skip
    found = thinned(samples, 3)
    np.testing.assert_array_equal(found.positions["a"], [[2, 5], [9, 12]])
    np.testing.assert_array_equal(found.positions["b"][..., 0], [[2, 5], [9, 12]])
    np.testing.assert_array_equal(found.hyper, [[20, 50], [90, 120]])
    np.testing.assert_array_equal(found.info.potential, [[-2, -5], [-9, -12]])
    np.testing.assert_array_equal(found.info.is_finite, [[False, True], [True, True]])
    np.testing.assert_array_equal(found.clock, [2, 5])
    assert found.growth[0].draw == 1
    assert (found.num_steps, found.averages) == (70, {"mean": 3.0})
    assert thinned(samples, 1) is samples


def test_draws_that_last_are_copies_or_those_that_no_run_takes_away(monkeypatch):
    numbers = np.arange(14.0).reshape(2, 7)
    samples = Samples(numbers, None, {}, None, Info(-numbers, numbers > 2), 70, 1.0, 0.5)
    copied = lasting(samples, 4)
    np.testing.assert_array_equal(copied.positions, numbers)
    assert not np.shares_memory(copied.positions, numbers)
    monkeypatch.setattr(thinning, "_MAX_COPIED_BYTES", 100)
    first = lasting(samples, 4)
    np.testing.assert_array_equal(first.positions, numbers[:, :4])
    np.testing.assert_array_equal(first.info.potential, -numbers[:, :4])
