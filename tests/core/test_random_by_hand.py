"""Variates are those of another implementation of threefry, in whole numbers."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from sghmc.core import random
from sghmc.engine.chain import GRADIENT, NUM_STREAMS, chain_keys, with_shared_gradients

KEY = (123_456_789, 987_654_321)
WORDS = jnp.asarray(KEY, jnp.uint32)
MASK = 2**32 - 1


def threefry(key, high, low):
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011), two words from two."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (high + keys[0]) & MASK, (low + keys[1]) & MASK
    rotations = (13, 15, 26, 6, 17, 29, 16, 24)
    for i in range(20):
        turn = rotations[i % 8]
        x = (x + y) & MASK
        y = (((y << turn) | (y >> (32 - turn))) & MASK) ^ x
        if i % 4 == 3:
            number = i // 4 + 1
            x = (x + keys[number % 3]) & MASK
            y = (y + keys[(number + 1) % 3] + number) & MASK
    return x, y


def uniform(step, slot, key=KEY, is_double=False):
    x, y = threefry(key, step, slot)
    return ((x << 32 | y) >> 12) / 2**52 if is_double else ((x ^ y) >> 9) / 2**23


def normal(step, slot, key=KEY, is_double=False):
    dtype = np.float64 if is_double else np.float32
    lowest = float(np.nextafter(dtype(-1), dtype(0)))
    u = uniform(step, slot, key, is_double)
    return math.sqrt(2) * scipy.special.erfinv(max(lowest, u * (1 - lowest) + lowest))


def steps_and_slots(first, num_steps, width, slot=0):
    return itertools.product(range(first, first + num_steps), range(slot, slot + width))


def test_uniforms_and_bits():
    places = [*steps_and_slots(7, 3, 4, 5)]
    found = random.uniforms(WORDS, 7, 3, 4, slot=5)
    np.testing.assert_allclose(found, [uniform(*place) for place in places], rtol=1e-7)
    found = random.bits(WORDS, 7, 3, 4, slot=5)
    np.testing.assert_array_equal(found, [threefry(KEY, *place)[0] for place in places])
    slots = [9, 0, 2**32 - 1]
    found = random.uniforms_at(WORDS, jnp.asarray(slots, jnp.uint32))
    np.testing.assert_allclose(found, [uniform(0, slot) for slot in slots], rtol=1e-7)
    single = random.uniforms(WORDS, 7, 1, 4, slot=5)
    np.testing.assert_allclose(single, [uniform(7, slot) for slot in range(5, 9)], rtol=1e-7)


def test_variates_of_double_precision():
    with jax.enable_x64(True):
        wanted = [uniform(3, slot, is_double=True) for slot in range(2, 7)]
        found = random.uniforms(WORDS, 3, 1, 5, slot=2, dtype=jnp.float64)
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
        wanted = [normal(3, slot, is_double=True) for slot in range(2, 7)]
        found = random.normals(WORDS, 3, 1, 5, slot=2, dtype=jnp.float64)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_normals_of_every_parameter_and_copy():
    """The slots of a leaf follow those of the leaves before it, with all their copies."""
    like = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(())}
    found = random.normals_like(WORDS, 4, 2, like, copies=2)
    for leaf, width, slot in zip(found, (12, 2), (0, 12), strict=True):
        wanted = [normal(*place) for place in steps_and_slots(4, 2, width, slot)]
        np.testing.assert_allclose(leaf, wanted, rtol=1e-5, atol=1e-6)
    second = random.copy_of([leaf[: leaf.size // 2] for leaf in found], 1, like)
    wanted = np.reshape([normal(4, slot) for slot in range(6, 12)], (2, 3))
    np.testing.assert_allclose(second["a"], wanted, rtol=1e-5, atol=1e-6)
    assert second["b"] == pytest.approx(normal(4, 13), rel=1e-5)


def test_normals_of_many_leaves_are_cut_from_one_array():
    sizes = [1 + i % 3 for i in range(17)]
    like = [jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes]
    slots = np.cumsum([0, *sizes])
    found = random.normals_like(WORDS, jnp.asarray(2**32 - 1, jnp.uint32), 1, like)
    for leaf, size, slot in zip(found, sizes, slots, strict=False):
        wanted = [normal(2**32 - 1, slot + i) for i in range(size)]
        np.testing.assert_allclose(leaf, wanted, rtol=1e-5, atol=1e-6)


def test_normals_of_leaves_that_lie_on_several_devices_have_their_shape():
    where = jax.sharding.NamedSharding(
        jax.sharding.AbstractMesh((2,), ("model",)), jax.sharding.PartitionSpec()
    )
    like = [
        jax.ShapeDtypeStruct((2,), jnp.float32, sharding=where),
        jax.ShapeDtypeStruct((3, 2), jnp.float32, sharding=where),
    ]
    found = random.normals_like(WORDS, 5, 1, like, copies=2)
    assert [leaf.shape for leaf in found] == [(2, 2), (2, 3, 2)]
    flat = np.concatenate([np.ravel(leaf) for leaf in found])
    np.testing.assert_allclose(flat, [normal(5, i) for i in range(16)], rtol=1e-5, atol=1e-6)
    second = random.copy_of(found, 1, like)
    np.testing.assert_array_equal(second[1], found[1][1])


def test_chains_have_variates_of_their_own_along_a_last_axis():
    others = [KEY, (5, 6), (7, 8)]
    keys = jnp.asarray(others, jnp.uint32).T
    found = random.uniforms(keys, 3, 2, 4, slot=1)
    assert found.shape == (8, 3)
    for chain, key in enumerate(others):
        wanted = [uniform(*place, key) for place in steps_and_slots(3, 2, 4, 1)]
        np.testing.assert_allclose(found[:, chain], wanted, rtol=1e-7)


def test_keys_of_chains_and_streams():
    keys = np.asarray(chain_keys(jax.random.wrap_key_data(WORDS), 3))
    assert keys.shape == (3, NUM_STREAMS, 3)
    for chain, stream in itertools.product(range(3), range(NUM_STREAMS)):
        x, y = threefry(threefry(KEY, 0, chain), 0, stream)
        assert tuple(map(int, keys[chain, stream])) == (x, y, x ^ y ^ 0x1BD11BDA)
    shared = np.asarray(with_shared_gradients(jnp.asarray(keys)))
    others = [stream for stream in range(NUM_STREAMS) if stream != GRADIENT]
    np.testing.assert_array_equal(shared[:, others], keys[:, others])
    np.testing.assert_array_equal(shared[:, GRADIENT], keys[[0, 0, 0], GRADIENT])


def test_the_third_word_of_a_key_is_known_or_computed():
    three = jnp.asarray([*KEY, KEY[0] ^ KEY[1] ^ 0x1BD11BDA], jnp.uint32)
    found = random.bits(three, 7, 1, 4)
    np.testing.assert_array_equal(found, [threefry(KEY, 7, slot)[0] for slot in range(4)])


def test_integers():
    found = random.integers(WORDS, 2, 2, 5, 1_000_003)
    wanted = [
        ((x << 32 | y) * 1_000_003) >> 64
        for x, y in (threefry(KEY, *place) for place in steps_and_slots(2, 2, 5))
    ]
    np.testing.assert_array_equal(found, wanted)


def mixed(x):
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)


def permuted(number, index, bound):
    """Swap-or-not (Hoang, Morris & Rogaway, 2012) with 24 rounds, then a rotation."""
    for i in range(24):
        x, salt = threefry(KEY, number, i)
        partner = ((x << 32) * bound >> 64) - index
        partner += bound if partner < 0 else 0
        if mixed(max(index, partner) ^ salt) >> 31:
            index = partner
    x, salt = threefry(KEY, number, 24)
    rotation = (x << 32 | salt) * bound >> 64
    return (index + rotation) % bound


@pytest.mark.parametrize("bound", [7, 1000])
def test_permutations(bound):
    numbers, index = jnp.asarray([0, 9, 2**32 - 1], jnp.uint32), jnp.asarray([[0, 3, 6, 2]])
    found = random.permuted(WORDS, numbers, index, bound)
    wanted = [[permuted(int(n), i, bound) for i in (0, 3, 6, 2)] for n in np.asarray(numbers)]
    np.testing.assert_array_equal(found, wanted)


def gamma(shape, slot, width):
    """Marsaglia & Tsang (2000): attempt i has a normal and, `width` slots later, a uniform."""
    d = (shape + 1 if shape < 1 else shape) - 1 / 3
    for i in itertools.count(1):
        x = normal(i, slot)
        v = (1 + x / (3 * math.sqrt(d))) ** 3
        if v > 0 and math.log(uniform(i, width + slot)) < x**2 / 2 + d - d * v + d * math.log(v):
            return d * v * ((1 - uniform(0, slot)) ** (1 / shape) if shape < 1 else 1)
    raise AssertionError("attempts never end")


def test_gammas():
    shapes = np.array([[0.3, 0.9, 1.0], [1.7, 4.2, 25.0]])
    found = random.gammas(WORDS, jnp.asarray(shapes, jnp.float32))
    wanted = [gamma(shape, i, 6) for i, shape in enumerate(shapes.reshape(-1))]
    np.testing.assert_allclose(found, np.reshape(wanted, (2, 3)), rtol=1e-4)
