"""Streams: rows in their order or shuffled, faults named, and a posterior that follows its data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.data import Stream

ROWS = np.arange(10.0, dtype=np.float32)


def in_threes():
    return iter([{"x": ROWS[i : i + 3], "y": [int(i)] * len(ROWS[i : i + 3])} for i in (0, 3, 6)])


def test_rows_come_in_order_whatever_the_batches_and_begin_again():
    stream = Stream(in_threes, size=9)
    assert stream.example["x"].shape == ()
    taken = [stream.take(np.zeros(count, int))["x"] for count in (2, 5, 4)]
    np.testing.assert_array_equal(np.concatenate(taken), [*range(9), 0, 1])
    stream.start()
    np.testing.assert_array_equal(stream.take(np.zeros(1, int))["y"], [0])


def test_no_more_is_read_ahead_than_is_said():
    """Else a run would learn late, or never, that N has grown."""
    assert Stream([{"x": np.ones((5, 3)), "y": np.ones(5)}], size=5).read_ahead == 2**25 // 16
    assert Stream([np.ones(5)], size=5, read_ahead=7).read_ahead == 7


def test_what_loaders_yield():
    pairs = [[ROWS[:4].reshape(2, 2), np.array([1, 2])]]  # a list of arrays, as of a DataLoader
    x, y = Stream(pairs, size=2).take(np.zeros(2, int))
    np.testing.assert_array_equal(x, [[0, 1], [2, 3]])
    np.testing.assert_array_equal(y, [1, 2])
    columns = [{"x": [[0.5, 1.5], [2.5, 3.5]]}]  # lists of numbers, as of a dataset
    assert Stream(columns, size=2).example["x"].shape == (2,)


def test_the_buffer_shuffles_as_one_row_at_a_time_would():
    stream, size = Stream(lambda: iter([ROWS]), size=10, buffer=4), 4
    numbers = np.random.default_rng(0).integers(0, size, 40)
    plain, buffer, position, expected = np.tile(ROWS, 6), list(ROWS[:size]), size, []
    for number in numbers:
        expected.append(buffer[number])
        buffer[number] = plain[position]
        position += 1
    taken = [stream.take(part) for part in np.split(numbers, [7, 8, 30])]
    np.testing.assert_array_equal(np.concatenate(taken), expected)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (iter([ROWS]), "ended early, after 5 rows"),
        ([ROWS, np.full(3, np.nan)], "has nan in row 0, its array"),
    ],
    ids=["ends", "nan"],
)
def test_streams_that_fail(batches, message):
    """What all batches may be refused for is tested with them."""
    stream = Stream(batches, size=10)
    stream.take(np.zeros(5, int))
    with pytest.raises(sghmc.DataError, match=message):
        stream.take(np.zeros(15, int))


def test_streams_that_cannot_be():
    with pytest.raises(sghmc.DataError, match=r"its rows are \{\"\['x'\]\": 10, \"\['y'\]\": 2\}"):
        Stream([{"x": ROWS, "y": ROWS[:2]}], size=10)
    with pytest.raises(sghmc.DataError, match="yielded nothing"):
        Stream([], size=10)
    with pytest.raises(sghmc.DataError, match="no rows"):
        Stream([ROWS], size=0)
    with pytest.raises(TypeError, match="iterator of batches"):
        Stream(3, size=10)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="buffer must be a whole number"):
        Stream([ROWS], size=10, buffer=-1)


def gaussian(data):
    """x ~ N(θ, 1), θ ~ N(0, 1): the posterior is N(Σx/(N + 1), 1/(N + 1))."""
    return sghmc.Posterior(
        lambda theta, x: -0.5 * (x - theta) ** 2, lambda theta: -0.5 * theta**2, data
    )


def test_what_needs_all_rows_is_refused():
    posterior = gaussian(Stream([ROWS], size=10))
    with pytest.raises(sghmc.DataError, match="come only once"):
        posterior.gradient(jnp.zeros(()))
    sampler = sghmc.SGHMC(0.1, friction=1.0, gradient_noise=0.1)
    with pytest.raises(ValueError, match="independent=True"):
        sghmc.sample(
            jax.random.key(0), posterior, sampler, jnp.zeros(()), gradient=sghmc.Minibatch(2)
        )


class Broken:
    """Batches that break off once; meanwhile there are more and more rows to come from."""

    def __init__(self, break_at: int | None = None, size: int = 50):
        self.break_at, self.now = break_at, size

    def __call__(self):
        rng = np.random.default_rng(0)
        for i in range(100):
            if i == self.break_at:
                raise OSError("connection lost")
            if i == 20:
                self.now = 200
            yield rng.normal(size=10)

    def size(self):
        return self.now


def stream_of(batches, size):
    return Stream(batches, size, buffer=20, read_ahead=30)


def run_on(stream, path=None):
    return sghmc.sample(
        jax.random.key(0),
        gaussian(stream),
        sghmc.SGLD(0.001),
        jnp.zeros(()),
        gradient=sghmc.Minibatch(10),
        num_samples=40,
        progress=False,
        checkpoint=path and sghmc.Checkpoint(path, every=5),
    )


@pytest.mark.slow
def test_a_stream_that_grew_and_broke_off_is_resumed_bit_for_bit(tmp_path):
    """From its start, through the same shuffle buffer, with the sizes of then."""
    rows = Broken()
    whole = run_on(stream_of(rows, rows.size))
    assert [each.num_examples for each in whole.growth] == [200]
    assert 5 < whole.growth[0].draw < 25
    rows = Broken(break_at=30)
    with pytest.raises(sghmc.DataError, match="connection lost") as caught:
        run_on(stream_of(rows, rows.size), tmp_path)
    assert whole.growth[0].draw < caught.value.samples.num_draws < 40
    rows = Broken(size=200)  # as it is by now, and was not when the settings were chosen
    resumed = run_on(stream_of(rows, rows.size), tmp_path)
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    assert resumed.growth == whole.growth


@pytest.mark.slow
def test_an_iterator_is_resumed_from_a_new_one_only(tmp_path):
    used = stream_of(Broken(break_at=30)(), 50)
    with pytest.raises(sghmc.DataError, match="connection lost"):
        run_on(used, tmp_path)
    with pytest.raises(sghmc.DataError, match=r"cannot be gone back.*a function that starts it"):
        run_on(used, tmp_path)
    resumed = run_on(stream_of(Broken()(), 50), tmp_path)
    np.testing.assert_array_equal(resumed.positions, run_on(stream_of(Broken(), 50)).positions)


NUM_SMALL, NUM_LARGE, BATCH = 100, 1_600, 400


class Online:
    """Random rows of all data so far, which become sixteen times as many after some were read."""

    def __init__(self, num_before: int):
        rng = np.random.default_rng(0)
        early, late = rng.normal(size=NUM_SMALL), rng.normal(size=NUM_LARGE - NUM_SMALL)
        parts = [1 + (early - early.mean()) / early.std(), 1.3 + (late - late.mean()) / late.std()]
        self.rows = np.concatenate(parts).astype(np.float32)
        self.num_before, self.num_read = num_before, 0

    def __call__(self):
        rng = np.random.default_rng(1)
        while True:
            self.num_read += 20_000
            yield self.rows[rng.integers(0, self.size(), 20_000)]

    def size(self):
        return NUM_SMALL if self.num_read < self.num_before else NUM_LARGE


def check_law(draws, rows):
    """Mean and variance against the exact posterior's, by the scatter of 16 chains.

    At 4 standard errors chance fails one of the two in 0.2 % (Student's t, 15 degrees).
    """
    mean, variance = rows.sum() / (len(rows) + 1), 1 / (len(rows) + 1)
    for values, exact, unit in (
        (draws, mean, variance**0.5),
        ((draws - mean) ** 2, variance, variance),
    ):
        of_chains = values.mean(1, dtype=float)
        error = of_chains.std(ddof=1) / len(of_chains) ** 0.5
        assert error < 0.1 * unit, "too few draws to judge"
        assert abs(of_chains.mean() - exact) < 4 * error


@pytest.mark.slow
def test_the_posterior_follows_growing_data():
    """Before and after, in one compiled program; V̂, the batches' own noise, follows too."""
    online, traced_at = Online(num_before=16 * BATCH * 700), set()

    def log_likelihood(theta, x):
        traced_at.add(online.size())
        return -0.5 * (x - theta) ** 2

    stream = Stream(online, size=online.size, independent=True, read_ahead=200_000)
    posterior = sghmc.Posterior(log_likelihood, lambda theta: -0.5 * theta**2, stream)
    # α = εC/M = 0.2 and ηh = ε²(N + 1)/M = 0.05 at the first N, and so at the second.
    noise = NUM_SMALL**2 / BATCH
    sampler = sghmc.SGHMC(0.1, friction=40.0, mass=20.0, gradient_noise=noise, observe="middle")
    samples = sghmc.sample(
        jax.random.key(3),
        posterior,
        sampler,
        jnp.zeros(()),
        gradient=sghmc.Minibatch(BATCH),
        num_samples=1_500,
        num_chains=16,
        progress=False,
    )
    (grown,) = samples.growth
    assert grown.num_examples == NUM_LARGE
    # Rows of the last windows before were read when there were more of them already.
    check_law(samples.positions[:, 100 : grown.draw - 70], online.rows[:NUM_SMALL])
    check_law(samples.positions[:, grown.draw + 100 :], online.rows)
    assert traced_at == {NUM_SMALL}
    # By theory 1 + Σρ is 4.4 steps, of which log(√15 / 0.1) are needed.
    assert samples.settling_draws() == pytest.approx(16, rel=0.5)


# What the settings of a run do when the stream grows, without a run


def test_sgld_takes_smaller_steps_where_there_are_more_rows():
    """U is `factor` times as steep: ε shrinks by it, V̂ of a batch grows by its square."""
    sampler = sghmc.SGLD(0.3, 1.7, gradient_noise=0.5, temperature=0.8)
    grown = sampler.for_growth(4.0)
    assert (grown.step_size, grown.preconditioner, grown.temperature) == (0.3 / 4, 1.7, 0.8)
    assert grown.gradient_noise == 0.5 * 16
    fisher = sghmc.EmpiricalFisher()
    assert sghmc.SGLD(0.3, gradient_noise=fisher).for_growth(4.0).gradient_noise is fisher


@pytest.mark.parametrize("kind", [sghmc.SGHMC, sghmc.BAOAB])
def test_friction_and_mass_follow_the_number_of_rows(kind):
    """η = ε²/M falls with 1/N at the same decay εC/M; the step size stays."""
    grown = kind(0.1, 2.0, 3.0, gradient_noise=0.5, temperature=0.7).for_growth(4.0)
    assert (grown.step_size, grown.temperature) == (0.1, 0.7)
    assert (grown.friction, grown.mass, grown.gradient_noise) == (8.0, 12.0, 8.0)


def test_samplers_without_a_rule_for_growth_say_so():
    with pytest.raises(TypeError, match="HMC has no rule to follow data that grow"):
        sghmc.HMC(0.1, 3).for_growth(2.0)


def test_a_stream_says_what_it_is():
    """What a run asks of a source before it reads: growing, sequential, shuffled or independent."""
    stream = Stream([{"x": np.ones((5, 3), np.float32)}], size=lambda: 11)
    assert (stream.is_growing, stream.is_sequential, stream.is_independent) == (True, True, False)
    assert (stream.num_rows, stream.num_choices, stream.buffer_rows) == (11, 1, 0)
    assert Stream([ROWS], size=10, independent=True).is_independent
    assert Stream([ROWS], size=10, buffer=7).num_choices == 7
    stream.size = 13
    assert stream.num_rows == 13
    assert stream.identity() == {
        "buffer": 0,
        "read_ahead": 2**25 // 12,
        "example['x']": "ShapeDtypeStruct(shape=(3,), dtype=float32)",
    }
    np.testing.assert_array_equal(stream.order(np.array([4, 1, 3])), [0, 1, 2])


def test_a_stream_starts_anew_only_where_rows_were_taken_and_it_can():
    calls = []

    def batches():
        calls.append(None)
        return iter([ROWS])

    stream = Stream(batches, size=10, buffer=3)
    stream.start()
    assert (len(calls), stream.is_at_start) == (1, True)  # nothing was taken
    first = stream.take(np.array([2, 0, 2, 1]))
    assert (stream.num_taken, stream.is_at_start) == (4, False)
    stream.start()
    assert (len(calls), stream.num_taken, stream.is_at_start) == (2, 0, True)
    np.testing.assert_array_equal(stream.take(np.array([2, 0, 2, 1])), first)  # a new buffer, too
    np.testing.assert_array_equal(first, [2, 0, 3, 1])
    once = Stream(iter([ROWS]), size=10)
    once.take(np.zeros(4, int))
    once.start()
    assert once.num_taken == 4
    np.testing.assert_array_equal(once.take(np.zeros(2, int)), [4, 5])


def test_reading_into_arrays_is_taking():
    stream = Stream([{"x": ROWS, "y": ROWS + 20}], size=10)
    rows = {"x": np.zeros(3, np.float32), "y": np.zeros(3, np.float32)}
    stream.read(np.zeros(3, int), rows)
    assert rows["x"].tolist() == [0, 1, 2]
    assert rows["y"].tolist() == [20, 21, 22]


def test_infinite_numbers_pass_where_they_are_allowed():
    batches = [np.array([np.inf, 1.0], np.float32)]
    assert Stream(batches, size=2, allow_nan=True).take(np.zeros(1, int)).tolist() == [np.inf]
    with pytest.raises(sghmc.DataError, match="inf in row 0"):
        Stream(batches, size=2)
    with pytest.raises(ValueError, match="read_ahead must be"):
        Stream([ROWS], size=10, read_ahead=0)
