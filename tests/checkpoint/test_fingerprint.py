"""What a run is known by: everything that its draws depend on, and nothing else."""

import enum
import functools
import operator
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import sghmc
from sghmc.checkpoint.fingerprint import describe, differences, jaxpr_hash
from sghmc.posterior import sources

X = jnp.ones(3)
module = types.ModuleType("settings_of_a_user")


class Level(enum.Enum):
    LOW = 1.0
    HIGH = 2.0


class Base:
    factor = 1.0

    def scaled(self, x):
        return self.factor * x

    @staticmethod
    def shifted(x, by=0.0):
        return x + by


def of_module(value):
    module.CONST = value  # pyright: ignore[reportAttributeAccessIssue]
    return lambda x: module.CONST * x  # pyright: ignore[reportAttributeAccessIssue]


def of_module_function(value):
    module.f = lambda x: value * x  # pyright: ignore[reportAttributeAccessIssue]
    return lambda x: 1.0 * module.f(x)  # pyright: ignore[reportAttributeAccessIssue]


def of_namespace(value):
    args = types.SimpleNamespace(scale=value)
    return lambda x: args.scale * x


def of_class_attribute(value):
    kind = type("Kind", (Base,), {"factor": value})
    return kind().scaled


def of_enum(value):
    level = Level(value)
    return lambda x: level.value * x


def of_slots(value):
    class Slotted:
        __slots__ = ("scale",)

    thing = Slotted()
    thing.scale = value
    return lambda x: thing.scale * x


def of_property(value):
    class Thing:
        @property
        def scale(self):
            return value

    return lambda x: Thing().scale * x


def of_static_method(value):
    class Thing(Base):
        @staticmethod
        def shifted(x, by=value):
            return x + by

    return lambda x: 1.0 * Thing.shifted(x)


def of_frame(value):
    table = pd.DataFrame({"a": [value, 0.0, 1.0]})
    return lambda x: jnp.asarray(table["a"].to_numpy()) * x


def of_operator(value):
    function = operator.mul if value == 1.0 else operator.add
    return lambda x: function(x, 2.0)


def of_ufunc(value):
    function = np.sin if value == 1.0 else np.cos
    return lambda x: x * function(0.3)


def of_captured_array(value):
    array = np.zeros(3, np.float32)
    array[1] = value
    return lambda x: array * x


def of_loop(value):
    return lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y * value, x)


def of_branch(value):
    return lambda x: jax.lax.cond(x[0] > 0, lambda y: y * value, lambda y: y, x)


def of_partial(value):
    return functools.partial(jnp.multiply, value)


KINDS = {name.removeprefix("of_"): f for name, f in globals().items() if name.startswith("of_")}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_function_uses_is_seen_wherever_it_comes_from(kind):
    first, second = (jaxpr_hash(KINDS[kind](value), X) for value in (1.0, 2.0))
    assert first != second
    assert first == jaxpr_hash(KINDS[kind](1.0), X)


def test_what_makes_no_difference_is_none():
    def plain(x):
        """One text."""
        return 2.0 * x

    def renamed(y):
        """Another."""
        unused = 5.0  # noqa: F841
        return 2.0 * y

    assert jaxpr_hash(plain, X) == jaxpr_hash(renamed, X)
    assert jaxpr_hash(plain, X) == jaxpr_hash(plain, X + 1)  # arguments count by shape and dtype
    assert jaxpr_hash(plain, X) != jaxpr_hash(plain, jnp.ones(4))
    assert jaxpr_hash(plain, X) != jaxpr_hash(plain, jnp.ones(3, jnp.bfloat16))


