"""Runs in which a part of the parameters moves, and one copy of the rest serves all chains."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.engine.driver import OneDevice

ROWS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
INIT = {
    "base": jnp.asarray(np.random.default_rng(1).normal(size=(3, 50)), jnp.float32),
    "head": {"weights": jnp.zeros(50), "bias": jnp.array(0.2)},
    "name": np.tanh,
}
SPEC = {"base": False, "head": True, "name": False}
MOVING, FIXED = eqx.partition(INIT, SPEC)


def log_likelihood(params, row):
    hidden = jnp.tanh(row[:3] @ params["base"])
    return -0.5 * (row[3] - hidden @ params["head"]["weights"] - params["head"]["bias"]) ** 2


def log_prior(params):
    return -0.5 * jnp.sum(params["head"]["weights"] ** 2) - jnp.sum(params["base"] ** 2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, ROWS)


def sample(target: Any = POSTERIOR, sampler=None, init=INIT, trainable=SPEC, **options):
    options = {"gradient": sghmc.Minibatch(5), "num_samples": 4, "num_chains": 3} | options
    sampler = sampler or sghmc.SGHMC(0.05, 1.0)
    return sghmc.sample(
        jax.random.key(0), target, sampler, init, trainable=trainable, progress=False, **options
    )


def by_hand():
    """The same run of a posterior that was written for the part that moves."""
    base = INIT["base"]
    target = sghmc.Posterior(
        lambda head, row: log_likelihood({"base": base, "head": head}, row),
        lambda head: log_prior({"base": base, "head": head}),
        ROWS,
    )
    return sample(target, init=INIT["head"], trainable=None).positions


@pytest.mark.slow
def test_draws_are_those_of_a_posterior_written_for_the_part_that_moves():
    samples = sample(averages={"base": lambda params: params["base"][0, 0]})
    assert samples.positions["base"] is None
    for name, expected in by_hand().items():
        np.testing.assert_allclose(samples.positions["head"][name], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(samples.averages["base"], np.full(3, INIT["base"][0, 0]), rtol=1e-6)
    draw = eqx.combine(jax.tree.map(lambda leaf: leaf[1, 2], samples.positions), FIXED)
    assert np.isfinite(POSTERIOR.potential({key: draw[key] for key in ("base", "head")}))
    assert draw["name"] is np.tanh


@pytest.mark.slow
def test_what_is_fixed_exists_once(monkeypatch):
    """No array of the loop's carry is as large, and all functions hold the same array."""
    seen = []

    def begin(self, spec, positions, **given):
        begun = loop_begin(self, spec, positions, **given)
        seen.append((spec, begun.carry))
        return begun

    loop_begin = OneDevice.begin
    monkeypatch.setattr(OneDevice, "begin", begin)
    sample(keep=lambda params: params["head"]["bias"], info=False)
    if not seen:
        pytest.fail("the host begins a run elsewhere")
    spec, carry = seen[0]
    assert max(leaf.size for leaf in jax.tree.leaves(carry)) <= 3 * 51
    held = [
        leaf
        for leaf in jax.tree.leaves(spec)
        if eqx.is_array(leaf) and leaf.size == INIT["base"].size and leaf.ndim == 2
    ]
    assert len(held) == 3  # log_likelihood, log_prior, keep
    assert len({leaf.unsafe_buffer_pointer() for leaf in held}) == 1


@pytest.mark.slow_cases("leaves")
@pytest.mark.parametrize(
    "trainable",
    [
        {"base": False, "head": {"weights": True, "bias": False}, "name": False},
        {"base": False, "head": lambda leaf: leaf.ndim == 1, "name": False},
    ],
    ids=["leaves", "a function"],
)
def test_filters_are_those_of_equinox(trainable):
    samples = sample(trainable=trainable)
    assert samples.positions["head"]["bias"] is None
    assert samples.positions["head"]["weights"].shape == (3, 4, 50)


@pytest.mark.slow
def test_a_function_alone_is_a_filter_and_what_is_no_array_is_held():
    network = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(1))
    target = sghmc.Posterior(
        lambda net, row: -0.5 * (row[3] - net(row[:3])[0]) ** 2,
        lambda net: -0.5 * jnp.sum(net.layers[0].weight ** 2),
        ROWS,
    )
    samples = sample(target, init=network, trainable=eqx.is_inexact_array)
    assert samples.positions.layers[1].weight.shape == (3, 4, 1, 4)
    assert samples.positions.activation is None


@pytest.mark.slow
def test_a_chain_axis_and_a_mass_are_those_of_the_part_that_moves():
    head = {"weights": jnp.zeros((3, 50)), "bias": jnp.array([0.1, 0.2, 0.3])}
    mass = {"base": None, "head": {"weights": 2.0, "bias": np.array(0.5)}, "name": None}
    samples = sample(sampler=sghmc.SGHMC(1e-6, 1.0, mass), init=INIT | {"head": head}, init_axis=0)
    np.testing.assert_allclose(samples.positions["head"]["bias"][:, 0], [0.1, 0.2, 0.3], atol=1e-4)


@pytest.mark.slow
def test_potentials_and_gibbs_updates_see_all_parameters():
    def potential(params, key):
        return jnp.sum((params["a"] - params["b"]) ** 2) + 0 * jax.random.normal(key)

    target = sghmc.Potential(potential, stochastic=True)
    init = {"a": jnp.zeros(2), "b": jnp.array([5.0, -5.0])}
    samples = sample(
        target, sghmc.SGLD(0.2, temperature=0.0), init, {"a": True, "b": False},
        gradient=None, num_samples=40,
    )  # fmt: skip
    np.testing.assert_allclose(samples.positions["a"][:, -1], [[5.0, -5.0]] * 3, atol=1e-3)
    posterior = sghmc.Posterior(
        lambda params, x, hyper: -0.5 * hyper * (x - params["a"] - params["b"]) ** 2,
        lambda params, hyper: 0.0,
        jnp.zeros(4),
        hyper=jnp.array(1.0),
    )
    gibbs = sghmc.Gibbs(lambda key, params, posterior: params["b"] + 0 * params["a"])
    init = {"a": jnp.array(0.0), "b": jnp.array(2.5)}
    samples = sample(posterior, None, init, {"a": True, "b": False}, gibbs=gibbs)
    np.testing.assert_allclose(samples.hyper, 2.5)


def test_a_checkpoint_knows_what_was_fixed(tmp_path):
    checkpoint = sghmc.Checkpoint(tmp_path / "run")
    first = sample(checkpoint=checkpoint)
    again = sample(checkpoint=checkpoint)
    np.testing.assert_array_equal(
        np.asarray(first.positions["head"]["bias"]), again.positions["head"]["bias"]
    )
    other = INIT | {"base": INIT["base"] + 1e-3}
    with pytest.raises(sghmc.CheckpointError, match="target"):
        sample(init=other, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"trainable": {"base": True}}, ValueError, "trainable must be a filter of init"),
        ({"trainable": False}, ValueError, "trainable names no leaf of init"),
        ({"trainable": True}, TypeError, r"init\['name'\] has dtype object"),
        (
            {"target": sghmc.Posterior.stack([POSTERIOR] * 3), "posterior_axis": 0},
            TypeError,
            "trainable needs a Posterior or a Potential, not a StackedPosterior",
        ),
    ],
    ids=["structure", "nothing", "no numbers", "stack"],
)
def test_what_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        sample(**change)
