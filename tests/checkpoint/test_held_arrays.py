"""Arrays that a traced program takes as arguments: a run that resumes knows them by value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.checkpoint import fingerprint
from sghmc.engine.options import RunOptions
from sghmc.engine.run import _arrays_of_user_classes, checked, prepared

KEY, START = jax.random.key(7), jnp.zeros(2)
DATA = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)


def log_likelihood(theta, x):
    return -0.5 * jnp.sum((x - theta) ** 2)


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, DATA)
SAMPLER = sghmc.SGHMC(0.1, 2.0)


def shifted(shift, theta, *_):
    return theta + shift


def shifted_hyper(shift, key, theta, posterior):
    return jnp.float32(shift)


def partial(function, value):
    """Arrays in it are arguments of a traced program, in which only their shapes stand."""
    return jax.tree_util.Partial(function, jnp.asarray(value))


def hyper_likelihood(theta, x, hyper):
    return log_likelihood(theta, x) * hyper


def hyper_prior(theta, hyper):
    return log_prior(theta) * hyper


WITH_HYPER = sghmc.Posterior(hyper_likelihood, hyper_prior, DATA, hyper=jnp.ones(()))


def scaled_step(scale, t):
    return 0.1 * scale


def scaled_metric(scale, theta):
    return scale * jnp.ones_like(theta)


def scaled_prior(scale, theta):
    return -0.5 * scale * jnp.sum(theta**2)


@jax.tree_util.register_pytree_node_class
class Slotted:
    """A pytree whose arrays stand in no `__dict__`."""

    __slots__ = ("shift",)

    def __init__(self, shift):
        self.shift = shift

    def __call__(self, theta):
        return theta + self.shift

    def tree_flatten(self):
        return (self.shift,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


OUTSIDE = {"mass": 1.0, "variance": 1.0}


class OwnSampler(sghmc.SGHMC):
    """Prepares what no field of it says."""

    def prepare(self, like, num_steps=0):
        sampler = sghmc.SGHMC(0.1, 2.0, mass=jnp.asarray(OUTSIDE["mass"]))
        return sampler.prepare(like, num_steps)


class OwnGradient(sghmc.NoisyGradient):
    def prepare(self, target, position):
        return sghmc.NoisyGradient(jnp.asarray(OUTSIDE["variance"])).prepare(target, position)


HELD = {
    "averages": lambda x: {"averages": {"mean": partial(shifted, x)}},
    "keep": lambda x: {"keep": partial(shifted, x)},
    "keep, slots": lambda x: {"keep": Slotted(jnp.asarray(x))},
    "trace": lambda x: {
        "averages": {"mean": lambda theta: theta},
        "trace": partial(lambda shift, means: means["mean"] + shift, x),
    },
    "gibbs": lambda x: {"target": WITH_HYPER, "gibbs": sghmc.Gibbs(partial(shifted_hyper, x), 2)},
    "schedule": lambda x: {"sampler": sghmc.SGHMC(partial(scaled_step, x), 2.0)},
    "temperature": lambda x: {
        "sampler": sghmc.SGHMC(0.1, 2.0, temperature=partial(scaled_step, x))
    },
    "metric": lambda x: {"sampler": sghmc.SGRHMC(0.1, partial(scaled_metric, x))},
    "prior": lambda x: {"target": sghmc.Posterior(log_likelihood, partial(scaled_prior, x), DATA)},
    "own sampler": lambda x: (OUTSIDE.update(mass=x), {"sampler": OwnSampler(0.1, 2.0)})[1],
    "own gradient": lambda x: (
        OUTSIDE.update(variance=x),
        {"gradient": OwnGradient(1.0)},
    )[1],
    "own sampler, wrapped": lambda x: (
        OUTSIDE.update(mass=x),
        {"sampler": sghmc.Cyclical(OwnSampler(0.1, 2.0), 4, 0.5)},
    )[1],
}


def parts_of(kind, value):
    """The arguments of a run: target, sampler, and options."""
    given = dict(HELD[kind](value))
    args = given.pop("target", POSTERIOR), given.pop("sampler", SAMPLER)
    return *args, {"gradient": sghmc.Minibatch(3), "num_samples": 2, "num_chains": 1} | given


@pytest.mark.parametrize("kind", [kind for kind in HELD if not kind.startswith("own")])
def test_a_changed_array_is_described_wherever_it_is_held(kind):
    def described(value):
        target, sampler, options = parts_of(kind, value)
        return fingerprint.describe({"target": target, "sampler": sampler} | options)

    assert described(1.0) == described(1.0)
    assert fingerprint.differences(described(1.0), described(2.0))


@pytest.mark.parametrize("kind", [kind for kind in HELD if kind.startswith("own")])
def test_what_a_users_own_class_prepares_is_described(kind):
    def described(value):
        target, sampler, given = parts_of(kind, value)
        options = RunOptions(**given)
        parts = checked(KEY, target, sampler, START, options)
        program = prepared(parts, KEY, target, options)
        return fingerprint.describe(_arrays_of_user_classes(program, sampler, options))

    assert described(1.0) == described(1.0)
    assert fingerprint.differences(described(1.0), described(2.0))


def test_what_sghmc_prepares_itself_is_known_by_its_settings():
    gradient = sghmc.ControlVariate(3, center=START)
    wrapped = sghmc.Cyclical(sghmc.SGHMC(0.1, 1.0), 10, 0.5)
    assert fingerprint.is_described(wrapped)
    assert fingerprint.is_described(gradient)
    assert not fingerprint.is_described(sghmc.Cyclical(OwnSampler(0.1, 1.0), 10, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("kind", HELD)
def test_a_changed_array_is_refused(kind, tmp_path):
    def run(value):
        target, sampler, options = parts_of(kind, value)
        saved = sghmc.Checkpoint(tmp_path / "run", every=1)
        return sghmc.sample(
            KEY, target, sampler, START, progress=False, checkpoint=saved, **options
        )

    np.testing.assert_array_equal(run(1.0).positions, run(1.0).positions)
    with pytest.raises(sghmc.CheckpointError, match="other arguments"):
        run(2.0)
