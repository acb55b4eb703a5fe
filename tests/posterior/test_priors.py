"""Learned precisions: their prior's density by scipy, their draws by the density on a grid."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sghmc.posterior.gibbs import GaussianPrior, draw_precision

PARAMS = {"a": jnp.array([2.0, -1.0, 0.5]), "b": jnp.full(4, 0.7), "c": jnp.full(2, 3.0)}
NUM_DRAWS = 20_000


def grouped(name: str) -> str:
    return "both" if name in "ab" else name


def test_the_density_is_that_of_normal_numbers():
    """Up to ½ log 2π a number."""
    prior = GaussianPrior(group=grouped)
    precisions = {"both": jnp.asarray(2.0), "c": jnp.asarray(3.0)}
    expected = sum(
        stats.norm.logpdf(PARAMS[name], scale=scale**-0.5).sum()
        for name, scale in (("a", 2.0), ("b", 2.0), ("c", 3.0))
    )
    constant = 9 * np.log(2 * np.pi) / 2
    density = float(prior.log_density(PARAMS, precisions))
    assert density == pytest.approx(expected + constant, rel=1e-5)


def test_precisions_have_the_names_of_leaves_or_of_groups():
    assert GaussianPrior().start(PARAMS) == {"a": 1, "b": 1, "c": 1}
    assert GaussianPrior(group=grouped).start(PARAMS) == {"both": 1, "c": 1}
    nested = [{"weight": jnp.ones(2)}, {"weight": jnp.ones(3)}]
    assert set(GaussianPrior().start(nested)) == {"0.weight", "1.weight"}


@pytest.mark.slow_cases("1.0")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gibbs_updates_follow_their_conditional(temperature):
    """Of the joint density to the power 1/τ, summed up on a grid: no gamma law is assumed.

    Two groups; a false alarm once in 10⁷ of such tests, with a fixed key.
    """
    gibbs = GaussianPrior(2.0, 3.0, temperature, grouped).gibbs(every=7)
    assert (gibbs.every, gibbs.start) == (7, 0)
    posterior: Any = None  # nothing of it is needed
    keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
    drawn = jax.jit(jax.vmap(lambda key: gibbs.update(key, PARAMS, posterior)))(keys)
    grid = np.geomspace(1e-5, 60, 4000)
    members = {"both": [*PARAMS["a"], *PARAMS["b"]], "c": PARAMS["c"]}
    for name, numbers in members.items():
        density = stats.norm.logpdf(np.array(numbers), scale=grid[:, None] ** -0.5).sum(1)
        density += stats.gamma.logpdf(grid, 2.0, scale=1 / 3.0)
        weight = np.exp((density - density.max()) / temperature)
        total = np.cumsum(np.diff(grid) * (weight[1:] + weight[:-1]) / 2)
        uniform = np.interp(drawn[name], grid, np.append(0, total / total[-1]))
        assert stats.kstest(uniform, "uniform").pvalue > 1e-7
    # Apart from each other: five standard errors, a false alarm once in 1.7 million keys.
    correlation = np.corrcoef(drawn["both"], drawn["c"])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(NUM_DRAWS)


def test_many_precisions_in_one_call():
    """Each from its own count and squares, whatever the others are."""
    counts, squares = jnp.array([0.0, 4.0, 400.0]), jnp.array([0.0, 9.0, 100.0])
    keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda key: draw_precision(key, 2.0, 1.5, counts, squares)))(keys)
    )
    for i, (count, total) in enumerate(zip(counts, squares, strict=True)):
        shape, rate = 2 + float(count) / 2, 1.5 + float(total) / 2
        law = stats.gamma(shape, scale=1 / rate)
        assert stats.kstest(drawn[:, i], law.cdf).pvalue > 1e-7


@pytest.mark.parametrize("name", ["shape", "rate", "temperature"])
@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan])
def test_impossible_priors_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive, but is {value}"):
        GaussianPrior(**{name: value})
