"""Logistic regression on a file larger than memory: steps per second and resident memory.

Makes a file of rows × 50 float32 (20 GB for 10⁸ rows; it stays, for the next time), reads it anew
so that what fits is in the page cache, and samples with rows from the file and with rows in
memory, in turn, each in its own process. In memory are the first `--memory-rows` rows: as many as
are far beyond the processor's caches. A case is a batch size, a number of chains, and whether
these have batches of their own or shared ones.
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from workloads.checkpoints import resident

SCRIPT = pathlib.Path(__file__).parents[1] / "scaling.py"
NUM_COLUMNS = 50
CHUNK_ROWS = 1_000_000
CACHESTAT = 451
"""Number of the Linux system call `cachestat`."""
CASES = (("500", "1", "own"), ("500", "4", "own"), ("500", "4", "shared"), ("5000", "1", "own"))


def make_file(path: pathlib.Path, rows: int) -> None:
    """Write labels ±1 in column 0, features beside them, piece by piece."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, NUM_COLUMNS)}
    rng = np.random.default_rng(0)
    weights = rng.normal(size=NUM_COLUMNS - 1).astype(np.float32) / 7
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, CHUNK_ROWS):
            x = rng.standard_normal((min(CHUNK_ROWS, rows - start), NUM_COLUMNS), np.float32)
            x[:, 0] = np.where(x[:, 1:] @ weights + x[:, 0] > 0, 1, -1)
            file.write(x.data)


def warm(path: pathlib.Path) -> None:
    """Read the file from end to end, until all of it is in the page cache, or cannot be."""
    buffer, size = bytearray(1 << 24), path.stat().st_size / 1e9
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        # Anew, in large pages: what was left from another use may be in small ones.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        touch(file.fileno())
        for _ in range(3):
            start = time.perf_counter()
            file.seek(0)
            while file.readinto(buffer):
                pass
            seconds, share = time.perf_counter() - start, cached_share(file.fileno())
            print(f"{size:.1f} GB read in {seconds:.1f} s, {share:.1%} now in the page cache")
            if share >= 1:
                break


def touch(file: int) -> None:
    """Map every page of a file once, large ones where the system has them."""
    whole = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    whole.madvise(mmap.MADV_HUGEPAGE)
    content = np.frombuffer(whole, np.uint8)
    for start in range(0, len(content), 1 << 28):
        content[start : start + (1 << 28) : mmap.PAGESIZE].sum()
        whole.madvise(mmap.MADV_DONTNEED)


def cached_share(file: int) -> float:
    """Return the share of a file that is in the page cache, by the system call `cachestat`."""
    part, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    if ctypes.CDLL(None).syscall(CACHESTAT, file, part, found, 0):
        return float("nan")  # a Linux before 6.5
    return found[0] * mmap.PAGESIZE / os.fstat(file).st_size


def in_memory(source, num_rows: int):
    """Return the first rows as an array of jax, without a second copy on the way."""

    rows = source.empty(num_rows)
    for start in range(0, num_rows, CHUNK_ROWS):
        numbers = np.arange(start, min(start + CHUNK_ROWS, num_rows))
        source.read(numbers, rows[start : start + len(numbers)])
    return jax.device_put(rows)


def measure_file(path: pathlib.Path, given: argparse.Namespace) -> dict[str, float]:
    """Sample; return steps per second after compilation, and the largest resident memory."""

    data = sghmc.data.MemoryMapped(path)
    if given.only == "memory":
        data = in_memory(data, min(given.memory_rows, data.num_rows))
    posterior = sghmc.Posterior(
        lambda theta, row: -jax.nn.softplus(-row[0] * (row[1:] @ theta)),
        lambda theta: -0.5 * jnp.sum(theta**2),
        data,
    )
    batch_size, num_chains, whose = given.case[0]
    # η = ε²/M ∝ 1/N, as the posterior shrinks with N.
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGHMC.from_learning_rate(0.1 / posterior.num_rows, 0.1),
        jnp.zeros(NUM_COLUMNS - 1),
        gradient=sghmc.Minibatch(int(batch_size), shared=whose == "shared"),
        num_samples=given.draws,
        thinning=100,
        num_chains=int(num_chains),
        progress=False,
    )
    assert samples.clock is not None
    # All draws of a block have its time: from the end of one, in the first half, to the last.
    ends = np.append(np.flatnonzero(np.diff(samples.clock)), len(samples.clock) - 1)
    first = ends[max(0, np.searchsorted(ends, len(samples.clock) // 2, side="right") - 1)]
    seconds = float(samples.clock[ends[-1]] - samples.clock[first])
    steps = 100 * (ends[-1] - first) if seconds else 100 * given.draws  # one block: all of it
    return {
        "steps_per_second": steps / (seconds or samples.seconds),
        "peak_resident_gb": resident("VmHWM") / 1e9,
    }


def compare_file(case: tuple[str, ...], given: argparse.Namespace) -> None:
    """Run one case from the file and in memory, in turn; print the median ratio of the rounds."""
    draws = max(20, given.steps * 500 // (100 * int(case[0])))  # as many rows for all cases
    shared = ["--folder", str(given.folder), "--rows", str(given.rows), "--draws", str(draws)]
    shared += ["--memory-rows", str(given.memory_rows), "--case", *case]
    ratios = []
    print(f"batches of {case[0]}, {case[1]} chains with {case[2]} batches, {draws * 100:,} steps:")
    for _ in range(given.rounds):
        found = {}
        for only in ("file", "memory"):
            command = [sys.executable, str(SCRIPT), "file", *shared, "--only", only]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[only] = json.loads(done.stdout)
        ratios.append(found["file"]["steps_per_second"] / found["memory"]["steps_per_second"])
        shown = "; ".join(
            f"{only}: {each['steps_per_second']:8,.0f} steps/s, at most "
            f"{each['peak_resident_gb']:.2f} GB resident"
            for only, each in found.items()
        )
        print(f"    {shown}; ratio {ratios[-1]:.2f}", flush=True)
    print(
        f"    from the file at {statistics.median(ratios):.2f} of the speed in memory", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory-rows", type=int, default=5_000_000)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--case", nargs=3, action="append", metavar=("BATCH", "CHAINS", "WHOSE"))
    parser.add_argument("--steps", type=int, default=40_000, help="for batches of 500 rows")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draws", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=("file", "memory"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    path = given.folder / f"{given.rows}.npy"
    if given.only:
        return print(json.dumps(measure_file(path, given)))
    given.folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        make_file(path, given.rows)
    warm(path)
    for case in given.case or CASES:
        compare_file(case, given)
