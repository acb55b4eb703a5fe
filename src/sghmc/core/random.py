"""The one generator: every variate is a function of (key, step, slot), and of nothing else.

The bits are those of jax's threefry-2x32 with the counter (step, slot), that is, of a
`jax.random.bits` array whose row `step` has 2³² columns; so the variates of a step do not depend
on how many steps are drawn at once. The rounds are written out because XLA:CPU compiles jax's own
rolled loop to something several times slower.

Every function takes a key as two 32-bit words (`words`), or with their `parity` as a third word,
which saves an accelerator its computation in every step. The arrays returned are 1-D, step after
step: XLA vectorizes this layout best, and a step slices its part out of it. Words with a second
axis are the keys of several chains: all arrays then have that axis, last (`*chain` in the shapes
below).

The functions are jitted although they run inside compiled programs, so that their hundreds of
operations are traced once for a shape, and not at every use.
"""

import functools
import itertools
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32, Integer, UInt32

from sghmc.core import runtime, tree
from sghmc.types import PyTree

__all__ = [
    "bits",
    "copy_of",
    "fold",
    "gammas",
    "integers",
    "normals",
    "normals_at",
    "normals_like",
    "permuted",
    "uniforms",
    "uniforms_at",
    "words",
]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Rotation distances of threefry-2x32, for even and odd groups of rounds."""
_SHUFFLE_ROUNDS = 24
"""Rounds of the swap-or-not shuffle; with 24, tests find all permutations equally often."""
Key: TypeAlias = UInt32[Array, " word *chain"]
"""The words of a key, or of a key for each chain."""

_sized = functools.partial(jax.jit, static_argnames=("num_steps", "width", "slot", "dtype"))


def words(key: jax.Array) -> UInt32[Array, "*keys 2"]:
    """Return the two words of a typed jax key (of each key in an array of keys)."""
    data = jax.random.key_data(key)
    if data.shape[-1] == 2:
        return data
    # One key at a time: for other generators vmap would take all bits from the first key.
    drawn = lax.map(lambda k: jax.random.bits(k, (2,), jnp.uint32), key.reshape(-1))
    return drawn.reshape(*key.shape, 2)


def fold(key: UInt32[Array, " word"], number) -> UInt32[Array, " 2"]:
    """Make a new key from a key and a number, with the words of `jax.random.fold_in`."""
    return jnp.stack(_threefry(key, jnp.uint32(0), jnp.asarray(number).astype(jnp.uint32)))


def threefry(key: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Apply threefry-2x32, 20 rounds, to the counter (high, low), elementwise; also in NumPy."""
    schedule = (key[0], key[1], key[2] if len(key) == 3 else parity(key[0], key[1]))
    x, y = high + schedule[0], low + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def parity(x: Any, y: Any) -> Any:
    """Return the third word of threefry's schedule, from the two of a key."""
    return x ^ y ^ np.uint32(0x1BD11BDA)


_threefry = jax.jit(threefry)


def _bits(
    key: Key, first_step, num_steps: int, width: int, slot: int = 0
) -> tuple[UInt32[Array, " variate *chain"], UInt32[Array, " variate *chain"]]:
    """Return two words for each of `num_steps` rows of `width` variates, raveled."""
    step = jnp.asarray(first_step).astype(jnp.uint32)
    slots = lax.iota(jnp.uint32, num_steps * width)
    if num_steps == 1:  # equal to the general case, without a division for every variate
        # Adding a zero that seems to depend on the step: otherwise XLA would compute the part of
        # the rounds that is the same for all steps before the loop, and store it throughout, two
        # words for every variate.
        slots = slots + (np.uint32(slot) + runtime.never(step).astype(jnp.uint32))
    else:
        step = step + slots // np.uint32(width)
        slots = slots % np.uint32(width) + np.uint32(slot)
    if key.ndim > 1:  # of several chains, whose axis is last
        key = jnp.expand_dims(key, 1)
        step = step if step.ndim == 0 else step[..., None]
        slots = slots[..., None]
    return _threefry(key, step, slots)


@_sized
def uniforms(
    key: Key, first_step, num_steps: int, width: int, *, slot: int = 0, dtype=jnp.float32
) -> Float[Array, " variate *chain"]:
    """Return uniform variates on [0, 1)."""
    return _unit(*_bits(key, first_step, num_steps, width, slot), dtype)


