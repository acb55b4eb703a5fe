"""Splitting integrators, which solve the friction exactly between kicks and drifts."""

from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from sghmc.core import random, tree
from sghmc.core.checks import value_at
from sghmc.gradients import Oracle
from sghmc.samplers import Traits
from sghmc.samplers.friction import FrictionKernel, FrictionSampler, SGHMCState
from sghmc.types import Normals, PyTree, Step, StepInfo


class BAOAB(FrictionSampler):
    """SGHMC by the splitting kick, half drift, friction, half drift: unbiased on a Gaussian.

        r ← r − ε ∇Ũ(θ)                                                       (B, a half and a half)
        θ ← θ + ½ε M⁻¹ r                                                      (A)
        r ← e^{−εCM⁻¹} r + N(0, τ(M − e^{−εCM⁻¹} M e^{−εM⁻¹C}) − ε² Ŵ)        (O, exact)
        θ ← θ + ½ε M⁻¹ r                                                      (A, the new r)

    with Ŵ = e^{−½εCM⁻¹} V̂ e^{−½εM⁻¹C}. The two half kicks that meet between steps are one kick of
    one gradient: a step costs one, and r is what it is before that kick.

    The fields `step_size` (ε), `friction` (C), `mass` (M), `gradient_noise` (V̂) and `temperature`
    (τ) are those of `SGHMC`.

    Law: on U = ½θᵀAθ with an exact gradient, covariance τA⁻¹ of θ for every step size, τM of r, and
    ½ετ between them; on other targets a bias of order ε². Gradient noise that V̂ describes adds a
    bias of order ε³ (another power of e^{−εCM⁻¹} in Ŵ would make it ε²), in slow directions a share
    ¼ε²VM⁻¹ tanh(½εCM⁻¹)/τ of the variance: 23 % where all noise is the gradient's and εC = M.
    There take SGHMC, which has no such bias. Stable for M ≻ ¼ε²A, at every friction. Needs
    τC ⪰ ½εV̂ throughout the schedule, as SGHMC does.

    Leimkuhler & Matthews, Applied Mathematics Research eXpress 2013. The correction is ours.

    >>> import sghmc
    >>> from sghmc import theory
    >>> sampler = sghmc.BAOAB(1.2, friction=2.0, temperature=0.5)
    >>> theory.stationary_law(sampler, precision=[1.0, 2.0]).covariance.diagonal().round(9).tolist()
    [0.5, 0.25]
    """

    traits: ClassVar[Traits] = Traits(
        "ε², on a Gaussian 0",
        "ε, C",
        "gradients with little noise: less bias than SGHMC at the same cost",
    )

    def prepare(self, like: PyTree, num_steps: int = 1) -> "BAOABKernel":
        parts = self._prepared(like, num_steps)
        return BAOABKernel(**parts, subtracts=self.subtracts_gradient_noise)


class OBABO(FrictionSampler):
    """SGHMC by the splitting half kick, friction, half kick, drift.

        r ← r − ½ε ∇Ũ(θ)                                                      (B)
        r ← e^{−εCM⁻¹} r + N(0, τ(M − e^{−εCM⁻¹} M e^{−εM⁻¹C}) − ε² Ŵ)        (O, a half and a half)
        r ← r − ½ε ∇Ũ(θ)                                                      (B, the same gradient)
        θ ← θ + ε M⁻¹ r                                                       (A)

    Fields, Ŵ and what V̂ needs are those of `BAOAB`. At e^{−εCM⁻¹} = 0 this is HMC of one leapfrog
    step without accept step, at C = 0 a leapfrog trajectory without end.

    Law: on U = ½θᵀAθ with an exact gradient, covariance τ(A − ¼ε²AM⁻¹A)⁻¹ of θ at every friction: a
    bias of order ε². Stable for M ≻ ¼ε²A.

    Bussi & Parrinello, Physical Review E 2007. Prefer `BAOAB`, which costs the same.

    >>> import sghmc
    >>> from sghmc import theory
    >>> sampler = sghmc.OBABO(1.0, friction=2.0)
    >>> theory.stationary_law(sampler, precision=1.0).covariance.round(9).tolist()  # 1/(1 − ¼ε²)
    [[1.333333333]]
    """

    traits: ClassVar[Traits] = Traits("ε²", "ε, C", "comparison; `BAOAB` is better")

    def prepare(self, like: PyTree, num_steps: int = 1) -> "OBABOKernel":
        parts = self._prepared(like, num_steps)
        return OBABOKernel(**parts, subtracts=self.subtracts_gradient_noise)


