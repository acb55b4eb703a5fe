"""Samplers with a fault in their kernel, for judges to see."""

import dataclasses
from typing import Any


def settings_of(module) -> dict[str, Any]:
    return {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}


def planted(sampler, plant):
    """A sampler with the same settings whose kernel has a fault."""
    kind = type(sampler)

    class Faulty(kind):
        def prepare(self, like, num_steps=1):
            kernel = kind(**settings_of(self)).prepare(like, num_steps)
            return plant(kind(**settings_of(self)), kernel, like)

    return Faulty(**settings_of(sampler))


def becomes(kind):
    """A kernel with a method written wrongly."""
    return lambda sampler, kernel, like: kind(**settings_of(kernel))
