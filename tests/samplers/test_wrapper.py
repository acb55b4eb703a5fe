"""Wrappers forward every member of what they wrap, or are listed here as answering themselves.

A member that is added to `Sampler` or `Kernel` and not to the wrappers fails here.
"""

import inspect

import pytest

import sghmc
from cases import Elsewhere
from sghmc.samplers import Kernel, Sampler
from sghmc.samplers.lazy import LazyKernel
from sghmc.samplers.replicas import ReplicaKernel
from sghmc.samplers.rounding import RoundingKernel
from sghmc.samplers.wrappers import KernelWrapper, SamplerWrapper, WhitenedKernel

CALLS = []
"""Members of the inner sampler or kernel that were asked for."""


def members(kind):
    """The public members that a base class defines itself."""
    return {name for name in vars(kind) if not name.startswith("_") and name != "traits"}


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

        is_property = isinstance(vars(base)[name], property)
        return property(asked) if is_property else asked

    return type(base)("Recording", (base,), {name: answer(name) for name in members(base)})


class PlainSampler(SamplerWrapper):
    sampler: Sampler

    def prepare(self, like, num_steps=1):
        return self.sampler.prepare(like, num_steps)


class PlainKernel(KernelWrapper):
    inner: Kernel


WRAPPERS = [(Sampler, PlainSampler), (Kernel, PlainKernel)]
MEMBERS = [(base, wrapper, name) for base, wrapper in WRAPPERS for name in sorted(members(base))]


@pytest.mark.parametrize(
    ("base", "wrapper", "name"), MEMBERS, ids=[f"{base.__name__}.{n}" for base, _, n in MEMBERS]
)
def test_every_member_is_asked_of_the_inner_one(base, wrapper, name):
    inner = recording(base)()
    outer = wrapper(inner)
    CALLS.clear()
    found = getattr(outer, name)
    if not isinstance(vars(base)[name], property):
        parameters = inspect.signature(vars(base)[name]).parameters.values()
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
    LazyKernel: {"init", "step", "draw", "is_lazy", "flush", "map_parameters", "with_mass"},
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
        base = Sampler if issubclass(kind, Sampler) else Kernel
        assert members(base) & {*vars(kind)} == overridden, kind


NOT_OF_REPLICAS = {
    "with_cached_evaluation",
    "is_lazy",
    "flush",
    "rescale_momenta",
    "map_parameters",
    "adaptable",
    "diagonal_mass",
    "with_mass",
    "constant_step_size",
    "with_step_size",
    "fisher",
    "with_gradient_noise",
    "pull_back",
}
"""Replicas neither adapt nor estimate V̂, have no replicas inside, leave nothing behind, and move in
the parameters; the samplers that they take remember nothing of the target."""


def test_replicas_answer_all_that_they_can():
    """They have a kernel inside and are no wrapper, as their state is another."""
    assert members(Kernel) - {*vars(ReplicaKernel)} == NOT_OF_REPLICAS
