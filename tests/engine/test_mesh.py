"""Where the arrays of a run lie on a mesh of devices, axis by axis; draws are those of one device.

What needs several devices is checked by a script in a process that has four, which runs once for
all that is quick.
"""

import ast
import json
import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import marked
import sghmc
from marked import MarkedKernel
from sghmc.engine import devices
from sghmc.engine import mesh as mesh_file
from sghmc.engine.layout import Batches, Layout
from sghmc.engine.mesh import OverMesh, _table
from sghmc.engine.options import RunOptions
from sghmc.posterior.sharded import CompilerShardedPosterior, ManuallyShardedPosterior

SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "mesh_on_four_devices.py"
CHECKS = [
    each.name
    for each in ast.parse(SCRIPT.read_text(encoding="utf-8")).body
    if isinstance(each, ast.FunctionDef) and each.name.startswith("check_")
]


SLOW = (
    "check_draws_are_those_of_one_device_whatever_is_spread",
    "check_noise_of_a_gradient_has_the_shape_of_parameters",
    "check_passes_over_a_source_beside_a_model_axis_are_refused",
)


def outcomes_of(names: list[str]) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([*sys.path, str(SCRIPT.parent)])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *names],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return outcomes_of([name for name in CHECKS if name not in SLOW])


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in SLOW])
def test_on_four_devices(name, outcomes):
    assert outcomes[name] == "", outcomes[name]


@pytest.mark.slow
def test_draws_on_four_devices():
    assert set(SLOW) <= set(CHECKS)
    assert outcomes_of(list(SLOW)) == dict.fromkeys(SLOW, "")


# What can be said without devices


def over(rules=None, **axes: int) -> OverMesh:
    """Over a mesh of which nothing is known but how long its axes are."""
    mesh: Any = types.SimpleNamespace(shape=axes)
    return OverMesh(mesh, rules)


def test_axes_of_one_device_spread_nothing():
    place = over(chain=2, data=1, model=3)
    assert [place.size(axis) for axis in ("chain", "data", "model", None)] == [2, 1, 3, 1]
    assert over(model=3).size("chain") == 1
    assert place.spec("chain", None, "data", "model") == P("chain", None, None, "model")
    assert place.manual == {"chain"}
    assert over(chain=2, data=3, model=4).manual == {"chain", "data"}
    assert over(model=4).manual == frozenset()


def test_rows_are_the_compilers_where_rules_spread_parameters_over_them():
    rules = (("w", P(None, ("model", "data"))), ("", P()))
    assert over(rules, data=2, chain=2).has_spread_rows
    assert over(rules, data=2, chain=2).manual == {"chain"}
    assert not over(rules, data=1, model=2).has_spread_rows
    assert not over((("w", P("model")),), data=2).has_spread_rows
    assert not over(data=2).has_spread_rows


def test_a_program_is_cut_by_keys_rows_and_batches():
    estimator = sghmc.Minibatch(2).prepare(marked.POSTERIOR, marked.LIKE)
    batches = Batches(jnp.zeros((1, 1, 4)), jnp.zeros((1, 2, 1, 2), jnp.int32), jnp.asarray(0))
    whole = marked.program(
        2, kernel=MarkedKernel(jnp.asarray(1.0)), estimator=estimator, batches=batches
    )
    place = over(chain=2, data=3)
    specs = place._specs(whole, lambda _: P("other"))
    assert specs.keys == P("chain")
    assert specs.target.data == P("data")
    assert specs.kernel.scale == P("other")
    assert specs.batches.rows == P("chain", "data")
    assert specs.batches.places == P("chain", None, None, "data")
    assert specs.batches.first == P("other")
    shared = sghmc.Minibatch(2, shared=True).prepare(marked.POSTERIOR, marked.LIKE)
    specs = place._specs(eqx.tree_at(lambda p: p.estimator, whole, shared), lambda _: P())
    assert specs.batches.rows == P("data")
    assert specs.batches.places == P(None, None, "data")


def test_stacked_posteriors_lie_by_chains():
    stack = sghmc.Posterior.stack([marked.POSTERIOR] * 2)
    gradient = sghmc.ControlVariate(2, marked.start())
    estimators = [gradient.prepare(stack[i], marked.LIKE) for i in (0, 1)]
    arrays = jax.tree.map(lambda *leaves: jnp.stack(leaves), *estimators)
    whole = marked.program(2, target=stack.chains, estimator=arrays, is_stacked=True)
    specs = over(chain=2, data=3)._specs(whole, lambda _: P("other"))
    assert set(jax.tree.leaves(specs.target)) == {P("chain")}
    assert set(jax.tree.leaves(specs.estimator)) == {P("chain")}
    assert _table(whole) is None


