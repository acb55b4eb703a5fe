"""UBU: everything but the gradient solved exactly, in halves around the kick."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from sghmc.core import random, tree
from sghmc.samplers.base import Traits
from sghmc.samplers.friction import FrictionKernel, FrictionSampler, SGHMCState
from sghmc.samplers.settings import value_at
from sghmc.types import PyTree, StepInfo

_FRACTION_DEPTH = 17
"""Last odd number of the continued fraction of tanh y: enough for double precision below 1."""


class UBU(FrictionSampler):
    """SGHMC by the splitting free motion, kick, free motion, with one gradient in the middle.

        (θ, r) ← U_{ε/2}(θ, r)
        r ← r − ε ∇Ũ(θ)                                                       (B)
        (θ, r) ← U_{ε/2}(θ, r)

    U_h is the exact solution of dθ = M⁻¹r dt, dr = −CM⁻¹r dt + N(0, 2τC dt) over a time h: with
    x = hCM⁻¹ and v = M⁻¹r, functions of x applied to vectors,

        θ ← θ + h(1 − e^{−x})/x v + ξ_θ,    Cov ξ_θ      = τh²(2x − 3 + 4e^{−x} − e^{−2x})/x² M⁻¹
        v ← e^{−x} v + ξ_v,                 Cov ξ_v      = τ(1 − e^{−2x}) M⁻¹
                                            Cov(ξ_θ,ξ_v) = τh(1 − e^{−x})²/x M⁻¹

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | number or schedule |
    | `friction`, `mass`, `temperature` | C, M, τ | as in `SGHMC` |
    | `gradient_noise` | V̂ | nothing but 0: noise that is to be taken off is for `BAOAB`, `SGHMC` |

    Law: on U = ½θᵀAθ with an exact gradient, covariance τ(A⁻¹ − ε²M⁻¹/6) of θ up to order ε³, where
    `BAOAB` has no bias. With `Minibatch(n, "palindrome")` the bias stays of order ε² with one batch
    a step: `theory.minibatch_law`. Independent batches heat UBU as they heat the others, by the
    share ½εVC⁻¹/τ of the variance. Stable for M ≻ ¼ε²A at least, with friction for larger steps.

    Sanz-Serna & Zygalakis, Journal of Machine Learning Research 2021; Paulin, Whalley, Chada &
    Leimkuhler, 2024.

    >>> import sghmc
    >>> from sghmc import theory
    >>> sampler = sghmc.UBU(0.3, friction=2.0)
    >>> theory.stationary_law(sampler, precision=1.0).covariance.round(4).tolist()
    [[0.9851]]
    """

    traits: ClassVar[Traits] = Traits(
        "ε²",
        "ε, C",
        'one batch a step in palindromes, `Minibatch(n, "palindrome")`',
    )

    def __check_init__(self):
        if self.subtracts_gradient_noise:
            raise ValueError(
                f"UBU takes no gradient noise off what it injects, but gradient_noise is "
                f"{self.gradient_noise!r}: use BAOAB or SGHMC for that, or leave it out, with "
                f'Minibatch(n, "palindrome") or ControlVariate for gradients.'
            )

    def prepare(self, like: PyTree, num_steps: int = 1) -> "UBUKernel":
        return UBUKernel(**self._prepared(like, num_steps))


class UBUKernel(FrictionKernel):
    """ξ_v = √τ (1 − e^{−2x})^½ n₁ and ξ_θ = h√τ (φ(x) tanh(x/2)^½ n₁ + D(x/2)^½ n₂), times M^{−½},

    φ(x) = (1 − e^{−x})/x, D(y) = (y − tanh y)/y²: the Cholesky factor of their covariance.
    """

    @property
    def moves_before_gradients(self):
        return True

    def draw(self, key, first_step, num_steps, like):
        return random.normals_like(key, first_step, num_steps, like, copies=4)

    def step(self, t, noise, state, oracle):
        position, velocity = self._freed(t, noise, 0, state)
        potential, grad = oracle(0, position)
        kicked = SGHMCState(position, self._kicked(t, velocity, grad))
        return self._freed(t, noise, 2, kicked), StepInfo(potential)

    def _freed(self, t, noise, first, state):
        """U over half a step, with the normals `first` and `first` + 1."""
        half = self._decay(t) / 2
        of_both, of_position = (random.copy_of(noise, first + i, state.position) for i in (0, 1))
        scale = self.unit * jnp.sqrt(value_at(self.temperature, t))
        drift = tree.add_scaled(
            self.drag.apply(lambda rate: _mean_decay(half * rate), state.velocity),
            scale,
            tree.add_scaled(
                self.drag.spread(
                    lambda rate: _mean_decay(half * rate) * jnp.sqrt(jnp.tanh(half * rate / 2)),
                    of_both,
                ),
                1,
                self.drag.spread(lambda rate: jnp.sqrt(_tanh_gap(half * rate / 2)), of_position),
            ),
        )
        kept = self.drag.apply(lambda rate: jnp.exp(-half * rate), state.velocity)
        heat = self.drag.spread(lambda rate: jnp.sqrt(-jnp.expm1(-2 * half * rate)), of_both)
        return SGHMCState(
            self._drift(t, state.position, drift, 0.5), tree.add_scaled(kept, scale, heat)
        )

    def kinetic_temperature(self, t, state):
        return self.drag.quadratic(1, 0, state.velocity) / (
            self.unit**2 * tree.size(state.velocity)
        )

    def middle(self, t, state):
        """Between two kicks: where position and momentum are independent up to order ε²."""
        return state.position

    def reheated(self, t, state, ratio):
        factor = jnp.sqrt(ratio)
        return SGHMCState(
            state.position, jax.tree.map(lambda v: (factor * v).astype(v.dtype), state.velocity)
        )


def _mean_decay(x: jax.Array) -> jax.Array:
    """(1 − e^{−x})/x, 1 at 0."""
    return jnp.where(x == 0, 1, -jnp.expm1(-x) / jnp.where(x == 0, 1, x))


def _tanh_gap(y: jax.Array) -> jax.Array:
    """(y − tanh y)/y², to all digits: y/3 for small y, where the difference would lose them.

    Below 1 by tanh y = y/(1 + y²/(3 + y²/(5 + …))), in which nothing is subtracted.
    """
    small, large = jnp.minimum(y, 1), jnp.maximum(y, 1)
    square = small**2
    fraction = jnp.full_like(square, _FRACTION_DEPTH)
    for odd in range(_FRACTION_DEPTH - 2, 2, -2):
        fraction = odd + square / fraction
    return jnp.where(y < 1, small / (fraction + square), (large - jnp.tanh(large)) / large**2)
