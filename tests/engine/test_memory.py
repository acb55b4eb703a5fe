"""A run says what it needs, and what cannot fit is refused at the border, not before."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.engine import checks, driver
from sghmc.engine.checks import shown
from sghmc.engine.layout import Layout
from sghmc.engine.options import RunOptions

NUM, CHAINS, DRAWS = 50, 4, 20
TARGET = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
SGHMC = sghmc.SGHMC(0.1, friction=1.0)
POSITIONS = 4 * NUM * CHAINS * DRAWS
"""Bytes of all positions."""
STATE = 2 * 4 * NUM * CHAINS
"""Of positions and velocities."""


def sample(sampler: Any = SGHMC, **given: Any):
    options: dict[str, Any] = {
        "num_chains": CHAINS,
        "num_samples": DRAWS,
        "progress": False,
    } | given
    return sghmc.sample(jax.random.key(0), TARGET, sampler, jnp.zeros(NUM), **options)


def plan(sampler: Any = SGHMC, target: Any = TARGET, init: Any = None, **given: Any):
    options: dict[str, Any] = {"num_chains": CHAINS, "num_samples": DRAWS} | given
    init = jnp.zeros(NUM) if init is None else init
    return sghmc.plan(jax.random.key(0), target, sampler, init, **options)


@pytest.fixture
def there_is(monkeypatch):
    """Sets what there is."""

    def there_is(memory=None, device=None, disk=None, held=0):
        monkeypatch.setattr(runtime, "memory_bytes", lambda: memory)
        monkeypatch.setattr(runtime, "device_bytes", lambda _: device)
        monkeypatch.setattr(runtime, "free_bytes", lambda _: disk)
        monkeypatch.setattr(runtime, "folder_bytes", lambda _: held)

    return there_is


@pytest.mark.slow_cases("0")
@pytest.mark.parametrize("missing", [0, 1])
def test_draws_and_states_share_a_machine_s_memory(missing, there_is):
    there_is(memory=POSITIONS + STATE - missing)
    if not missing:
        assert sample().positions.shape == (CHAINS, DRAWS, NUM)
        return
    with pytest.raises(MemoryError, match=r"16 kB|17\.6 kB of memory, but this machine has"):
        sample()


@pytest.mark.slow
def test_too_many_draws_are_refused_with_the_remedies(there_is):
    there_is(memory=POSITIONS - 1)
    with pytest.raises(MemoryError, match="4 chains of 20 draws need 16 kB") as error:
        sample()
    for remedy in ("keep=", "averages=", "thinning=", "checkpoint="):
        assert remedy in str(error.value)
    # Each of them is one.
    sample(keep=lambda theta: theta[:2])
    sample(keep=lambda theta: (), averages={"mean": lambda theta: theta})
    sample(num_samples=DRAWS // 2, thinning=2)


def test_a_checkpoint_needs_a_disk_and_no_memory(there_is, tmp_path):
    there_is(memory=STATE, disk=POSITIONS)
    sample(checkpoint=sghmc.Checkpoint(tmp_path / "a"))
    there_is(memory=STATE, disk=POSITIONS - 1)
    with pytest.raises(MemoryError, match="the checkpoint's disk has room for 16 kB"):
        sample(checkpoint=sghmc.Checkpoint(tmp_path / "b"))
    assert not (tmp_path / "b").exists()
    # What the run has written there already is part of what it needs.
    there_is(memory=STATE, disk=10, held=POSITIONS - 10)
    sample(checkpoint=sghmc.Checkpoint(tmp_path / "a"))


def test_a_device_must_hold_the_state(there_is):
    there_is(memory=POSITIONS, device=STATE)
    sample()
    there_is(memory=POSITIONS, device=STATE - 1)
    with pytest.raises(MemoryError, match=r"1\.6 kB of memory, but each device has 1\.6 kB"):
        sample()
    sample(sghmc.SGLD(0.01))  # which has no momenta


def test_what_is_not_known_is_not_refused(there_is):
    there_is()
    sample()


@pytest.mark.slow
def test_what_is_kept_counts_as_it_is(there_is):
    large: dict[str, Any] = {"keep": lambda theta: jnp.outer(theta, theta).astype(jnp.bfloat16)}
    there_is(memory=2 * NUM * NUM * CHAINS * DRAWS + STATE)
    sample(**large)
    there_is(memory=2 * NUM * NUM * CHAINS * DRAWS - 1)
    with pytest.raises(MemoryError, match="4 chains of 20 draws"):
        sample(**large)


def test_a_check_costs_less_than_a_millisecond():
    kernel, like = SGHMC.prepare(jnp.zeros(NUM)), jax.ShapeDtypeStruct((NUM,), jnp.float32)
    layout, options = Layout.of(like, CHAINS), RunOptions(num_chains=CHAINS)
    checks.check_memory(kernel, layout, options, None, driver.OneDevice())
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        checks.check_memory(kernel, layout, options, None, driver.OneDevice())
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-3


# Plans


def on_device(needed: sghmc.Plan, what: str) -> int:
    size = needed.device[what]
    assert size is not None
    return size


def test_a_plan_has_what_a_run_has():
    needed = plan(compiles=False)
    samples = sample()
    stored = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves((samples.positions,)))
    assert on_device(needed, "states of chains") >= STATE
    assert needed.device["temporary"] is None
    assert stored <= needed.host["draws"] <= stored * 1.2
    assert needed.fits
    assert "It fits." in str(needed)
    assert "not compiled" in str(needed)


def test_a_plan_of_a_run_that_does_not_fit(there_is, tmp_path):
    there_is(memory=POSITIONS // 2)
    needed = plan(compiles=False)
    assert not needed.fits
    assert "It does not fit." in str(needed)
    there_is(memory=1 << 30, disk=POSITIONS // 2)
    needed = plan(compiles=False, checkpoint=sghmc.Checkpoint(tmp_path / "a"))
    assert not needed.fits
    assert needed.host == {}
    assert not (tmp_path / "a").exists()
    there_is(memory=1 << 30, device=STATE // 2)
    assert not plan(compiles=False).fits


@pytest.mark.slow
def test_data_and_buffers_are_counted():
    rows = {"x": np.ones((1000, NUM), np.float32), "y": np.ones(1000, np.float32)}
    target = sghmc.Posterior(
        lambda theta, row: -((row["y"] - row["x"] @ theta) ** 2),
        lambda theta: -jnp.sum(theta**2),
        rows,
    )
    needed = plan(target=target, gradient=sghmc.Minibatch(100))
    held = sum(leaf.nbytes for leaf in rows.values())
    assert held <= on_device(needed, "data and other arrays") < 1.1 * held
    assert on_device(needed, "temporary") > 100 * NUM * 4  # a batch


def test_held_parameters_are_no_draws():
    init = {"base": jnp.zeros(1000), "new": jnp.zeros(10)}
    target = sghmc.Potential(lambda p: jnp.sum(p["base"] * 2) + jnp.sum(p["new"] ** 2))
    needed = plan(target=target, init=init, compiles=False, trainable={"base": False, "new": True})
    assert on_device(needed, "data and other arrays") >= 4000
    assert on_device(needed, "states of chains") < 1000
    assert needed.host["draws"] < 2 * 40 * CHAINS * DRAWS


def test_a_plan_for_a_mesh():
    needed = plan(mesh=jax.make_mesh((1,), ("chain",)))
    assert on_device(needed, "states of chains") >= STATE
    assert needed.device["temporary"] is None


def test_options_are_those_of_sample():
    with pytest.raises(TypeError, match="number_of_draws"):
        plan(number_of_draws=3)


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_499, "999 kB"), (1e6, "1 MB"),
     (1.5e9, "1.5 GB"), (2.5e15, "2,500 TB"), (1e12, "1 TB")],
)  # fmt: skip
def test_bytes_as_people_say_them(size, said):
    assert shown(size) == said


# Large models


def test_a_large_model_needs_no_more_than_its_state_and_a_gradient():
    """Nothing of its normals is held, and no room for draws that it could not make in days."""
    num, weights = 400_000, jnp.ones(5)
    target = sghmc.Potential(lambda theta: jnp.sum(jnp.sin(theta.reshape(5, -1).T @ weights)))
    needed = plan(
        target=target, init=jnp.zeros(num), num_chains=1, thinning=3, keep=lambda theta: ()
    )
    assert on_device(needed, "temporary") < 1.5 * 4 * num
    assert on_device(needed, "draws on their way") < 0.1 * 4 * num


def test_a_small_model_has_room_for_many_draws():
    """Else it would ask the host after every few of them."""
    needed = plan(init=jnp.zeros(1), num_chains=1, keep=lambda theta: ())
    assert on_device(needed, "draws on their way") > 2**22
