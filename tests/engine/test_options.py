"""The options of a run are the arguments of `sample`, and its identity all that decides draws."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc.engine.options import RunOptions

KEY, START = jax.random.key(0), np.zeros((2, 1), np.float32)
NAMES = [field.name for field in dataclasses.fields(RunOptions)]
CHANGED = {
    "gradient": sghmc.Minibatch(3),
    "num_samples": 7,
    "num_burnin": 2,
    "thinning": 3,
    "num_chains": 2,
    "init_axis": 0,
    "posterior_axis": 0,
    "keep": lambda theta: theta,
    "averages": {"mean": lambda theta: theta},
    "trace": lambda averages: averages,
    "gibbs": sghmc.Gibbs(lambda key, params, posterior: posterior.hyper),
    "adapt": sghmc.AdaptMass(until=100),
    "info": False,
}


def test_they_are_the_keyword_arguments_of_sample():
    parameters = inspect.signature(sghmc.sample).parameters.values()
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    del keywords["trainable"]  # which changes target and start before a run
    assert [*keywords] == NAMES
    resolved = {"gradient": sghmc.FullBatch(), "thinning": 1, "num_samples": 1000}
    options = RunOptions()
    for name, default in keywords.items():
        assert getattr(options, name) == resolved.get(name, default)


def test_every_option_that_decides_draws_is_part_of_the_identity():
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    arguments = (KEY, target, "sampler", START)
    plain = RunOptions().identity(*arguments)
    names = set(CHANGED) - {"num_samples"}  # a longer run goes on
    assert set(plain) == {"key", "target", "sampler", "init", *names, "target.potential"}
    of_length = sghmc.SGLD(lambda t: 0.1 / (t + 1))
    assert RunOptions().identity(KEY, target, of_length, START)["num_samples"] == 1000
    for name, value in CHANGED.items():
        if name == "num_samples":
            continue
        other = RunOptions(**{name: value}).identity(*arguments)
        assert other[name] is value
        same = (
            set(plain)
            - {name, "key", "init"}
            - ({"target.potential"} if name == "init_axis" else set())
        )
        assert all(other[n] == plain[n] for n in same)


def test_how_a_run_is_shown_saved_spread_or_ended_is_not():
    without_effect = set(NAMES) - set(CHANGED)
    assert without_effect == {"progress", "checkpoint", "mesh", "sharding", "throw", "until"}