@pytest.mark.slow
def test_another_process_finds_the_same():
    code = (
        "import jax, jax.numpy as jnp; from sghmc.checkpoint.fingerprint import jaxpr_hash; "
        "print(jaxpr_hash(jax.value_and_grad(lambda x: jnp.sum(jax.nn.softplus(x @ x) * 3)), "
        "jnp.ones((2, 2))))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_every_number_of_a_large_array_counts():
    array = np.zeros((17_000_001,), np.float32)  # 68 MB
    before = describe({"data": array})
    array[8_123_457] = 1
    assert differences(before, describe({"data": array}))


def test_lines_name_what_differs():
    then = describe({"sampler": sghmc.SGHMC(0.1, 1.0), "num_samples": 5, "init": {"a": X}})
    now = describe({"sampler": sghmc.SGHMC(0.2, 1.0), "num_samples": 5, "init": {"a": X}})
    assert differences(then, now) == ["sampler.step_size was 0.1, is 0.2"]
    gone = describe({"sampler": sghmc.SGD(0.1), "num_samples": 5, "init": {"a": X}})
    (line,) = differences(then, gone)
    assert line.startswith("sampler was sghmc.SGHMC, is sghmc.SGD")


def test_an_object_that_holds_itself_ends():
    thing: dict = {}
    thing["again"] = thing
    assert describe({"thing": thing})["thing['again']"] == "itself"


@pytest.mark.parametrize("row", [0, 3, 1234, 4999])
def test_every_row_of_a_file_counts(row, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_MAX_CHUNK_ROWS", 1000)  # several of them
    rows = np.arange(10_000, dtype=np.float32).reshape(5000, 2)
    np.save(tmp_path / "rows.npy", rows)
    before = describe({"data": sghmc.data.MemoryMapped(tmp_path / "rows.npy")})
    assert not differences(
        before, describe({"data": sghmc.data.MemoryMapped(tmp_path / "rows.npy")})
    )
    rows[row, 1] += 1
    np.save(tmp_path / "other.npy", rows)
    assert differences(before, describe({"data": sghmc.data.MemoryMapped(tmp_path / "other.npy")}))


def test_a_file_too_large_to_be_read_whole_is_known_by_its_time_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_MAX_HASHED_BYTES", 1000)
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((5000, 2), np.float32))
    found = sghmc.data.MemoryMapped(path).identity()
    assert found["rows.npy"] == (path.stat().st_size, path.stat().st_mtime_ns)


def test_where_a_run_is_made_is_part_of_what_it_is_known_by():
    """Another rounding, of 64 bits or of another device, makes other draws."""
    lines = describe({})
    assert lines == {
        "the version of sghmc": sghmc.__version__,
        "the version of jax": jax.__version__,
        "the kind of device": jax.default_backend(),
        "jax_enable_x64": "False",
    }
    with jax.enable_x64(True):
        assert differences(lines, describe({})) == ["jax_enable_x64 was False, is True"]


def test_the_type_of_every_array_is_said_of_a_target_too():
    """Data in another precision round otherwise, though their numbers may be the same."""

    def lines(dtype):
        rows = jnp.ones((5, 2), dtype)
        target = sghmc.Posterior(lambda p, x: p * jnp.sum(x), lambda p: -p, rows)
        return describe({"target": target, "few": jnp.ones(2, dtype)})

    found = differences(lines(jnp.float32), lines(jnp.bfloat16))
    assert [line.split(" ")[0] for line in found] == ["target.data", "few"]
    assert found[1] == "few was float32[2] [1.0, 1.0], is bfloat16[2] [1.0, 1.0]"


def test_a_program_is_known_by_the_precision_of_all_its_numbers():
    def through(dtype):
        return lambda x: (x.astype(dtype) + 1).astype(jnp.float32)

    assert jaxpr_hash(through(jnp.float16), X) != jaxpr_hash(through(jnp.bfloat16), X)


def test_parts_are_named_by_their_paths():
    lines = describe({"a": {"k": [1, (2.5, None)]}, "s": {3, 1}, "f": len, "t": int})
    assert lines["a['k'][0]"] == "1"
    assert lines["a['k'][1][0]"] == "2.5"
    assert lines["a['k'][1][1]"] == "None"
    assert (lines["s[0]"], lines["s[1]"]) == ("1", "3")
    assert lines["f"] == "a function"
    assert lines["t"] == "<class 'int'>"
    key = describe({"key": jax.random.key(7)})["key"]
    assert key.endswith("[0, 7]")
    few, many = describe({"x": np.arange(4)})["x"], describe({"x": np.arange(5)})["x"]
    assert few == "int64[4] [0, 1, 2, 3]"
    assert many.startswith("int64[5] ")
    assert len(many) == len("int64[5] ") + 16


def test_a_part_that_came_or_went_is_told_once():
    then, now = {"a": "x", "a.b": "1", "a[0]": "2", "ab": "3"}, {"ab": "4"}
    assert differences(then, now) == ["a was x, is gone", "ab was 3, is 4"]
    assert differences({}, {"a": "x"}) == ["a was not there, is x"]


def test_the_number_of_real_rows_counts_unless_a_stream_grows():
    def lines(data):
        target = sghmc.Posterior(lambda p, x: p * jnp.sum(x), lambda p: -p, data)
        return describe({"target": target})

    rows = np.ones((5, 2), np.float32)
    assert "target.num_real" in lines(rows)
    growing = lines(sghmc.data.Stream([rows], size=5))
    assert "target.num_real" not in growing
    assert "target.log_prior" in growing
