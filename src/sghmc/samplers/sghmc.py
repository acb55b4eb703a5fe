"""Stochastic gradient Hamiltonian Monte Carlo with friction."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import matrices, random, tree
from sghmc.noise import EmpiricalFisher
from sghmc.samplers.base import (
    Kernel,
    NoiseEstimate,
    NoiseRoom,
    Sampler,
    array_setting,
    check_gradient_noise,
    check_setting,
    given_fisher,
    is_nonzero,
    parse_gradient_noise,
    rescale,
    value_at,
    values_over,
)
from sghmc.types import PyTree, Schedule, StepInfo


class SGHMC(Sampler):
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
    | `resampling` | | "repaired", or "literal": Alg. 2 as printed, for its figures only |
    | `observe` | | draws are taken at the "end" of a step, or in the "middle" of its drift |

    Law: on U = ½θᵀAθ with V̂ right, covariance τ[A⁻¹ + ¼ε²(M − ½εC − ¼ε²A)⁻¹]: a bias of order ε².
    Half a drift earlier, θ − ½εM⁻¹r, it is exactly τA⁻¹ for every step size: observe="middle".
    Stable for M − ½εC − ¼ε²A ≻ 0. Needs τC ⪰ ½εV̂ throughout the schedule.

    "repaired" resampling happens half a drift before the end of a step, where position and momentum
    are independent, from N(0, τM(M − ½εC)⁻¹M), the momentum's law there up to order ε². The literal
    form moves θ first and draws N(0, τM): the variance is off by m/(m − 1), however small ε is.

    Chen, Fox & Guestrin, ICML 2014, Eq. 13 and 15.

    >>> import sghmc
    >>> sghmc.SGHMC(0.1, friction=3.0, gradient_noise=4.0).mass
    1.0
    """

    step_size: float | Schedule
    friction: PyTree | Schedule
    mass: PyTree = 1.0
    gradient_noise: PyTree | EmpiricalFisher = 0.0
    temperature: float | Schedule = 1.0
    resample_every: int | None = None
    resampling: Literal["repaired", "literal"] = "repaired"
    observe: Literal["end", "middle"] = "end"

    def __check_init__(self):
        check_setting(self.step_size, "step_size", positive=True)
        if not callable(self.friction):
            matrices.check(self.friction, "friction")
        check_setting(self.temperature, "temperature")
        matrices.check(self.mass, "mass")
        check_gradient_noise(self.gradient_noise)
        every = self.resample_every
        if every is not None and (not isinstance(every, int | np.integer) or every < 1):
            raise ValueError(
                f"resample_every must be None or a whole number from 1, but is {every!r}."
            )
        if self.resampling not in ("repaired", "literal"):
            raise ValueError(
                f'resampling must be "repaired" or "literal", but is {self.resampling!r}.'
            )
        if self.observe not in ("end", "middle"):
            raise ValueError(f'observe must be "end" or "middle", but is {self.observe!r}.')

    @classmethod
    def from_learning_rate(
        cls,
        learning_rate: float | Schedule,
        momentum_decay: float | Schedule,
        gradient_noise: PyTree | EmpiricalFisher = 0.0,
        temperature: float | Schedule = 1.0,
        resample_every: int | None = None,
        resampling: Literal["repaired", "literal"] = "repaired",
    ) -> "SGHMC":
        """The same sampler in the terms of SGD with momentum (Eq. 15).

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
        return cls(
            step_size, friction, 1.0, gradient_noise, temperature, resample_every, resampling
        )

    @property
    def subtracts_gradient_noise(self) -> bool:
        return is_nonzero(self.gradient_noise)

    def prepare(self, like: PyTree, num_steps: int = 1) -> "SGHMCKernel":
        sizes, dtype = tree.sizes(like), tree.float_type(like)
        is_scheduled, fisher = callable(self.friction), given_fisher(self.gradient_noise)
        friction = matrices.parse(
            1.0 if is_scheduled else self.friction, like, "friction", definite=fisher is not None
        )
        mass = matrices.parse(self.mass, like, "mass", definite=True)
        gradient_noise = parse_gradient_noise(self.gradient_noise, like)
        if fisher and not matrices.are_diagonal(friction, mass, gradient_noise):
            friction = friction.dense(sizes)  # what its estimate may make of it
        step_sizes = values_over(self.step_size, num_steps, "step_size")
        decays = step_sizes * (
            values_over(self.friction, num_steps, "friction") if is_scheduled else 1.0
        )
        unit = float(step_sizes.max())
        drag = matrices.pencil(mass, friction, sizes, "mass")
        noise = matrices.pencil(
            friction,
            gradient_noise,
            sizes,
            "friction",
            outer=matrices.scaled(mass.inverse(), unit),
        )
        _check_decay(drag.largest * decays.max())
        _check_noise(
            noise.largest * step_sizes**2,
            2 * decays * values_over(self.temperature, num_steps, "temperature"),
        )
        noise, drag = matrices.finish(noise, dtype), matrices.finish(drag, dtype)
        return SGHMCKernel(
            step_size=array_setting(self.step_size, dtype),
            friction_scale=array_setting(self.friction if is_scheduled else 1.0, dtype),
            temperature=array_setting(self.temperature, dtype),
            unit=jnp.asarray(unit, dtype),
            learning_rate=matrices.finish(matrices.scaled(mass.inverse(), unit**2), dtype),
            decay=matrices.finish(
                matrices.scaled(matrices.product(mass.inverse(), friction, sizes), unit), dtype
            ),
            noise=noise,
            drag=drag,
            estimate=None if fisher is None else NoiseEstimate(fisher, noise, drag),
            resample_every=self.resample_every,
            resampling=self.resampling,
            observe=self.observe,
        )

    def rescaled(self, factor: float) -> "SGHMC":
        return dataclasses.replace(self, step_size=rescale(self.step_size, factor))


def _check_decay(decay: float) -> None:
    if decay >= 2:
        raise ValueError(
            f"The momentum decay εC/M reaches {decay:g}, but every chain diverges from 2 on, "
            f"whatever the target: take a smaller step_size or friction (1 is SGLD)."
        )


def _check_noise(needed: np.ndarray, allowed: np.ndarray) -> None:
    """τC ⪰ ½εV̂, times 2ε and in the basis of the pencil of friction and gradient noise."""
    needed, allowed = np.broadcast_arrays(needed, allowed)
    worst = (needed - allowed).argmax()
    if needed[worst] > allowed[worst] * (1 + 1e-6):
        remedy = (
            f"Take {needed[worst] / allowed[worst]:.3g} times the friction, a smaller step_size or "
            f"larger batches; a step_size schedule is judged at its largest step."
            if allowed[worst] > 0 and np.isfinite(needed[worst])
            else "Without friction or temperature there is no room at all: take gradient_noise=0."
        )
        raise ValueError(
            f"gradient_noise is too large: along its worst direction the gradient brings noise "
            f"ε²V̂ = {needed[worst]:g} (relative to the friction), but 2ετC leaves room for "
            f"{allowed[worst]:g} only. {remedy}"
        )


def _compose(function, *settings):
    """A function of settings: a number if they all are, else a schedule."""
    if not any(callable(setting) for setting in settings):
        return float(function(*(float(setting) for setting in settings)))
    return lambda t: function(*(jnp.asarray(value_at(setting, t)) for setting in settings))


class SGHMCState(NamedTuple):
    """`velocity` is M⁻¹r in units of the largest step size: what θ moves by in such a step."""

    position: PyTree
    velocity: PyTree


class SGHMCKernel(Kernel):
    """Eq. 15 in matrices. With u the unit, c_t the friction's schedule and a_t = ε_t c_t,

    v ← v − (a_t/u) uM⁻¹C v − (ε_t/u) u²M⁻¹∇Ũ(θ) + uM⁻¹ N(0, 2τa_t C − ε_t² V̂),  θ ← θ + (ε_t/u) v:

    constant settings make ε_t/u = a_t/u = 1, and the update that of SGD with momentum, to the bit.
    """

    step_size: jax.Array | Schedule
    friction_scale: jax.Array | Schedule
    temperature: jax.Array | Schedule
    unit: jax.Array
    learning_rate: matrices.Matrix
    decay: matrices.Matrix
    noise: matrices.Pencil
    drag: matrices.Pencil
    estimate: NoiseEstimate | None
    resample_every: int | None
    resampling: str
    observe: str

    def init(self, normals, position):
        return SGHMCState(position, self._fresh(0, random.copy_of(normals, 0, position), 0))

    def draw(self, key, start, num_steps, like):
        copies = 1 if self.resample_every is None else 2
        return random.normals_like(key, start, num_steps, like, copies=copies)

    def step(self, t, noise, state, oracle):
        if self.resample_every is not None:
            state = self._resample(t, noise, state)
        if self.resampling == "literal":
            position = self._drift(t, state.position, state.velocity)
            velocity, potential = self._kick(t, noise, position, state.velocity, oracle)
        else:
            velocity, potential = self._kick(t, noise, state.position, state.velocity, oracle)
            position = self._drift(t, state.position, velocity)
        return SGHMCState(position, velocity), StepInfo(potential)

    def _kick(self, t, noise, position, velocity, oracle):
        epsilon, decay = value_at(self.step_size, t), self._decay(t)
        potential, grad = oracle(0, position)
        injected = self.noise.sqrt(
            2 * value_at(self.temperature, t) * decay,
            epsilon**2,
            random.copy_of(noise, 0, position),
        )
        slowed = tree.add_scaled(velocity, -decay / self.unit, self.decay @ velocity)
        kicked = tree.add_scaled(slowed, -epsilon / self.unit, self.learning_rate @ grad)
        return tree.add_scaled(kicked, 1, injected), potential

    def _drift(self, t, position, velocity, fraction=1.0):
        return tree.add_scaled(
            position, fraction * value_at(self.step_size, t) / self.unit, velocity
        )

    def _decay(self, t):
        return value_at(self.step_size, t) * value_at(self.friction_scale, t)

    def _resample(self, t, noise, state):
        normals = random.copy_of(noise, 1, state.position)
        is_due = t % self.resample_every == 0
        if self.resampling == "literal":
            fresh = SGHMCState(state.position, self._fresh(t, normals, 0))
        else:
            is_due &= t > 0
            velocity = self._fresh(t, normals, self._decay(t) / 2)
            middle = self.middle(jnp.maximum(t - 1, 0), state)
            fresh = SGHMCState(self._drift(t, middle, velocity, 0.5), velocity)
        return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), fresh, state)

    def _fresh(self, t, normals, half_decay):
        """N(0, τ(M − ½aC)⁻¹) in the velocity's units; half_decay = 0 gives the law of M alone."""
        scale = self.unit * jnp.sqrt(value_at(self.temperature, t))
        velocity = self.drag.inverse_sqrt(1, half_decay, normals)
        return jax.tree.map(lambda v: (scale * v).astype(v.dtype), velocity)

    def adaptable(self, state):
        pairs = zip(self._diagonals()[0].first.values, jax.tree.leaves(state.velocity), strict=True)
        mass = [jnp.broadcast_to(value, leaf.shape) for value, leaf in pairs]
        return self.with_mass(state, mass)[0]

    def with_mass(self, state, mass):
        """This sampler with another diagonal mass, a pytree like the parameters.

        The friction follows, so that the momentum decay εC/M stays; the velocities are rescaled by
        √(M_old/M_new), which keeps their law.
        """
        drag, noise, learning_rate = self._diagonals()
        new = matrices.Diagonal(tuple(jnp.ravel(leaf) for leaf in jax.tree.leaves(mass)))
        ratio = matrices.times(new, drag.first.inverse())

        def heavier(noise, drag):
            return {
                "noise": dataclasses.replace(
                    noise,
                    first=matrices.times(noise.first, ratio),
                    outer=matrices.times(noise.outer, ratio.inverse()),
                ),
                "drag": dataclasses.replace(
                    drag, first=new, second=matrices.times(drag.second, ratio)
                ),
            }

        kernel = dataclasses.replace(
            self,
            learning_rate=matrices.times(learning_rate, ratio.inverse()),
            estimate=self.estimate
            and dataclasses.replace(
                self.estimate, **heavier(self.estimate.noise, self.estimate.drag)
            ),
            **heavier(noise, drag),
        )
        rescaling = matrices.Diagonal(tuple(value**-0.5 for value in ratio.values))
        return kernel, SGHMCState(state.position, rescaling @ state.velocity)

    def _diagonals(self):
        drag, noise, learning_rate = self.drag, self.noise, self.learning_rate
        if (
            isinstance(drag, matrices.DiagonalPencil)
            and isinstance(noise, matrices.DiagonalPencil)
            and isinstance(learning_rate, matrices.Diagonal)
        ):
            return drag, noise, learning_rate
        raise TypeError("A mass that adapts is diagonal: give mass and friction as numbers.")

    @property
    def fisher(self):
        return None if self.estimate is None else self.estimate.fisher

    def with_gradient_noise(self, t, gradient_noise, like):
        assert self.estimate is not None
        assert self.estimate.drag is not None
        room, decay = self._coming(t, self.estimate.fisher.every)
        noise = self.estimate.noise.with_second(
            matrices.from_entries(gradient_noise, tree.sizes(like))
        )
        if not self.estimate.fisher.raise_friction:
            return dataclasses.replace(self, noise=noise), NoiseRoom(noise.largest_now(), room)
        noise = noise.raised(room)
        drag = self.estimate.drag.with_second(noise.first)
        kernel = dataclasses.replace(self, noise=noise, drag=drag, decay=noise.outer_first())
        return kernel, NoiseRoom(drag.largest_now() * decay, jnp.full_like(decay, 2))

    def _coming(self, t, num_steps: int) -> tuple[jax.Array, jax.Array]:
        """Over the next steps: the least of 2τa/ε², above which V̂/C is too large; the largest a."""

        def at(step):
            epsilon, decay = value_at(self.step_size, step), self._decay(step)
            room = 2 * value_at(self.temperature, step) * decay / epsilon**2
            return jnp.where(epsilon > 0, room, jnp.inf), decay

        rooms, decays = jax.vmap(at)(t + jnp.arange(num_steps))
        return jnp.min(rooms), jnp.max(decays)

    def observed(self, t, state):
        return self.middle(t, state) if self.observe == "middle" else state.position

    def middle(self, t, state):
        return self._drift(t, state.position, state.velocity, -0.5)

    def kinetic_temperature(self, t, state):
        """rᵀ(M⁻¹ − ½εM⁻¹CM⁻¹)r / d: r is hotter than τM by just that factor when θ is right."""
        energy = self.drag.quadratic(1, self._decay(t) / 2, state.velocity)
        return energy / (self.unit**2 * tree.size(state.velocity))
