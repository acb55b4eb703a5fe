"""Facts about runs over devices, for test_mesh.py: run as a script in a process that has four.

It prints what became of the `check_…` functions that it is told, as JSON: "", or what was said.
"""

import json
import pathlib
import re
import sys
import tempfile
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import sghmc
from sghmc.engine import checks
from sghmc.engine.chain import RunSpec, chain_keys
from sghmc.engine.devices import for_compiler
from sghmc.engine.layout import Batches, InitialPositions, Layout
from sghmc.engine.mesh import OverMesh, placement_for
from sghmc.engine.options import RunOptions
from sghmc.posterior.sharded import CompilerShardedPosterior, ManuallyShardedPosterior

NUM_ROWS, NUM_CHAINS = 7, 2
ROWS = np.random.default_rng(0).normal(size=(NUM_ROWS, 3)).astype(np.float32)
START = {"w": jnp.array([[0.3, -0.2], [0.5, 0.1]])}


def log_likelihood(params, row, hyper):
    return -0.5 * hyper * jnp.sum((row[:2] @ params["w"] - row[2]) ** 2)


def log_prior(params, hyper):
    return -0.5 * jnp.sum(params["w"] ** 2)


def update(key, params, posterior):
    total = posterior.sum_over_data(lambda rows: rows[:, 2]) / posterior.num_examples
    return 1.0 + 0.1 * jax.random.uniform(key) + 0.1 * total


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, ROWS, hyper=1.0)


def mesh(**axes: int):
    return jax.make_mesh(tuple(axes.values()), tuple(axes))


def over(rules=None, **axes: int) -> OverMesh:
    return OverMesh(for_compiler(mesh(**axes)), rules)


def run(**given: Any) -> sghmc.Samples:
    return sghmc.sample(
        jax.random.key(1), POSTERIOR, sghmc.SGHMC(0.05, 1.0), START,
        gradient=sghmc.Minibatch(4), num_chains=NUM_CHAINS, num_samples=3, thinning=2,
        progress=False, gibbs=sghmc.Gibbs(update, every=2),
        averages={"w": lambda params, hyper: params["w"]}, **given,
    )  # fmt: skip


def check_draws_are_those_of_one_device_whatever_is_spread():
    whole = run()
    rules = [("w", P("model", "data"))]
    spread = [run(mesh=mesh(chain=2, data=2)), run(mesh=mesh(data=2, model=2), sharding=rules)]
    for other in spread:
        for name in ("positions", "hyper", "averages"):
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5),
                getattr(other, name),
                getattr(whole, name),
            )
        np.testing.assert_allclose(other.info.potential, whole.info.potential, rtol=2e-5)
        assert other.info.potential.shape == (NUM_CHAINS, 3)


def program(place, num_chains=4, gradient=None, **parts) -> RunSpec:
    gradient = sghmc.Minibatch(4) if gradient is None else gradient
    return RunSpec(
        **{
            "target": POSTERIOR,
            "kernel": sghmc.SGHMC(0.05, 1.0).prepare(START),
            "estimator": gradient.prepare(POSTERIOR, START),
            "gibbs": None,
            "adapt": None,
            "keep": None,
            "averages": {},
            "trace": None,
            "keys": chain_keys(jax.random.key(0), num_chains),
            "layout": Layout.of(START, num_chains, place.shardings(START)),
            "thinning": 1,
            "is_stacked": False,
        }
        | parts
    )


def own_parts(array) -> list[np.ndarray]:
    """What each device of the mesh has of an array, in their order."""
    by_id = {shard.device.id: np.asarray(shard.data) for shard in array.addressable_shards}
    return [by_id[i] for i in sorted(by_id)]


def check_a_program_lies_by_chains_and_by_rows():
    place = over(chain=2, data=2)
    placed = place.place_spec(program(place))
    keys, rows = own_parts(placed.keys), own_parts(placed.target.data)
    whole = np.asarray(chain_keys(jax.random.key(0), 4))
    for device in range(4):
        chain, data = device // 2, device % 2
        np.testing.assert_array_equal(keys[device], whole[2 * chain : 2 * chain + 2])
        assert rows[device].shape == (4, 3)  # of 7 rows, filled up to 8
        np.testing.assert_array_equal(rows[device][:3], ROWS[4 * data : 4 * data + 3])
    assert int(placed.target.num_examples) == NUM_ROWS
    assert own_parts(placed.kernel.step_size)[3].shape == ()


def check_rows_are_filled_up_to_a_multiple_of_the_devices():
    place = over(data=4)
    placed = place.place_spec(program(place))
    assert placed.target.data.shape == (8, 3)
    assert [part.shape for part in own_parts(placed.target.data)] == [(2, 3)] * 4
    assert int(placed.target.num_examples) == NUM_ROWS


