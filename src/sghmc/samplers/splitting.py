"""Splitting integrators: the friction solved exactly, between kicks and drifts."""

from typing import ClassVar

import jax.numpy as jnp

from sghmc.core import random, tree
from sghmc.samplers.base import Traits
from sghmc.samplers.friction import FrictionKernel, FrictionSampler, SGHMCState
from sghmc.samplers.settings import value_at
from sghmc.types import PyTree, StepInfo


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
    """With x = a_t M⁻¹C, the friction part O is, in units of the velocity,

    v ← e^{−x} v + e^{−½x} uM⁻¹ N(0, 2τa_t C − ε_t² V̂) + u N(0, τ(1 − e^{−2x} − 2x e^{−x}) M⁻¹):

    what V̂ is taken off is the noise of SGHMC, so that one factorization serves every step of a
    schedule; the last term, of order ε³, is what makes the variance without V̂ τ(1 − e^{−2x})M⁻¹.
    """

    subtracts: bool

    def draw(self, key, first_step, num_steps, like):
        return random.normals_like(key, first_step, num_steps, like, copies=1 + self.subtracts)

    def _damped(self, t, noise, velocity):
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

    def _heated(self, t, velocity, share, normals):
        """N(0, τ f(M⁻¹C) M⁻¹) added, f the `share`; where rounding makes f negative it is 0."""
        scale = self.unit * jnp.sqrt(value_at(self.temperature, t))
        heat = self.drag.spread(lambda rate: jnp.sqrt(jnp.maximum(share(rate), 0)), normals)
        return tree.add_scaled(velocity, scale, heat)

    def kinetic_temperature(self, t, state):
        return self.drag.quadratic(1, 0, state.velocity) / (
            self.unit**2 * tree.size(state.velocity)
        )


class BAOABKernel(SplittingKernel):
    def step(self, t, noise, state, oracle):
        potential, grad = oracle(0, state.position)
        velocity = self._kicked(t, state.velocity, grad)
        position = self._drift(t, state.position, velocity, 0.5)
        velocity = self._damped(t, noise, velocity)
        return SGHMCState(self._drift(t, position, velocity, 0.5), velocity), StepInfo(potential)


class OBABOKernel(SplittingKernel):
    def step(self, t, noise, state, oracle):
        potential, grad = oracle(0, state.position)
        velocity = self._damped(t, noise, self._kicked(t, state.velocity, grad, 0.5))
        velocity = self._kicked(t, velocity, grad, 0.5)
        return SGHMCState(self._drift(t, state.position, velocity), velocity), StepInfo(potential)
