"""Whether chains agree: numbers that must pass and numbers that must not."""

import re

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sghmc.estimators.networks import (
    Diagnostics,
    diagnose,
    judged_rows,
)


def rhat(location, variance):
    return diagnose(location, variance, **OTHERS).rhat


def effective_size(location):
    return diagnose(location, np.zeros_like(location), **OTHERS).effective_size


RNG = np.random.default_rng(0)
SOUND = RNG.normal(size=(4, 200, 10))
OTHERS = {"acceptance": (0.8, 0.7), "potential": (1.0, 2.0)}


def test_rhat_is_one_for_chains_that_agree():
    found = rhat(SOUND, np.zeros_like(SOUND))
    # Between eight halves of 100 draws: B/W is about 0.01.
    assert 1 <= found < 1.02


def test_rhat_of_chains_that_differ_is_as_computed_by_hand():
    apart = np.array([0.0, 0.0, 0.0, 2.0])[:, None, None]
    between = np.var(np.repeat([0, 0, 0, 2.0], 2), ddof=1)
    found = rhat(SOUND + apart, np.zeros_like(SOUND))
    assert found == pytest.approx(np.sqrt(1 + between), rel=0.05)
    # The same difference matters less where observations are noisy.
    noisy = rhat(SOUND + apart, np.full_like(SOUND, 99.0))
    assert noisy == pytest.approx(np.sqrt(1 + between / 100), rel=1e-3)


def test_a_chain_that_drifts_disagrees_with_itself():
    drift = np.linspace(-2, 2, 200)[None, :, None]
    assert rhat(SOUND[:1] + drift, np.zeros((1, 200, 10))) > 1.2


def test_effective_sizes():
    independent = effective_size(SOUND)
    assert abs(independent / 800 - 1) < 0.35
    # Each draw three times: a third of them counts.
    slow = effective_size(np.repeat(SOUND, 3, axis=1))
    assert abs(slow / 800 - 1) < 0.4
    apart = effective_size(SOUND + 10 * np.arange(4)[:, None, None])
    assert apart < 40


def test_troubles_are_told_with_their_remedy():
    apart = SOUND + 3 * np.arange(4)[:, None, None]
    with pytest.warns(ConvergenceWarning, match="larger num_steps"):
        diagnose(apart, np.ones_like(SOUND), **OTHERS).warn()
    with pytest.warns(ConvergenceWarning, match="10%"):
        diagnose(SOUND, np.ones_like(SOUND), **OTHERS | {"acceptance": (0.8, 0.1)}).warn()
    with pytest.warns(ConvergenceWarning, match="such as 8000 for 2000"):
        diagnose(apart, np.ones_like(SOUND), **OTHERS, num_steps=2000).warn()
    found = diagnose(apart, np.ones_like(SOUND), **OTHERS, unit="of probability")
    # Chains at 0, 3, 6 and 9, and means of 200 draws.
    assert found.apart == pytest.approx(np.std([0, 3, 6, 9]), rel=0.05)
    assert re.search(r"they are 3\.\d of probability apart", str(found))
    sound = diagnose(SOUND, np.ones_like(SOUND), **OTHERS)
    sound.warn()
    assert sound.troubles == []
    assert "accept rate 0.75" in str(sound)
    assert Diagnostics.of_plain(sound.plain()) == sound


def test_a_mean_that_chains_disagree_about_is_told_where_it_is_watched():
    """R-hat of means 8 with noise that hides it: chains are 10 apart, and the noise is 30."""
    apart, noise = SOUND + 10 * np.arange(4)[:, None, None], np.full_like(SOUND, 900.0)
    found = diagnose(apart, noise, **OTHERS, watches_means=True)
    assert found.rhat < 1.2
    assert re.search(r"disagree about the mean \(R-hat of means 1\d", str(found))
    assert diagnose(apart, noise, **OTHERS).troubles == []
    assert diagnose(SOUND, noise, **OTHERS, watches_means=True).troubles == []


def test_a_fit_that_is_no_better_than_a_constant_says_so():
    assert diagnose(SOUND, SOUND**2, **OTHERS, error_ratio=0.99).troubles == []
    found = diagnose(SOUND, SOUND**2, **OTHERS, error_ratio=1.25)
    assert "1.25 times that of a constant" in str(found)


def test_rows_are_judged_evenly():
    assert judged_rows(3).tolist() == [0, 1, 2]
    assert len(judged_rows(10_000)) == 64
    assert judged_rows(10_000)[-1] == 9999


def test_rhat_by_hand():
    """Halves of two chains of four draws, at two rows."""
    location = np.array([[[0, 1.0], [2, 1], [4, 3], [6, 7]], [[1.0, 0], [1, 4], [5, 2], [9, 6]]])
    variance = np.full((2, 4, 2), 0.5)
    halves = [location[c, part] for c in (0, 1) for part in (slice(0, 2), slice(2, 4))]
    inside = np.mean([each.var(0) for each in halves], axis=0) + 0.5
    between = np.var([each.mean(0) for each in halves], axis=0, ddof=1)
    wanted = np.sqrt(1 + between.sum() / inside.sum())
    assert rhat(location, variance) == pytest.approx(wanted)
    assert rhat(location[:, :1], variance[:, :1]) == pytest.approx(
        np.sqrt(1 + np.var(location[:, 0], axis=0, ddof=1).sum() / 1.0)
    )
    assert rhat(location[:1, :1], variance[:1, :1]) == 1


def test_of_few_draws_no_effective_size_is_known():
    assert np.isnan(effective_size(SOUND[:3, :3, :2]))


@pytest.mark.parametrize(("value", "is_trouble"), [(1.19, False), (1.2, True), (np.nan, True)])
def test_the_largest_rhat_is_one_point_two(value, is_trouble):
    found = Diagnostics(value, 1.0, 10.0, (), ())
    assert bool(found.troubles) == is_trouble
    assert Diagnostics(1.0, 1.0, 10.0, (0.3, 0.9), ()).troubles == []
    assert Diagnostics(1.0, 1.0, 10.0, (0.29, 0.9), ()).troubles != []
    assert str(Diagnostics(1.0, 1.05, 10.0, (), (), temperature=1.25)) == (
        "R-hat of observations 1.000, of means 1.050; effective size of predictions 10; "
        "temperature 1.25"
    )
