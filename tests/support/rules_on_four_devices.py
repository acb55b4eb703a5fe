"""Tests of partition rules, which need four devices: test_placement.py runs them where there are.

`test_slow_…` are slow.
"""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sghmc
from cases import SAMPLERS
from on_four_devices import ROUNDING, Killed, Network, mesh, same, sample
from sghmc.engine import driver
from sghmc.engine import mesh as meshes
from sghmc.engine.devices import placed
from sghmc.engine.driver import Bar

NETWORK = Network()
GIVEN = {
    "target": NETWORK.posterior,
    "init": NETWORK.init,
    "num_samples": 3,
    "num_chains": 2,
    "gradient": sghmc.Minibatch(6),
}
BY_COLUMNS = [("first", P(None, "model")), ("last", P("model")), ("", P())]
"""Megatron's: the hidden units are spread, and their answers are added up."""
OVER_ROWS = [("first", P("data", "model")), ("last", P(("model", "data"))), ("", P())]
"""Parameters over the axis of the rows, too."""
SIZE = Network.num_inputs * Network.num_hidden


@pytest.fixture(scope="module")
def alone():
    return sample(**GIVEN)


@pytest.fixture
def programs(monkeypatch):
    """The compiled loops of runs, as text."""
    texts, draws = [], meshes.compiled_draws()

    def watched(*args, **options):
        if not texts:
            texts.append(draws.lower(*args, **options).compile().compiled.as_text())
        return draws(*args, **options)

    monkeypatch.setattr(meshes, "compiled_draws", lambda: watched)
    return texts


def moved_sizes(text: str, operation: str) -> list[int]:
    """Of arrays that go between devices: the most numbers of each."""
    found = re.findall(rf"= \(?(\w+\[[^()]*?)\)? {operation}(?:-start)?\(", text)
    shapes = (re.findall(r"\[([\d,]*)\]", each) for each in found)
    return [max(int(np.prod([int(n) for n in s.split(",") if n])) for s in each) for each in shapes]


