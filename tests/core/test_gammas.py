"""Gamma variates have their law, each that of its shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from sghmc.core import random
from sghmc.core.random import gammas as drawn_gammas

FALSE_ALARM = 1e-6
"""The chance that a right generator fails one check; with fixed keys it fails always or never."""

gammas = jax.jit(drawn_gammas)


def words(seed):
    return random.words(jax.random.key(seed))


@pytest.mark.parametrize(
    ("shape", "is_double"),
    [*((shape, False) for shape in (0.05, 0.7, 1.0, 2.5, 1e3, 5e6)), (0.7, True), (5e6, True)],
)
def test_gammas_follow_their_law(shape, is_double):
    with jax.enable_x64(is_double):
        shapes = jnp.full(200_000, shape, float)
        drawn = gammas(words(11), shapes)
        assert drawn.dtype == shapes.dtype
    # In logarithms: at the smallest shape most variates are below any float's reach, but for those.
    law, least = scipy.stats.gamma(float(shapes[0])), np.finfo(drawn.dtype).tiny
    seen = np.asarray(drawn, float)
    seen = seen[seen > least]
    cut = law.cdf(least)
    assert abs(len(seen) - len(drawn) * (1 - cut)) < 6 * np.sqrt(len(drawn) * cut * (1 - cut)) + 1
    found = scipy.stats.kstest(seen, lambda x: (law.cdf(x) - cut) / (1 - cut))
    assert found.pvalue > FALSE_ALARM


def test_gammas_of_several_shapes_are_independent_and_each_its_own():
    shapes = jnp.tile(jnp.array([0.5, 3.0, 200.0]), (2**16, 1))
    ranks = scipy.stats.rankdata(gammas(words(12), shapes), axis=0)
    correlations = np.corrcoef(ranks, rowvar=False)[np.triu_indices(3, 1)]
    # Three tests, two-sided, of normal correlations with standard deviation 1/√n.
    most = scipy.stats.norm.isf(FALSE_ALARM / 6) / 2**8
    assert np.all(np.abs(correlations) < most)
    means = np.asarray(gammas(words(12), shapes)).mean(0)
    np.testing.assert_allclose(means, shapes[0], rtol=0.05)
