import dataclasses
import functools
import itertools

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import sghmc
from cases import GRADIENTS, SAMPLERS, params, posterior
from sghmc.core import random, runtime, tree
from sghmc.engine.chain import GIBBS, INIT, NUM_STREAMS, chain_keys
from sghmc.engine.driver import OneDevice

FALSE_ALARM = 1e-6
"""The chance that a right generator fails one check; with fixed keys it fails always or never."""


uniforms, normals = (
    jax.jit(draw, static_argnums=(2, 3), static_argnames=("slot", "dtype"))
    for draw in (random.uniforms, random.normals)
)
integers = jax.jit(random.integers, static_argnums=(2, 3, 4))
permuted = jax.jit(random.permuted, static_argnums=3)
threefry = jax.jit(random.threefry)


def words(seed):
    return random.words(jax.random.key(seed))


def typed(seed):
    return jax.random.key(seed)


@pytest.mark.parametrize("step", [0, 1, 77, 2**31, 2**32 - 1])
def test_bits_are_those_of_jax_for_every_counter(step):
    slots = np.array([0, 1, 2, 1000, 2**31, 2**32 - 1], np.uint32)
    steps = np.full_like(slots, step)
    ours = jnp.concatenate(threefry(words(5), jnp.asarray(steps), jnp.asarray(slots)))
    theirs = jax.extend.random.threefry_2x32(words(5), np.concatenate([steps, slots]))
    np.testing.assert_array_equal(ours, theirs)


def test_bits_of_step_0_are_jax_random_bits():
    high, low = random._bits(words(6), 0, 1, 100)
    np.testing.assert_array_equal(high ^ low, jax.random.bits(typed(6), (100,), jnp.uint32))


@pytest.mark.slow
def test_uniforms_of_step_0_are_jax_random_uniform():
    np.testing.assert_array_equal(
        uniforms(words(7), 0, 1, 1000), jax.random.uniform(typed(7), (1000,))
    )
    with jax.enable_x64(True):
        ours = uniforms(words(7), 0, 1, 1000, dtype=jnp.float64)
        theirs = jax.random.uniform(typed(7), (1000,), jnp.float64)
        assert ours.dtype == jnp.float64
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_normals_of_step_0_are_jax_random_normal_to_rounding():
    ours = normals(words(8), 0, 1, 100_000)
    theirs = jax.random.normal(typed(8), (100_000,))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    with jax.enable_x64(True):
        ours = normals(words(8), 0, 1, 1000, dtype=jnp.float64)
        theirs = jax.random.normal(typed(8), (1000,), jnp.float64)
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)


def test_the_inverse_error_function_is_right_up_to_its_last_numbers():
    edge = np.nextafter(np.float32(1), np.float32(0))
    x = np.concatenate([np.linspace(-edge, edge, 10_001, dtype=np.float32), [0.0, 1e-30, -1e-7]])
    exact = scipy.special.erfinv(x.astype(np.float64))
    ours = jax.jit(random._erf_inv)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(ours, exact, rtol=2e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_normals_of_low_precision_are_the_single_precision_ones_rounded(dtype):
    full = normals(words(9), 3, 2, 50)
    np.testing.assert_array_equal(normals(words(9), 3, 2, 50, dtype=dtype), full.astype(dtype))


@pytest.mark.parametrize("is_double", [False, True])
def test_normals_at_some_slots_are_those_of_all(is_double):
    with jax.enable_x64(is_double):
        dtype = jnp.float64 if is_double else jnp.float32
        slots = np.array([[3, 0], [9, 3]])
        every = normals(words(5), 77, 1, 10, dtype=dtype)
        some = random.normals_at(words(5), 77, jnp.asarray(slots, jnp.uint32), dtype=dtype)
        np.testing.assert_array_equal(some, np.asarray(every)[slots])


def test_fold_is_fold_in():
    for number in (0, 1, 12345, 2**31 - 1):
        expected = jax.random.key_data(jax.random.fold_in(typed(1), number))
        np.testing.assert_array_equal(random.fold(words(1), number), expected)


@pytest.mark.slow
def test_keys_of_chains_are_folded_from_the_runs_key():
    keys = chain_keys(typed(9), 3)
    for chain, stream in itertools.product(range(3), range(NUM_STREAMS)):
        folded = jax.random.fold_in(jax.random.fold_in(typed(9), chain), stream)
        np.testing.assert_array_equal(keys[chain, stream, :2], jax.random.key_data(folded))
        three, two = (random.normals(keys[chain, stream, :n], 5, 2, 3) for n in (3, 2))
        np.testing.assert_array_equal(three, two)
    np.testing.assert_array_equal(jax.jit(chain_keys, static_argnums=1)(typed(9), 3), keys)


@pytest.mark.slow
def test_words_of_other_generators_are_distinct_and_each_key_has_its_own():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), (3, 2))
    together = np.asarray(random.words(keys))
    assert together.shape == (3, 2, 2)
    assert len({tuple(pair) for pair in together.reshape(-1, 2)}) == 6
    np.testing.assert_array_equal(random.words(keys[2, 1]), together[2, 1])


