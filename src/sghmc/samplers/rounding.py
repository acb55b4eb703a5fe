"""Stochastic rounding for bfloat16 parameters, so that steps below half an ulp are not lost."""

import math
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, BFloat16, Float32, UInt32

from sghmc.core import random, tree
from sghmc.gradients import Oracle
from sghmc.samplers import Kernel, Sampler, Traits
from sghmc.samplers.langevin import SGLD
from sghmc.samplers.sghmc import SGHMC
from sghmc.samplers.wrappers import KernelWrapper, SamplerWrapper
from sghmc.types import Normals, PyTree, Step, StepInfo

_FIRST_SLOT = 1 << 31
"""First slot of the random bits, after the slots of all normals of a step."""
_LARGEST_BITS, _INFINITY_BITS, _NAN_BITS = map(np.uint32, (0x7F7F0000, 0x7F800000, 0x7FC00000))
"""The bits, as float32, of the largest bfloat16, infinity and NaN."""


class StochasticRounding(SamplerWrapper):
    """A sampler of bfloat16 parameters that steps in float32 and rounds up or down at random.

    A number between two neighbours of bfloat16, at a share f of the way, becomes the upper one with
    probability f: right on average. Rounded to the nearest, as arithmetic does it, a step below
    half of the last digit would be lost. Momenta stay in float32, and so does all arithmetic of the
    sampler; the model gets bfloat16. Arrays of other types are left alone.

    | field | meaning |
    | --- | --- |
    | `sampler` | `SGHMC(…)` or `SGLD(…)`, whose gradients are taken where a step begins |

    Law: that of `sampler`, a little wider. Each step adds noise of variance u² E[f(1 − f)] to a
    parameter whose last digit is u: u²/6 where a step moves it by u or more. For SGHMC with small
    steps that adds (1/(2γσ²) + γ/(2τ)) u²/(6ε) to 1, relative to a variance σ² (mass 1,
    friction γ), for SGLD u²/(12ετ). `health()` warns where that matters.

    >>> import sghmc
    >>> sghmc.StochasticRounding(sghmc.SGHMC(0.1, friction=1.0)).name
    'StochasticRounding(SGHMC)'
    """

    traits: ClassVar[Traits] = Traits(
        "that of its sampler, and variance from the last digit",
        "as its sampler",
        "parameters in bfloat16: half the memory",
    )

    sampler: Sampler

    def __check_init__(self):
        sampler = self.sampler
        if type(sampler) not in (SGHMC, SGLD):  # a subclass may take its gradient elsewhere
            raise TypeError(
                f"StochasticRounding needs SGHMC(…) or SGLD(…), whose gradients are taken where "
                f"parameters have been rounded, not {sampler!r}."
            )

    def prepare(self, like: PyTree, num_steps: int = 1) -> "RoundingKernel":
        if 2 * tree.size(like) > _FIRST_SLOT:
            raise ValueError(
                f"StochasticRounding numbers the variates of a step by 32 bits, which "
                f"{tree.size(like):,} parameters exceed: hold some of them, sample(…, trainable=)."
            )
        return RoundingKernel(self.sampler.prepare(_widened(like), num_steps))


RoundingNoise: TypeAlias = tuple[Any, list[jax.Array]]
"""The inner kernel's variates, and a random word for every bfloat16 number."""


class RoundingKernel(KernelWrapper):
    """Step the inner kernel in float32, and round its position."""

    inner: Kernel

    def init(self, normals: Normals, position: PyTree) -> Any:
        state = self.inner.init([_wide(leaf) for leaf in normals], _widened(position))
        return state._replace(position=position)

    def draw(
        self, key: random.Key, first_step: Step, num_steps: int, like: PyTree
    ) -> RoundingNoise:
        """Return the inner kernel's variates, and a random word for every bfloat16 number."""
        leaves, bits, slot = jax.tree.leaves(like), [], _FIRST_SLOT
        for leaf in leaves:
            size = math.prod(leaf.shape)
            if leaf.dtype == jnp.bfloat16:
                bits.append(random.bits(key, first_step, num_steps, size, slot=slot))
            slot += size
        return self.inner.draw(key, first_step, num_steps, _widened(like)), bits

    def step(
        self, t: Step, noise: RoundingNoise, state: Any, oracle: Oracle
    ) -> tuple[Any, StepInfo]:
        own, bits = noise
        narrow = jax.tree.map(lambda leaf: leaf.dtype, state.position)
        widened_oracle = oracle.through(
            lambda wide: jax.tree.map(lambda leaf, dtype: leaf.astype(dtype), wide, narrow),
            _widened,
        )
        wide = state._replace(position=_widened(state.position))
        moved, info = self.inner.step(t, own, wide, widened_oracle)
        return moved._replace(position=_rounded(moved.position, state.position, bits)), info


def _wide(leaf: Any) -> Any:
    if leaf.dtype != jnp.bfloat16:
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=leaf.sharding)
    return leaf.astype(jnp.float32)


def _widened(position: PyTree) -> PyTree:
    return jax.tree.map(_wide, position)


def _rounded(wide: PyTree, like: PyTree, bits: list[UInt32[Array, " number"]]) -> PyTree:
    words, leaves = iter(bits), []
    for leaf, old in zip(*map(jax.tree.leaves, (wide, like)), strict=True):
        is_rounded = old.dtype == jnp.bfloat16
        leaves.append(
            round_up_or_down(leaf, next(words).reshape(leaf.shape)) if is_rounded else leaf
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def round_up_or_down(
    x: Float32[Array, "*shape"], bits: UInt32[Array, "*shape"]
) -> BFloat16[Array, "*shape"]:
    """Round x to one of its two neighbours so that it is right on average.

    A float32 is a bfloat16 and 16 further binary digits: a random number below 2¹⁶ (the upper half
    of a word) is added to these, whatever the sign, and they are cut off. Finite numbers stay at
    most the largest bfloat16.
    """
    word = lax.bitcast_convert_type(x, jnp.uint32)
    size, sign = word & np.uint32(0x7FFFFFFF), word & np.uint32(0x80000000)
    # In integers throughout: floating-point arithmetic may flush subnormal numbers to 0.
    moved = jnp.minimum(size + (bits >> np.uint32(16)), _LARGEST_BITS)
    not_finite = jnp.where(size > _INFINITY_BITS, _NAN_BITS, _INFINITY_BITS)
    rounded = sign | jnp.where(size < _INFINITY_BITS, moved, not_finite)
    return lax.bitcast_convert_type((rounded >> np.uint32(16)).astype(jnp.uint16), jnp.bfloat16)


def last_digit(x: np.ndarray | np.float64) -> np.ndarray | np.float64:
    """Return u, the distance between neighbours in bfloat16 at x."""
    return np.ldexp(1.0, np.maximum(np.frexp(np.asarray(x, np.float64))[1], -125) - 8)


def rounding_variance(move: float, digits: np.ndarray | np.float64) -> np.ndarray | np.float64:
    """Return u² E[f(1 − f)], the variance that rounding steps N(0, move²) adds, for each digit u.

    f(1 − f) = 1/6 − Σ cos(2πnf)/(πn)², and of a normal step of s digits E cos = exp(−2π²n²s²).
    """
    known, which = np.unique(digits, return_inverse=True)
    n = np.pi * np.arange(1, 2001)
    waves = [np.sum(np.exp(-2 * (n * move / digit) ** 2) / n**2) for digit in known]
    return (known**2 * np.maximum(1 / 6 - np.array(waves), 0))[which].reshape(np.shape(digits))
