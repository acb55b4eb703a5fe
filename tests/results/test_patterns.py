"""Heavy tails, funnels, examples that are not used: seen where they are, and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results.patterns import heavy_tails, misused_example, rejected_tail, tail_care

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
    """Its narrow end is hardly entered, and R-hat does not see that."""
    v = RNG.normal(size=(4, 500))
    rejected = np.where(v < np.quantile(v, 0.05), 0.1, 0.9)
    draws = {"x": RNG.normal(size=(4, 500)), "v": v}
    words = rejected_tail(draws, rejected)
    assert words is not None
    assert words.startswith("steps are rejected where v is small (10% accepted, else 86%)")
    assert "non-centred" in words
    assert "sghmc.transforms.Space" in words
    assert "where v is large" in str(rejected_tail({"v": -v}, rejected))
    assert rejected_tail(draws, np.full(v.shape, 0.3)) is None
    assert rejected_tail(draws, None) is None
    assert rejected_tail({"v": v[:, :20]}, rejected[:, :20]) is None  # too few to tell


DATA = RNG.normal(size=(50, 2)).astype(np.float32)
POSITIONS = np.zeros((2, 3, 2), np.float32)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_likelihood_that_ignores_its_example_is_seen(is_used):
    def log_likelihood(theta, row):
        rows = row[None] if is_used else DATA
        return -0.5 * jnp.sum((rows - theta[None]) ** 2)

    posterior = sghmc.Posterior(log_likelihood, lambda theta: -0.5 * jnp.sum(theta**2), DATA)
    words, _ = misused_example(posterior, POSITIONS)
    assert (words is None) == is_used
    assert is_used or "does not use its example: each of the 50 rows" in str(words)
    assert misused_example(posterior, np.zeros((2, 3, 7, 5))) == (None, None)  # not the parameters
    assert misused_example(sghmc.Potential(jnp.sum), POSITIONS) == (None, None)


X, KERNEL = np.ones((50, 2), np.float32), np.ones((50, 50), np.float32)
SUMS = {
    "all rows beside the example": (lambda p, row: jnp.sum(X @ p) + row[0], "reason"),
    "all rows and the example": (lambda p, row: jnp.sum((row[0] - X @ p) ** 2), "care"),
    "in a jitted function": (lambda p, row: jax.jit(jnp.sum)(X * p[None]) + row[0], "reason"),
    "Cox's risk set": (
        lambda p, row: row @ p - jax.nn.logsumexp(jnp.where(X[:, 0] > row[0], X @ p, -9.0)),
        "care",
    ),
    "its own row": (lambda p, row: X[row[0].astype(int)] @ p, None),
    "its own row of all": (lambda p, row: (X @ p)[row[0].astype(int)], None),
    "a process over all": (
        lambda p, row: (jnp.asarray(KERNEL) @ jnp.repeat(p, 25))[row[0].astype(int)], None,
    ),
    "a mean of the data": (lambda p, row: (row - X.mean(0)) @ p, None),
    "a mean made by jax": (lambda p, row: (row - jnp.mean(jnp.asarray(X), 0)) @ p, None),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_a_likelihood_that_sums_over_rows_is_seen(name):
    """Each row then counts N times: sds were too small by √N, without a sign of trouble."""
    log_likelihood, kind = SUMS[name]
    posterior = sghmc.Posterior(log_likelihood, lambda p: -jnp.sum(p**2), DATA)
    reason, care = misused_example(posterior, POSITIONS)
    assert (reason is not None, care is not None) == (kind == "reason", kind == "care")
    assert kind is None or "sums over all 50 rows" in str(reason or care)


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