def test_a_table_is_a_posterior_of_arrays(tmp_path):
    assert _table(marked.program()) is marked.POSTERIOR
    assert _table(marked.program(target=sghmc.Potential(jnp.sum))) is None
    jnp.save(tmp_path / "x.npy", marked.ROWS)
    source = sghmc.data.MemoryMapped(tmp_path / "x.npy")
    mapped = sghmc.Posterior(marked.log_likelihood, marked.log_prior, source, hyper=1.0)
    assert _table(marked.program(target=mapped)) is None


def test_what_the_compiler_has_is_whole_to_a_device():
    whole = marked.program(2)
    rules = (("a", P("data")),)
    assert over(chain=2, data=3)._manual_specs(whole).target.data == P("data")
    specs = over(rules, chain=2, data=3)._manual_specs(whole)
    assert specs.target.data == P(None)
    assert specs.keys == P("chain")


def test_a_device_has_its_chains_and_its_part_of_the_rows():
    place = over(chain=2, data=3)
    own = place._own(marked.program(6))
    assert own.layout.num_chains == 3
    assert isinstance(own.target, ManuallyShardedPosterior)
    assert (own.target.axis, own.target.num_shards) == ("data", 3)
    assert over(chain=2)._own(marked.program(6)).target is marked.POSTERIOR


def test_states_lie_by_chains_and_as_their_parameters_do():
    rules = (("a", P(None, "model")), ("b", P()))
    mesh = jax.sharding.AbstractMesh((2, 3), ("chain", "model"))
    place = OverMesh(mesh, rules)  # pyright: ignore[reportArgumentType]
    layout = Layout.of(marked.LIKE, 4, place.shardings(marked.LIKE))
    assert [each.spec for each in layout.shardings or ()] == [P(None, "model"), P()]
    carry = {
        "position": jax.tree.map(lambda leaf: jnp.zeros((4, *leaf.shape)), marked.LIKE),
        "failed_at": jnp.zeros(4),
    }
    specs = place._carry_specs(layout, carry)
    assert specs["position"] == {"a": P("chain", None, "model"), "b": P("chain")}
    assert specs["failed_at"] == P("chain")


def test_rows_for_a_device_are_taken_with_an_axis_for_each_of_the_mesh():
    mesh = jax.make_mesh((1, 1), ("chain", "data"), devices=jax.devices()[:1])
    by_number = jax.sharding.NamedSharding(mesh, P("chain", None, None, "data"))
    by_device = jax.sharding.NamedSharding(mesh, P("chain", "data"))
    numbers = np.array([[[[5, 2], [9, 2]]]])
    found = devices.device_batches(
        numbers, 7, lambda chosen: {"x": 10 * chosen}, by_number, by_device, (1, 1)
    )
    assert found.rows["x"].shape == (1, 1, 4)
    taken = np.asarray(found.rows["x"])[0, 0]
    np.testing.assert_array_equal(taken[np.asarray(found.places)], 10 * numbers)
    assert found.places.shape == numbers.shape
    assert found.first == 7


def test_rows_that_the_compiler_spreads_are_cut_by_it():
    rules = (("a", P("data")),)
    target = sghmc.Posterior(lambda p, x: x, lambda p: 0.0, jnp.ones(6))
    own = over(rules, chain=2, data=3)._own(marked.program(2, target=target)).target
    assert isinstance(own, CompilerShardedPosterior)
    assert (own.where, own.num_parts) == (P("data"), 3)
    assert own.log_prior is target.log_prior
    np.testing.assert_array_equal(own.data, np.ones(6))


def test_the_data_of_a_run_are_checked_against_its_mesh(monkeypatch):
    def told(target, gradient, place):
        raise LookupError(target, gradient, place)

    monkeypatch.setattr(mesh_file, "_check_data", told)
    mesh = jax.make_mesh((1,), ("chain",), devices=jax.devices()[:1])
    options = RunOptions(gradient=sghmc.Minibatch(2), num_chains=2, num_samples=1, mesh=mesh)
    with pytest.raises(LookupError) as seen:
        mesh_file.placement_for(options, marked.POSTERIOR)
    assert seen.value.args[:2] == (marked.POSTERIOR, options.gradient)
