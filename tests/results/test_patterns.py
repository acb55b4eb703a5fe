"""Heavy tails, funnels, examples that are not used: seen where they are, and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results.patterns import funnel_advice, heavy_tails, tail_care, unused_example

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("seed", range(5))
def test_cauchy_draws_have_no_standard_deviation_and_others_do(seed):
    rng, shape = np.random.default_rng(seed), (4, 1_000)
    assert heavy_tails(rng.standard_cauchy(shape))
    assert not heavy_tails(rng.normal(size=shape))
    assert not heavy_tails(rng.standard_t(3, shape))
    assert not heavy_tails(rng.lognormal(size=shape))
    # A small mode far off is no tail.
    assert not heavy_tails(np.where(rng.random(shape) < 0.04, 1e4, rng.normal(size=shape)))
    assert not heavy_tails(np.zeros(shape))


def test_the_sentence_on_tails_has_quantiles():
    words = tail_care({"a": RNG.normal(size=(4, 500)), "x": RNG.standard_cauchy((4, 1_000))})
    assert words is not None
    assert "the tails of x are so heavy" in words
    assert "read quantiles (of x: 5 % -" in words
    assert tail_care({"a": RNG.normal(size=(4, 500))}) is None


def test_a_funnel_gets_the_advice_to_non_centre():
    v = 3 * RNG.normal(size=(4, 500))
    x = np.exp(v / 2)[..., None] * RNG.normal(size=(4, 500, 3))
    words = funnel_advice({"v": v} | {f"x[{i}]": x[..., i] for i in range(3)})
    assert words is not None
    assert "the spread of x[0], x[1], x[2] depends on v, a funnel" in words
    assert "non-centred" in words
    assert "sghmc.transforms.Space" in words
    plain = RNG.normal(size=(4, 500, 4)) @ RNG.normal(size=(4, 4))
    assert funnel_advice({f"x[{i}]": plain[..., i] for i in range(4)}) is None
    assert funnel_advice({"v": v}) is None
    apart = 0.1 * plain + 9.0 * np.arange(4.0)[:, None, None]  # chains that sit apart
    assert funnel_advice({f"x[{i}]": apart[..., i] for i in range(4)}) is None


DATA = RNG.normal(size=(50, 2)).astype(np.float32)
POSITIONS = np.zeros((2, 3, 2), np.float32)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_likelihood_that_ignores_its_example_is_seen(is_used):
    def log_likelihood(theta, row):
        rows = row[None] if is_used else DATA
        return -0.5 * jnp.sum((rows - theta[None]) ** 2)

    posterior = sghmc.Posterior(log_likelihood, lambda theta: -0.5 * jnp.sum(theta**2), DATA)
    words = unused_example(posterior, POSITIONS)
    assert (words is None) == is_used
    assert is_used or "does not use its example: each of the 50 rows" in str(words)
    assert unused_example(posterior, np.zeros((2, 3, 7, 5))) is None  # not the parameters
    assert unused_example(sghmc.Potential(jnp.sum), POSITIONS) is None


def test_the_verdict_names_a_likelihood_of_all_data():
    """The issue's row: standard deviations too small by √N, and "no sign of trouble"."""
    posterior = sghmc.Posterior(
        lambda theta, row: -0.5 * jnp.sum((DATA - theta[None]) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        DATA,
    )
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.HMC(0.01, 3),
        jnp.zeros(2),
        num_samples=10,
        progress=False,
    )
    assert samples.verdict.level == "not trustworthy"
    assert "does not use its example" in samples.verdict.verdict
    assert samples.health() == samples.verdict
