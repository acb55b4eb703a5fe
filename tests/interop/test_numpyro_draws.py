"""Draws from NumPyro models agree with those of NumPyro's own NUTS.

Means and standard deviations of every unconstrained parameter, and means of deterministic sites,
are compared by Welch's t over 16 chains on either side. |t| > 6 has probability 2.4e-5 with 15
degrees of freedom, the fewest there are: the 36 comparisons of the quick tests raise a false alarm
for less than one key in 1,000, all 191 for less than one in 200.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS

import numpyro_models as models
import sghmc
from sghmc.interop.numpyro import posterior

NUM_CHAINS = 16


def nuts(model, args, kwargs, num_draws=300):
    mcmc = MCMC(
        NUTS(model),
        num_warmup=300,
        num_samples=num_draws,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    with jax.debug_key_reuse(False), jax.numpy_rank_promotion("allow"):
        mcmc.run(jax.random.key(1), *args, **kwargs)
    return mcmc


def named_axes(data):
    groups = {name: data[name] for name in ("posterior", "observed_data")}
    return {(g, v): groups[g][v].dims for g in groups for v in groups[g].data_vars}


def assert_same_mean(name, ours, theirs):
    """By chains: `ours` and `theirs` have a row for each."""
    gap = np.mean(ours, 0) - np.mean(theirs, 0)
    error = np.sqrt((np.var(ours, 0, ddof=1) + np.var(theirs, 0, ddof=1)) / NUM_CHAINS)
    assert np.max(np.abs(gap / error)) < 6, f"{name}: {gap / error}"


FULL, HALF = sghmc.FullBatch(), sghmc.Minibatch(30, replacement=False)


@pytest.mark.slow_cases("logistic-gradient1-0.05")
@pytest.mark.parametrize(
    ("name", "gradient", "step_size"),
    [
        pytest.param("eight schools", FULL, 0.1, marks=pytest.mark.slow),
        ("logistic", HALF, 0.05),
        pytest.param("poisson", HALF, 0.05, marks=pytest.mark.slow),
        pytest.param("student", FULL, 0.1, marks=pytest.mark.slow),
        pytest.param("varying intercepts", FULL, 0.1, marks=pytest.mark.slow),
        pytest.param("no plate", FULL, 0.1, marks=pytest.mark.slow),
        pytest.param("correlated", FULL, 0.1, marks=pytest.mark.slow),
        pytest.param("horseshoe", FULL, 0.02, marks=pytest.mark.slow),
    ],
)
def test_draws_agree_with_nuts(name, gradient, step_size):
    model, args, kwargs = models.CASES[name]
    args = tuple(int(arg) if np.ndim(arg) == 0 else arg for arg in args)
    with jax.numpy_rank_promotion("allow"):
        target = posterior(model, *args, **kwargs)
        mcmc = nuts(model, args, kwargs)
        expected = mcmc.get_samples(group_by_chain=True)
        latent = {site: expected[site] for site in target.shapes}
        theirs = jax.jit(jax.vmap(jax.vmap(target.unconstrain)))(latent)
        # NUTS' spread is our mass: every parameter then has a frequency near 1.
        precision = jax.tree.map(lambda leaf: 1 / np.var(leaf, (0, 1)), theirs)
        samples = sghmc.sample(
            jax.random.key(2),
            target,
            sghmc.SGHMC(step_size, jax.tree.map(lambda p: 1.5 * p, precision), mass=precision),
            jax.tree.map(lambda leaf: jnp.mean(leaf, (0, 1)), theirs),
            gradient=gradient,
            num_samples=400,
            num_burnin=50,
            thinning=round(1 / step_size),
            num_chains=NUM_CHAINS,
            progress=False,
        )
        draws = target.draws(samples)
        named = named_axes(target.to_arviz(samples))
        import arviz  # which may warn when it is the first import

        assert named == named_axes(arviz.from_numpyro(mcmc))
    for site in target.shapes:
        ours, reference = samples.positions[site], np.asarray(theirs[site])
        assert_same_mean(site, ours.mean(1), reference.mean(1))
        assert_same_mean(f"sd of {site}", ours.std(1), reference.std(1))
    for site in set(expected) - set(target.shapes):
        assert_same_mean(site, draws[site].mean(1), np.asarray(expected[site]).mean(1))
