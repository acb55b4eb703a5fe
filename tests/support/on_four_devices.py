"""Tests that need four devices: test_placement.py runs them in a process that has as many.

`test_slow_…` are slow.
"""

import functools
import math
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sghmc
from cases import SAMPLERS
from sghmc.engine import driver
from sghmc.engine import mesh as meshes
from sghmc.engine.driver import Bar
from sghmc.posterior.posterior import pad_rows
from sghmc.posterior.sharded import ManuallyShardedPosterior

KEY = jax.random.key(3)
NUM_ROWS, NUM_COLUMNS, NUM_CHAINS = 103, 3, 4
"""Rows that no number of devices divides."""


def table(seed=0, num_rows=NUM_ROWS):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, NUM_COLUMNS)).astype(np.float32)
    return {"x": x, "y": (rng.random(num_rows) < 0.4).astype(np.float32)}


def log_likelihood(theta, row, hyper=1.0):
    # Not finite at a row of zeros, such as none is: what pads a batch must be a real row.
    known = jnp.log(jnp.sum(row["x"] ** 2)) * 0
    return known + jax.nn.log_sigmoid((2 * row["y"] - 1) * jnp.dot(row["x"], theta)) * hyper


def log_prior(theta, hyper=1.0):
    return -0.5 * hyper * jnp.sum(theta**2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, table())
WITH_HYPER = sghmc.Posterior(log_likelihood, log_prior, table(), hyper=1.0)
MINIBATCH = sghmc.Minibatch(20)


def update(key, theta, posterior):
    """Looks at all data, as a Gibbs update may."""
    mean = posterior.sum_over_data(lambda rows: rows["y"]) / posterior.num_examples
    return 0.5 + mean + 0.1 * jax.random.uniform(key) + 0.1 * jnp.tanh(jnp.sum(theta))


def mesh(**axes: int):
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


def sample(target: Any = POSTERIOR, sampler: Any = None, init: Any = None, **given: Any):
    usual = {"num_chains": NUM_CHAINS, "num_samples": 12, "gradient": MINIBATCH, "progress": False}
    sampler = sghmc.SGHMC(0.05, 1.0) if sampler is None else sampler
    init = jnp.linspace(-0.5, 0.5, NUM_COLUMNS) if init is None else init
    return sghmc.sample(KEY, target, sampler, init, **usual | given)


def everything(samples: sghmc.Samples):
    return samples.positions, samples.hyper, samples.averages, samples.info.potential


def same(one, other, tolerance=0.0):
    """To rounding: the draws of a dozen steps, which a fault moves by a step's noise, 0.2."""
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        everything(one),
        everything(other),
    )


ROUNDING = 2e-5
ALL_AT_ONCE = {
    "gibbs": sghmc.Gibbs(update, every=2),
    "averages": {"square": lambda theta, hyper: theta**2},
    "adapt": sghmc.AdaptMass(until=6, first_window=3),
    "num_burnin": 6,
}


@pytest.fixture(scope="module")
def alone():
    return sample(WITH_HYPER, **ALL_AT_ONCE)


def test_chains_spread_over_devices_are_the_same_bit_for_bit(alone):
    spread = sample(WITH_HYPER, mesh=mesh(chain=2), **ALL_AT_ONCE)
    assert spread.positions.shape == (NUM_CHAINS, 12, NUM_COLUMNS)
    np.testing.assert_array_equal(spread.positions, alone.positions)
    np.testing.assert_array_equal(spread.averages["square"], alone.averages["square"])
    same(spread, alone, ROUNDING)


def test_rows_spread_over_devices_are_the_same_to_rounding(alone):
    same(sample(WITH_HYPER, mesh=mesh(chain=2, data=2), **ALL_AT_ONCE), alone, ROUNDING)


class Killed(BaseException):
    """What ends a run at once."""


def test_a_checkpoint_goes_on_over_other_devices(tmp_path, monkeypatch):
    """Chains on two devices, saved after 6 draws; then on one: bit for bit as on one throughout."""
    whole = sample()

    class Death(Bar):
        def update(self, num_done, failed_at):
            if num_done >= 8:
                raise Killed

    saved = {"checkpoint": sghmc.Checkpoint(tmp_path, every=3)}
    with monkeypatch.context() as patch:
        patch.setattr(driver, "Bar", Death)
        with pytest.raises(Killed):
            sample(mesh=mesh(chain=2), **saved)
    same(sample(**saved), whole)
    same(sample(mesh=mesh(chain=4), **saved), whole)  # what is finished is read, and not run