def uniforms_at(key: UInt32[Array, " word"], slots: jax.Array) -> Float[Array, "*slots"]:
    """Return the uniform variates on [0, 1) of step 0 at any slots."""
    x, y = _threefry(key, jnp.uint32(0), slots.astype(jnp.uint32))
    return _unit(x, y, jnp.float32)


def bits(
    key: Key, first_step, num_steps: int, width: int, *, slot: int = 0
) -> UInt32[Array, " variate *chain"]:
    """Return random 32-bit words; two of them make a key."""
    return _bits(key, first_step, num_steps, width, slot)[0]


def _unit(x: jax.Array, y: jax.Array, dtype) -> jax.Array:
    """Convert two words to a float on [0, 1), as `jax.random.uniform` does."""
    if _wide(dtype) == jnp.float64:
        mantissa = (x.astype(jnp.uint64) << np.uint64(32) | y.astype(jnp.uint64)) >> np.uint64(12)
        one = np.float64(1.0).view(np.uint64)
        return lax.bitcast_convert_type(mantissa | one, jnp.float64) - 1.0
    mantissa = (x ^ y) >> np.uint32(9)
    one = np.float32(1.0).view(np.uint32)
    return lax.bitcast_convert_type(mantissa | one, jnp.float32) - np.float32(1.0)


@_sized
def normals(
    key: Key, first_step, num_steps: int, width: int, *, slot: int = 0, dtype=jnp.float32
) -> Float[Array, " variate *chain"]:
    """Return standard normal variates, by inversion."""
    x, y = _bits(key, first_step, num_steps, width, slot)
    return _normal(x, y, dtype)


@functools.partial(jax.jit, static_argnames="dtype")
def normals_at(
    key: UInt32[Array, " word"], step, slots: UInt32[Array, "*slots"], *, dtype=jnp.float32
) -> Float[Array, "*slots"]:
    """Return the standard normals of one step at some of its slots, equal to those of `normals`."""
    x, y = _threefry(key, jnp.asarray(step).astype(jnp.uint32), slots)
    return _normal(x, y, dtype)


def _normal(x: jax.Array, y: jax.Array, dtype) -> jax.Array:
    wide = _wide(dtype)
    lowest = np.nextafter(np.array(-1.0, wide), np.array(0.0, wide))
    signed = jnp.maximum(lowest, _unit(x, y, wide) * (1 - lowest) + lowest)
    inverse = lax.erf_inv(signed) if wide == jnp.float64 else _erf_inv(signed)
    return (inverse * np.array(math.sqrt(2), wide)).astype(dtype)


def _wide(dtype):
    return jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32


def _erf_inv(x: jax.Array) -> jax.Array:
    """Return erf⁻¹ in single precision, by Giles (GPU Computing Gems, 2011, ch. 10).

    It uses log((1 − x)(1 + x)), where both factors are exact, in place of XLA's log1p(−x²): equally
    accurate, and faster.
    """
    w = -jnp.log((1 - x) * (1 + x))
    center, tail = w - np.float32(2.5), jnp.sqrt(w) - np.float32(3.0)
    p, q = jnp.float32(2.81022636e-08), jnp.float32(-0.000200214257)
    for c in (3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
              -0.00417768164, 0.246640727, 1.50140941):  # fmt: skip
        p = p * center + np.float32(c)
    for c in (0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
              0.00943887047, 1.00167406, 2.83297682):  # fmt: skip
        q = q * tail + np.float32(c)
    return jnp.where(w < 5, p, q) * x