def check_normal(draws):
    """Moments and tails of standard normals: 14 checks."""
    count = len(draws)
    for power, moment in zip(range(1, 7), (0, 1, 0, 3, 0, 15), strict=True):
        variance = scipy.stats.norm.moment(2 * power) - moment**2
        error = (np.mean(draws**power) - moment) / np.sqrt(variance / count)
        assert 2 * scipy.stats.norm.sf(abs(error)) > FALSE_ALARM, f"moment {power}: {error:g} sd"
    for bound in (1, 2, 3, 4):
        for tail in (draws > bound, draws < -bound):
            test = scipy.stats.binomtest(int(tail.sum()), count, float(scipy.stats.norm.sf(bound)))
            assert test.pvalue > FALSE_ALARM, f"beyond {bound}: {test}"


@pytest.mark.slow
def test_normals_are_standard_normal():
    draws = np.asarray(normals(words(10), 5, 1000, 2000), np.float64)
    check_normal(draws)
    assert scipy.stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    rows = draws.reshape(1000, 2000)
    neighbours = [(rows[1:], rows[:-1]), (rows[:, 1:], rows[:, :-1])]
    for one, other in neighbours:
        error = np.mean(one * other) * np.sqrt(one.size)
        assert 2 * scipy.stats.norm.sf(abs(error)) > FALSE_ALARM


@pytest.mark.slow
def test_hundred_million_normals_are_standard_normal():
    blocks, bins, fine = 10, 1000, 100_000
    counts = np.zeros(fine, int)
    beyond = 0
    for b in range(blocks):
        draws = np.asarray(normals(words(11), 1000 * b, 1000, 10_000), np.float64)
        check_normal(draws)
        places = (scipy.special.ndtr(draws) * fine).astype(int)
        counts += np.bincount(places, minlength=fine)
        beyond += int((np.abs(draws) > 5).sum())
    assert counts.sum() == 10**8
    assert scipy.stats.chisquare(counts.reshape(bins, -1).sum(1)).pvalue > FALSE_ALARM
    # Kolmogorov's statistic over 100,000 places: not above that over all, whose law this is.
    distance = np.abs(np.cumsum(counts) / 10**8 - np.arange(1, fine + 1) / fine).max()
    assert scipy.stats.kstwobign.sf(distance * 10**4) > FALSE_ALARM
    tail = scipy.stats.binomtest(beyond, 10**8, 2 * float(scipy.stats.norm.sf(5)))
    assert tail.pvalue > FALSE_ALARM


@pytest.mark.parametrize("draw", [uniforms, normals])
def test_block_length_does_not_change_variates(draw):
    together = draw(words(12), 4, 6, 5, slot=3).reshape(6, 5)
    for length in (1, 3):
        parts = [draw(words(12), 4 + t, length, 5, slot=3) for t in range(0, 6, length)]
        np.testing.assert_array_equal(jnp.concatenate(parts).reshape(6, 5), together)


@pytest.mark.slow_cases("epochs", "minibatch without replacement", "noisy")
@pytest.mark.parametrize("name", GRADIENTS)
def test_block_length_does_not_change_batches(name):
    like = params()
    estimator = GRADIENTS[name].prepare(posterior(), like)

    @functools.partial(jax.jit, static_argnums=1)
    def draw(start, length):
        return jax.tree.leaves(estimator.draw(words(13), start, length, 2, like))

    together = draw(2, 6)
    for length in (1, 3):
        parts = [draw(2 + t, length) for t in range(0, 6, length)]
        for whole, *pieces in zip(together, *parts, strict=True):
            np.testing.assert_array_equal(jnp.concatenate(pieces), whole)


