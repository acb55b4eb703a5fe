"""PyMC's models give PyMC's densities, row by row, and its names and scales.

Run where PyMC is: `make test-pymc`, in an environment of its own.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pm = pytest.importorskip("pymc", reason="PyMC is not installed")

import sghmc.interop.pymc

# What PyMC and pytensor say of themselves: no BLAS, and the like.
pytestmark = pytest.mark.filterwarnings("ignore")

NUM_ROWS = 60
rng = np.random.default_rng(0)
X = rng.normal(size=(NUM_ROWS, 2))
GROUP = rng.integers(0, 4, NUM_ROWS)
Y = X @ [1.0, -2.0] + 0.5 * GROUP + rng.normal(size=NUM_ROWS)


def linear():
    x = pm.Data("x", X)
    weights, sigma = pm.Normal("weights", shape=2), pm.HalfNormal("sigma")
    pm.Deterministic("variance", sigma**2)
    pm.Normal("y", x @ weights, sigma, observed=Y)


def hierarchy():
    group = pm.Data("group", GROUP)
    scale = pm.HalfNormal("scale")
    intercepts = pm.Normal("intercepts", 0, scale, dims="group_name")
    pm.Normal("y", intercepts[group], 1.0, observed=pm.Data("observed", Y))


def logistic():
    weights = pm.Normal("weights", shape=2)
    pm.Bernoulli("y", logit_p=X @ weights, observed=(Y > 0).astype(int))


def counts():
    rate = pm.LogNormal("rate", 0, 1)
    pm.Poisson("y", rate * np.exp(X[:, 0]), observed=rng.poisson(2, NUM_ROWS))


def robust():
    center, freedom = pm.Normal("center"), pm.Gamma("freedom", 2, 0.1)
    pm.StudentT("y", nu=freedom, mu=center, sigma=1.0, observed=Y)


def mixture():
    share, centers = pm.Dirichlet("share", np.ones(2)), pm.Normal("centers", [-1, 1], shape=2)
    pm.NormalMixture("y", share, centers, sigma=1.0, observed=Y)


def two_columns():
    mean, correlation = (
        pm.Normal("mean", shape=2),
        pm.LKJCholeskyCov("cov", n=2, eta=1.0, sd_dist=pm.HalfNormal.dist()),
    )
    pm.MvNormal("y", mean, chol=correlation[0], observed=X)


def two_sources():
    center = pm.Normal("center")
    pm.Normal("few", center, 0.3, observed=[0.1, 0.2, 0.4])
    pm.Normal("y", center, 2.0, observed=Y)
    pm.Potential("nearly zero", -((center - 0.1) ** 2))


MODELS = (linear, hierarchy, logistic, counts, robust, mixture, two_columns, two_sources)


def made(model):
    with pm.Model(coords={"group_name": list("abcd")}) as found:
        model()
    return found


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_density_is_that_of_pymc_and_batches_are_unbiased(model):
    model = made(model)
    posterior = sghmc.interop.pymc.posterior(model)
    assert posterior.num_examples == NUM_ROWS
    assert not jax.config.read("jax_enable_x64")  # pytensor's linker turns it on
    params = posterior.init(jax.random.key(0), 0.5)
    with runtime.double_precision():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        wide = sghmc.interop.pymc.posterior(model)
        found = float(wide.potential(jax.tree.map(jnp.asarray, exact)))
    expected = -float(model.compile_logp(mode="FAST_COMPILE")(exact))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(posterior.potential(params), expected, rtol=1e-5)
    one_by_one = [posterior.estimate(params, posterior.rows(jnp.array([i]))) for i in range(60)]
    np.testing.assert_allclose(np.mean(one_by_one), expected, rtol=1e-4)


def test_draws_have_pymcs_names_scales_and_dims():
    posterior = sghmc.interop.pymc.posterior(made(linear))
    run = {"num_samples": 5, "num_chains": 2, "progress": False}
    sampler = sghmc.SGHMC(1e-3, friction=1.0)
    start = posterior.init(jax.random.key(1))
    samples = sghmc.sample(
        jax.random.key(2), posterior, sampler, start, gradient=sghmc.Minibatch(10), **run
    )
    draws = posterior.draws(samples)
    assert set(draws) == {"weights", "sigma", "variance"}
    assert draws["weights"].shape == (2, 5, 2)
    np.testing.assert_allclose(draws["sigma"], np.exp(samples.positions["sigma_log__"]), rtol=1e-6)
    np.testing.assert_allclose(draws["variance"], draws["sigma"] ** 2, rtol=1e-6)
    grouped = sghmc.interop.pymc.posterior(made(hierarchy))
    start = grouped.init(jax.random.key(1))
    samples = sghmc.sample(jax.random.key(2), grouped, sampler, start, **run)
    data = grouped.to_arviz(samples)
    assert data["posterior"]["intercepts"].dims == ("chain", "draw", "group_name")
    assert list(data["posterior"]["group_name"].values) == list("abcd")
    np.testing.assert_array_equal(data["observed_data"]["y"], Y)


def test_what_cannot_be_taken_is_refused_by_name():
    def discrete():
        pm.Normal("y", pm.Bernoulli("switch", 0.5), 1.0, observed=Y)

    def scaled():
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=Y, total_size=1000)

    def coupled():
        pm.GaussianRandomWalk("y", pm.Normal("mu"), 1.0, observed=Y, init_dist=pm.Normal.dist())

    def batched():
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=pm.Minibatch(Y, batch_size=10))

    def nothing():
        pm.Normal("mu")

    for model, words in (
        (discrete, "switch is discrete"),
        (scaled, "total_size"),
        (coupled, "rows=False"),
        (batched, "Minibatch"),
        (nothing, "observes nothing"),
    ):
        with pytest.raises(ValueError, match=words):
            sghmc.interop.pymc.posterior(made(model))
    model = made(coupled)
    whole = sghmc.interop.pymc.posterior(model, rows=False)
    params = whole.init(jax.random.key(0))
    expected = -float(model.compile_logp(mode="FAST_COMPILE")(params))
    np.testing.assert_allclose(whole.potential(params), expected, rtol=1e-5)
