"""Low-rank adapters: the function they start from, what moves, and that the rest exists once."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.engine import loop
from sghmc.engine.driver import OneDevice
from sghmc.models import Adapters, LowRank, Transformer, merged

MODEL = Transformer(num_symbols=11, context=8, width=128, depth=3, num_heads=2, remat=True)
BASE = MODEL.init(jax.random.key(0))
ADAPTERS = Adapters(rank=2, scale=0.5, where=lambda name: name.startswith("blocks"))
ADAPTED, TRAINABLE = ADAPTERS.insert(jax.random.key(1), BASE)
CODES = jnp.arange(8) % 11
TEXT = np.random.default_rng(0).integers(0, 11, 60)
APPLY = jax.jit(MODEL.apply)


def moved(key=2):
    """The adapted network, with adapters that change it."""
    moving, fixed = eqx.partition(ADAPTED, TRAINABLE)
    leaves, treedef = jax.tree.flatten(moving)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    leaves = [
        leaf + 0.3 * jax.random.normal(own, leaf.shape)
        for leaf, own in zip(leaves, keys, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(treedef, leaves), fixed)


def test_factors_begin_with_the_inputs_scale_and_with_nothing():
    """A ~ N(0, 1/inputs) by a key of each layer in the order of their names; B = 0."""
    layer = eqx.nn.Linear(9, 2, key=jax.random.key(0))
    adapters = Adapters(rank=3, scale=0.5)
    adapted, chosen = adapters.insert(jax.random.key(1), {"a": layer})
    part, own = adapted["a"], jax.random.split(jax.random.key(1), 1)[0]
    np.testing.assert_allclose(part.down, jax.random.normal(own, (3, 9)) / 3, rtol=1e-6)
    np.testing.assert_array_equal(part.up, np.zeros((2, 3)))
    assert part.base is layer
    assert chosen["a"] == LowRank(False, True, True)
    precisions = adapters.precisions(adapted)
    assert (precisions["a"].down, precisions["a"].up) == (9.0, 12.0)


@pytest.mark.slow
def test_they_start_at_the_network_as_it_was():
    np.testing.assert_allclose(APPLY(ADAPTED, CODES), APPLY(BASE, CODES), atol=1e-5)  # rounding
    assert np.abs(APPLY(moved(), CODES) - APPLY(BASE, CODES)).max() > 0.05


@pytest.mark.slow
def test_a_layer_is_its_base_and_a_product_of_two_factors():
    base = eqx.nn.Linear(5, 3, key=jax.random.key(0))
    down = jax.random.normal(jax.random.key(1), (2, 5))
    up = jax.random.normal(jax.random.key(2), (3, 2))
    x = jax.random.normal(jax.random.key(3), (5,))
    layer = LowRank(base, down, up)
    weight = np.asarray(base.weight) + np.asarray(up) @ np.asarray(down)
    np.testing.assert_allclose(layer(x), weight @ x + base.bias, rtol=1e-5)
    np.testing.assert_allclose(layer.merged().weight, weight, rtol=1e-6)
    np.testing.assert_array_equal(layer.merged().bias, base.bias)


def test_merged_weights_are_the_same_function():
    network = moved()
    found = merged(network)
    assert jax.tree.structure(found) == jax.tree.structure(BASE)
    np.testing.assert_allclose(APPLY(found, CODES), APPLY(network, CODES), atol=2e-4)
    np.testing.assert_array_equal(found["embedding"], BASE["embedding"])


@pytest.mark.slow
def test_adapters_alone_move():
    moving, fixed = eqx.partition(ADAPTED, TRAINABLE)
    names = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree.leaves_with_path(moving)
    ]
    layers = ("attend", "attended", "contract", "expand")
    assert names == [f"blocks.{layer}.{part}" for layer in layers for part in ("down", "up")]
    held = jax.tree.leaves(fixed)
    assert len(held) == len(jax.tree.leaves(BASE))
    for leaf, expected in zip(held, jax.tree.leaves(BASE), strict=True):
        assert leaf is expected
    grad = jax.jit(
        jax.grad(lambda part: jnp.sum(MODEL.apply(eqx.combine(part, fixed), CODES)[:, 0]))
    )(moving)
    for layer in layers:
        assert np.abs(grad["blocks"][layer].up).max() > 1e-4
        np.testing.assert_array_equal(grad["blocks"][layer].down, 0)  # B = 0: they wait for it


def test_the_prior_is_that_of_the_factors_alone():
    network = moved()
    expected = 0.0
    for layer in network["blocks"].values():
        expected -= 0.5 * layer.down.shape[-1] * np.sum(np.square(layer.down))
        expected -= 0.5 * (2 / 0.5**2) * np.sum(np.square(layer.up))
    np.testing.assert_allclose(ADAPTERS.log_prior(network), expected, rtol=1e-5)
    mass = ADAPTERS.precisions(network)
    assert jax.tree.structure(mass) == jax.tree.structure(eqx.filter(network, TRAINABLE))
    # Drawn from it, a change BAx of an input with mean square 1 has variance s²: E of both factors.
    down, up = mass["blocks"]["expand"].down, mass["blocks"]["expand"].up
    assert (128 / down) * (2 / up) == pytest.approx(0.5**2)


@pytest.mark.slow
def test_any_network_of_linear_layers_will_do():
    network = eqx.nn.MLP(3, "scalar", width_size=4, depth=2, key=jax.random.key(0))
    adapted, trainable = Adapters(rank=1).insert(jax.random.key(1), network)
    assert isinstance(adapted.layers[1], LowRank)
    assert isinstance(adapted.layers[2], eqx.nn.Linear)  # one number out: no matrix to change
    x = jnp.ones(3)
    np.testing.assert_array_equal(adapted(x), network(x))
    assert len(jax.tree.leaves(eqx.filter(adapted, trainable))) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adapters(0), "rank"),
        (lambda: Adapters(2, scale=0.0), "scale must be positive"),
        (
            lambda: Adapters(2, where=lambda name: "query" in name).insert(jax.random.key(0), BASE),
            r"where selects no linear layer .* \['blocks.attend', .* 'readout'\]",
        ),
        (
            lambda: Adapters(2).insert(jax.random.key(0), {"a": jnp.ones(3)}),
            "its eqx.nn.Linear layers are none",
        ),
    ],
    ids=["rank", "scale", "where", "no layers"],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def sample(num_chains, **options):
    return sghmc.sample(
        jax.random.key(3), MODEL.posterior(TEXT, log_prior=ADAPTERS.log_prior),
        sghmc.SGHMC(0.01, friction=5.0, mass=ADAPTERS.precisions(ADAPTED)), ADAPTED,
        trainable=TRAINABLE, gradient=sghmc.Minibatch(2), num_samples=3, num_chains=num_chains,
        progress=False, **options,
    )  # fmt: skip


class BegunError(Exception):
    """Carries the program of a run that was stopped before its first step, and its carry."""


def compiled(num_chains, monkeypatch):
    """The program of a run of so many chains, and its compiled loop."""

    def begin(self, spec, positions, *, evaluates):
        arrays, zero = positions.of_chains(num_chains), np.int32(0)
        begun = eqx.filter_eval_shape(loop.initial_states, spec, arrays, zero, evaluates=evaluates)
        raise BegunError(spec, jax.tree.map(jnp.zeros_like, begun.carry))

    monkeypatch.setattr(OneDevice, "begin", begin)
    with pytest.raises(BegunError) as stopped:
        sample(num_chains)
    program, carry = stopped.value.args
    advance: Any = eqx.filter_jit(loop.make_draws)
    one = np.int32(1)
    return program, advance.lower(program, carry, one, one, one, capacity=1).compile().compiled


def num_bytes(tree):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf))


@pytest.mark.slow
def test_the_network_exists_once_whatever_the_number_of_chains(monkeypatch):
    """In the arguments of the compiled loop, and nowhere in what it needs beside them."""
    base, adapters = num_bytes(BASE), num_bytes(eqx.filter(ADAPTED, TRAINABLE))
    arguments, temporary = [], []
    for num_chains in (2, 6):
        program, loop_of_it = compiled(num_chains, monkeypatch)
        memory = loop_of_it.memory_analysis()
        arguments.append(memory.argument_size_in_bytes)
        temporary.append(memory.temp_size_in_bytes)
        text = loop_of_it.as_text()
        # Products with a layer's weight: over the inputs of all chains at once, none for each.
        rows = num_chains * 2 * 8
        assert re.search(rf"f32\[(512,{rows}|{rows},512)\]\S* (dot|custom-call)\(", text)
        assert not re.search(rf"f32\[{num_chains},(3,)?(512,128|128,512|384,128|128,128)\]", text)
    # Positions and velocities are a chain's own, and so is a little more: keys, info.
    of_chain = (arguments[1] - arguments[0]) / 4
    assert 2 * adapters <= of_chain < 2.1 * adapters
    # The likelihood and the prior have one network between them, which is an argument of both.
    arrays = jax.tree.leaves(eqx.filter(program, eqx.is_array))
    buffers = {leaf.unsafe_buffer_pointer(): leaf.nbytes for leaf in arrays}
    assert base <= sum(buffers.values()) < 1.02 * base
    assert arguments[0] - 2 * of_chain < 2.02 * base
    # What is needed on the way grows with the chains, by activations and gradients; what does not
    # grow is less than a second copy of the network.
    of_chain = (temporary[1] - temporary[0]) / 4
    assert temporary[0] - 2 * of_chain < base / 2


@pytest.mark.slow
def test_the_network_is_neither_copied_nor_given_away():
    held = jax.tree.leaves(eqx.filter(ADAPTED, TRAINABLE, inverse=True))
    places = [leaf.unsafe_buffer_pointer() for leaf in held]
    samples = sample(2)
    assert not any(leaf.is_deleted() for leaf in held)
    of_run = jax.tree.leaves(samples.origin.target.log_likelihood.fixed)  # pyright: ignore
    assert [leaf.unsafe_buffer_pointer() for leaf in of_run] == places


def test_draws_on_disk_are_adapters(tmp_path):
    samples = sample(2, checkpoint=sghmc.Checkpoint(tmp_path / "run"))
    draws = jax.tree.leaves(samples.positions)
    assert sum(leaf[0, 0].size for leaf in draws) * 4 == num_bytes(eqx.filter(ADAPTED, TRAINABLE))
    stored = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert stored < num_bytes(BASE)
    draw = jax.tree.map(lambda leaf: jnp.asarray(leaf[1, -1]), samples.positions)
    logits = APPLY(merged(eqx.combine(draw, ADAPTED)), CODES)
    assert np.abs(logits - APPLY(BASE, CODES)).max() > 1e-4