def normals_like(
    key: Key, first_step, num_steps: int, like: PyTree, *, copies: int = 1
) -> list[Float[Array, " variate *chain"] | Float[Array, "copy ..."]]:
    """Return standard normals, `copies` for every parameter: an array for each leaf of `like`.

    A parameter's slots follow from its number among the raveled parameters. If `like` has a
    sharding for a leaf, the normals of a single step have the leaf's own shape after the axis of
    copies, so that every device makes the normals of the parameters that it stores.
    """
    leaves = jax.tree.leaves(like)
    widths, dtypes = [copies * size for size in tree.sizes(like)], [leaf.dtype for leaf in leaves]
    slots = list(itertools.accumulate(widths, initial=0))[:-1]
    shapes = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct)]
    is_spread = any(leaf.sharding is not None for leaf in shapes)
    if num_steps == 1 and key.ndim == 1 and is_spread:
        return [
            _in_place(key, first_step, slot, leaf, copies)
            for slot, leaf in zip(slots, leaves, strict=True)
        ]
    is_alike = len({_wide(dtype) for dtype in dtypes}) == 1
    if len(widths) > tree.MAX_UNROLLED_LEAVES and is_alike and not runtime.has_accelerator():
        counter = jnp.asarray(first_step).astype(jnp.uint32)
        return _cut(key, counter, num_steps, tuple(widths), tuple(dtypes))
    return [
        normals(key, first_step, num_steps, width, slot=slot, dtype=dtype)
        for slot, width, dtype in zip(slots, widths, dtypes, strict=True)
    ]


def _in_place(key: Key, first_step, slot: int, leaf: Any, copies: int) -> jax.Array:
    """Return the normals of one step, with axes (copy, …), each of which XLA can shard."""
    shape = (copies, *leaf.shape)
    number = jnp.full(shape, slot, jnp.uint32)
    for axis in range(len(shape)):
        along = lax.broadcasted_iota(jnp.uint32, shape, axis)
        number = number + along * np.uint32(math.prod(shape[axis + 1 :]))
    return normals_at(key, first_step, number, dtype=leaf.dtype)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _cut(
    key: Key, counter: jax.Array, num_steps: int, widths: tuple[int, ...], dtypes: tuple
) -> list[Float[Array, " variate *chain"]]:
    """Return the normals of all leaves from one call, so that one generator is compiled.

    XLA for CPUs compiles equal kernels once. For the slices to be equal, the offsets of leaves must
    not be constants: they come out of a branch with the normals, through which it does not fuse.
    """
    total, wide = sum(widths), _wide(dtypes[0])
    *starts, _ = itertools.accumulate(widths, initial=0)

    def draw():
        offsets = [jnp.asarray(start, jnp.uint32) for start in starts]
        return normals(key, counter, num_steps, total, dtype=wide), offsets

    whole, offsets = runtime.unfused(counter, draw)
    rows = whole.reshape(num_steps, total, *key.shape[1:])
    return [
        lax.dynamic_slice_in_dim(rows, offset, width, axis=1)
        .reshape(num_steps * width, *key.shape[1:])
        .astype(dtype)
        for offset, width, dtype in zip(offsets, widths, dtypes, strict=True)
    ]


def copy_of(noise: list[jax.Array], i, like: PyTree) -> PyTree:
    """Return the i-th copy of one step's `normals_like`, as a pytree like the parameters."""
    leaves, treedef = jax.tree.flatten(like)
    parts = []
    for drawn, leaf in zip(noise, leaves, strict=True):
        if drawn.ndim > 1:
            part = lax.dynamic_index_in_dim(drawn, i, keepdims=False)
        else:
            part = lax.dynamic_slice(drawn, (i * leaf.size,), (leaf.size,))
        parts.append(part.reshape(leaf.shape))
    return jax.tree.unflatten(treedef, parts)


def integers(
    key: Key, first_step, num_steps: int, width: int, bound
) -> Int32[Array, " variate *chain"]:
    """Return uniform integers below `bound`: the high half of a 64-bit word times the bound.

    The relative bias, at most bound / 2⁶⁴, cannot be detected; with 32-bit words it could.
    """
    return _scale(*_bits(key, first_step, num_steps, width), bound)


@jax.jit
def _scale(x: jax.Array, y: jax.Array, bound) -> jax.Array:
    """Return ⌊(2³² x + y) · bound / 2⁶⁴⌋, in 32-bit arithmetic."""
    high, low = _multiply(x, bound)
    carry_in, _ = _multiply(y, bound)
    return (high + (low + carry_in < low).astype(jnp.uint32)).astype(jnp.int32)


