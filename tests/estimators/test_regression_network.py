"""The network for numbers: its potential, its law on both sides, and changes of units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sghmc.estimators.regression_network import ACTIVATIONS, KINDS, Kind, RegressionNetwork, Table
from sghmc.estimators.weighted_rows import Scaling

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 9)).astype(np.float32)
TABLE = Table(X, RNG.normal(size=9).astype(np.float32), RNG.random(9).astype(np.float32))


def draws(network: RegressionNetwork, count: int = 4) -> np.ndarray:
    return RNG.normal(size=(count, network.num_parameters)).astype(np.float32)


def one(name: str) -> Kind:
    return Kind.of(name)


def test_draws_for_a_constant_target_by_hand(monkeypatch):
    """The mean's weights are 0, the others of the prior; 1/σ² ~ Gamma(1 + n/2, 0.1)."""
    monkeypatch.setattr(jax.random, "gamma", lambda key, shape, size: np.full(size, shape))
    network = RegressionNetwork(3, (4,), "tanh")
    found = network.constant(jax.random.key(3), 2, 7.0)
    of_normals, _ = jax.random.split(jax.random.key(3))
    normals = np.asarray(jax.random.normal(of_normals, found.shape))
    named = network.named(found)
    np.testing.assert_array_equal(named["1.weight"][..., 0], 0)
    np.testing.assert_array_equal(named["1.bias"][..., 0], 0)
    first = 4 * (3 + 1)
    np.testing.assert_allclose(found[:, :first], normals[:, :first])
    np.testing.assert_allclose(found[:, first + 5 : -2], normals[:, first + 5 : -2])
    np.testing.assert_allclose(np.exp(-2 * named["log_scale"]), 45, rtol=1e-5)


def by_hand(network: RegressionNetwork, z: np.ndarray, name: str):
    """Location, scale and degrees from the drawn weights, row by row."""
    named = network.named(z[None])
    scales = []
    locations = []
    activate = {
        "relu": lambda v: np.maximum(v, 0),
        "tanh": np.tanh,
        "silu": lambda v: v / (1 + np.exp(-v)),
    }[network.activation]
    for x in X.T:
        value = x
        for i in range(len(network.hidden) + 1):
            value = value @ named[f"{i}.weight"][0] + named[f"{i}.bias"][0]
            value = activate(value) if i < len(network.hidden) else value
        locations.append(value[0])
        scales.append(np.exp(named["log_scale"][0] + (name != "constant") * value[1]))
    degrees = named["degrees"][0] if name == "student" else np.inf
    return np.array(locations), 1 / np.hypot(1 / np.hypot(scales, 1e-4), 0.1), degrees


@pytest.mark.slow_cases("constant-relu")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", KINDS)
def test_the_potential_is_that_of_prior_and_noise(activation, name):
    network = RegressionNetwork(3, (5, 4), activation)
    z = 0.5 * draws(network)[0]
    location, scale, degrees = by_hand(network, z, name)
    logs = stats.t.logpdf(TABLE.y, degrees, location, scale)
    expected = 0.5 * np.sum(z**2) - TABLE.weight @ logs
    table = Table(*map(jnp.asarray, TABLE))
    assert float(network.potential(jnp.asarray(z), table, one(name))) == pytest.approx(
        expected, rel=1e-4
    )
    law = network.predictive(z[None], X, name)
    np.testing.assert_allclose(law.location[0], location, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(law.scale[0], scale, rtol=1e-4)
    np.testing.assert_allclose(law.degrees[0], degrees, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_noise_is_not_below_the_least_scale(name):
    """Variances add, in the potential as in predictions."""
    network = RegressionNetwork(3, (5,), "tanh")
    z = 0.5 * draws(network)[0]
    free, bound = (network.predictive(z[None], X, name, least) for least in (0.0, 0.5))
    # The upper bound of 10 comes after the lower one.
    whole = [1 / np.sqrt(law.scale**-2.0 - 0.01) for law in (free, bound)]
    np.testing.assert_allclose(whole[1], np.hypot(whole[0], 0.5), rtol=1e-4)
    logs = TABLE.weight @ bound.log_density(TABLE.y)
    kind, table = Kind.of(name, 0.5), Table(*map(jnp.asarray, TABLE))
    assert float(network.log_likelihood(jnp.asarray(z), table, kind)) == pytest.approx(
        logs, rel=1e-4
    )


def test_potentials_stay_single_where_double_is_enabled():
    """Else the loops of the chains, whose numbers are single, would not compile."""
    network = RegressionNetwork(3, (5,), "silu")
    with jax.enable_x64(True):
        shape = jax.eval_shape(network.potential, draws(network)[0], TABLE, one("student"))
    assert shape.dtype == np.float32


def test_weights_have_the_prior_that_is_said():
    """Standard deviations of 4000 draws: within 5 standard errors of 1.1 %."""
    network = RegressionNetwork(4, (6, 5), "tanh")
    named = network.named(draws(network, 4000))
    wanted = {
        "0.weight": 3 / 2,
        "0.bias": 3,
        "1.weight": 2 * np.sqrt(1.6 / 6),
        "1.bias": 1,
        "2.weight": 1.5 * np.sqrt(1.6 / 5),
        "2.bias": 1,
        "log_scale": 2,
    }
    for name, spread in wanted.items():
        found = named[name].std(0)
        assert np.abs(found / spread - 1).max() < 0.06, name
    assert abs(named["log_scale"].mean() + 2) < 0.16


@pytest.mark.parametrize("name", KINDS)
def test_new_units_leave_the_law_as_it_was(name):
    network = RegressionNetwork(3, (5,), "silu")
    # Noise well inside its bounds, which are relative to the target's spread.
    z = 0.1 * draws(network)
    raw = RNG.normal(size=(7, 3))
    old = (Scaling(np.array([0, 1, 2.0]), np.array([1, 2, 0.5])), Scaling(*np.array([1.0, 2.0])))
    new = (Scaling(np.array([1, 2, 3.0]), np.array([2, 1, 4.0])), Scaling(*np.array([5.0, 3.0])))

    def law(z, scalings):
        inputs, target = scalings
        found = network.predictive(z, inputs.apply(raw).T, name)
        return target.center + target.scale * found.location, target.scale * found.scale

    for moved, before in zip(law(network.rescaled(z, old, new), new), law(z, old), strict=True):
        np.testing.assert_allclose(moved, before, rtol=2e-3, atol=1e-4)


def test_starts_keep_sizes_and_differ():
    network = RegressionNetwork(10, (200, 200), "silu")
    z = np.asarray(network.start(jax.random.key(0), 3))
    x = RNG.normal(size=(10, 50)).astype(np.float32)
    law = network.predictive(z, x, "input")
    assert 0.3 < law.location.std() < 3
    assert np.abs(law.scale / np.exp(-1) - 1).max() < 0.6
    assert len(np.unique(z[:, 0])) == 3


@pytest.mark.slow
def test_a_constant_has_no_mean_but_noise_of_its_count():
    network = RegressionNetwork(3, (5,), "silu")
    law = network.predictive(network.constant(jax.random.key(0), 2000, 18.0), X, "constant")
    np.testing.assert_array_equal(law.location, 0)
    # Precision Gamma(10, 0.1) has mean 100, and a standard error of 0.7.
    assert np.mean(law.scale**-2) == pytest.approx(100, abs=4)
