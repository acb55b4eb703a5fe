"""Logistic regression on a file larger than memory: steps per second and resident memory.

    python benchmarks/out_of_core.py --rows 100_000_000 --folder /tmp/out_of_core

makes a file of rows × 50 float32 (20 GB for these; it stays, for the next time), reads it once so
that what fits is in the page cache, and samples with rows from the file and with rows in memory,
each in a process of its own. In memory are the first `--memory-rows` rows, where all would not fit.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

WIDTH = 50
CHUNK = 1_000_000


def make(path: pathlib.Path, rows: int) -> None:
    """Labels ±1 in column 0, features beside them; written piece by piece."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)}
    rng = np.random.default_rng(0)
    weights = rng.normal(size=WIDTH - 1).astype(np.float32) / 7
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, CHUNK):
            x = rng.standard_normal((min(CHUNK, rows - start), WIDTH), np.float32)
            x[:, 0] = np.where(x[:, 1:] @ weights + x[:, 0] > 0, 1, -1)
            file.write(x.data)


def warm(path: pathlib.Path) -> float:
    """Read the file from end to end, in seconds."""
    began = time.perf_counter()
    buffer = bytearray(1 << 24)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def measure(path: pathlib.Path, options: argparse.Namespace, *, in_memory: bool) -> dict:
    """Sample, and tell steps per second after compilation, and the most memory resident."""
    import jax
    import jax.numpy as jnp

    import sghmc

    if in_memory:
        data = jnp.asarray(np.load(path, mmap_mode="r")[: options.memory_rows])
    else:
        data = sghmc.data.MemoryMapped(path)
    posterior = sghmc.Posterior(
        lambda theta, row: -jax.nn.softplus(-row[0] * (row[1:] @ theta)),
        lambda theta: -0.5 * jnp.sum(theta**2),
        data,
    )
    # η = ε²/M ∝ 1/N, as the posterior shrinks with N.
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGHMC.from_learning_rate(0.1 / posterior.num_rows, 0.1),
        jnp.zeros(WIDTH - 1),
        gradient=sghmc.Minibatch(options.batch_size, shared=options.shared),
        num_samples=options.steps // 100,
        thinning=100,
        num_chains=options.chains,
        progress=False,
    )
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    assert samples.clock is not None
    half = len(samples.clock) // 2
    steps = 100 * (len(samples.clock) - 1 - half)
    return {
        "rows": posterior.num_rows,
        "steps_per_second": steps / (samples.clock[-1] - samples.clock[half]),
        "startup_seconds": samples.startup_seconds,
        "peak_resident_gb": peak / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory-rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--chains", type=int, default=1)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--only", choices=("file", "memory"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    path = options.folder / f"{options.rows}.npy"
    if options.only:
        return print(json.dumps(measure(path, options, in_memory=options.only == "memory")))
    options.folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        make(path, options.rows)
    print(f"{path.stat().st_size / 1e9:.1f} GB read in {warm(path):.1f} s")
    speeds = {}
    for only in ("file", "memory"):
        command = [sys.executable, *sys.argv, "--only", only]
        result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        speeds[only] = result["steps_per_second"]
        print(only, {name: round(value, 3) for name, value in result.items()})
    print(f"from the file at {speeds['file'] / speeds['memory']:.2f} of the speed in memory")


if __name__ == "__main__":
    main()
