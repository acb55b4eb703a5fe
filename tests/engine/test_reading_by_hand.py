"""Where the rows of a window lie: numbers and places by hand, with a source written by the test."""

import contextlib
import types
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marked
import sghmc
from sghmc.engine import devices, prefetch
from sghmc.engine.chain import GRADIENT
from sghmc.engine.driver import OneDevice
from sghmc.engine.prefetch import Reader, Window
from sghmc.gradients import BatchEstimator
from sghmc.recommender.factor_chain import counted
from sghmc.results.samples import Growth

TABLE = np.arange(100.0)


def reader(**parts) -> Any:
    """A reader with nothing but what a test gives it: two chains, rows in increasing order."""

    def read(numbers, into):
        np.copyto(into, TABLE[numbers])

    source = types.SimpleNamespace(order=np.argsort, read=read, is_sequential=False)
    made = Reader.__new__(Reader)
    usual = {"source": source, "num_keys": 2, "width": 3, "window_draws": 4}
    for name, value in (usual | parts).items():
        setattr(made, name, value)
    return made


def test_rows_are_read_in_the_quickest_order_and_found_again():
    numbers = np.random.default_rng(0).permutation(100)[:24].reshape(2, 4, 3).astype(np.int32)
    room = np.zeros(30)
    places = reader()._fill(room, numbers, None)
    assert places.shape == (2, 4, 3)
    np.testing.assert_array_equal(room[places], TABLE[numbers])
    assert (np.diff(room[:24]) > 0).all()


def test_the_first_steps_rows_are_those_that_the_window_before_has_read():
    numbers = np.random.default_rng(1).permutation(100)[:24].reshape(2, 4, 3).astype(np.int32)
    room, last = np.zeros(30), -1.0 - np.arange(6.0)
    before: Any = types.SimpleNamespace(last=last)
    places = reader()._fill(room, numbers, before)
    np.testing.assert_array_equal(room[places[:, 0]].reshape(-1), last)
    np.testing.assert_array_equal(room[places[:, 1:]], TABLE[numbers[:, 1:]])


def test_growth_is_told_from_size_to_size():
    made = reader(sizes=[(0, 10), (8, 25), (12, 30)])
    assert made.growth == [Growth(8, 10, 25), Growth(12, 25, 30)]
    assert reader(sizes=[(0, 10)]).growth == []


def growing(**parts):
    program = types.SimpleNamespace(adapt=None, kernel=types.SimpleNamespace(fisher=None))
    resized = []
    usual = {"spec": program, "sizes": [(0, 10)], "num_known": 0, "_resize": resized.append}
    return reader(**usual | parts), resized


def test_a_window_with_more_rows_makes_the_program_grow_from_its_first_draw_on():
    made, resized = growing()
    made._grow(Window(3, None, 25, None))  # pyright: ignore[reportArgumentType]
    assert made.sizes == [(0, 10), (12, 25)]
    assert resized == [25]
    made._grow(Window(4, None, 25, None))  # pyright: ignore[reportArgumentType]
    assert resized == [25]


def test_windows_that_were_seen_before_a_resumption_change_nothing():
    made, resized = growing(num_known=4)
    made._grow(Window(3, None, 25, None))  # pyright: ignore[reportArgumentType]
    assert resized == []
    made._grow(Window(4, None, 25, None))  # pyright: ignore[reportArgumentType]
    assert resized == [25]


def test_another_size_is_that_of_the_posterior_the_batches_and_the_sampler():
    """The settings are for the first size: a factor is always relative to that one."""
    sampler = sghmc.SGLD(0.12, gradient_noise=0.5)
    spec = marked.program(
        kernel=sampler.prepare(marked.LIKE),
        target=counted(marked.POSTERIOR, 4),
        estimator=BatchEstimator(2, True, False, jnp.asarray(4)),
    )
    made = reader(spec=spec, sampler=sampler, num_draws=3, sizes=[(0, 4), (3, 2), (6, 12)])
    made._resize(12)
    assert made.spec.target.num_examples == 12
    assert made.spec.estimator.num_examples == 12
    assert float(made.spec.kernel.step_size) == pytest.approx(0.04)
    noise = made.spec.kernel.noise.second.values[0]
    assert float(noise) == pytest.approx(9 * 0.5)


@pytest.mark.parametrize("adapt", ["adapts", None])
def test_settings_that_follow_the_chain_do_not_follow_a_size(adapt):
    noise = 0.0 if adapt else sghmc.EmpiricalFisher()
    kernel = sghmc.SGHMC(0.1, friction=1.0, gradient_noise=noise).prepare(jnp.zeros(2), 10)
    program = types.SimpleNamespace(adapt=adapt, kernel=kernel)
    made, _ = growing(spec=program)
    with pytest.raises(prefetch.DataError, match="size changed from 10 to 25, but settings"):
        made._grow(Window(3, None, 25, None))  # pyright: ignore[reportArgumentType]


