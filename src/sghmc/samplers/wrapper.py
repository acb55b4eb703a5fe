"""Samplers and kernels around others: what they do not answer themselves, the inner one does.

A new member of `Sampler` or `Kernel` belongs here too: a test walks over all of them.
"""

import dataclasses
from typing import Any, Self

import equinox as eqx

from sghmc.samplers.base import Dynamics, Kernel, Sampler


class SamplerWrapper(Sampler):
    """A sampler around another; a subclass has it in the field `sampler`, and prepares a kernel."""

    sampler: eqx.AbstractVar[Sampler]

    def _around(self, sampler: Sampler) -> Self:
        """The same wrapper around another sampler."""
        return dataclasses.replace(self, sampler=sampler)

    @property
    def name(self):
        return f"{type(self).__name__}({self.sampler.name})"

    @property
    def settings(self):
        """Those of the sampler inside."""
        return self.sampler.settings

    def with_settings(self, **settings: Any) -> Self:
        return self._around(self.sampler.with_settings(**settings))

    @property
    def dynamics(self) -> Dynamics:
        return self.sampler.dynamics

    @property
    def schedules(self):
        return self.sampler.schedules

    @property
    def subtracts_gradient_noise(self):
        return self.sampler.subtracts_gradient_noise

    @property
    def is_affine(self):
        return self.sampler.is_affine

    def is_kept(self, steps):
        return self.sampler.is_kept(steps)

    def rescaled(self, factor):
        return self._around(self.sampler.rescaled(factor))

    def for_growth(self, factor):
        return self._around(self.sampler.for_growth(factor))

    @property
    def eager(self) -> Sampler:
        return self._around(self.sampler.eager)

    def with_center(self, center):
        return self._around(self.sampler.with_center(center))

    def pull_back_covariance(self, covariance, like):
        return self.sampler.pull_back_covariance(covariance, like)


class KernelWrapper(Kernel):
    """A kernel around another, whose state is that of the inner one."""

    inner: eqx.AbstractVar[Kernel]

    def _around(self, inner: Kernel) -> Self:
        """The same wrapper around another kernel."""
        return dataclasses.replace(self, inner=inner)

    def init(self, normals, position):
        return self.inner.init(normals, position)

    def step(self, t, noise, state, oracle):
        return self.inner.step(t, noise, state, oracle)

    def draw(self, key, first_step, num_steps, like):
        return self.inner.draw(key, first_step, num_steps, like)

    def informed(self, state, oracle):
        return self.inner.informed(state, oracle)

    @property
    def leaves_behind(self):
        return self.inner.leaves_behind

    def settle(self, t, noise, state, oracle):
        return self.inner.settle(t, noise, state, oracle)

    @property
    def num_gradients(self):
        return self.inner.num_gradients

    @property
    def differentiates_gradients(self):
        return self.inner.differentiates_gradients

    @property
    def moves_before_gradients(self):
        return self.inner.moves_before_gradients

    def position(self, state):
        return self.inner.position(state)

    def momentum(self, state):
        return self.inner.momentum(state)

    def observed(self, t, state):
        return self.inner.observed(t, state)

    def middle(self, t, state):
        return self.inner.middle(t, state)

    def kinetic_temperature(self, t, state):
        return self.inner.kinetic_temperature(t, state)

    def reheated(self, t, state, ratio):
        return self.inner.reheated(t, state, ratio)

    def shaped(self, state, shape):
        return self.inner.shaped(state, shape)

    def adaptable(self, state):
        return self._around(self.inner.adaptable(state))

    def diagonal_mass(self, position):
        return self.inner.diagonal_mass(position)

    def with_mass(self, state, mass):
        inner, state = self.inner.with_mass(state, mass)
        return self._around(inner), state

    def constant_step_size(self):
        return self.inner.constant_step_size()

    def with_step_size(self, step_size):
        return self._around(self.inner.with_step_size(step_size))

    @property
    def fisher(self):
        return self.inner.fisher

    def with_gradient_noise(self, t, gradient_noise, like):
        inner, room = self.inner.with_gradient_noise(t, gradient_noise, like)
        return self._around(inner), room

    def pull_back(self, grad):
        return self.inner.pull_back(grad)
