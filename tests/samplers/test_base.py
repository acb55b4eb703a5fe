"""What every sampler promises, with every gradient estimator. Their laws are judged elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from cases import GRADIENTS, RANDOM_SAMPLERS, SAMPLERS, Chain, halving, pairs, params, posterior

ALL = pytest.mark.parametrize("name", SAMPLERS)


def single_precision():
    return params(low=jnp.float32)


def close(one, other):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), one, other)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def moving(state):
    """What has a position: all replicas of a chain, where there are some."""
    return getattr(state, "replicas", state)


@pytest.mark.slow_cases("hmc-control variate", "sghmc-control variate")
@pytest.mark.parametrize(("sampler", "gradient"), pairs())
def test_any_pytree_keeps_its_structure_shapes_and_dtypes(sampler, gradient):
    start = params()
    chain = Chain(jax.random.key(0), posterior(), SAMPLERS[sampler], GRADIENTS[gradient], start)
    first = jax.eval_shape(chain.start, chain.keys[0])
    state, info = jax.eval_shape(lambda state: chain.step(1, chain.noise(1), state), first)
    assert jax.tree.structure(state) == jax.tree.structure(first)
    for new, old in zip(*map(jax.tree.leaves, (state, first)), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert (info.potential.shape, info.potential.dtype) == ((), jnp.float32)
    accepts = {"hmc", "mchmc", "replicas"} & set(sampler.split())
    assert (info.acceptance is not None) == bool(accepts)


@pytest.mark.slow_cases(
    "baoab-noisy",
    "hmc-full",
    "hmc-noisy",
    "psgld-epochs",
    "sghmc schedules-minibatch",
    "sghmc schedules-palindrome",
    "sghmc-minibatch without replacement",
    "sgnht-control variate",
    "sgnht-minibatch without replacement",
    "sgrhmc-epochs",
    "ubu-control variate",
    "ubu-minibatch without replacement",
    "whitened sghmc-minibatch without replacement",
)
@pytest.mark.parametrize(
    ("sampler", "gradient"),
    [pair for i, pair in enumerate(pairs()) if i % 4 == 0],
)
def test_every_leaf_moves_and_stays_finite(sampler, gradient):
    start = params()
    chain = Chain(jax.random.key(0), posterior(), SAMPLERS[sampler], GRADIENTS[gradient], start)
    step = jax.jit(lambda t, state: chain.step(t, chain.noise(t), state))
    state = chain.state
    for t in range(6):
        state, info = step(t, state)
        assert np.isfinite(info.potential)
    end = chain.kernel.position(state)
    for new, old in zip(*map(jax.tree.leaves, (end, start)), strict=True):
        assert np.all(np.isfinite(np.asarray(new, np.float32)))
        assert np.all(np.asarray(new != old))


@pytest.mark.slow_cases(
    "baoab",
    "hmc",
    "hmc without accept step",
    "psgld",
    "replicas of sghmc",
    "sghmc",
    "sghmc resampling",
    "sghmc schedules",
    "sgld",
    "sgnht",
    "sgrhmc",
    "ubu",
    "whitened hmc",
    "whitened sghmc",
)
@ALL
def test_a_step_is_the_same_compiled_or_not_alone_or_among_chains(name):
    chain = Chain(
        jax.random.key(1), posterior(), SAMPLERS[name], GRADIENTS["minibatch"], single_precision()
    )
    noise = jax.jit(jax.vmap(chain.noise))(jnp.arange(3))
    states = jax.tree.map(
        lambda leaf: leaf[None] + jnp.array([0.0, 0.1, -0.2]).reshape(3, *[1] * leaf.ndim),
        chain.state,
    )
    alone = jax.jit(chain.step)
    together = jax.jit(jax.vmap(chain.step, (None, 0, 0)))(2, noise, states)
    for c in range(3):
        own = jax.tree.map(lambda leaf, c=c: leaf[c], (noise, states, together))
        close(own[2], alone(2, *own[:2]))
    first = jax.tree.map(lambda leaf: leaf[0], (noise, states))
    result = alone(2, *first)
    same(alone(2, *first), result)
    close(chain.step(2, *first), result)


@ALL
def test_a_random_sampler_has_noise_of_its_own_in_every_step(name):
    chain = Chain(
        jax.random.key(1), posterior(), SAMPLERS[name], GRADIENTS["full"], single_precision()
    )
    noise = jax.jit(chain.noise)
    first, second = (jax.tree.leaves(noise(t)) for t in (0, 1))
    assert bool(first) == (name in RANDOM_SAMPLERS)
    for one, other in zip(first, second, strict=True):
        assert not np.any(np.asarray(one) == np.asarray(other))


@pytest.mark.slow_cases("baoab", "hmc", "sghmc", "sgrhmc", "whitened sghmc")
@pytest.mark.parametrize("name", [name for name in SAMPLERS if "mchmc" not in name])
def test_no_leaf_leaks_into_another(name):
    """On a separable target one leaf's potential does not change how another moves.

    But for directions of length 1 in all leaves together.
    """
    start = {"a": jnp.array([0.5, -1.0]), "b": jnp.asarray(2.0)}

    def target(weight):
        return sghmc.Potential(
            lambda p: 0.5 * jnp.sum(p["a"] ** 2) + 0.5 * weight * jnp.sum(p["b"] ** 2)
        )

    chain = Chain(jax.random.key(1), target(1.0), SAMPLERS[name], GRADIENTS["full"], start)

    @jax.jit
    @jax.vmap
    def end(weight):
        motion, batch = chain.noise(0)
        oracle = chain.estimator.oracle(target(weight), batch)
        return moving(chain.kernel.step(0, motion, chain.state, oracle)[0])

    ends = end(jnp.array([2.0, 2.5]))
    np.testing.assert_allclose(ends.position["a"][0], ends.position["a"][1], rtol=1e-6)
    assert np.all(ends.position["a"][0] != moving(chain.state).position["a"])
    last = ends.velocity if name == "sghmc literal resampling" else ends.position
    assert np.all(last["b"][0] != last["b"][1])


@ALL
def test_nothing_hides_a_gradient_that_is_not_a_number(name):
    """No clipping, no guard. Only the exact accept step may refuse such a move."""
    wall = sghmc.Potential(lambda p: jnp.sum(jnp.where(p > 1, jnp.nan * p, p**2 / 2)))
    start = jnp.array([2.0, 0.0])
    chain = Chain(jax.random.key(2), wall, SAMPLERS[name], GRADIENTS["full"], start)
    state, info = jax.jit(lambda: chain.step(0, chain.noise(0), chain.state))()
    assert np.isnan(info.potential)
    end = moving(state)
    end = end.position if name != "sghmc literal resampling" else end.velocity
    assert np.all(np.isnan(end[..., 0]) != (name in ("hmc", "hmc with austerity", "mchmc")))


@pytest.mark.slow_cases(
    "baoab",
    "hmc",
    "hmc without accept step",
    "psgld",
    "replicas of sghmc",
    "sghmc",
    "sghmc resampling",
    "sghmc schedules",
    "sgnht",
    "sgrhmc",
    "ubu",
    "whitened sghmc",
)
@ALL
def test_double_precision(name):
    with jax.enable_x64(True):
        start = params(jnp.float64, jnp.float32)
        chain = Chain(
            jax.random.key(3), posterior(jnp.float64), SAMPLERS[name], GRADIENTS["noisy"], start
        )
        state, info = jax.jit(lambda: chain.step(0, chain.noise(0), chain.state))()
        position = chain.kernel.position(state)
        kinds = [leaf.dtype for leaf in jax.tree.leaves(position)]
        assert kinds == [jnp.float64, jnp.float32, jnp.float64]
        assert info.potential.dtype == jnp.float64
        moved = np.asarray(position["bias"] - start["bias"])
        assert moved != 0
        assert moved != moved.astype(np.float32), "computed in single precision somewhere"


@pytest.mark.slow_cases(
    "hmc-0", "hmc-4", "learning rate-0", "learning rate-4", "sghmc-0", "sghmc-4"
)
@pytest.mark.parametrize("t", [0, 4])
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda e: sghmc.HMC(e, 2), [0.1]),
        (lambda e, c, tau: sghmc.SGHMC(e, c, temperature=tau), [0.1, 2.0, 0.7]),
        (sghmc.SGHMC.from_learning_rate, [0.01, 0.1]),
        (lambda e, tau: sghmc.SGLD(e, temperature=tau), [0.01, 0.7]),
        (sghmc.SGD, [0.01]),
        (sghmc.Momentum, [0.01, 0.1]),
    ],
    ids=["hmc", "sghmc", "learning rate", "sgld", "sgd", "momentum"],
)
def test_an_optax_schedule_is_the_number_it_has_at_that_step(make, settings, t):
    """All settings halve in four steps: step t is that of a sampler with plain numbers."""
    target = sghmc.Potential(lambda p: jnp.sum(p**4))
    start = jnp.array([0.3, 0.6])

    def end(*values):
        chain = Chain(jax.random.key(4), target, make(*values), GRADIENTS["full"], start)
        state = chain.state
        if hasattr(state, "velocity"):  # whose unit is the largest step size
            state = state._replace(velocity=jnp.zeros(2))
        return jax.jit(lambda: chain.step(t, chain.noise(t), state))()[0].position

    scheduled = end(*map(halving, settings))
    close(scheduled, end(*(0.5 ** (t / 4) * value for value in settings)))
    if t:
        for i in range(len(settings)):  # and every one of them matters
            wrong = [(1 if i == j else 0.5) * value for j, value in enumerate(settings)]
            differs = not np.allclose(scheduled, end(*wrong), rtol=1e-5, atol=1e-5)
            assert differs or make is sghmc.Momentum  # without velocity its decay does nothing


def test_learning_rate_and_momentum_decay_are_another_way_to_say_it():
    by_rate = sghmc.SGHMC.from_learning_rate(0.01, 0.1, gradient_noise=0.3, temperature=0.5)
    assert by_rate.step_size == pytest.approx(0.1)
    assert by_rate.friction == pytest.approx(1.0)
    assert (by_rate.mass, by_rate.gradient_noise, by_rate.temperature) == (1.0, 0.3, 0.5)


@pytest.mark.slow_cases("ubu")
@pytest.mark.parametrize(
    "name",
    [name for name in SAMPLERS if not {"whitened", "replicas", "cycles"} & set(name.split())],
)
def test_rescaled_has_another_step_and_the_same_dynamics(name):
    sampler = SAMPLERS[name]
    smaller = sampler.rescaled(0.5)
    assert type(smaller) is type(sampler)
    powers = {"step_size": 1, "learning_rate": 2 if name == "momentum" else 1, "momentum_decay": 1}
    for field in vars(sampler):
        old, new = (
            setting(3) if callable(setting) else setting
            for setting in (getattr(sampler, field), getattr(smaller, field))
        )
        if isinstance(old, float | jax.Array):
            np.testing.assert_allclose(
                np.asarray(new), old * 0.5 ** powers.get(field, 0), rtol=1e-6
            )
        else:
            assert new == old