def _multiply(x: jax.Array, bound) -> tuple[jax.Array, jax.Array]:
    """Return both halves of the 64-bit product of two 32-bit numbers."""
    bound = jnp.asarray(bound).astype(jnp.uint32)
    low16, high16 = bound & np.uint32(0xFFFF), bound >> np.uint32(16)
    x_low, x_high = x & np.uint32(0xFFFF), x >> np.uint32(16)
    middle = x_high * low16 + ((x_low * low16) >> np.uint32(16))
    cross = x_low * high16 + (middle & np.uint32(0xFFFF))
    high = x_high * high16 + (middle >> np.uint32(16)) + (cross >> np.uint32(16))
    return high, x * bound


@jax.jit
def permuted(
    key: Key, number: Integer[Array, " row"], index: Int32[Array, "_ column"], bound
) -> Int32[Array, "row column *chain"]:
    """Return the image of `index` under the `number`-th random permutation of 0, …, bound − 1.

    It is a keyed bijection, computed for the given entries only: the swap-or-not shuffle (Hoang,
    Morris & Rogaway, 2012), which works for every bound in straight-line code, then a uniform
    rotation, so that each image is exactly uniform. `number` has one entry for each row of `index`.
    """
    row = jnp.asarray(number).astype(jnp.uint32)[:, None]
    counter = lax.iota(jnp.uint32, _SHUFFLE_ROUNDS + 1)[None]
    if key.ndim > 1:  # of several chains, whose axis is last
        key = jnp.expand_dims(key, (1, 2))
        row, counter, index = row[..., None], counter[..., None], index[..., None]
    x, salt = _threefry(key, row, counter)
    pivots = _scale(x, jnp.zeros_like(x), bound)
    image = jnp.broadcast_to(index, jnp.broadcast_shapes(index.shape, pivots[:, :1].shape))

    def swapped(i, image):
        pivot, salted = (lax.dynamic_slice_in_dim(each, i, 1, axis=1) for each in (pivots, salt))
        partner = pivot - image
        partner = jnp.where(partner < 0, partner + bound, partner)
        coin = _mix(jnp.maximum(image, partner).astype(jnp.uint32) ^ salted)
        return jnp.where(coin >> np.uint32(31) == 1, partner, image)

    # A loop on CPUs, where it is faster and quicker to compile; on accelerators each round of a
    # loop would be a launch.
    image = lax.fori_loop(0, _SHUFFLE_ROUNDS, swapped, image, unroll=runtime.has_accelerator())
    rotation = _scale(x[:, -1:], salt[:, -1:], bound)
    image = image - (bound - rotation)
    return jnp.where(image < 0, image + bound, image)


@jax.jit
def _mix(x: jax.Array) -> jax.Array:
    """Mix 32 bits so that each affects all others (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


# Gamma variates, by rejection.


def gammas(key: UInt32[Array, " word"], shape: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return gamma variates with rate 1, by Marsaglia & Tsang's rejection (2000).

    Attempt i takes row i of the key's variates; for shapes below 1, a variate of shape + 1 is
    scaled down. XLA for CPUs compiles it several times as fast as `jax.random.gamma`.
    """
    flat = shape.reshape(-1)
    d = jnp.where(flat < 1, flat + 1, flat) - 1 / 3
    width, dtype = flat.size, flat.dtype

    def attempt(state):
        i, accepted, is_done = state
        r = normals(key, i, 1, width, dtype=dtype) / (3 * jnp.sqrt(d))
        u = uniforms(key, i, 1, width, slot=width, dtype=dtype)
        is_inside = r > -1
        r = jnp.where(is_inside, r, 0)
        # x²/2 + d − dv + d log v with v = (1 + r)³, written so that large shapes lose no digits.
        log_ratio = 3 * d * (jnp.log1p(r) - r * (1 - r * (1 / 2 - r / 3)))
        is_good = is_inside & (jnp.log(u) < log_ratio)
        return i + 1, jnp.where(is_done, accepted, (1 + r) ** 3), is_done | is_good

    first = jnp.int32(1), jnp.ones_like(d), jnp.zeros(width, bool)
    v = lax.while_loop(lambda state: ~jnp.all(state[2]), attempt, first)[1]
    # 1 − u is never 0, so no variate is 0.
    below = (1 - uniforms(key, 0, 1, width, dtype=dtype)) ** (1 / flat)
    return (d * v * jnp.where(flat < 1, below, 1)).reshape(shape.shape)