def check_rows_that_can_be_cut_evenly_are_not_filled_up():
    place = over(data=4)
    table = sghmc.Posterior(log_likelihood, log_prior, np.ones((8, 3), np.float32), hyper=1.0)
    placed = place.place_spec(program(place, target=table))
    assert placed.target.data.shape == (8, 3)
    assert placed.target.num_real is None
    assert own_parts(placed.target.data)[0].shape == (2, 3)


def check_an_array_that_somebody_spread_stays_so_and_others_are_everywhere():
    place = over(model=4)
    spread = jax.device_put(jnp.arange(8.0), jax.sharding.NamedSharding(mesh(model=4), P("model")))
    shown = [place._own_spec(leaf) for leaf in (spread, jnp.zeros(8), np.zeros(8))]
    assert shown == [P("model"), P(), P()]
    elsewhere = over(data=4)
    assert elsewhere._own_spec(spread) == P()
    once = place._put([spread, spread], [P(), P()])
    assert once[0] is once[1]
    twice = place._put([spread, spread], [P(), P("model")])
    assert [own_parts(each)[1].shape for each in twice] == [(8,), (2,)]


def check_every_device_has_the_rows_of_its_own_numbers():
    place, table = over(chain=2, data=2), np.arange(100.0)
    rng = np.random.default_rng(3)
    numbers = rng.integers(0, 100, size=(4, 3, 2, 6)).astype(np.int32)  # chain, step, gradient, row
    asked = []

    def take(chosen):
        asked.append(chosen)
        return {"x": table[chosen], "y": -table[chosen]}

    batches = place.batches(numbers, 5, take)
    assert batches.first == 5
    assert batches.places.shape == numbers.shape
    assert len(asked) == 4
    assert all((np.diff(each) >= 0).all() for each in asked)
    rows, places = own_parts(batches.rows["x"]), own_parts(batches.places)
    for device in range(4):
        chain, data = device // 2, device % 2
        wanted = table[numbers[2 * chain : 2 * chain + 2, ..., 3 * data : 3 * data + 3]]
        assert rows[device].shape == (1, 1, wanted.size)
        np.testing.assert_array_equal(rows[device][0, 0][places[device]], wanted)
    np.testing.assert_array_equal(batches.rows["y"], -np.asarray(batches.rows["x"]))


def check_shared_rows_are_read_once_for_the_devices_that_share_them():
    place, table, asked = over(chain=2, data=2), np.arange(100.0), []
    numbers = np.random.default_rng(4).integers(0, 100, size=(3, 1, 4)).astype(np.int32)

    def take(chosen):
        asked.append(chosen)
        return table[chosen]

    batches = place.batches(numbers, 0, take)
    assert len(asked) == 2
    rows, places = own_parts(batches.rows), own_parts(batches.places)
    for device in range(4):
        data = device % 2
        wanted = table[numbers[..., 2 * data : 2 * data + 2]]
        np.testing.assert_array_equal(rows[device][0][places[device]], wanted)


def check_a_device_sees_its_rows_without_the_axes_of_the_mesh():
    place = over(chain=2, data=2)
    rows, places = jnp.arange(12.0).reshape(1, 1, 12), jnp.arange(12).reshape(2, 3, 1, 2)
    own = place._own(program(place, batches=Batches(rows, places, jnp.asarray(0))))
    assert own.batches is not None
    assert own.batches.rows.shape == (12,)
    assert own.batches.places.shape == (2, 3, 2)
    np.testing.assert_array_equal(own.batches.places[1, 2], [10, 11])
    assert own.layout.num_chains == 2
    assert isinstance(own.target, ManuallyShardedPosterior)
    assert own.target.axis == "data"
    ruled = over((("w", P("data")),), data=2)
    spread = ruled._own(program(ruled))
    assert isinstance(spread.target, CompilerShardedPosterior)


def check_chains_start_where_they_are_told():
    place = over((("w", P("model")),), chain=2, model=2)
    layout = Layout.of(START, 4, place.shardings(START))
    repeated = place._positions(layout, InitialPositions(START, None))["w"]
    np.testing.assert_array_equal(repeated, np.broadcast_to(START["w"], (4, 2, 2)))
    assert [each.shape for each in own_parts(repeated)] == [(2, 1, 2)] * 4
    given = {"w": jnp.arange(16.0).reshape(4, 2, 2)}
    placed = place._positions(layout, InitialPositions(given, 0))["w"]
    for device, part in enumerate(own_parts(placed)):
        chain, model = device // 2, device % 2
        wanted = given["w"][2 * chain : 2 * chain + 2, model : model + 1]
        np.testing.assert_array_equal(part, wanted)