# Parameters over devices


class Network:
    """A network whose first layer is cut in two; a step draws its noise by itself."""

    num_inputs, num_hidden = 32, 256

    @staticmethod
    def log_likelihood(params, row):
        hidden = jnp.tanh(row["x"] @ params["first"])
        return -0.5 * (row["y"] - hidden @ params["last"] - params["bias"][0]) ** 2

    @staticmethod
    def log_prior(params):
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    def __init__(self):
        rng = np.random.default_rng(1)
        x = rng.normal(size=(30, self.num_inputs)).astype(np.float32)
        y = rng.normal(size=30).astype(np.float32)
        self.posterior = sghmc.Posterior(self.log_likelihood, self.log_prior, {"x": x, "y": y})
        self.init = {
            "first": jnp.asarray(0.1 * rng.normal(size=(32, 256)), jnp.float32),
            "last": jnp.asarray(0.1 * rng.normal(size=256), jnp.float32),
            "bias": jnp.zeros(1),  # which two devices cannot share
        }


def test_parameters_spread_over_devices_are_drawn_where_they_lie(monkeypatch):
    network, programs = Network(), []
    lower = meshes.compiled_draws().lower

    def watched(*args, **options):
        programs.append(programs[0] if programs else lower(*args, **options).compile())
        return programs[0](*args, **options)

    monkeypatch.setattr(meshes, "compiled_draws", lambda: watched)
    given = {"num_samples": 3, "num_chains": 3, "gradient": sghmc.Minibatch(6)}
    alone = sample(network.posterior, init=network.init, **given)
    spread = sample(network.posterior, init=network.init, mesh=mesh(data=2, model=2), **given)
    same(spread, alone, ROUNDING)

    size, text = network.num_inputs * network.num_hidden, programs[0].compiled.as_text()
    gathered = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather", text)
    assert all(np.prod([int(n) for n in shape.split(",")]) < size for shape in gathered)
    shapes = re.findall(r"= u32\[([\d,]+)\]", text)
    drawn = {math.prod(int(n) for n in shape.split(",")) for shape in shapes}
    assert {size // 2, 3 * size // 2} & drawn
    assert not {size, 3 * size} & drawn


def test_sums_over_the_rows_of_all_devices():
    """Of a batch, of which chance gave a device more rows than it looks at at once, and of all."""
    numbers, theta = jnp.asarray([*[5] * 30, *range(60, 70)]), jnp.linspace(-1, 1, NUM_COLUMNS)
    over = mesh(data=4)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=over, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
    )
    def spread(numbers, rows):
        own = sghmc.Posterior(log_likelihood, log_prior, rows)
        own = eqx.tree_at(lambda p: p.num_real, own, NUM_ROWS, is_leaf=lambda leaf: leaf is None)
        shard = ManuallyShardedPosterior(own, "data", 4)
        batch = shard.batch(numbers, 0, len(numbers))
        estimate = jax.value_and_grad(shard.estimate)(theta, batch)
        return estimate, tuple(shard.evaluate(theta)), shard.potential(theta), shard.rows(numbers)

    padded = pad_rows(POSTERIOR, NUM_ROWS + 1).data
    found = spread(numbers, jax.device_put(padded, NamedSharding(over, P("data"))))
    rows = POSTERIOR.rows(numbers)
    wanted = (
        jax.value_and_grad(POSTERIOR.estimate)(theta, rows),
        tuple(POSTERIOR.evaluate(theta)),
        POSTERIOR.potential(theta),
        rows,
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, wanted)


# What is refused


