"""Random runs end in sound draws or in an error of ours; many runs leave nothing behind.

    pytest tests/test_soak.py --soak 3600    # for an hour, from the seeds that follow

Seeds of `make test`, and the further ones of `make test-all`, are fixed. A failure names its seed:
`fuzz.run(seed)` is that run.
"""

import collections
import gc
import itertools
import os
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fuzz
import sghmc

SEEDS = range(16)
FURTHER = range(16, 64)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(FURTHER, marks=pytest.mark.slow)], ids=str)
def test_random_runs_are_sound(request, seeds):
    seconds = request.config.getoption("--soak")
    ends, found = time.monotonic() + seconds, collections.Counter()
    for seed in itertools.count(FURTHER.stop) if seconds else seeds:
        if seconds and time.monotonic() > ends:
            break
        found[fuzz.run(seed)] += 1
        if seed % 50 == 49:
            jax.clear_caches()
    print(dict(found))
    assert found["draws"] > sum(found.values()) / 4, "most runs are refused: nothing was tried"


def _resources() -> tuple[float, int, int]:
    """Megabytes, threads and open files of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    size = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return size, threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks Linux for its memory")
@pytest.mark.parametrize("is_mapped", [pytest.param(False, marks=pytest.mark.slow), True])
def test_many_runs_leave_nothing_behind(is_mapped, tmp_path):
    """Neither memory nor threads nor files grow with the number of runs of equal shapes."""

    def log_likelihood(theta, x):
        return -0.5 * jnp.sum((x - theta) ** 2)

    def log_prior(theta):
        return -0.5 * jnp.sum(theta**2)

    def run(i):
        rows = np.random.default_rng(i).normal(size=(2000, 50)).astype(np.float32)
        data = rows
        if is_mapped:
            np.save(tmp_path / "rows.npy", rows)
            data = sghmc.data.MemoryMapped(tmp_path / "rows.npy")
        sghmc.sample(
            jax.random.key(i),
            sghmc.Posterior(log_likelihood, log_prior, data),
            sghmc.SGHMC(1e-3, 5.0),
            jnp.zeros(50),
            gradient=sghmc.Minibatch(20),
            num_samples=5,
            progress=False,
        )

    num_runs, warm = (40, 10) if is_mapped else (500, 50)
    for i in range(warm):
        run(i)
    before = _resources()
    for i in range(warm, num_runs):
        run(i)
    after = _resources()
    assert after[0] - before[0] < 40, "megabytes"
    assert after[1] - before[1] <= 2, "threads"
    assert after[2] - before[2] <= 2, "open files"
