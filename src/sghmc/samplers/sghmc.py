"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

import dataclasses
from typing import ClassVar, Literal, Self

import jax
import jax.numpy as jnp

from sghmc.core import matrices, random, tree
from sghmc.core.checks import check_choice, check_count, check_setting, value_at, values_over
from sghmc.gradients import Oracle
from sghmc.gradients.noise import EmpiricalFisher
from sghmc.samplers import Traits
from sghmc.samplers.friction import FrictionKernel, FrictionSampler, SGHMCState
from sghmc.types import Normals, PyTree, Schedule, Step, StepInfo


class SGHMC(FrictionSampler):
    """Hamiltonian dynamics with friction, which balances the noise of a stochastic gradient.

        r ← r − ε ∇Ũ(θ) − ε C M⁻¹ r + N(0, 2ε(τC − B̂)),  B̂ = ½ε V̂
        θ ← θ + ε M⁻¹ r                                    (the new r)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `step_size` | ε | a number or a schedule |
    | `friction` | C | a number, a diagonal pytree, a dense matrix, or a schedule of numbers |
    | `mass` | M | a number, a diagonal pytree, a dense matrix |
    | `gradient_noise` | V̂ | covariance of the gradient estimate, taken off the injected noise: \
a number, a diagonal pytree, a dense matrix, or `EmpiricalFisher()`, which estimates it |
    | `temperature` | τ | samples exp(−U/τ): a number or a schedule |
    | `resample_every` | m | draw fresh momenta every m steps; None (the better choice): never |
    | `observe` | | draws are taken at the "end" of a step, or in the "middle" of its drift |

    Law: on U = ½θᵀAθ with V̂ right, covariance τ[A⁻¹ + ¼ε²(M − ½εC − ¼ε²A)⁻¹]: a bias of order ε².
    Half a drift earlier, θ − ½εM⁻¹r, it is exactly τA⁻¹ for every step size: observe="middle".
    Stable for M − ½εC − ¼ε²A ≻ 0. Needs τC ⪰ ½εV̂ throughout the schedule.

    Momenta are resampled half a drift before the end of a step, where position and momentum are
    independent, from N(0, τM(M − ½εC)⁻¹M), the momentum's law there up to order ε². Algorithm 2
    as printed, `sghmc.paper.literal.LiteralSGHMC`, is off by m/(m − 1), however small ε is.

    Chen, Fox & Guestrin, ICML 2014, Eq. 13 and 15.

    >>> import sghmc
    >>> sghmc.SGHMC(0.1, friction=3.0, gradient_noise=4.0).mass
    1.0
    """

    traits: ClassVar[Traits] = Traits(
        "ε²",
        "ε, C",
        "stochastic gradients; what `tune` chooses",
    )
    largest_decay: ClassVar[float] = 2.0

    resample_every: int | None = None
    observe: Literal["end", "middle"] = "end"

    def __check_init__(self):
        check_count(self.resample_every, "resample_every", or_none="")
        check_choice(self.observe, "observe", ("end", "middle"))

    @classmethod
    def from_learning_rate(
        cls,
        learning_rate: float | Schedule,
        momentum_decay: float | Schedule,
        gradient_noise: PyTree | EmpiricalFisher = 0.0,
        temperature: float | Schedule = 1.0,
        resample_every: int | None = None,
    ) -> "SGHMC":
        """Make SGHMC from the settings of SGD with momentum (Eq. 15).

            v ← v − η ∇Ũ(θ) − α v + N(0, 2η(τα − β̂)),  β̂ = ½η V̂
            θ ← θ + v

        Here η = ε²M⁻¹ is the learning rate and α = εM⁻¹C the momentum decay; the mass is 1. At
        temperature 0 this is SGD with momentum 1 − α. A rule of thumb: η = 0.1/N, α = 0.01 or 0.1.
        """
        check_setting(learning_rate, "learning_rate", positive=True)
        check_setting(momentum_decay, "momentum_decay")
        step_size = _compose(lambda eta: eta**0.5, learning_rate)
        # Where a schedule takes η to 0 nothing moves, and the friction does not matter.
        friction = _compose(
            lambda alpha, eta: alpha / (eta + (eta == 0)) ** 0.5, momentum_decay, learning_rate
        )
        return cls(step_size, friction, 1.0, gradient_noise, temperature, resample_every)

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGHMCKernel":
        friction, mass, _ = self._matrices(like)
        rate = matrices.product(mass.inverse(), friction, tree.sizes(like))
        unit = float(values_over(self.step_size, num_steps, "step_size").max())
        return SGHMCKernel(
            **self._prepared(like, num_steps),
            decay=matrices.finish(matrices.scaled(rate, unit), tree.float_type(like)),
            resample_every=self.resample_every,
            observe=self.observe,
        )