def check_a_carry_is_saved_raveled_and_comes_back_to_its_place():
    place = over((("w", P("model")),), chain=2, model=2)
    made = program(place)
    begun = place.begin(place.place_spec(made), InitialPositions(START, None), evaluates=True)
    assert begun.potential is not None
    assert begun.potential.shape == (4,)
    checks.check_initial_states(begun)
    saved = place.fetch_state(made.layout, begun.carry)
    assert saved.state.position["w"].shape == (4, 4)  # parameter, chain
    like = place.saved_like(made.layout, place.state_like(made))
    assert jax.tree.structure(like) == jax.tree.structure(saved)
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(saved)]
    assert [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(like)] == shapes
    back = place.place_state(made.layout, saved)
    for one, other in zip(*map(jax.tree.leaves, (back, begun.carry)), strict=True):
        np.testing.assert_array_equal(one, other)
    velocity = own_parts(back.state.velocity["w"])
    assert [each.shape for each in velocity] == [(2, 1, 2)] * 4
    assert own_parts(back.failed_at)[0].shape == (2,)


def check_noise_of_a_gradient_has_the_shape_of_parameters():
    """Inside of a mesh the normals of a single step are drawn in another shape."""
    target = sghmc.Potential(lambda x: jnp.sum(x**2) / 2)

    def draws(where) -> np.ndarray:
        sampler, key, start = sghmc.SGHMC(0.1, 1.0), jax.random.key(0), jnp.ones((4, 2))
        given: dict[str, Any] = {"gradient": sghmc.NoisyGradient(0.5), "num_samples": 3}
        given |= {"num_chains": 2, "mesh": where, "progress": False}
        return np.asarray(sghmc.sample(key, target, sampler, start, **given).positions)

    np.testing.assert_allclose(draws(mesh(chain=2)), draws(None), atol=1e-6)


def check_passes_over_a_source_beside_a_model_axis_are_refused():
    np.save(path := pathlib.Path(tempfile.mkdtemp()) / "x.npy", np.ones((12, 2), np.float32))
    target = sghmc.Posterior(
        lambda theta, row: -0.5 * jnp.sum((row - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        sghmc.data.MemoryMapped(path),
    )

    def go(gradient):
        given: dict[str, Any] = {"mesh": mesh(chain=2, model=2), "sharding": [("", P("model"))]}
        given |= {"gradient": gradient, "num_samples": 2, "num_chains": 2, "progress": False}
        start = jnp.zeros(2)
        return sghmc.sample(jax.random.key(0), target, sghmc.SGHMC(0.01, 1.0), start, **given)

    with pytest.raises(ValueError, match="a mesh with the axis 'model' beside 'chain', as FullB"):
        go(sghmc.FullBatch())
    assert go(sghmc.Minibatch(4)).positions.shape == (2, 2, 2)


def refused(
    words: str, error: type[Exception] = ValueError, target: Any = POSTERIOR, **given: Any
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        placement_for(RunOptions(**given), target)


def check_what_a_mesh_cannot_spread_is_refused():
    refused("num_chains is 6", mesh=mesh(chain=4), num_chains=6)
    refused("over 'chain': 4 devices", mesh=mesh(chain=4), num_chains=6)
    refused("an axis 'rows'", mesh=mesh(rows=4))
    refused("must be a jax.sharding.Mesh", TypeError, mesh=4)
    plain = sghmc.Potential(lambda x: jnp.sum(x**2))
    refused("not a Potential: leave the axis 'data', of 2 devices", mesh=mesh(data=2), target=plain)
    placement_for(RunOptions(mesh=mesh(chain=2), num_chains=4), plain)
    stack = sghmc.Posterior.stack([POSTERIOR] * 2)
    refused("not posteriors with data of their own", mesh=mesh(data=2), target=stack)
    stream = sghmc.data.Stream(lambda: iter([ROWS]), size=NUM_ROWS)
    streamed = sghmc.Posterior(log_likelihood, log_prior, stream, hyper=1.0)
    refused("The rows of a stream come in one order", mesh=mesh(data=2), target=streamed)
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", ROWS)
        source = sghmc.data.MemoryMapped(f"{folder}/x.npy")
        mapped = sghmc.Posterior(log_likelihood, log_prior, source, hyper=1.0)
        batches = {"gradient": sghmc.Minibatch(6), "target": mapped}
        refused("batch_size is 6, but the rows of a source are read in 4", mesh=mesh(data=4),
                **batches)  # fmt: skip
        placement_for(RunOptions(mesh=mesh(data=2), gradient=sghmc.Minibatch(6)), mapped)
        rules = [("", P("data"))]
        refused("spreads parameters over 'data', for which", mesh=mesh(data=2), sharding=rules,
                target=mapped)  # fmt: skip
    place = placement_for(RunOptions(mesh=mesh(data=2), sharding=[("", P("data"))]), plain)
    assert isinstance(place, OverMesh)
    assert place.has_spread_rows
    assert place.rules == (("", P("data")),)


def main(names: list[str]) -> dict[str, str]:
    jax.config.update("jax_numpy_rank_promotion", "raise")
    outcomes = {}
    for name in names:
        try:
            globals()[name]()
            outcomes[name] = ""
        except (Exception, pytest.fail.Exception):  # the second where nothing was refused
            outcomes[name] = traceback.format_exc()
    return outcomes


if __name__ == "__main__":
    json.dump(main(sys.argv[1:]), sys.stdout)
