"""Posteriors of constrained parameters: their densities, and draws of a law that is known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sghmc
from sghmc import transforms
from sghmc.transforms import Transform

SPACE = transforms.Space(
    {"sd": transforms.Positive(), "shares": transforms.Simplex(), "nested": None}
)
VALUES = {
    "sd": jnp.asarray([1.5, 0.5]),
    "shares": jnp.asarray([0.2, 0.3, 0.5]),
    "nested": {"a": jnp.asarray(-1.0), "b": jnp.zeros(2)},
    "unnamed": jnp.asarray(3.0),
}


@pytest.mark.slow
def test_a_space_maps_what_it_names_and_leaves_the_rest():
    params = SPACE.unconstrain(VALUES)
    assert params["shares"].shape == (2,)
    np.testing.assert_allclose(params["sd"], np.log([1.5, 0.5]), rtol=1e-6)
    back = SPACE.constrain(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), back, VALUES)
    expected = transforms.Simplex().log_jacobian(params["shares"]) + np.log(1.5 * 0.5)
    np.testing.assert_allclose(SPACE.log_jacobian(params), expected, rtol=1e-5)
    draws = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf])[None], params)
    assert SPACE.constrain(draws)["shares"].shape == (1, 2, 3)


def test_a_space_refuses_what_it_cannot_read():
    with pytest.raises(TypeError, match=r"Positive\(\).*not 'positive'"):
        transforms.Space({"sd": "positive"})
    with pytest.raises(ValueError, match=r"no parameter 'sd': there are \['scale'\]"):
        transforms.Space({"sd": transforms.Positive()}).constrain({"scale": jnp.ones(())})


def test_densities_are_those_of_the_values():
    """The density of log y, y ~ Gamma(3, rate 2), in closed form, up to rounding."""
    space = transforms.Space(transforms.Positive())
    x = jnp.asarray(0.3)
    y = float(np.exp(0.3))
    target = space.potential(lambda y: -2 * jnp.log(y) + 2 * y)
    np.testing.assert_allclose(target.potential(x), 2 * y - 2 * 0.3 - 0.3, rtol=1e-6)
    posterior = space.posterior(lambda y, row: -row * y, lambda y: 2 * jnp.log(y), jnp.ones(2))
    np.testing.assert_allclose(posterior.potential(x), 2 * y - 2 * 0.3 - 0.3, rtol=1e-6)
    given = space.posterior(
        lambda y, row, hyper: -row * y,
        lambda y, hyper: hyper * jnp.log(y),
        jnp.ones(2),
        hyper=jnp.asarray(2.0),
    )
    np.testing.assert_allclose(given.potential(x), 2 * y - 2 * 0.3 - 0.3, rtol=1e-6)


@pytest.mark.slow
def test_draws_of_a_dirichlet():
    """Beta marginals of shares: means and spreads are known.

    4,000 draws, at least 2,500 of them independent: 4.5 errors, a false alarm in 10⁵.
    """
    alpha = np.array([2, 3, 5], np.float32)
    space = transforms.Space(transforms.Simplex())
    target = space.potential(lambda y: -jnp.sum((alpha - 1) * jnp.log(y)))
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        "auto",
        jnp.zeros(2),
        num_samples=1000,
        num_chains=4,
        progress=False,
    )
    draws = np.asarray(space.constrain(samples.positions)).reshape(-1, 3)
    for i, a in enumerate(alpha):
        law = stats.beta(a, alpha.sum() - a)
        assert abs(draws[:, i].mean() - law.mean()) < 4.5 * law.std() / np.sqrt(2_500)
        assert abs(draws[:, i].std() / law.std() - 1) < 4.5 / np.sqrt(2 * 2_500)


class Doubled(Transform):
    """y = 2x in numpy, with a Jacobian of its own, so that nothing is compiled."""

    def forward(self, x) -> Any:
        return 2 * np.asarray(x)

    def inverse(self, y) -> Any:
        return np.asarray(y) / 2

    def log_jacobian(self, x):
        return np.sum(x) + 0.25


def test_a_space_maps_leaf_by_leaf():
    """Prefixes reach all leaves below them; what has no transform stays and has no Jacobian."""
    space = transforms.Space({"a": Doubled(), "c": None})
    params = {"a": (np.float32(1.5), np.ones(2, np.float32)), "b": np.float32(7), "c": [3.0]}
    values = space.constrain(params)
    assert list(values) == ["a", "b", "c"]
    assert (float(values["a"][0]), values["a"][1].tolist()) == (3.0, [2.0, 2.0])
    assert (float(values["b"]), values["c"]) == (7.0, [3.0])
    back = space.unconstrain({"a": (3, np.full(2, 2)), "b": 7, "c": [3]})
    assert (float(back["a"][0]), back["a"][1].tolist()) == (1.5, [1.0, 1.0])
    assert {leaf.dtype for leaf in jax.tree.leaves(back)} == {np.dtype(np.float32)}
    np.testing.assert_allclose(space.log_jacobian(params), 1.5 + 0.25 + 2.0 + 0.25)
    whole = transforms.Space(Doubled())
    assert float(whole.constrain(np.float32(2.5))) == 5.0


def test_densities_see_the_values_and_the_jacobian_of_the_parameters():
    """Once, in the prior: not in the likelihood of each row; in U with the other sign."""
    space = transforms.Space({"a": Doubled()})
    params = {"a": np.array([0.5, 1.5])}
    posterior = space.posterior(
        lambda values, row, hyper: values["a"][0] * row + hyper,
        lambda values, hyper: values["a"][1] * hyper,
        jnp.asarray([3.0]),
        jnp.asarray(10.0),
    )
    assert posterior.log_likelihood(params, 3.0, 10.0) == 1.0 * 3.0 + 10.0
    assert posterior.log_prior(params, 10.0) == 3.0 * 10.0 + 2.25
    potential = space.potential(lambda values: values["a"][1])
    assert potential.function(params) == 3.0 - 2.25