def _compose(function, *settings):
    """Apply a function to settings: the result is a number if they all are, else a schedule."""
    if not any(callable(setting) for setting in settings):
        return float(function(*(float(setting) for setting in settings)))
    return lambda t: function(*(jnp.asarray(value_at(setting, t)) for setting in settings))


class SGHMCKernel(FrictionKernel):
    """The step of Eq. 15 with matrices as settings.

    With u the unit (the largest step size), c_t the friction's schedule and a_t = ε_t c_t,

        v ← v − (a_t/u) uM⁻¹C v − (ε_t/u) u²M⁻¹∇Ũ(θ) + uM⁻¹ N(0, 2τa_t C − ε_t² V̂)
        θ ← θ + (ε_t/u) v

    Constant settings make ε_t/u = a_t/u = 1, and the update that of SGD with momentum, to the bit.
    """

    largest_decay: ClassVar[float] = SGHMC.largest_decay

    decay: matrices.Matrix
    resample_every: int | None
    observe: str

    def draw(self, key: random.Key, first_step: Step, num_steps: int, like: PyTree) -> Normals:
        copies = 1 if self.resample_every is None else 2
        return random.normals_like(key, first_step, num_steps, like, copies=copies)

    def step(
        self, t: Step, noise: Normals, state: SGHMCState, oracle: Oracle
    ) -> tuple[SGHMCState, StepInfo]:
        if self.resample_every is not None:
            state = self._resample(t, noise, state)
        velocity, potential = self._kick(t, noise, state.position, state.velocity, oracle)
        position = self._drift(t, state.position, velocity)
        return SGHMCState(position, velocity), StepInfo(potential)

    def _kick(
        self, t: Step, noise: Normals, position: PyTree, velocity: PyTree, oracle: Oracle
    ) -> tuple[PyTree, jax.Array]:
        potential, grad = oracle(0, position)
        drag = self._share(t) * value_at(self.friction_scale, t)
        slowed = tree.add_scaled(velocity, -drag, self.decay @ velocity)
        injected = self._injected(t, random.copy_of(noise, 0, position))
        return tree.add_scaled(self._kicked(t, slowed, grad), 1, injected), potential

    def _resample(self, t: Step, noise: Normals, state: SGHMCState) -> SGHMCState:
        normals = random.copy_of(noise, 1, state.position)
        assert self.resample_every is not None
        is_due = (t % self.resample_every == 0) & (t > 0)
        velocity = self._fresh(t, normals, self._decay(t) / 2)
        middle = self.mid_drift(jnp.maximum(t - 1, 0), state)
        fresh = SGHMCState(self._drift(t, middle, velocity, 0.5), velocity)
        return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), fresh, state)

    def _raised(self, noise: matrices.Pencil, drag: matrices.Pencil) -> Self:
        return dataclasses.replace(super()._raised(noise, drag), decay=noise.outer_first())

    def draw_from(self, t: Step, state: SGHMCState) -> PyTree:
        return self.mid_drift(t, state) if self.observe == "middle" else state.position

    def kinetic_temperature(self, t: Step, state: SGHMCState) -> jax.Array:
        """Return rᵀ(M⁻¹ − ½εM⁻¹CM⁻¹)r/d, whose mean is τ: r is hotter than τM by that factor."""
        energy = self.drag.quadratic(1, self._decay(t) / 2, state.velocity)
        return energy / (self.unit**2 * tree.size(state.velocity))
