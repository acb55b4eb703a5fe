"""Passes over all rows in chunks: each row once, whatever the sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import runtime
from sghmc.posterior import passes, posterior
from sghmc.posterior.sources import DataError, Source, check_finite, check_num_rows

ROWS = np.arange(1.0, 12.0, dtype=np.float32)


class Numbers(Source):
    """The rows of `ROWS`; of its last chunk a part is padding."""

    example = jax.ShapeDtypeStruct((), np.float32)

    @property
    def num_rows(self):
        return 11

    @property
    def chunk_rows(self):
        return 4

    def read(self, numbers, rows):
        rows[:] = ROWS[numbers]


def counted(rows, are_counted):
    return jnp.sum(jnp.where(are_counted, rows, 0)), jnp.sum(are_counted)


@pytest.mark.parametrize(("first", "num_examples"), [(0, 11), (0, 9), (5, 12)])
def test_a_table_is_summed_up_to_the_last_row_that_counts(first, num_examples, monkeypatch):
    """Rows are number `first` and on; chunks of 4, of which the last reaches back."""
    monkeypatch.setattr(passes, "_MIN_CHUNK_ROWS", 4)
    total, count = passes.sum_over_table(jnp.asarray(ROWS), counted, num_examples, first)
    number = min(11, num_examples - first)
    assert (float(total), int(count)) == (ROWS[:number].sum(), number)


def test_the_rows_of_a_chunk_and_which_are_new():
    rows, numbers, is_new = passes._chunk(jnp.asarray(ROWS), 2, 4)
    np.testing.assert_array_equal(rows, [8, 9, 10, 11])
    np.testing.assert_array_equal(numbers, [7, 8, 9, 10])
    np.testing.assert_array_equal(is_new, [False, True, True, True])


def test_a_large_batch_is_summed_in_chunks_on_a_processor(monkeypatch):
    sizes = []

    def terms(rows):
        sizes.append(len(rows))
        return 2 * rows

    monkeypatch.setattr(passes, "CPU_BATCH_CHUNK_ROWS", 5)
    monkeypatch.setattr(sghmc.Posterior, "log_likelihoods", lambda self, params, rows: terms(rows))
    target = sghmc.Posterior(jnp.add, jnp.sum, ROWS)
    assert float(target.log_likelihood_sum(0.0, jnp.asarray(ROWS))) == 2 * ROWS.sum()
    assert set(sizes) == {5}
    sizes.clear()
    assert float(target.log_likelihood_sum(0.0, jnp.asarray(ROWS[:10]))) == 2 * ROWS[:10].sum()
    assert sizes == [10]
    sizes.clear()
    monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
    target.log_likelihood_sum(0.0, jnp.asarray(ROWS))
    assert sizes == [11]


def test_an_accelerator_takes_chunks_of_a_quarter_of_a_gigabyte(monkeypatch):
    table = {"x": np.zeros((2, 3, 5), np.float32), "y": np.zeros(2, np.int8)}
    assert passes._chunk_rows(table) == 65_536
    monkeypatch.setattr(runtime, "has_accelerator", lambda: True)
    assert passes._chunk_rows(table) == (1 << 28) // 61
    assert passes._chunk_rows({"x": np.zeros((2, 10_000), np.float32)}) == 65_536


@pytest.mark.parametrize("num_readers", [1, 2])
def test_readers_of_a_source_share_its_chunks(num_readers):
    parts = [
        passes.sum_over_source(Numbers(), counted, 10, reader=reader, num_readers=num_readers)
        for reader in range(num_readers)
    ]
    chunks = [ROWS[:4], ROWS[4:8], ROWS[8:10]]
    for reader, (total, count) in enumerate(parts):
        own = np.concatenate(chunks[reader::num_readers])
        assert (float(total), int(count)) == (own.sum(), len(own))


def test_rows_of_a_source_come_by_number():
    found = passes.rows_of_source(Numbers(), jnp.array([7, 2, 7]))
    np.testing.assert_array_equal(found, [8, 3, 8])
    stream = sghmc.data.Stream([np.ones(3)], size=3)
    with pytest.raises(DataError, match="Rows of a stream come only once"):
        passes.rows_of_source(stream, jnp.array([0]))


# Sources


def test_the_last_chunk_is_filled_up_with_the_last_row():
    source = Numbers()
    np.testing.assert_array_equal(source.chunk(1), [5, 6, 7, 8])
    np.testing.assert_array_equal(source.chunk(2), [9, 10, 11, 11])
    np.testing.assert_array_equal(source.take(np.array([9, 0, 4])), [10, 1, 5])
    assert (source.num_choices, source.row_bytes, source.is_at_start) == (11, 4, True)
    assert source.like(3, 2).shape == (3, 2)


class Wide(Source):
    example = (jax.ShapeDtypeStruct((3, 5), np.float64), jax.ShapeDtypeStruct((), np.int8))

    def __init__(self, num_rows=200_000):
        super().__init__()
        self._num_rows = num_rows

    @property
    def num_rows(self):
        return self._num_rows

    def read(self, numbers, rows):
        raise DataError("the disk is gone")


def test_a_chunk_has_at_most_sixteen_megabytes_and_65536_rows(monkeypatch):
    wide = Wide()
    assert wide.row_bytes == 121
    monkeypatch.setattr("sghmc.posterior.sources._MAX_CHUNK_BYTES", 121 * 1000 + 5)
    assert wide.chunk_rows == 1_000
    monkeypatch.undo()
    assert wide.chunk_rows == 65_536
    assert Wide(77).chunk_rows == 77
    with pytest.raises(DataError, match="the disk is gone"):
        wide.chunk(0)
    assert str(wide.fault) == "the disk is gone"


def test_data_are_known_by_their_number_and_by_what_they_hold(monkeypatch):
    first = Numbers().identity()
    assert first["number of rows"] == 11
    assert len(first["rows"]) == 16
    assert Numbers().identity() == first
    monkeypatch.setitem(globals(), "ROWS", np.append(ROWS[:-1], np.float32(0)))
    assert Numbers().identity()["rows"] != first["rows"]
    assert Numbers().is_all_hashed
    monkeypatch.setattr("sghmc.posterior.sources._MAX_HASHED_BYTES", 44)
    assert Numbers().is_all_hashed
    monkeypatch.setattr("sghmc.posterior.sources._MAX_HASHED_BYTES", 43)
    assert not Numbers().is_all_hashed
    read = []
    monkeypatch.setattr(Numbers, "chunk", lambda self, k: read.append(int(k)) or ROWS[:1])
    Numbers().identity()
    assert read == [0, 2], "chunks that are evenly spaced: two of 16 bytes fit into 43"


def test_numbers_of_rows_and_numbers_in_rows_are_checked():
    with pytest.raises(DataError, match="table has no rows"):
        check_num_rows(0, "table")
    check_num_rows(1, "table")
    check_num_rows(2**31 - 1, "table")
    with pytest.raises(DataError, match=r"2,147,483,648 rows, but at most 2,147,483,647"):
        check_num_rows(2**31, "table")
    rows = {"x": np.array([[1.0, 2.0], [np.inf, 3.0]]), "y": np.array([1, 2])}
    with pytest.raises(Exception, match="x") as caught:
        check_finite(rows, "data")
    found: object = caught.value
    assert (found.field, found.row, found.number) == ("data['x']", 1, np.inf)  # pyright: ignore
    check_finite({"x": np.array([1e308, 1e308])}, "data")


# Posteriors


def linear(hyper=None):
    if hyper is None:
        return sghmc.Posterior(lambda t, x: x * t, lambda t: -(t**2), jnp.asarray(ROWS))
    return sghmc.Posterior(
        lambda t, x, h: h * x * t, lambda t, h: -h * t**2, jnp.asarray(ROWS), jnp.asarray(hyper)
    )


def test_potentials_and_their_change_have_their_signs():
    """U = −66 h t + h t²; a change is that of the prior, and a term a row."""

    @jax.jit
    def facts(t, new):
        target = linear(3.0)
        change = target.change(t, new)
        batch = jnp.asarray(ROWS[:4])
        return (
            (target.potential(t), *target.evaluate(t), target.gradient(t)),
            (change.known, change.terms(jnp.array([2, 10]))),
            (target.estimate(t, batch), target.scaled(jnp.asarray(5.0), batch)),
            target.sum_over_data(lambda rows: jnp.stack([rows, rows**2], axis=1)),
        )

    exact, (known, terms), (estimate, scaled), sums = facts(jnp.asarray(2.0), jnp.asarray(5.0))
    potential, slope = 3 * (-66 * 2 + 4), 3 * (-66 + 2 * 2)
    np.testing.assert_allclose(exact, [potential, potential, slope, slope], rtol=1e-6)
    np.testing.assert_allclose(known, 3 * (25 - 4), rtol=1e-6)
    np.testing.assert_allclose(terms, 3 * np.array([3, 11]) * (2 - 5), rtol=1e-6)
    np.testing.assert_allclose(estimate, -11 / 4 * 3 * 10 * 2 + 3 * 4, rtol=1e-6)
    np.testing.assert_allclose(scaled, -11 / 4 * 5, rtol=1e-6)
    np.testing.assert_allclose(sums, [66, float(np.sum(ROWS**2))], rtol=1e-6)
    assert linear().change(jnp.asarray(2.0), jnp.asarray(5.0)).num_terms == 11


def test_a_posterior_tells_its_rows():
    target = linear()
    assert (target.num_examples, target.num_rows, target.source) == (11, 11, None)
    assert target.example == jax.ShapeDtypeStruct((), np.float32)
    assert target in [linear(), target]
    assert target not in [linear(), linear()]
    assert not target.is_stochastic
    source = sghmc.Posterior(lambda t, x: x * t, lambda t: -(t**2), Numbers())
    assert (source.num_examples, source.example.shape) == (11, ())
    assert isinstance(source.source, Numbers)
    assert source.num_real is None
    np.testing.assert_array_equal(posterior.part_of(jnp.arange(9), 2, 3), [6, 7, 8])


def test_rows_that_come_in_their_own_order_cannot_be_asked_for():
    stream = sghmc.data.Stream([np.ones(3)], size=3)
    target = sghmc.Posterior(lambda t, x: x * t, lambda t: -(t**2), stream)
    with pytest.raises(ValueError, match="The accept step needs rows by their numbers"):
        target.change(1.0, 2.0)


def test_the_change_of_a_stack_s_potential_has_the_rows_that_are_real():
    stack = sghmc.Posterior.stack(
        [sghmc.Posterior(jnp.multiply, jnp.sum, ROWS[:count]) for count in (4, 3)]
    )
    assert [int(stack[i].change(jnp.zeros(()), jnp.ones(())).num_terms) for i in (0, 1)] == [4, 3]


def test_the_change_of_a_potential_is_known():
    target = sghmc.Potential(lambda t: t**2)
    found = target.change(3.0, 5.0)
    assert (found.known, found.num_terms) == (16.0, 0)
    assert found.terms(jnp.arange(3)).shape == (0,)
    assert (target.source, target.hyper, target.with_hyper(3)) == (None, None, target)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data holds no array"),
        ({"x": np.ones(3), "y": 2.0}, "a number without axes"),
        ({"x": np.ones(3), "y": np.ones(4)}, r"different lengths \[3, 4\]"),
        (np.ones((0, 2)), "data is empty"),
    ],
)
def test_data_that_are_none_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        sghmc.Posterior(lambda t, x: 0.0, lambda t: 0.0, data)


def test_functions_and_numbers_are_asked_for():
    for arguments, name in (((3, jnp.sum), "log_likelihood"), ((jnp.sum, 3), "log_prior")):
        with pytest.raises(TypeError, match=f"{name} must be a function, not 3"):
            sghmc.Posterior(*arguments, np.ones(3))
    with pytest.raises(TypeError, match="data must hold numbers of at most 64 bits, not"):
        sghmc.Posterior(jnp.sum, jnp.sum, np.array(["a"]))