class SplittingKernel(FrictionKernel):
    """The friction part O of `BAOAB` and `OBABO`, in units of the velocity.

    With x = a_t M⁻¹C,

        v ← e^{−x} v + e^{−½x} uM⁻¹ N(0, 2τa_t C − ε_t² V̂) + u N(0, τ(1 − e^{−2x} − 2x e^{−x}) M⁻¹)

    V̂ is subtracted from the noise of SGHMC, so that one factorization serves every step of a
    schedule. The last term, of order ε³, makes the variance for V̂ = 0 the exact τ(1 − e^{−2x})M⁻¹.
    """

    subtracts: bool

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Normals:
        return random.normals_like(key, first_step, num_steps, like, copies=1 + self.subtracts)

    def _damped(self, t: Step, noise: Normals, velocity: PyTree) -> PyTree:
        a = self._decay(t)
        first = random.copy_of(noise, 0, velocity)
        kept = self.drag.apply(lambda rate: jnp.exp(-a * rate), velocity)
        if not self.subtracts:
            return self._heated(t, kept, lambda rate: -jnp.expm1(-2 * a * rate), first)
        injected = self.drag.apply(lambda rate: jnp.exp(-a * rate / 2), self._injected(t, first))
        return self._heated(
            t,
            tree.add_scaled(kept, 1, injected),
            lambda rate: -jnp.expm1(-2 * a * rate) - 2 * a * rate * jnp.exp(-a * rate),
            random.copy_of(noise, 1, velocity),
        )

    def _heated(
        self, t: Step, velocity: PyTree, share: Callable[[jax.Array], jax.Array], normals: PyTree
    ) -> PyTree:
        """Add N(0, τ f(M⁻¹C) M⁻¹) with f = `share`, which is clipped at 0 against rounding."""
        scale = self.unit * jnp.sqrt(value_at(self.temperature, t))
        heat = self.drag.spread(lambda rate: jnp.sqrt(jnp.maximum(share(rate), 0)), normals)
        return tree.add_scaled(velocity, scale, heat)

    def kinetic_temperature(self, t: Step, state: SGHMCState) -> jax.Array:
        return self.drag.quadratic(1, 0, state.velocity) / (
            self.unit**2 * tree.size(state.velocity)
        )


class BAOABKernel(SplittingKernel):
    def step(
        self, t: Step, noise: Normals, state: SGHMCState, oracle: Oracle
    ) -> tuple[SGHMCState, StepInfo]:
        potential, grad = oracle(0, state.position)
        velocity = self._kicked(t, state.velocity, grad)
        position = self._drift(t, state.position, velocity, 0.5)
        velocity = self._damped(t, noise, velocity)
        return SGHMCState(self._drift(t, position, velocity, 0.5), velocity), StepInfo(potential)


class OBABOKernel(SplittingKernel):
    def step(
        self, t: Step, noise: Normals, state: SGHMCState, oracle: Oracle
    ) -> tuple[SGHMCState, StepInfo]:
        potential, grad = oracle(0, state.position)
        velocity = self._damped(t, noise, self._kicked(t, state.velocity, grad, 0.5))
        velocity = self._kicked(t, velocity, grad, 0.5)
        return SGHMCState(self._drift(t, state.position, velocity), velocity), StepInfo(potential)


_LAST_ODD_TERM = 17
"""Last odd number in the continued fraction of tanh y: double precision for y below 1."""


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
    | `gradient_noise` | V̂ | only 0: to subtract gradient noise take `BAOAB` or `SGHMC` |

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
                f"UBU cannot subtract gradient noise from what it injects, but gradient_noise is "
                f"{self.gradient_noise!r}: use BAOAB or SGHMC for that, or leave it out, with "
                f'Minibatch(n, "palindrome") or ControlVariate for gradients.'
            )

    def prepare(self, like: PyTree, num_steps: int = 1) -> "UBUKernel":
        return UBUKernel(**self._prepared(like, num_steps))


class UBUKernel(FrictionKernel):
    """The steps of `UBU`, whose noises come from normals n₁ and n₂ by a Cholesky factor.

    ξ_v = √τ (1 − e^{−2x})^½ n₁ and ξ_θ = h√τ (φ(x) tanh(x/2)^½ n₁ + D(x/2)^½ n₂), times M^{−½},
    with φ(x) = (1 − e^{−x})/x and D(y) = (y − tanh y)/y².
    """

    @property
    def gradient_use(self) -> Literal["start", "slope", "inside"]:
        return "inside"

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Normals:
        return random.normals_like(key, first_step, num_steps, like, copies=4)

    def step(
        self, t: Step, noise: Normals, state: SGHMCState, oracle: Oracle
    ) -> tuple[SGHMCState, StepInfo]:
        position, velocity = self._freed(t, noise, 0, state)
        potential, grad = oracle(0, position)
        kicked = SGHMCState(position, self._kicked(t, velocity, grad))
        return self._freed(t, noise, 2, kicked), StepInfo(potential)

    def _freed(self, t: Step, noise: Normals, first: int, state: SGHMCState) -> SGHMCState:
        """Apply U over half a step, with the normals `first` and `first` + 1."""
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

    def kinetic_temperature(self, t: Step, state: SGHMCState) -> jax.Array:
        return self.drag.quadratic(1, 0, state.velocity) / (
            self.unit**2 * tree.size(state.velocity)
        )

    def mid_drift(self, t: Step, state: SGHMCState) -> PyTree:
        """Return the position, which between two kicks is independent of r up to order ε²."""
        return state.position

    def rescale_momenta(self, t: Step, state: SGHMCState, ratio: jax.Array) -> SGHMCState:
        factor = jnp.sqrt(ratio)
        return SGHMCState(
            state.position, jax.tree.map(lambda v: (factor * v).astype(v.dtype), state.velocity)
        )


def _mean_decay(x: jax.Array) -> jax.Array:
    """Return (1 − e^{−x})/x, which is 1 at 0."""
    return jnp.where(x == 0, 1, -jnp.expm1(-x) / jnp.where(x == 0, 1, x))


def _tanh_gap(y: jax.Array) -> jax.Array:
    """Return (y − tanh y)/y² to all digits, also near 0, where it is y/3.

    Below 1 it uses tanh y = y/(1 + y²/(3 + y²/(5 + …))), in which nothing is subtracted.
    """
    small, large = jnp.minimum(y, 1), jnp.maximum(y, 1)
    square = small**2
    fraction = jnp.full_like(square, _LAST_ODD_TERM)
    for odd in range(_LAST_ODD_TERM - 2, 2, -2):
        fraction = odd + square / fraction
    return jnp.where(y < 1, small / (fraction + square), (large - jnp.tanh(large)) / large**2)
