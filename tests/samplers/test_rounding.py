"""Rounding by chance is right on average, for every pattern of bits, and its heat is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import random
from sghmc.gradients import Oracle
from sghmc.paper.literal import LiteralSGHMC
from sghmc.results.health import rounding_excess
from sghmc.samplers.rounding import last_digit, round_up_or_down, rounding_variance
from sghmc.types import Evaluation

WORDS = np.arange(1 << 16, dtype=np.uint32) << 16
"""Every number that may be added, once."""
LARGEST = float(jnp.finfo(jnp.bfloat16).max)
SMALLEST = 2.0**-133
"""The smallest positive bfloat16, of those below the normal numbers."""


def all_roundings(x):
    return np.asarray(
        jax.jit(round_up_or_down)(jnp.full(WORDS.shape, x, jnp.float32), WORDS), np.float64
    )


@pytest.mark.parametrize(
    "x",
    [1.0, 1.5, 1 + 2.0**-9, 1 + 3 * 2.0**-20, -1 - 2.0**-9, 0.1, -0.1, 3.14159, 2 - 2.0**-23,
     -2 + 2.0**-23, 1e-30, 12345.678, -9.87e20, 1.17549435e-38, LARGEST, -LARGEST, 0.999 * LARGEST],
)  # fmt: skip
def test_every_number_is_right_on_average(x):
    """Exactly: the mean over all words is x itself, by its two neighbours alone."""
    x = float(np.float32(x))
    found = all_roundings(x)
    assert len(set(found)) <= 2
    assert np.all(np.abs(found - x) < last_digit(np.float64(x)))
    below = np.min(found)
    assert np.mean(found - below) == x - below


@pytest.mark.parametrize("share", [1, 1000, 32768, 65535])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_below_the_normal_ones(share, sign):
    """As bits, since arithmetic may take such numbers for 0."""
    word = np.uint32((5 << 16) + share) | np.uint32(0x80000000 if sign < 0 else 0)
    x = jnp.full(WORDS.shape, np.array(word).view(np.float32))
    rounded = jax.jit(round_up_or_down)(x, WORDS)
    found, counts = np.unique(np.asarray(rounded).view(np.uint16), return_counts=True)
    top = 0x8000 if sign < 0 else 0
    np.testing.assert_array_equal(found, [top + 5, top + 6])
    np.testing.assert_array_equal(counts, [65536 - share, share])


@pytest.mark.parametrize("x", [np.inf, -np.inf, 0.0, -0.0, 2.0**100, -(2.0**-100), 1.9921875])
def test_what_bfloat16_has_stays(x):
    np.testing.assert_array_equal(all_roundings(x), x)


def test_what_is_no_number_stays_so():
    quiet = np.array([0x7F800001, 0x7FC00000, 0xFF80FFFF], np.uint32).view(np.float32)
    for x in quiet:
        assert np.isnan(all_roundings(x)).all()


def test_beyond_the_largest_number_lies_nothing():
    beyond = float(np.nextafter(np.float32(LARGEST), np.float32(np.inf)))
    assert set(all_roundings(beyond)) == {LARGEST}
    assert set(all_roundings(-beyond)) == {-LARGEST}


def test_last_digits():
    x = np.array([1.0, 1.99, 2.0, -3.0, 0.5, 0.49, 1e-40])
    np.testing.assert_array_equal(
        last_digit(x), [2**-7, 2**-7, 2**-6, 2**-6, 2**-8, 2**-9, SMALLEST]
    )


@pytest.mark.parametrize("move", [0.01, 0.1, 0.3, 1.0, 7.0])
def test_the_variance_of_rounding(move):
    """Against numerical integration over the step."""
    z = np.linspace(-9, 9, 2_000_001)
    f = (move * z) % 1.0
    wanted = np.trapezoid(f * (1 - f) * np.exp(-(z**2) / 2), z) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(rounding_variance(3 * move, np.float64(3.0)), 9 * wanted, rtol=2e-3)


# The law of chains

CENTER, SPREAD = 1.5, 0.02
"""The last digit is 1/128 where chains are, between 1 and 2: 0.4 standard deviations."""
TARGET = sghmc.Potential(
    lambda theta: jnp.sum((theta.astype(jnp.float32) - CENTER) ** 2) / 2 / SPREAD**2
)
PRECISION, DIGIT = 1 / SPREAD**2, 2.0**-7


def predicted(step_size, friction):
    """The covariance of (θ, v) of SGHMC on the Gaussian, with and without rounding."""
    decay, rate = step_size * friction, step_size**2
    kick = np.array([-rate * PRECISION, 1 - decay])
    move = np.array([[kick[0] + 1, kick[1]], kick])
    noise = 2 * rate * decay * np.ones((2, 2))
    warmth, found = 0.0, []
    for _ in range(20):  # the heat depends on how far a step goes, which depends on the heat
        added = np.array([[warmth, 0], [0, 0]])
        whole = np.linalg.solve(
            np.eye(4) - np.kron(move, move), (noise + added).reshape(-1)
        ).reshape(2, 2)
        found.append(whole[0, 0])
        warmth = float(rounding_variance(np.sqrt(whole[1, 1]), np.float64(DIGIT)))
    return found[0], found[-1]


def run(sampler, num_chains=4000, **given):
    options = {"num_samples": 8, "num_burnin": 10, "thinning": 100, "progress": False} | given
    init = {"a": jnp.full(2, CENTER, jnp.bfloat16), "b": jnp.full(1, CENTER, jnp.bfloat16)}
    target = sghmc.Potential(lambda p: TARGET.function(p["a"]) + TARGET.function(p["b"]))
    return sghmc.sample(jax.random.key(1), target, sampler, init, num_chains=num_chains, **options)


@pytest.mark.slow
def test_chains_have_the_predicted_heat():
    """False alarms: 5 standard errors each, 6·10⁻⁷; keys are fixed."""
    sampler = sghmc.SGHMC(0.002, friction=50.0)
    cold, warm = predicted(0.002, 50.0)
    samples = run(sghmc.StochasticRounding(sampler))
    draws = np.concatenate([np.asarray(samples.positions[n], np.float64) for n in "ab"], -1)
    assert samples.positions["a"].dtype == jnp.bfloat16
    assert set(np.unique(draws % DIGIT)) == {0.0}
    found, num = draws.var((0, 1)), draws.shape[0] * draws.shape[1]
    # Draws 100 steps apart are correlated by far less than 0.1: a fifth of them counts as lost.
    error = np.sqrt(2 / (0.8 * num)) * warm
    assert warm > 1.1 * cold  # so that heat would be missed if it were not there
    np.testing.assert_allclose(found, warm, atol=5 * error)
    np.testing.assert_allclose(draws.mean((0, 1)), CENTER, atol=5 * np.sqrt(warm / (0.8 * num)))
    # No two parameters are rounded by the same bits.
    corr = np.corrcoef(draws.reshape(-1, 3).T)
    assert np.abs(corr - np.eye(3)).max() < 5 / np.sqrt(0.8 * num)
    # What health() takes for it, in the limit of small steps.
    one = np.asarray(samples.positions["a"], np.float64)
    heat = rounding_excess(sghmc.StochasticRounding(sampler), 1.0, one)
    assert heat == pytest.approx(warm / cold - 1, rel=0.3)


@pytest.mark.slow
def test_rounded_to_the_nearest_they_stick():
    """What the wrapper is for: steps of a fifth of the last digit are lost without it."""
    slow = sghmc.SGHMC(0.0005, friction=50.0)
    options = {"num_chains": 50, "num_samples": 1, "num_burnin": 0, "thinning": 300}
    stuck, moved = run(slow, **options), run(sghmc.StochasticRounding(slow), **options)
    assert np.asarray(moved.positions["a"], np.float64).std() > 0.01
    assert np.asarray(stuck.positions["a"], np.float64).std() < DIGIT
    assert "StochasticRounding" in str(stuck.health())


@pytest.mark.slow
def test_health_tells_of_heat():
    slow = sghmc.StochasticRounding(sghmc.SGHMC(0.001, friction=50.0))
    samples = run(slow, num_chains=20, num_samples=100, thinning=20)
    assert "rounding to bfloat16 adds" in str(samples.health())


# What it leaves alone


@pytest.mark.slow
def test_momenta_are_in_float32_and_other_arrays_as_they_were():
    like = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2)}
    sampler = sghmc.SGHMC(0.1, friction=1.0)
    kernel = sghmc.StochasticRounding(sampler).prepare(like)
    state = kernel.init([jnp.ones(3, jnp.bfloat16), jnp.ones(2)], like)
    assert state.velocity["a"].dtype == jnp.float32
    assert state.position["a"].dtype == jnp.bfloat16
    noise = kernel.draw(random.words(jax.random.key(0)), 0, 1, like)
    assert [word.shape for word in noise[1]] == [(3,)]


def test_a_step_is_the_samplers_own_in_float32_then_rounded():
    """SGLD by hand: its oracle gets bfloat16, its gradient comes back in float32."""
    like = {"a": jnp.array([1.5, -0.75], jnp.bfloat16), "b": jnp.array([0.3])}
    kernel = sghmc.StochasticRounding(sghmc.SGLD(0.01)).prepare(like)
    asked = []

    def evaluate(i, position):
        asked.append(jax.tree.map(lambda leaf: leaf.dtype, position))
        return Evaluation(jnp.zeros(()), jax.tree.map(lambda leaf: leaf * 3, position))

    normals = [jnp.array([0.4, -1.3]), jnp.array([0.8])]
    words = jnp.asarray(np.array([40_000 << 16, 65_535 << 16], np.uint32))
    state = kernel.init([jnp.zeros(2, jnp.bfloat16), jnp.zeros(1)], like)
    oracle = Oracle(evaluate, None, False)
    end, _ = jax.jit(lambda state: kernel.step(0, (normals, [words]), state, oracle))(state)
    assert asked == [{"a": jnp.bfloat16, "b": jnp.float32}]
    a, b = (
        np.asarray(like[name], np.float64) * 0.97 + np.sqrt(0.02) * np.asarray(normal)
        for name, normal in zip("ab", normals, strict=True)
    )
    rounded = round_up_or_down(jnp.asarray(a, jnp.float32), words)
    assert end.position["a"].dtype == jnp.bfloat16
    assert not np.array_equal(np.asarray(rounded, np.float64), a)
    np.testing.assert_array_equal(
        np.asarray(end.position["a"], np.float64), np.asarray(rounded, np.float64)
    )
    np.testing.assert_allclose(end.position["b"], b, rtol=1e-6)


def test_a_chain_begins_in_bfloat16_with_momenta_in_float32_and_has_words_of_its_own():
    like = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2), "c": jnp.ones(1, jnp.bfloat16)}
    kernel = sghmc.StochasticRounding(sghmc.SGHMC(0.1, friction=1.0)).prepare(like)
    normals = [jnp.ones(3, jnp.bfloat16), jnp.ones(2), jnp.ones(1, jnp.bfloat16)]
    state = kernel.init(normals, like)
    assert {k: v.dtype for k, v in state.position.items()} == {k: v.dtype for k, v in like.items()}
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.velocity))

    @jax.jit
    def words(key):
        bits = kernel.draw(key, 4, 2, like)[1]
        return bits, [random.bits(key, 4, 2, n, slot=(1 << 31) + k) for n, k in ((3, 0), (1, 5))]

    found, wanted = words(random.words(jax.random.key(0)))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.slow
def test_float32_runs_are_those_of_the_sampler():
    sampler, target = sghmc.SGHMC(0.1, friction=1.0), sghmc.Potential(lambda x: jnp.sum(x**2))

    def draw(sampler):
        return sghmc.sample(
            jax.random.key(0), target, sampler, jnp.ones(3), num_samples=5, progress=False
        ).positions

    np.testing.assert_array_equal(draw(sampler), draw(sghmc.StochasticRounding(sampler)))


@pytest.mark.slow
def test_no_bit_is_used_twice(monkeypatch):
    """Neither by two arrays, nor by a normal and a rounding."""
    seen, bits = [], random._threefry

    def watched(key, high, low):
        seen.append(np.broadcast_arrays(np.asarray(high), np.asarray(low)))
        return bits(key, high, low)

    like = {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16), "c": jnp.ones(2)}
    sampler = sghmc.SGHMC(0.1, friction=1.0, resample_every=2)
    kernel = sghmc.StochasticRounding(sampler).prepare(like)
    monkeypatch.setattr(random, "_threefry", watched)
    with jax.disable_jit():
        kernel.draw(random.words(jax.random.key(0)), 0, 3, like)
    counters = np.concatenate([np.stack([h.ravel(), w.ravel()]) for h, w in seen], axis=1)
    assert counters.shape[1] == 3 * (2 * 7 + 5)
    assert len(np.unique(counters, axis=1).T) == counters.shape[1]


@pytest.mark.parametrize(
    ("sampler", "error", "words"),
    [
        (sghmc.HMC(0.1, 3), TypeError, "whose gradients are taken where"),
        (sghmc.BAOAB(0.1, 1.0), TypeError, "needs SGHMC"),
        (LiteralSGHMC(0.1, 1.0), TypeError, "needs SGHMC"),
    ],
)
def test_what_moves_before_its_gradient_is_refused(sampler, error, words):
    with pytest.raises(error, match=words):
        sghmc.StochasticRounding(sampler)


@pytest.mark.slow
def test_a_run_goes_on_and_adapts(tmp_path):
    sampler = sghmc.StochasticRounding(sghmc.SGHMC(0.002, friction=50.0))
    options = {
        "num_chains": 3,
        "num_samples": 6,
        "num_burnin": 6,
        "thinning": 2,
        "adapt": sghmc.AdaptMass(until=8, first_window=4),
    }
    whole = run(sampler, **options)
    saved = sghmc.Checkpoint(tmp_path, every=2)
    parts = run(sampler, **options, checkpoint=saved)
    np.testing.assert_array_equal(
        np.asarray(whole.positions["a"], np.float32), np.asarray(parts.positions["a"], np.float32)
    )
