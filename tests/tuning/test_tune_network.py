"""Settings for networks: on quadratic potentials, where all of them are known exactly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc import theory

RNG = np.random.default_rng(0)
NUM_ROWS, SIZE = 40, 12
ROOT = RNG.normal(size=(SIZE, SIZE)).astype(np.float32)
MATRIX = ROOT @ ROOT.T / SIZE + 0.1 * np.eye(SIZE, dtype=np.float32)
START = {"a": jnp.zeros(SIZE), "b": jnp.zeros((2, 3)), "c": jnp.ones(4)}


def log_likelihood(params, row):
    """Curvature MATRIX in a, 50 in b and none in c, of every row alike."""
    return -0.5 * row * (
        params["a"] @ MATRIX @ params["a"] + 50 * jnp.sum(params["b"] ** 2)
    ) + 0 * jnp.sum(params["c"])


def log_prior(params):
    return -0.5 * sum(precision * jnp.sum(params[name] ** 2) for name, precision in PRIOR.items())


PRIOR = {"a": 2.0, "b": 3.0, "c": 7.0}
POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, jnp.ones(NUM_ROWS))


def tuned(**options) -> Any:
    return sghmc.tune_network(jax.random.key(0), POSTERIOR, START, **options)


@pytest.mark.slow
def test_mass_is_the_mean_curvature_of_a_leaf():
    mass = tuned().mass
    # Of a diagonal part, exactly; of a dense one a standard error more, up to the noise of 32
    # random vectors: four standard errors, of which one key in 16,000 has more.
    assert mass["b"] == pytest.approx(50 * NUM_ROWS + 3, rel=1e-5)
    assert mass["c"] == pytest.approx(7, rel=1e-5)
    off_diagonal = NUM_ROWS * (MATRIX - np.diag(MATRIX.diagonal()))
    error = np.sqrt(2 * np.sum(off_diagonal**2) / 32) / SIZE
    exact = NUM_ROWS * MATRIX.diagonal().mean() + 2
    assert abs(mass["a"] - error - exact) < 4 * error
    assert mass["a"] != pytest.approx(exact, rel=1e-6)


def test_a_small_leaf_beside_a_large_one_does_not_shorten_the_step():
    """What the large one adds to its estimate is twice its curvature; a third of keys hide it."""
    rows = RNG.normal(size=400).astype(np.float32)
    coupling = 2 * np.sqrt(32) * rows / np.linalg.norm(rows)

    def log_likelihood(params, row):
        large, small = params["large"], params["small"]
        return -0.5 * row * (
            200 * jnp.sum(large**2) + small**2 + 2 * small * (coupling @ large)
        )  # fmt: skip

    posterior = sghmc.Posterior(
        log_likelihood,
        lambda params: -0.5e-3 * sum(jnp.sum(leaf**2) for leaf in params.values()),
        jnp.ones(10),
    )
    start = {"large": jnp.zeros(400), "small": jnp.zeros(())}
    samplers: list[Any] = [
        sghmc.tune_network(jax.random.key(i), posterior, start, num_rows=10) for i in range(12)
    ]
    # With masses that are known exactly the largest eigenvalue is 1.8.
    assert min(sampler.step_size for sampler in samplers) > 0.35 / np.sqrt(1.8) / 2


def test_the_step_is_a_share_of_what_is_stable():
    sampler = tuned()
    curvature = np.diag(np.repeat([0.0, 50 * NUM_ROWS + 3, 7], [SIZE, 6, 4]))
    curvature[:SIZE, :SIZE] = NUM_ROWS * MATRIX + 2 * np.eye(SIZE)
    root = np.repeat([sampler.mass[name] ** -0.5 for name in "abc"], [SIZE, 6, 4])
    largest = np.linalg.eigvalsh(root[:, None] * curvature * root[None]).max()
    # Powers of a matrix come up to its largest eigenvalue from below.
    assert 0.35 <= sampler.step_size * np.sqrt(largest) < 0.37
    law = theory.stationary_law(
        sghmc.SGHMC(sampler.step_size, 0.1 / sampler.step_size),
        root[:, None] * curvature * root[None],
    )
    assert np.abs(law.standard_deviation_error).max() < 0.02  # ε²h/8


def test_all_momenta_decay_alike():
    sampler = tuned(momentum_decay=0.3, temperature=0.5)
    for name in "abc":
        decay = sampler.step_size * sampler.friction[name] / sampler.mass[name]
        assert decay == pytest.approx(0.3, rel=1e-5)
    assert sampler.temperature == 0.5


def test_a_part_is_tuned_for_itself():
    trainable = {"a": False, "b": True, "c": True}
    sampler = tuned(trainable=trainable)
    assert sampler.mass == {"a": None, **{name: tuned().mass[name] for name in "bc"}}
    assert sampler.step_size == pytest.approx(0.35, rel=1e-4)  # each leaf has one curvature
    samples = sghmc.sample(
        jax.random.key(1), POSTERIOR, sampler, START, trainable=trainable,
        num_samples=2, progress=False,
    )  # fmt: skip
    assert samples.positions["b"].shape == (1, 2, 2, 3)


def test_what_data_bend_down_has_its_priors_curvature():
    saddle = sghmc.Posterior(
        lambda theta, x: 0.5 * x * jnp.sum(theta**2), lambda theta: -5.0 * jnp.sum(theta**2),
        jnp.ones(3),
    )  # fmt: skip
    sampler = sghmc.tune_network(jax.random.key(0), saddle, jnp.zeros(4))
    assert sampler.mass == pytest.approx(10)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_rows": 0}, ValueError, "num_rows"),
        ({"momentum_decay": 2.0}, ValueError, r"momentum_decay must lie in \(0, 1\], but is 2.0"),
        ({"temperature": -1.0}, ValueError, "temperature"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        tuned(**change)


@pytest.mark.slow
def test_a_leaf_without_curvature_is_refused():
    flat = sghmc.Posterior(log_likelihood, lambda params: 0.0, jnp.ones(NUM_ROWS))
    with pytest.raises(ValueError, match=r"params\['c'\] is 0 on average: give this leaf a proper"):
        sghmc.tune_network(jax.random.key(0), flat, START)
    with pytest.raises(TypeError, match="needs data to draw from"):
        sghmc.tune_network(jax.random.key(0), sghmc.Potential(jnp.sum), jnp.ones(2))  # pyright: ignore