def test_a_stream_that_is_resumed_knows_the_windows_it_has_seen():
    source = types.SimpleNamespace(is_sequential=True)
    for done, known in ((1, 1), (4, 1), (5, 2), (8, 2)):
        made, resized = growing(source=source)
        made.resume(done, [(0, 10), (4, 25)])
        assert made.num_known == known
        assert made.sizes == [(0, 10), (4, 25)]
        assert resized == [25]
    made, resized = growing()
    made.resume(5, [(0, 10), (4, 25)])
    assert (made.num_known, resized) == (0, [])


def test_a_stream_of_which_rows_were_taken_cannot_be_resumed():
    reader(source=types.SimpleNamespace(is_at_start=True)).check_start()
    with pytest.raises(prefetch.DataError, match="iterator of which rows were taken"):
        reader(source=types.SimpleNamespace(is_at_start=False)).check_start()


def test_numbers_have_an_axis_for_the_batches_of_a_step():
    def program(shared):
        kernel = types.SimpleNamespace(num_gradients=3)
        keys = jnp.arange(24).reshape(2, 4, 3)
        estimator = types.SimpleNamespace(is_shared=shared)
        return types.SimpleNamespace(kernel=kernel, estimator=estimator, keys=keys)

    numbers = np.arange(48).reshape(2, 4, 6)
    own = reader(spec=program(False))
    np.testing.assert_array_equal(own._by_gradient(numbers), numbers.reshape(2, 4, 3, 2))
    np.testing.assert_array_equal(own._keys, [[3, 4, 5], [15, 16, 17]])
    shared = reader(spec=program(True))
    np.testing.assert_array_equal(shared._by_gradient(numbers), numbers[0].reshape(4, 3, 2))
    np.testing.assert_array_equal(shared._keys, [[3, 4, 5]])


def test_a_stream_is_numbered_by_how_it_is_shuffled():
    estimator = BatchEstimator(5, "epochs", True, jnp.asarray(100))
    source = types.SimpleNamespace(is_sequential=True, num_choices=7)
    program = types.SimpleNamespace(estimator=estimator)
    found = reader(spec=program, source=source)._numbering()
    assert (found.batch_size, found.replacement, found.shared) == (5, True, True)
    assert found.num_examples == 7
    plain = types.SimpleNamespace(is_sequential=False)
    assert reader(spec=program, source=plain)._numbering() is estimator
    larger = prefetch.with_num_examples(estimator, 33)
    assert isinstance(larger, BatchEstimator)
    assert larger.num_examples == 33


def test_rows_are_taken_in_the_order_of_their_numbers():
    numbers = np.array([[5, 2], [9, 2]])
    rows, places = devices._taken(numbers, lambda chosen: TABLE[chosen])
    assert rows.tolist() == [2, 2, 5, 9]
    np.testing.assert_array_equal(rows[places], TABLE[numbers])
    assert places.dtype == np.int32


def test_windows_have_the_rows_of_their_steps_and_of_the_one_after(monkeypatch, tmp_path):
    """Windows of two draws of three steps, the next one read while one is in use."""
    np.save(tmp_path / "x.npy", TABLE.astype(np.float32))
    source = sghmc.data.MemoryMapped(tmp_path / "x.npy")
    target = sghmc.Posterior(marked.log_likelihood, marked.log_prior, source, hyper=1.0)
    estimator = sghmc.Minibatch(4).prepare(target, marked.LIKE)
    spec = marked.program(2, target=target, estimator=estimator, thinning=3)
    # A step takes two batches of one number of four bytes, of each of two chains.
    spec = eqx.tree_at(lambda p: p.kernel, spec, marked.MarkedKernel(gradients=2))
    monkeypatch.setattr(prefetch, "_WINDOW_BYTES", 4 * 8 * 2 * 3 * 2)
    made = Reader(spec, sghmc.SGLD(0.1), 5, OneDevice())
    numbers = jax.jit(jax.vmap(lambda keys: estimator.draw(keys, 0, 16, 2, None)))
    wanted = np.asarray(numbers(spec.keys[:, GRADIENT])).reshape(2, 16, 8)
    with contextlib.closing(made):
        for draw in range(5):
            own, end = made.spec_at(draw)
            assert end == 2 * (draw // 2) + 2
            if made.ahead is not None:
                made.ahead[1].result()  # what is read ahead leaves this window as it is
            batches: Any = own.batches
            rows, places = np.asarray(batches.rows), np.asarray(batches.places)
            for step in range(3 * draw, 3 * draw + 4):
                found = rows[places[:, step - int(batches.first)]]
                np.testing.assert_array_equal(found, wanted[:, step])
