"""What a checkpoint costs at its default interval, and what memory a long run takes:

python benchmarks/scaling.py checkpoint            # time with against without, in turns
python benchmarks/scaling.py checkpoint --memory   # resident memory of a run with draws on disk
"""

import argparse
import pathlib
import shutil
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc.checkpoint.folder import RunFolder
from sghmc.checkpoint.store import DiskStore
from workloads.hosts import logistic_regression


def logistic():
    """10,000 rows, 100 weights, batches of 500: the step of a small model."""
    rows = jax.random.normal(jax.random.key(0), (10_000, 100))
    labels = jax.random.bernoulli(jax.random.key(1), jax.nn.sigmoid(rows[:, 0]))
    target = logistic_regression((rows, labels.astype(jnp.float32)))
    return target, sghmc.SGHMC(5e-4, 100.0), jnp.zeros(100), {"thinning": 20, "num_chains": 2}


def network():
    """784 inputs, 100 hidden units, batches of 500: 79,510 parameters, all stored of a draw."""
    rows = jax.random.normal(jax.random.key(0), (5_000, 784))
    labels = jax.random.randint(jax.random.key(1), (5_000,), 0, 10)

    def log_likelihood(params, example):
        row, label = example
        hidden = jax.nn.relu(jnp.dot(row, params["in"]) + params["bias"])
        return jax.nn.log_softmax(jnp.dot(hidden, params["out"]) + params["shift"])[label]

    def log_prior(params):
        return -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)) / 2

    init = {
        "in": 0.05 * jax.random.normal(jax.random.key(2), (784, 100)),
        "bias": jnp.zeros(100),
        "out": 0.1 * jax.random.normal(jax.random.key(3), (100, 10)),
        "shift": jnp.zeros(10),
    }
    target = sghmc.Posterior(log_likelihood, log_prior, (rows, labels))
    return target, sghmc.SGHMC(1e-3, 100.0), init, {"thinning": 10}


class Clock:
    """Seconds spent in some methods, which it wraps."""

    def __init__(self, *methods: tuple[type, str]):
        self.seconds = 0.0
        for kind, name in methods:
            setattr(kind, name, self._timed(getattr(kind, name)))

    def _timed(self, function):
        def timed(*args):
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def draw(model, num_samples: int, folder: pathlib.Path | None) -> np.ndarray:
    """Return the seconds of a run: on the clock, and of all processors together."""
    target, sampler, init, options = model
    start = np.array([time.perf_counter(), time.process_time()])
    sghmc.sample(
        jax.random.key(4),
        target,
        sampler,
        init,
        gradient=sghmc.Minibatch(500),
        num_samples=num_samples,
        progress=False,
        checkpoint=None if folder is None else sghmc.Checkpoint(folder),
        **options,
    )
    return np.array([time.perf_counter(), time.process_time()]) - start


def compare(make, clock: Clock, seconds: float, num_pairs: int) -> None:
    """Time runs with and without a checkpoint in turn, and the checkpoint itself.

    On a machine that others use too, the latter and the processors' seconds say more than the
    clock.
    """
    model = make()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place) / "run"
        count = 20
        draw(model, count, folder)  # compiles, and imports orbax
        rate = count / draw(model, count, None)[0]
        while count / rate < min(4, seconds):
            count *= 4
            draw(model, count, None)
            rate = count / draw(model, count, None)[0]
        count = max(1, round(rate * seconds))
        draw(model, count, None)
        pairs, shares = [], []
        for _ in range(num_pairs):
            shutil.rmtree(folder)
            clock.seconds = 0.0
            saved = draw(model, count, folder)
            shares.append(clock.seconds / (saved[0] - clock.seconds))
            pairs.append((saved, draw(model, count, None)))
        size = sum(file.stat().st_size for file in folder.glob("draws/*/*/c.*"))
    print(f"{make.__name__}: {make.__doc__}")
    print(
        f"  {count:,} draws of {size / count / 1e3:.1f} kB; seconds with and without a checkpoint:"
    )
    for (saved, plain), share in zip(pairs, shares, strict=True):
        by_clock, by_processors = saved / plain
        print(
            f"    {saved[0]:6.1f} {plain[0]:6.1f}: ratio {by_clock:.3f}, of processors' seconds "
            f"{by_processors:.3f}; in the checkpoint itself {share:.2%} of the rest of the run"
        )


def watch_memory(num_samples: int, size: int, place: str | None) -> None:
    """Draw from a Gaussian with averages; print resident memory every tenth of the way."""
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        done = threading.Event()
        seen: list[tuple[float, float]] = []
        file = pathlib.Path(folder) / "run/draws/posterior/position/c.0.0.0"

        def look():
            written = file.stat().st_size if file.exists() else 0
            seen.append((written / (4 * size), resident()))

        def watch():
            while not done.wait(0.5):
                look()

        thread = threading.Thread(target=watch)
        thread.start()
        start = time.perf_counter()
        samples = sghmc.sample(
            jax.random.key(0),
            target,
            sghmc.SGHMC(0.1, 1.0),
            jnp.zeros(size),
            num_samples=num_samples,
            averages={"mean": lambda theta: theta, "square": lambda theta: theta**2},
            progress=False,
            checkpoint=sghmc.Checkpoint(pathlib.Path(folder) / "run"),
        )
        seconds = time.perf_counter() - start
        done.set()
        thread.join()
        look()
        print(f"{num_samples:,} draws of {size:,} numbers in {seconds:.0f} s")
        for share in np.linspace(0.1, 1, 10):
            draws, memory = next(s for s in seen if s[0] >= 0.999 * share * num_samples)
            print(f"  after {draws:12,.0f} draws on disk: {memory / 1e6:6.0f} MB resident")
        print(f"  largest ever: {resident('VmHWM') / 1e6:.0f} MB")
        spread = samples.averages["square"][0] - samples.averages["mean"][0] ** 2
        print(f"  variances {spread.min():.3f} to {spread.max():.3f}, by theory 1.003")
        last = samples.positions[0, -1]
        print(f"  the last draw, from the disk: mean square {np.mean(last**2):.3f}")


def resident(field: str = "VmRSS") -> float:
    """Return the bytes of memory that Linux counts for this process, mapped files included."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(field)]
    return 1024 * float(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60, help="length of a run to compare")
    parser.add_argument("--pairs", type=int, default=3, help="of runs to compare")
    parser.add_argument("--folder", help="where there is room for the draws")
    given = parser.parse_args()
    if given.memory:
        watch_memory(given.draws, given.size, given.folder)
    else:
        clock = Clock(
            (RunFolder, "enter"), (RunFolder, "save"), (RunFolder, "resume"), (DiskStore, "append")
        )
        for make in (logistic, network):
            compare(make, clock, given.seconds, given.pairs)