def test_a_leaf_has_its_own_variates_and_copies():
    like = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(()), "c": jnp.zeros(4)}
    drawn = jax.jit(lambda: random.normals_like(words(14), 9, 1, like, copies=3))()
    copies = [random.copy_of(drawn, i, like) for i in range(3)]
    assert [leaf.shape for leaf in jax.tree.leaves(copies[0])] == [(2, 3), (), (4,)]
    everything = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(copies)])
    assert len(np.unique(everything)) == 33
    # Inside of a mesh, with the copies on an axis of their own.
    apart = [leaf.reshape(3, -1) for leaf in drawn]
    jax.tree.map(np.testing.assert_array_equal, random.copy_of(apart, 1, like), copies[1])


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float64])
def test_many_leaves_have_the_normals_that_each_would_draw_alone(num_steps, dtype):
    """Bit for bit, for steps up to the last of 32 bits, one chain and several."""
    with jax.enable_x64(dtype == jnp.float64):
        like = [jax.ShapeDtypeStruct((1 + i % 2,), dtype) for i in range(17)]
        keys = jnp.stack([random.words(jax.random.key(i)) for i in range(2)], axis=-1)

        draw = jax.jit(lambda key, step: random.normals_like(key, step, num_steps, like))
        for key in (keys[:, 0], keys):
            for step in (0, 7, 2**32 - 4):
                first, slot = jnp.asarray(step, jnp.uint32), 0
                drawn = draw(key, first)
                alone = normals(key, first, num_steps, tree.size(like), dtype=dtype)
                alone = alone.reshape(num_steps, -1, *key.shape[1:])
                for one, leaf in zip(drawn, like, strict=True):
                    assert one.dtype == dtype
                    own = alone[:, slot : slot + leaf.size].reshape(one.shape)
                    np.testing.assert_array_equal(one, own)
                    slot += leaf.size
                last = normals(key, first, num_steps, 1, slot=slot - 1, dtype=dtype)
                np.testing.assert_array_equal(drawn[-1], last)


class Captured(Exception):
    """Carries a program out of a run that need not go on."""


def program_of(sampler, gradient, monkeypatch):
    """The program that sample() makes for two chains."""

    def capture(self, spec, *_, **__):
        raise Captured(spec)

    monkeypatch.setattr(OneDevice, "begin", capture)
    with pytest.raises(Captured) as captured:
        sghmc.sample(
            jax.random.key(15), posterior(), sampler, params(), gradient=gradient, num_chains=2
        )
    return captured.value.args[0]


@pytest.mark.slow_cases(
    "baoab-noisy",
    "hmc-control variate",
    "hmc-epochs",
    "hmc-minibatch",
    "hmc-minibatch without replacement",
    "hmc-noisy",
    "hmc-palindrome",
    "psgld-noisy",
    "sghmc resampling-noisy",
    "sghmc-noisy",
    "sgld-noisy",
)
@pytest.mark.parametrize(
    ("sampler", "gradient"),
    [
        (name, "noisy")
        for name in ("sghmc", "sghmc resampling", "baoab", "sgld", "psgld", "momentum")
    ]
    + [("hmc", gradient) for gradient in GRADIENTS],
)
def test_no_counter_is_used_twice(sampler, gradient, monkeypatch):
    """Over chains, streams, steps, slots: all counters that a run's variates come from."""
    used, bits = [], random._threefry

    def record(key, high, low):
        columns = jnp.broadcast_arrays(key[0], key[1], high, low)
        used.append(jnp.stack([jnp.ravel(column).astype(jnp.uint32) for column in columns]))
        return bits(key, high, low)

    program = program_of(SAMPLERS[sampler], GRADIENTS[gradient], monkeypatch)
    monkeypatch.setattr(random, "_threefry", record)
    # Compiled branches would trace the generator before it is recorded.
    monkeypatch.setattr(runtime, "unfused", lambda _, make, *args: make(*args))

    def counters(keys):
        used.clear()
        dataclasses.replace(program, keys=keys).draw(0, 3)
        random.normals_like(keys[INIT], 0, 1, program.layout.like)
        for t in range(3):
            random.fold(keys[GIBBS], t)
        return jnp.concatenate(used, axis=1)

    with jax.disable_jit():  # which would call the generator once a shape
        all_counters = np.concatenate([counters(keys) for keys in program.keys], axis=1)
    found = [tuple(column) for column in all_counters.T.tolist()]
    if gradient in ("epochs", "palindrome"):  # batches of one permutation share the counters
        found = list(dict.fromkeys(found))
    assert len(found) > 50
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("bound", [1, 3, 1000])
def test_integers_are_uniform(bound):
    drawn = integers(words(16), 0, 100, 1000, bound)
    counts = np.bincount(drawn, minlength=bound)
    assert len(counts) == bound
    if bound > 1:
        assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("bound", [3, 60_000, 2**16, 2**16 + 1, 2**30 + 7, 2**31 - 1])
