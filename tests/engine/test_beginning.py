"""A start where the potential cannot be computed is refused, however its sampler looks at it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.engine import driver, loop

SAMPLERS = {
    "sghmc": sghmc.SGHMC(0.01, 1.0),
    "sgld": sghmc.SGLD(0.001),
    "ubu": sghmc.UBU(0.01, 1.0),  # moves before it looks
    "hmc": sghmc.HMC(0.01, 2),  # may stay where it is
}
KINK = {
    "a bad potential": (lambda theta: jnp.sum(jnp.where(theta == 1.0, jnp.nan, theta**2)), 1.0),
    # Finite at 0, and its gradient is not.
    "a bad gradient": (lambda theta: jnp.sum(jnp.sqrt(theta)) + 1.0, 0.0),
}


@pytest.mark.slow_cases(
    "sghmc-settings0-a bad potential",
    "sghmc-settings1-a bad gradient",
    "sghmc-settings1-a bad potential",
)
@pytest.mark.parametrize("kind", KINK)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sghmc", {"num_burnin": 5}),
        ("sghmc", {"thinning": 3, "throw": False}),
        ("sgld", {}),
        ("ubu", {}),
        ("hmc", {}),
    ],
)
def test_a_bad_start_is_refused(name, kind, settings):
    potential, start = KINK[kind]
    starts = jnp.array([[2.0], [start]])
    with pytest.raises(ValueError, match="not finite where chain 1 starts"):
        sghmc.sample(
            jax.random.key(0),
            sghmc.Potential(potential),
            SAMPLERS[name],
            starts,
            init_axis=0,
            num_chains=2,
            num_samples=4,
            progress=False,
            **settings,
        )


def test_a_chain_that_fails_later_started_well():
    """It is looked at again, and found sound: what is said is that it diverged."""
    with pytest.raises(sghmc.DivergenceError, match="at step 1"):
        sghmc.sample(
            jax.random.key(0),
            sghmc.Potential(lambda theta: jnp.sum(jnp.where(theta == 0, theta, jnp.nan))),
            sghmc.SGD(1.0),
            jnp.zeros(1),
            num_samples=4,
            progress=False,
        )


@pytest.mark.parametrize(("name", "looks"), [("sghmc", False), ("ubu", True), ("hmc", True)])
def test_a_step_that_begins_with_a_gradient_looks_for_itself(name, looks, monkeypatch):
    """The model is compiled once, not twice."""
    seen, begin = [], driver.OneDevice.begin

    def watched(*args, **given):
        seen.append(begin(*args, **given))
        return seen[-1]

    monkeypatch.setattr(driver.OneDevice, "begin", watched)
    target = sghmc.Potential(functools.partial(lambda theta: jnp.sum(theta**2)))
    sghmc.sample(
        jax.random.key(0), target, SAMPLERS[name], jnp.ones(2), num_samples=2, progress=False
    )
    (begun,) = seen
    assert (begun.potential is not None) == looks
    if looks:
        np.testing.assert_allclose(begun.potential, 2.0)


def test_one_start_for_all_chains_is_given_once(monkeypatch):
    """It is repeated where chains begin: before that, it would be there twice."""
    given = []
    compiled = loop.compiled_initial_states(is_large=False)

    def begin(program, init, *args, **options):
        given.append(init.shape)
        return compiled(program, init, *args, **options)

    monkeypatch.setattr(loop, "compiled_initial_states", lambda **_: begin)
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    samples = sghmc.sample(
        jax.random.key(0), target, SAMPLERS["sghmc"], np.ones(3), num_chains=4, num_samples=2,
        progress=False,
    )  # fmt: skip
    assert given == [(3,)]
    assert samples.positions.shape == (4, 2, 3)


def test_many_parameters_begin_by_a_program_made_for_speed_from_the_same_numbers(monkeypatch):
    target, sizes = sghmc.Potential(lambda theta: jnp.sum(theta**2)), []
    compiled = loop.compiled_initial_states

    def watched(*, is_large):
        sizes.append(is_large)
        return compiled(is_large=is_large)

    def drawn(limit):
        monkeypatch.setattr(driver, "_LARGE_PARAMETERS", limit)
        return sghmc.sample(
            jax.random.key(0), target, SAMPLERS["sghmc"], jnp.zeros(300), num_chains=2,
            num_samples=2, progress=False,
        ).positions  # fmt: skip

    monkeypatch.setattr(loop, "compiled_initial_states", watched)
    np.testing.assert_array_equal(drawn(600), drawn(601))
    assert sizes == [True, False]
