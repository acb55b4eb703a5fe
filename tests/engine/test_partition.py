"""Which rule a parameter follows, and what is said of rules that none can follow."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import sghmc
from sghmc.engine import devices
from sghmc.engine.devices import first_axes, matched, used_axes

MESH = AbstractMesh((2, 4), ("data", "model"))
PARAMS = {
    "layers": [{"weight": jnp.zeros((8, 6)), "bias": jnp.zeros(6)} for _ in range(2)],
    "scale": jnp.zeros(()),
}


def specs(rules, params=PARAMS, mesh=MESH):
    return matched(rules, params, mesh)


def test_the_first_rule_that_is_found_wins():
    rules = [("1/weight$", P("data")), ("weight", P("model")), ("", P())]
    # In the order of leaves: bias and weight of both layers, and the single number.
    assert specs(rules) == [P(), P("model"), P(), P("data"), P()]
    assert specs(rules[1:]) == [P(), P("model"), P(), P("model"), P()]


def test_fields_of_a_module_are_names_of_its_path():
    network = eqx.filter(eqx.nn.Linear(8, 4, key=jax.random.key(0)), eqx.is_array)
    assert specs([("^weight$", P(None, "model")), ("^bias$", P())], network) == [
        P(None, "model"),
        P(),
    ]


def test_a_single_number_needs_no_rule():
    assert specs([("layers", P())]) == [P()] * 5


def test_paths_without_a_rule_are_listed():
    with pytest.raises(ValueError, match=r"path of layers/0/bias, layers/1/bias: add"):
        specs([("weight", P())])
    many = {f"x{i}": jnp.zeros(2) for i in range(11)}
    with pytest.raises(ValueError, match=r", x7 and 3 more|, x6 and 3 more|, x5 and 3 more"):
        specs([], many)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (P(None, "model"), r"weight has shape \(8, 6\), whose axis of 6 cannot be cut into 4"),
        (P(None, ("data", "model")), "axis of 6 cannot be cut into 8 equal"),
        (P("data", None, "model"), "speaks of 3 axes"),
    ],
)
def test_a_spec_that_does_not_fit_names_path_shape_and_remedy(spec, words):
    with pytest.raises(ValueError, match=words):
        specs([("weight", spec), ("", P())])
    assert specs([("weight", P(("data", "model"), None)), ("", P())])[1] == P(
        ("data", "model"), None
    )


def test_the_remedy_in_the_message_is_one():
    rules = [("weight", P(None, "model")), ("", P())]
    with pytest.raises(ValueError, match=r'\("layers/0/weight", PartitionSpec\(\)\)'):
        specs(rules)
    assert specs([("layers/0/weight", P()), ("layers/1/weight", P()), *rules]) == [P()] * 5


def test_axes_in_specs():
    assert used_axes([P(("data", "model"), None), P("model")]) == ["data", "model", "model"]


def test_without_rules_the_first_axis_is_cut_where_it_can_be():
    params = [jnp.zeros((8, 3)), jnp.zeros(6), jnp.zeros(())]
    assert first_axes(params, MESH) == [P("model"), P(), P()]
    assert first_axes(params, AbstractMesh((2,), ("data",))) == [P()] * 3


def sample(**given):
    target = sghmc.Potential(lambda x: jnp.sum(x**2))
    return sghmc.sample(jax.random.key(0), target, sghmc.SGHMC(0.1, 1.0), jnp.zeros(4), **given)


ONE = jax.make_mesh((1,), ("model",))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"sharding": [("", P())]}, ValueError, "mesh is not given: give"),
        ({"sharding": "weight", "mesh": ONE}, TypeError, "must be a list of rules"),
        ({"sharding": {"a": P()}, "mesh": ONE}, TypeError, "must be a list of rules"),
        ({"sharding": ["weight"], "mesh": ONE}, TypeError, "a pattern and a spec"),
        ({"sharding": [("", "model")], "mesh": ONE}, TypeError, "a pattern and a spec"),
        ({"sharding": [("(", P())], "mesh": ONE}, ValueError, "no regular expression"),
        ({"sharding": [("", P("data"))], "mesh": ONE}, ValueError, r"for them are \['model'\]"),
        ({"sharding": [("", P("chain"))], "mesh": jax.make_mesh((1,), ("chain",))}, ValueError,
         "over 'chain', but the axes of this mesh for them are"),
        ({"sharding": [("", P("model", "model"))], "mesh": ONE}, ValueError, "an axis twice"),
    ],
)  # fmt: skip
def test_what_are_no_rules_is_refused(given, error, words):
    with pytest.raises(error, match=words):
        sample(**given)
    with pytest.raises(error, match=words):  # where some parameters are held, too
        sample(**given, trainable=True)


@pytest.mark.slow
def test_one_device_follows_any_rules():
    plain = sample(num_samples=3, progress=False)
    ruled = sample(num_samples=3, progress=False, mesh=ONE, sharding=[("", P("model"))])
    assert (plain.positions == ruled.positions).all()
    assert devices.shardings([("", P("model"))], jnp.zeros(4), ONE) is None
