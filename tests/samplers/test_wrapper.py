"""Wrappers forward every member of what they wrap, or are listed here as answering themselves.

A member that is added to `Sampler` or `Kernel` and not to the wrappers fails here.
"""

import inspect
from typing import Any

import jax.numpy as jnp
import pytest

import sghmc
from cases import Elsewhere
from sghmc.samplers import (
    Adaptable,
    AdaptsMass,
    AdaptsStepSize,
    CachesEvaluation,
    EstimatesNoise,
    Kernel,
    LazyRows,
    RescalesMomenta,
    Revisable,
    Sampler,
)
from sghmc.samplers.lazy import LazyKernel
from sghmc.samplers.replicas import ReplicaKernel
from sghmc.samplers.rounding import RoundingKernel
from sghmc.samplers.wrappers import KernelWrapper, SamplerWrapper, WhitenedKernel

CALLS = []
"""Members of the inner sampler or kernel that were asked for."""


FORWARDED = (
    *(CachesEvaluation, RescalesMomenta, Revisable, Adaptable, AdaptsMass, AdaptsStepSize),
    EstimatesNoise,
)
"""The optional protocols of `KernelWrapper`: all but `LazyRows`, whose rows are the parameters'."""


class Everything(AdaptsMass, AdaptsStepSize, CachesEvaluation, EstimatesNoise, RescalesMomenta):
    """A kernel that implements all of them, to be recorded."""


def members(*kinds):
    """The public members that some base classes define themselves."""
    names = {name for kind in kinds for name in vars(kind)}
    return {n for n in names if not n.startswith("_")} - {"traits", "refusal"}


def definition(base, name):
    return next(vars(kind)[name] for kind in base.__mro__ if name in vars(kind))


def test_a_kernel_has_ten_public_members_at_most():
    assert members(Kernel) == {
        *("init", "step", "draw", "num_gradients", "gradient_use"),
        *("position", "momentum", "draw_from", "mid_drift", "kinetic_temperature"),
    }


def test_a_protocol_adds_four_members_at_most():
    protocols = {kind for kind in below(Kernel) if kind.__module__ == "sghmc.samplers"}
    assert protocols == {*FORWARDED, LazyRows}
    assert all(1 <= len(members(protocol)) <= 4 for protocol in protocols)


def returned(name, inner):
    """What an inner kernel gives: itself where it gives a kernel, and else a word."""
    if name in ("with_mass", "with_gradient_noise"):
        return inner, f"{name} of the inner"
    makes_another = ("adaptable", "with_step_size", "with_settings", "rescaled", "with_center")
    return inner if name in (*makes_another, "for_growth", "eager") else f"{name} of the inner"


def recording(base):
    """A subclass of `base` whose members note that they were asked."""

    def answer(name):
        def asked(self, *args, **kwargs):
            CALLS.append(name)
            return returned(name, self)

        is_property = isinstance(definition(base, name), property)
        return property(asked) if is_property else asked

    names = members(Sampler) if base is Sampler else members(Kernel, *FORWARDED)
    metaclass: Any = type(base)
    return metaclass("Recording", (base,), {name: answer(name) for name in names})


class PlainSampler(SamplerWrapper):
    sampler: Sampler

    def prepare(self, like, num_steps=1):
        return self.sampler.prepare(like, num_steps)


class PlainKernel(KernelWrapper):
    inner: Kernel


MEMBERS = [
    *((Sampler, PlainSampler, name) for name in sorted(members(Sampler))),
    *((Everything, PlainKernel, name) for name in sorted(members(Kernel, *FORWARDED))),
]


@pytest.mark.parametrize(
    ("base", "wrapper", "name"), MEMBERS, ids=[f"{base.__name__}.{n}" for base, _, n in MEMBERS]
)
def test_every_member_is_asked_of_the_inner_one(base, wrapper, name):
    inner = recording(base)()
    outer = wrapper(inner)
    CALLS.clear()
    found = getattr(outer, name)
    if not isinstance(definition(base, name), property):
        parameters = inspect.signature(definition(base, name)).parameters.values()
        words = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        found = found(*words[1:])
    assert [name] == CALLS
    expected = returned(name, inner)
    if name == "name":
        expected = f"{wrapper.__name__}({expected})"
    elif expected is inner:
        expected = outer
    elif isinstance(expected, tuple):
        expected = (outer, expected[1])
    assert found == expected


def below(kind):
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


OVERRIDDEN = {
    sghmc.Whitened: {"prepare", "with_center", "pull_back_covariance"},
    sghmc.Cyclical: {"prepare", "dynamics", "is_affine", "is_kept"},
    sghmc.ReplicaExchange: {"prepare", "settings", "dynamics", "is_affine"},
    sghmc.Lazy: {"prepare", "eager"},
    sghmc.StochasticRounding: {"prepare"},
    Elsewhere: {"prepare"},
    WhitenedKernel: {
        "init",
        "step",
        "with_cached_evaluation",
        "position",
        "momentum",
        "draw_from",
        "mid_drift",
        "pull_back",
    },
    RoundingKernel: {"init", "step", "draw"},
    LazyKernel: {"init", "step", "draw", "flush", "map_parameters", "with_mass"},
}
"""What wrappers answer themselves, each for a reason that stands there."""


def test_what_is_not_forwarded_is_meant_so():
    others = {PlainSampler, PlainKernel}
    found = {*below(SamplerWrapper), *below(KernelWrapper)} - others
    # Faults that other tests plant are subclasses too.
    assert {kind for kind in found if kind.__module__.startswith(("sghmc", "cases"))} == {
        *OVERRIDDEN
    }
    for kind, overridden in OVERRIDDEN.items():
        bases = (Sampler,) if issubclass(kind, Sampler) else (Kernel, LazyRows, *FORWARDED)
        assert members(*bases) & {*vars(kind)} == overridden, kind


def test_replicas_answer_all_that_every_kernel_does():
    """They have a kernel inside and are no wrapper, as their state is another.

    They implement no protocol: they neither adapt nor estimate V̂, have no replicas inside, leave
    nothing behind, and the samplers that they take remember nothing of the target.
    """
    assert members(Kernel) <= {*vars(ReplicaKernel)}
    assert not issubclass(ReplicaKernel, (LazyRows, *FORWARDED))


never_asked: Any = None


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda kernel: kernel.with_mass(None, None), "SGRHMC has nothing to adapt, a mass"),
        (lambda kernel: kernel.adaptable(None), "SGRHMC has nothing to adapt, a mass"),
        (lambda kernel: kernel.constant_step_size(), "SGRHMC has nothing .* use HMC"),
        (lambda kernel: kernel.rescale_momenta(0, None, 1), "SGRHMC cannot rescale momenta"),
        (lambda kernel: kernel.with_gradient_noise(0, None, None), "SGRHMC does not estimate"),
    ],
)
def test_a_wrapper_says_what_the_inner_kernel_lacks(ask, message):
    sampler = sghmc.SGRHMC(0.1, metric=lambda theta: 1 + theta**2)
    outer = PlainKernel(sampler.prepare(jnp.ones(2)))
    assert outer.fisher is None
    assert outer.with_cached_evaluation("state", never_asked) == "state"
    with pytest.raises(TypeError, match=message):
        ask(outer)