def test_integers_are_the_exact_product_of_64_bits(bound):
    corners = np.array([0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1], np.uint32)
    x, y = (np.ravel(grid) for grid in np.meshgrid(corners, corners))
    high, low = random._bits(words(17), 0, 1, 500)
    x, y = np.concatenate([x, high]), np.concatenate([y, low])
    exact = [((int(a) << 32) + int(b)) * bound >> 64 for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(random._scale(jnp.asarray(x), jnp.asarray(y), bound), exact)


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 64, 1000])
def test_permuted_is_a_bijection(bound):
    numbers = jnp.array([0, 1, 2**32 - 1], jnp.uint32)
    images = permuted(words(18), numbers, jnp.arange(bound)[None], bound)
    for row in np.asarray(images):
        np.testing.assert_array_equal(np.sort(row), np.arange(bound))
    if bound > 50:
        assert not np.array_equal(images[0], images[1])


def test_permuted_works_at_the_largest_bound():
    bound = 2**31 - 1
    index = jnp.array([[0, 1, bound // 2, bound - 2, bound - 1]])
    images = np.asarray(permuted(words(19), jnp.arange(200), index, bound))
    assert images.min() >= 0
    assert images.max() < bound
    assert scipy.stats.kstest(images.ravel() / bound, "uniform").pvalue > FALSE_ALARM


@pytest.mark.parametrize("bound", [3, 4])
def test_all_permutations_are_equally_likely(bound):
    images = permuted(words(20), jnp.arange(48_000), jnp.arange(bound)[None], bound)
    numbers = {order: i for i, order in enumerate(itertools.permutations(range(bound)))}
    counts = np.bincount([numbers[tuple(map(int, row))] for row in np.asarray(images)])
    assert len(counts) == len(numbers)
    assert scipy.stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("bound", [7, 20])
def test_images_and_pairs_of_images_are_uniform(bound):
    images = permuted(words(21), jnp.arange(50_000), jnp.array([[0, 1, bound - 1]]), bound)
    first, second, third = np.asarray(images).T
    for image in (first, second, third):
        assert scipy.stats.chisquare(np.bincount(image, minlength=bound)).pvalue > FALSE_ALARM
    for one, other in ((first, second), (first, third), (second, third)):
        counts = np.bincount(one * bound + other, minlength=bound**2).reshape(bound, bound)
        assert np.all(np.diag(counts) == 0)
        between = counts[~np.eye(bound, dtype=bool)]
        assert scipy.stats.chisquare(between).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_every_image_is_exactly_uniform_by_the_rotation(monkeypatch):
    """With the swaps fixed, the last counter alone carries every index to every image."""
    scale, bound, turns = random._scale, 5, []

    def turned(x, y, bound):
        return (
            jnp.full_like(scale(x, y, bound), turns[0]) if x.shape[1] == 1 else scale(x, y, bound)
        )

    monkeypatch.setattr(random, "_scale", turned)
    images = []
    for turn in range(bound):
        turns[:] = [turn]
        with jax.disable_jit():  # which would remember the first turn
            images.append(random.permuted(words(22), jnp.arange(3), jnp.arange(bound)[None], bound))
    assert np.all(np.sort(np.stack(images), axis=0) == np.arange(bound)[:, None, None])


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_variates_of_several_chains_are_those_of_each(name):
    """Keys of chains with their axis last, as small models have it."""
    like, keys = params(), jnp.stack([words(23), words(24), words(25)], axis=-1)
    estimator = GRADIENTS[name].prepare(posterior(), like)

    @jax.jit
    def draw(key):
        noise = random.normals_like(key, 2, 3, like, copies=2)
        uniform = random.uniforms(key, 2, 1, 4, slot=3)
        return jax.tree.leaves((noise, uniform, estimator.draw(key, 2, 3, 2, like)))

    together = draw(keys)
    for chain in range(3):
        for all_chains, alone in zip(together, draw(keys[:, chain]), strict=True):
            np.testing.assert_array_equal(all_chains[..., chain], alone)


@pytest.mark.slow
def test_uniforms_of_any_slots_are_those_of_step_0():
    key = random.words(jax.random.key(3))
    every = random.uniforms(key, 0, 1, 50)
    slots = jnp.array([7, 0, 49, 7])
    np.testing.assert_array_equal(random.uniforms_at(key, slots), every[slots])
