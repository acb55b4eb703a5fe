"""The table "which sampler when": a row for every sampler, measured."""

import inspect

import pytest

import sghmc
from sampler_table import EXAMPLES, num_gradients, state_size
from sghmc.samplers import Sampler


def test_every_sampler_has_a_row():
    public = (getattr(sghmc, name) for name in sghmc.__all__)
    samplers = {kind for kind in public if inspect.isclass(kind) and issubclass(kind, Sampler)} - {
        Sampler
    }
    assert {type(example) for example in EXAMPLES.values()} == samplers


@pytest.mark.slow_cases("sampler0-8-2d", "sampler3-2-2d + 1")
@pytest.mark.parametrize(
    ("sampler", "gradients", "size"),
    [
        (sghmc.HMC(0.1, num_steps=7), 8, "2d"),
        (sghmc.SGNHT(0.1), 1, "2d + 1"),
        (sghmc.SGLD(0.1), 1, "d"),
        (sghmc.ReplicaExchange(sghmc.SGLD(0.1), [1, 2]), 2, "2d + 1"),
    ],
)
def test_counts_are_right_where_they_are_known(sampler, gradients, size):
    assert num_gradients(sampler) == gradients
    assert state_size(sampler) == size
