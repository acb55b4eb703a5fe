"""Batches of a source for a run: windows of steps, read one ahead on a thread."""

import concurrent.futures
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from sghmc.engine.chain import GRADIENT, RunSpec
from sghmc.engine.devices import Placement
from sghmc.engine.layout import Batches
from sghmc.engine.mesh import OverMesh
from sghmc.gradients import BatchEstimator, GradientEstimator
from sghmc.posterior.posterior import AbstractPosterior
from sghmc.posterior.sources import DataError, inverse
from sghmc.results.samples import Growth
from sghmc.samplers import Sampler, fisher_of
from sghmc.types import PyTree

_WINDOW_BYTES = 1 << 28
"""Rows of a window: the more, the nearer together they lie in a file. Two are in memory."""


class Window(NamedTuple):
    """The batches of some draws, and the number of rows that there were to choose from."""

    number: int
    batches: Batches
    num_examples: int
    last: PyTree
    """Rows of the step after the window's last, chain by chain: the next window's first."""


class Reader:
    """Puts the rows that a run's steps ask for into its spec.

    Windows lie on a grid of draws that starts with draw 0, each as long as its rows' memory allows
    but at least a draw: so a run that resumes sees the same. A window also has the batch of the
    step after its last, since the potential after a step, and the noise there, are computed with
    the next batch. A stream is read window after window; to resume, from its start again.

    Where the number of rows grows, it grows from one window to the next, and with it the run's
    N and the sampler's settings: arguments of the compiled loop all of them.
    """

    def __init__(self, spec: RunSpec, sampler: Sampler, num_draws: int, place: Placement):
        assert isinstance(spec.target, AbstractPosterior)
        assert spec.target.source is not None
        self.spec, self.source, self.place = spec, spec.target.source, place
        num_gradients = spec.kernel.num_gradients
        self.numbering = self._numbering()
        one = _row_numbers(self.numbering, self._keys, np.int32(0), 1, num_gradients)
        (self.num_keys, self.width), self.num_draws = one.shape, num_draws
        most_rows = _WINDOW_BYTES // self.source.row_bytes
        most_rows = min(most_rows, self.source.read_ahead or most_rows)
        self.window_draws = max(1, min(num_draws, most_rows // (one.size * spec.thinning)))
        num_rows = one.size * (self.window_draws * spec.thinning + 1)
        self.rooms = [self.source.empty(num_rows) for _ in range(2)]
        """Memory of two windows: each is read to where the last but one was."""
        self.thread = concurrent.futures.ThreadPoolExecutor(1, "sghmc-reader")
        self.now: Window | None = None
        self.ahead: tuple[int, concurrent.futures.Future] | None = None
        self.sampler, self.num_known = sampler, 0
        """Number of windows that were read before the run was resumed, with the sizes of then."""
        self.sizes = [(0, int(spec.target.num_examples))]
        """Pairs of a draw and the number of rows from there on; the settings are for the first."""
        self.source.start()

    def spec_at(self, draw: int) -> tuple[RunSpec, int]:
        """Return the run with the batches of this draw, and after which draw they end.

        Asked for when all draws before are made: a window's memory is written over.
        """
        number = draw // self.window_draws
        if self.now is None or self.now.number != number:
            self.now = self._window(number)
            self._grow(self.now)
        if self.ahead is None and (number + 1) * self.window_draws < self.num_draws:
            self.ahead = number + 1, self._submit(number + 1, self.now)
        spec = eqx.tree_at(
            lambda p: p.batches, self.spec, self.now.batches, is_leaf=lambda x: x is None
        )
        return spec, (number + 1) * self.window_draws

    def check_start(self) -> None:
        """Refuse to resume with a stream that is not where it was when the run began."""
        if not self.source.is_at_start:
            raise DataError(
                "The stream is an iterator of which rows were taken: it cannot be gone back to "
                "where the saved run began. Give Stream a function that starts it anew, or what "
                "can be iterated again."
            )

    def resume(self, done: int, sizes: Sequence[tuple[int, int]]) -> None:
        """Go on after `done` draws of a run that had seen so many rows, from which draw on."""
        if not self.source.is_sequential:
            return
        self.sizes, self.num_known = list(sizes) or self.sizes, (done - 1) // self.window_draws + 1
        self._resize(self.sizes[-1][1])

    @property
    def growth(self) -> list[Growth]:
        """Changes of the number of rows, with the draw of each, burn-in included."""
        return [
            Growth(draw, before, now) for (_, before), (draw, now) in itertools.pairwise(self.sizes)
        ]

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)

    def _window(self, number: int) -> Window:
        window, ahead, self.ahead = self.now, self.ahead, None
        if ahead is not None and (self.source.is_sequential or ahead[0] == number):
            window = ahead[1].result()
        if window is not None and window.number == number:
            return window
        if not self.source.is_sequential:
            return self._submit(number, None).result()
        for each in range(0 if window is None else window.number + 1, number + 1):
            window = self._submit(each, window).result()
        assert window is not None
        return window

    def _grow(self, window: Window) -> None:
        """Have the run follow the number of rows."""
        before = self.sizes[-1][1]
        if window.number < self.num_known or window.num_examples == before:
            return
        spec = self.spec
        if spec.adapt is not None or fisher_of(spec.kernel) is not None:
            raise DataError(
                f"The stream's size changed from {before} to {window.num_examples}, but "
                f"settings that adapt or estimate V̂ do not follow it: leave out adapt and "
                f"EmpiricalFisher, or keep the size."
            )
        self.sizes.append((window.number * self.window_draws, window.num_examples))
        self._resize(window.num_examples)

    def _resize(self, num_examples: int) -> None:
        spec = self.spec
        sampler = self.sampler.for_growth(num_examples / self.sizes[0][1])
        parts = (
            jnp.asarray(num_examples, jnp.int32),
            with_num_examples(spec.estimator, num_examples),
            sampler.prepare(spec.layout.like, self.num_draws * spec.thinning),
        )
        self.spec = eqx.tree_at(lambda p: (p.target.num_real, p.estimator, p.kernel), spec, parts)

    def _submit(self, number: int, before: Window | None) -> concurrent.futures.Future:
        return self.thread.submit(self._read, number, before)

    def _read(self, number: int, before: Window | None) -> Window:
        steps = self.window_draws * self.spec.thinning
        first = number * steps
        left = self.num_draws * self.spec.thinning - first
        num_read = min(steps, left) + 1
        num_examples = self.source.num_rows
        num_gradients = self.spec.kernel.num_gradients
        numbers = _row_numbers(
            self.numbering, self._keys, np.int32(first), steps + 1, num_gradients
        )
        numbers = np.asarray(numbers).reshape(self.num_keys, steps + 1, self.width)
        if isinstance(self.place, OverMesh) and not self.source.is_sequential:
            batches = self.place.batches(self._by_gradient(numbers), first, self.source.take)
            return Window(number, batches, num_examples, None)
        room, places = self.rooms[number % 2], np.zeros(numbers.shape, np.int32)
        places[:, :num_read] = self._fill(room, numbers[:, :num_read], before)
        last = jax.tree.map(lambda leaf: leaf[places[:, num_read - 1].reshape(-1)], room)
        if isinstance(self.place, OverMesh):
            batches = self.place.batches(
                self._by_gradient(places),
                first,
                lambda chosen: jax.tree.map(lambda leaf: leaf[chosen], room),
            )
        else:
            places = places[0] if self.spec.estimator.is_shared else places
            batches = Batches(*jax.device_put((room, places, np.int32(first))))
        return Window(number, jax.block_until_ready(batches), num_examples, last)

    def _fill(
        self, room: PyTree, numbers: Integer[np.ndarray, "chain step row"], before: Window | None
    ) -> Integer[np.ndarray, "chain step row"]:
        """Read the rows of these numbers, chain by chain and step by step; return their places."""
        places, num_known = np.empty(numbers.shape, np.int32), 0
        if before is not None:  # the first step's rows were read for it
            num_known = numbers[:, 0].size
            places[:, 0] = np.arange(num_known).reshape(self.num_keys, self.width)
            jax.tree.map(lambda into, rows: np.copyto(into[:num_known], rows), room, before.last)
            numbers = numbers[:, 1:]
        count = numbers.size
        into = jax.tree.map(lambda leaf: leaf[num_known : num_known + count], room)
        order = self.source.order(numbers.reshape(-1))
        self.source.read(numbers.reshape(-1)[order], into)
        places[:, -numbers.shape[1] :] = num_known + inverse(order).reshape(numbers.shape)
        return places

    def _numbering(self) -> GradientEstimator:
        """Return what draws row numbers: those of a stream only say how it is shuffled."""
        estimator = self.spec.estimator
        if not self.source.is_sequential:
            return estimator
        assert isinstance(estimator, BatchEstimator)
        choices = jnp.asarray(self.source.num_choices, jnp.int32)
        return BatchEstimator(estimator.batch_size, True, estimator.shared, choices)

    def _by_gradient(
        self, numbers: Integer[np.ndarray, "chain step row"]
    ) -> Integer[np.ndarray, "*chain step gradient row"]:
        """Return row numbers as a mesh takes them: with an axis for the batches."""
        cut = numbers.reshape(*numbers.shape[:2], self.spec.kernel.num_gradients, -1)
        return cut[0] if self.spec.estimator.is_shared else cut

    @property
    def _keys(self) -> jax.Array:
        keys = self.spec.keys[:, GRADIENT]
        return keys[:1] if self.spec.estimator.is_shared else keys


def with_num_examples(estimator: GradientEstimator, num_examples: int) -> GradientEstimator:
    assert isinstance(estimator, BatchEstimator)  # a control variate needs a pass over all data
    number = jnp.asarray(num_examples, jnp.int32)
    return eqx.tree_at(lambda e: e.num_examples, estimator, number)


@eqx.filter_jit
def _row_numbers(
    estimator: GradientEstimator, keys, first_step, num_steps: int, num_gradients: int
):
    """Return the rows that some steps take, axes (chain, row of a step after row of a step)."""
    return jax.vmap(lambda key: estimator.draw(key, first_step, num_steps, num_gradients, None))(
        keys
    )