def test_rules_spread_parameters_and_chains(alone, programs):
    spread = sample(**GIVEN, mesh=mesh(chain=2, model=2), sharding=BY_COLUMNS)
    same(spread, alone, ROUNDING)
    (text,) = programs
    # No device has, nor sends, the whole of an array that rules cut.
    for operation in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert all(size < SIZE // 2 for size in moved_sizes(text, operation)), operation
    assert re.search(r"f32\[(1,)?32,128\]", text)
    assert not re.search(r"\[(1,|2,)*32,256\]", text)


def test_rules_may_spread_over_the_axis_of_rows(alone, programs):
    spread = sample(**GIVEN, mesh=mesh(data=2, model=2), sharding=OVER_ROWS)
    same(spread, alone, ROUNDING)
    (text,) = programs
    assert re.search(r"f32\[(2,)?16,128\]", text)
    assert not re.search(r"\[(1,|2,)*32,256\]", text)


def test_what_a_run_carries_lies_as_parameters_do(monkeypatch):
    seen = []
    advance = meshes.OverMesh.advance

    def watched(self, *args, **options):
        done = advance(self, *args, **options)
        seen.append(done[0].state)
        return done

    monkeypatch.setattr(meshes.OverMesh, "advance", watched)
    sample(**GIVEN, mesh=mesh(chain=2, model=2), sharding=BY_COLUMNS)
    for part in seen[-1]:
        assert {s.data.shape for s in part["first"].addressable_shards} == {(1, 32, 128)}
        assert {s.data.shape for s in part["last"].addressable_shards} == {(1, 128)}
        assert {s.data.shape for s in part["bias"].addressable_shards} == {(1, 1)}


def test_slow_a_checkpoint_goes_on_by_other_rules(tmp_path, monkeypatch, alone):
    class Death(Bar):
        def update(self, num_done, failed_at):
            if num_done >= 2:
                raise Killed

    saved = {"checkpoint": sghmc.Checkpoint(tmp_path, every=1)}
    with monkeypatch.context() as patch:
        patch.setattr(driver, "Bar", Death)
        with pytest.raises(Killed):
            sample(**GIVEN, **saved, mesh=mesh(chain=2, model=2), sharding=BY_COLUMNS)
    rows = [("first", P("model")), ("", P())]
    same(sample(**GIVEN, **saved, mesh=mesh(model=4), sharding=rows), alone, ROUNDING)
    same(sample(**GIVEN, **saved), alone, ROUNDING)  # what is finished is read, and not run


HELD = {"first": False, "last": True, "bias": True}


def test_what_is_held_lies_by_the_rules_too(programs):
    given = GIVEN | {"trainable": HELD}
    alone = sample(**given)
    spread = sample(**given, mesh=mesh(chain=2, model=2), sharding=BY_COLUMNS)
    same(spread, alone, ROUNDING)
    (text,) = programs
    assert re.search(r"f32\[32,128\]", text)
    assert not re.search(r"\[(1,|2,)*32,256\]", text)


def test_slow_what_is_held_stays_where_its_owner_put_it(programs):
    over = mesh(model=4)
    first = jax.device_put(NETWORK.init["first"], NamedSharding(over, P(None, "model")))
    given = GIVEN | {"trainable": HELD}
    spread = sample(**given | {"init": NETWORK.init | {"first": first}}, mesh=over)
    same(spread, sample(**given), ROUNDING)
    (text,) = programs
    assert not re.search(r"\[(1,|2,)*32,256\]", text)


def test_rules_place_arrays():
    cut = placed(BY_COLUMNS, NETWORK.init, mesh(chain=2, model=2))
    assert {s.data.shape for s in cut["first"].addressable_shards} == {(32, 128)}
    np.testing.assert_array_equal(cut["first"], NETWORK.init["first"])


@pytest.mark.parametrize(
    ("axes", "rules", "words"),
    [
        ({"model": 4}, BY_COLUMNS[1:2], "No rule of sharding is found in the path of first: add"),
        ({"model": 4}, [("first", P(None, "chain"))], "over 'chain'"),
        ({"model": 4}, [("", P("model", None, "model"))], "names an axis twice"),
        ({"model": 4}, [("first", P("model", None, None)), ("", P())],
         r"first has shape \(32, 256\), .* 3 axes"),
    ],
)  # fmt: skip
def test_rules_that_do_not_fit_are_refused(axes, rules, words):
    with pytest.raises(ValueError, match=words):
        sample(**GIVEN, mesh=mesh(**axes), sharding=rules)


def test_rows_of_a_source_cannot_lie_where_parameters_do(tmp_path):
    for name, column in NETWORK.posterior.data.items():
        np.save(tmp_path / f"{name}.npy", column)
    source = sghmc.data.MemoryMapped(tmp_path)
    target = sghmc.Posterior(Network.log_likelihood, Network.log_prior, source)
    with pytest.raises(ValueError, match="spread parameters over 'model' alone"):
        sample(**GIVEN | {"target": target}, mesh=mesh(data=2, model=2), sharding=OVER_ROWS)


SOFT = sghmc.Posterior(
    lambda params, row: 0.05 * Network.log_likelihood(params, row),
    Network.log_prior,
    NETWORK.posterior.data,
)
"""Where no sampler's step is too long, so that rounding does not grow."""
OVER_CHAINS = ({"chain": 2, "model": 2}, BY_COLUMNS)
OVER_ALL = ({"data": 2, "model": 2}, OVER_ROWS)


@pytest.mark.parametrize(
    ("name", "axes", "rules"),
    [(name, *OVER_CHAINS) for name in ("baoab", "hmc", "psgld", "sgnht", "ubu")]
    + [(name, *OVER_ALL) for name in ("hmc", "sghmc", "sgnht")],
)
def test_slow_samplers_of_every_kind_by_rules(name, axes, rules):
    given = GIVEN | {"sampler": SAMPLERS[name], "target": SOFT}
    same(sample(**given, mesh=mesh(**axes), sharding=rules), sample(**given), ROUNDING)


def update(key, params, posterior):
    mean = posterior.sum_over_data(lambda rows: rows["y"]) / posterior.num_examples
    return 0.5 + mean + 0.1 * jax.random.uniform(key) + 0.1 * jnp.tanh(jnp.sum(params["last"]))


@pytest.mark.parametrize(("axes", "rules"), [OVER_CHAINS, OVER_ALL])
def test_slow_all_at_once_by_rules(axes, rules):
    target = sghmc.Posterior(
        lambda params, row, hyper: hyper * Network.log_likelihood(params, row),
        lambda params, hyper: Network.log_prior(params) - hyper**2,
        NETWORK.posterior.data,
        hyper=1.0,
    )
    given = GIVEN | {
        "target": target,
        "gibbs": sghmc.Gibbs(update, every=2),
        "averages": {"square": lambda params, hyper: params["first"] ** 2},
        "keep": lambda params, hyper: params["last"],
        "adapt": sghmc.AdaptMass(until=6, first_window=3),
        "num_burnin": 6,
        "thinning": 2,
        "gradient": sghmc.ControlVariate(6, renew_every=3),
        "sampler": sghmc.SGHMC(0.01, 1.0),
    }
    same(sample(**given, mesh=mesh(**axes), sharding=rules), sample(**given), ROUNDING)


def test_slow_a_module_s_parameters_have_paths():
    network = eqx.nn.MLP(8, "scalar", 16, 2, key=jax.random.key(0))
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(20, 8)).astype(np.float32), "y": np.ones(20, np.float32)}

    def log_likelihood(network, row):
        return -((row["y"] - network(row["x"])) ** 2)

    def log_prior(network):
        leaves = jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array))
        return -0.5 * sum(jnp.sum(leaf**2) for leaf in leaves)

    given = GIVEN | {
        "target": sghmc.Posterior(log_likelihood, log_prior, rows),
        "init": network,
        "trainable": eqx.is_inexact_array,
    }
    rules = [("layers/0/weight", P("model")), ("layers/1/weight", P(None, "model")), ("", P())]
    same(sample(**given, mesh=mesh(chain=2, model=2), sharding=rules), sample(**given), ROUNDING)


def test_lazy_steps_need_their_tables_on_one_device():
    sampler = sghmc.Lazy(sghmc.SGHMC(0.01, 1.0))
    target = sghmc.Posterior(
        sghmc.RowLikelihood(lambda rows, x: rows[0] @ rows[1], lambda pair: pair),
        sghmc.RowPrior(lambda rows: (0.0, 1.0)),
        np.zeros((8, 2), np.int32),
    )
    given = GIVEN | {"target": target, "init": jnp.zeros((8, 2)), "sampler": sampler}
    with pytest.raises(ValueError, match="moves single rows of parameters"):
        sample(**given, mesh=mesh(model=2))