@pytest.mark.parametrize(
    ("axes", "given", "words"),
    [
        ({"chain": 4}, {"num_chains": 6}, "num_chains is 6.* 4 devices. Take a multiple"),
        ({"chains": 4}, {}, "axis 'chains', but .*'chain', 'data', 'model'"),
        ({"data": 2}, {"target": sghmc.Potential(lambda x: jnp.sum(x**2)), "gradient": None},
         "rows of one Posterior, not a Potential: leave the axis 'data', of 2"),
        ({"data": 2}, {"target": "stack"}, "not posteriors with data of their own"),
        ({"data": 2}, {"target": "stream"}, "The rows of a stream"),
        ({"data": 4}, {"target": "source", "gradient": sghmc.Minibatch(6)},
         "batch_size is 6, .* 4 equal parts"),
    ],
)  # fmt: skip
def test_what_a_mesh_cannot_spread_is_refused(axes, given, words, tmp_path):
    if given.get("target") == "stack":
        given = {"target": sghmc.Posterior.stack([POSTERIOR] * 4), "posterior_axis": 0}
    elif given.get("target") == "stream":
        stream = sghmc.data.Stream(lambda: iter([table()]), size=NUM_ROWS)
        given = {"target": sghmc.Posterior(log_likelihood, log_prior, stream)}
    elif given.get("target") == "source":
        given = given | {"target": sghmc.Posterior(log_likelihood, log_prior, mapped(tmp_path))}
    with pytest.raises(ValueError, match=words):
        sample(mesh=mesh(**axes), **given)


def test_a_mesh_must_be_one():
    with pytest.raises(TypeError, match=r"must be a jax\.sharding\.Mesh"):
        sample(mesh=4)


def test_a_gibbs_update_cannot_mistake_a_device_s_rows_for_all():
    gibbs = sghmc.Gibbs(lambda key, theta, posterior: jnp.mean(posterior.data["y"]))
    with pytest.raises(AttributeError, match="sum_over_data"):
        sample(WITH_HYPER, mesh=mesh(data=2), gibbs=gibbs)


def mapped(folder):
    for name, column in table().items():
        np.save(folder / f"{name}.npy", column)
    return sghmc.data.MemoryMapped(folder)


# All samplers and gradients


@pytest.mark.parametrize("name", SAMPLERS)
def test_slow_every_sampler(name):
    given = {"sampler": SAMPLERS[name], "num_samples": 6}
    same(sample(mesh=mesh(chain=2, data=2), **given), sample(**given), ROUNDING)


GRADIENTS = {
    "full": None,
    "without replacement": sghmc.Minibatch(20, replacement=False),
    "epochs": sghmc.Minibatch(20, replacement="epochs"),
    "palindrome": sghmc.Minibatch(20, replacement="palindrome"),
    "shared": sghmc.Minibatch(20, shared=True),
    "noisy": sghmc.NoisyGradient(0.5),
    "control variate": sghmc.ControlVariate(20, renew_every=3),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_slow_every_gradient(name):
    given = {"gradient": GRADIENTS[name], "num_samples": 6}
    same(sample(mesh=mesh(chain=2, data=2), **given), sample(**given), ROUNDING)


def test_slow_estimated_gradient_noise():
    sampler = sghmc.SGHMC(0.05, 9.0, gradient_noise=sghmc.EmpiricalFisher(every=2))
    given = {"sampler": sampler, "num_samples": 6}
    same(sample(mesh=mesh(data=4), **given), sample(**given), ROUNDING)


@pytest.mark.parametrize("gradient", [MINIBATCH, None, sghmc.Minibatch(20, shared=True)])
def test_slow_rows_of_a_source_are_read_where_they_are_needed(gradient, tmp_path):
    target = sghmc.Posterior(log_likelihood, log_prior, mapped(tmp_path))
    sampler = sghmc.HMC(0.05, 2, metropolis=gradient is None)
    given = {"sampler": sampler, "gradient": gradient, "num_samples": 6}
    spread = sample(target, mesh=mesh(chain=2, data=2), **given)
    same(spread, sample(**given), ROUNDING)


def test_slow_a_stream_over_chains():
    def batches():
        rng = np.random.default_rng(0)
        while True:
            yield jax.tree.map(lambda leaf: leaf[rng.integers(0, NUM_ROWS, 50)], table())

    def target():
        return sghmc.Posterior(log_likelihood, log_prior, sghmc.data.Stream(batches, size=NUM_ROWS))

    same(sample(target(), mesh=mesh(chain=4)), sample(target()), ROUNDING)


def test_slow_one_posterior_a_chain():
    target = sghmc.Posterior.stack(
        [sghmc.Posterior(log_likelihood, log_prior, table(i, 90 + i)) for i in range(NUM_CHAINS)]
    )
    given = {"posterior_axis": 0, "num_samples": 6}
    same(sample(target, mesh=mesh(chain=4), **given), sample(target, **given), ROUNDING)
