"""What is compiled apart is computed once, and computed all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.core import runtime


def test_a_backend_other_than_a_cpu_is_an_accelerator(monkeypatch):
    for name, wanted in (("cpu", False), ("gpu", True), ("tpu", True)):
        monkeypatch.setattr(jax, "default_backend", lambda name=name: name)
        assert runtime.has_accelerator() is wanted


@pytest.mark.parametrize("number", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_never_is_false_of_every_number_of_32_bits(number):
    assert not runtime.never(jnp.asarray(number, jnp.uint32))


def test_an_unfused_result_is_that_of_the_function_and_comes_out_of_a_branch(monkeypatch):
    def made(t, first):
        return {"a": t + first + jnp.arange(3)}

    found = jax.jit(lambda t: runtime.unfused(t, made, t, 2))(jnp.uint32(5))
    np.testing.assert_array_equal(found["a"], [7, 8, 9])
    text = jax.jit(lambda t: runtime.unfused(t, jnp.add, t, 1)).lower(jnp.uint32(5)).as_text()
    assert "case" in text  # a branch
    assert runtime.unfused(3, lambda: ()) == ()
    monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
    text = jax.jit(lambda t: runtime.unfused(t, jnp.add, t, 2)).lower(jnp.uint32(5)).as_text()
    assert "case" not in text


def test_options_are_those_that_the_compiler_knows(monkeypatch):
    assert runtime.jit_options("once")["compiler_options"]["xla_backend_optimization_level"] == 0
    assert runtime.jit_options("loop") == {"compiler_options": {"xla_cpu_prefer_vector_width": 512}}
    find = runtime.jit_options.__wrapped__  # without its cache
    level = {"xla_backend_optimization_level": 0}
    # Other versions of XLA know others: what they know stays.
    monkeypatch.setitem(runtime._XLA_OPTIONS, "once", level | {"no_such_option_of_xla": 1})
    assert find("once") == {"compiler_options": level}
    monkeypatch.setitem(runtime._XLA_OPTIONS, "loop", {"no_such_option_of_xla": 1})
    assert find("loop") == {}
    monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
    assert find("once") == {}
