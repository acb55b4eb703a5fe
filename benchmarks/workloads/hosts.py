"""Processes as one run, over loopback with gloo, and a plan for many hosts.

1. A logistic regression, batches of a quarter of `--rows` rows with 50 columns: two processes
   with a core and half of the rows each, against one process with both cores, in turns; the ratio
   is the median of the ratios within a turn.
2. The cost of adding up so many floats over 2 and over 4 processes.
3. From both, how many rows of a batch each of 8, 64, 512 hosts needs so that sums take at most a
   fifth of a step: a simulation by the usual model of a ring, whose two constants are fitted to
   the measured costs.
Processes are pinned to cores.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

SCRIPT = pathlib.Path(__file__).parents[1] / "scaling.py"
NUM_COLUMNS, NUM_HOST_DRAWS, HOST_THINNING = 50, 12, 10
SUM_SIZES = [10**k for k in range(2, 8)]
NUM_HOSTS, EFFICIENCY = (8, 64, 512), 0.8
NUM_SUM_REPEATS = 5


def child(task: str, index: int, count: int, port: int, cores: list[int], given) -> None:
    """Get ready, say so, and answer each line of input with a line of numbers."""
    os.sched_setaffinity(0, cores)  # before jax counts them
    import jax

    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    answer = {"steps": steps_per_second, "sums": seconds_of_sums}[task](count, given)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(answer()), flush=True)


def steps_per_second(num_processes: int, given: argparse.Namespace):
    """Return a function that samples for a while, and returns the steps in a second."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    import sghmc

    rng = np.random.default_rng(0)
    x = rng.normal(size=(given.rows, NUM_COLUMNS)).astype(np.float32)
    mesh, data = None, (x, (rng.random(given.rows) < 0.5).astype(np.float32))
    if num_processes > 1:
        mesh = jax.make_mesh((num_processes,), ("data",))
        rows = NamedSharding(mesh, PartitionSpec("data"))
        data = tuple(
            jax.make_array_from_callback(leaf.shape, rows, lambda index, leaf=leaf: leaf[index])
            for leaf in data
        )
    posterior = logistic_regression(data)

    def run() -> float:
        samples = sghmc.sample(
            jax.random.key(0),
            posterior,
            sghmc.SGHMC.from_learning_rate(0.1 / given.rows, 0.1),
            jnp.zeros(NUM_COLUMNS),
            gradient=sghmc.Minibatch(given.rows // 4),
            num_samples=NUM_HOST_DRAWS,
            thinning=HOST_THINNING,
            progress=False,
            mesh=mesh,
        )
        assert samples.clock is not None
        seconds = float(samples.clock[-1] - samples.clock[0])
        # Few rows: all draws may come in one block, and have its time.
        return (NUM_HOST_DRAWS - 1) * HOST_THINNING / (seconds or samples.seconds)

    run()
    return run


def seconds_of_sums(num_processes: int, given: argparse.Namespace):
    """Return a function that returns the seconds of a sum over all processes, for each size."""
    import jax
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec

    from sghmc.core import runtime

    runtime.avoid_preemption()
    everywhere = PartitionSpec()
    mesh = jax.make_mesh((num_processes,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def sums(x, count):
        return lax.fori_loop(0, count, lambda _, x: lax.psum(x, "data") / num_processes, x)

    summed = jax.jit(
        jax.shard_map(sums, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    )

    def seconds(size: int) -> float:
        """Time sums in a row: as many as take a while, the same number in all processes."""
        ones = np.ones(size, np.float32)
        x = jax.make_array_from_callback(
            ones.shape, NamedSharding(mesh, everywhere), lambda index: ones[index]
        )
        count, times = max(5, min(1000, 10**7 // size)), []
        for _ in range(NUM_SUM_REPEATS + 1):
            start = time.perf_counter()
            jax.block_until_ready(summed(x, np.int32(count)))
            times.append((time.perf_counter() - start) / count)
        return statistics.median(times[1:])

    return lambda: {size: seconds(size) for size in given.sizes}


class Group:
    """Processes that do a task together, and wait in between."""

    def __init__(self, task: str, cores: list[list[int]], given: argparse.Namespace):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, str(SCRIPT), "hosts", "--rows", str(given.rows)]
        command += ["--sizes", *map(str, given.sizes), "--child", task]
        self.processes = [
            subprocess.Popen(
                [*command, str(i), str(len(cores)), str(port), ",".join(map(str, own))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i, own in enumerate(cores)
        ]
        for process in self.processes:
            while (line := self._line(process)) != "ready":
                print(line, file=sys.stderr)

    def ask(self) -> Any:
        """Return the answer of the first process; the others do their part."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [json.loads(self._line(process)) for process in self.processes]
        return answers[0]

    def close(self) -> None:
        for process in self.processes:  # all inputs first: they wait for each other's end
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            process.wait()

    @staticmethod
    def _line(process: subprocess.Popen) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and "Gloo" in line:  # gloo greets on the standard output
            line = process.stdout.readline()
        if not line:
            raise RuntimeError("A process ended early: its errors are above.")
        return line.strip()


def compare_processes(cores: list[int], given: argparse.Namespace) -> float:
    """Print steps a second of both; return the seconds of one process for a row."""
    first, second = cores[:2]
    one, two = (
        Group("steps", [[first, second]], given),
        Group("steps", [[first], [second]], given),
    )
    rates = [(one.ask(), two.ask()) for _ in range(given.turns)]
    one.close()
    two.close()
    ratio = statistics.median(b / a for a, b in rates)
    shown = [statistics.median(column) for column in zip(*rates, strict=True)]
    print("| | steps/s |", "| --- | ---: |", sep="\n")
    print(f"| 1 process × 2 cores | {shown[0]:.1f} |")
    print(f"| 2 processes × 1 core | {shown[1]:.1f} |")
    print(f"| ratio, median of {given.turns} turns | {ratio:.2f} |\n", flush=True)
    return 1 / (shown[1] * given.rows / 8)


def measure_sums(cores: list[int], given: argparse.Namespace) -> dict[int, dict[int, float]]:
    """Print and return the seconds of a sum, by processes and floats."""
    found: dict[int, dict[int, float]] = {}
    for count in (2, 4):
        group = Group("sums", [[cores[i % len(cores)]] for i in range(count)], given)
        found[count] = {int(size): seconds for size, seconds in group.ask().items()}
        group.close()
    print("| floats | 2 processes | 4 processes |", "| ---: | ---: | ---: |", sep="\n")
    for size in given.sizes:
        print(f"| {size:,} | {' | '.join(_time(found[count][size]) for count in found)} |")
    if len(cores) < 4:
        print(f"\nFour processes share {len(cores)} cores here: they wait for each other's turns.")
    print(flush=True)
    return found


def plan(sums: dict[int, float], row_seconds: float, sizes: list[int]) -> None:
    """Print the rows that a host needs; `sums` are the seconds of a sum over two processes."""
    # A ring of n takes 2(n − 1) messages of 1/n of the floats each: two, of a half, for n = 2.
    latency = sums[sizes[0]] / 2
    per_float = (sums[sizes[-1]] - sums[sizes[0]]) / sizes[-1]
    per_number = row_seconds / NUM_COLUMNS
    print(
        f"A sum of d floats over n hosts takes 2(n − 1)·a + (2(n − 1)/n)·b·d with "
        f"a = {latency * 1e6:.0f} µs and b = {per_float * 1e9:.2f} ns, a row of d columns "
        f"{per_number * 1e9:.2f} ns·d. The time of a sum, and the rows of a batch that each host "
        f"needs for an efficiency of {EFFICIENCY}:\n"
    )
    print("| floats |" + "".join(f" {n} hosts |" for n in NUM_HOSTS))
    print("| ---: |" + " ---: |" * len(NUM_HOSTS))
    for size in sizes:
        cells = []
        for n in NUM_HOSTS:
            seconds = 2 * (n - 1) * latency + 2 * (n - 1) / n * per_float * size
            rows = EFFICIENCY / (1 - EFFICIENCY) * seconds / (per_number * size)
            cells.append(f" {_time(seconds)}, {_rounded(rows)} rows |")
        print(f"| {size:,} |" + "".join(cells))


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _rounded(rows: float) -> str:
    return f"{float(f'{rows:.2g}'):,.0f}" if rows >= 1 else "1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SUM_SIZES, help="of sums, in floats"
    )
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        task, index, count, port, own = given.child
        numbers = [int(core) for core in own.split(",")]
        return child(task, int(index), int(count), int(port), numbers, given)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("This needs two cores.")
    row_seconds = compare_processes(cores, given)
    plan(measure_sums(cores, given)[2], row_seconds, given.sizes)


def logistic_regression(data):
    """Return a logistic regression on rows (x, label) with a standard normal prior."""
    import jax
    import jax.numpy as jnp

    import sghmc

    def log_likelihood(weights, example):
        row, label = example
        return jax.nn.log_sigmoid((2 * label - 1) * jnp.dot(row, weights))

    return sghmc.Posterior(log_likelihood, lambda weights: -jnp.sum(weights**2) / 2, data)
