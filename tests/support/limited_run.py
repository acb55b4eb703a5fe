"""Samples from a file larger than the memory that this process may have: see test_mapped.py.

python limited_run.py FILE LIMIT
"""

import pathlib
import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np

import sghmc


def peak() -> int:
    """The most memory this process ever had; `getrusage` counts its parent's, before exec, too."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def refuses_to_load(path: str) -> bool:
    try:
        np.load(path)
    except MemoryError:
        return True
    return False


def main(path: str, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    assert refuses_to_load(path), "the limit does not bind"
    posterior = sghmc.Posterior(
        lambda theta, row: -0.5 * jnp.sum((row - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        sghmc.data.MemoryMapped(path),
    )
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGLD(0.1 / posterior.num_rows),
        jnp.zeros(posterior.example.shape),
        gradient=sghmc.Minibatch(500),
        num_samples=300,
        progress=False,
    )
    assert np.isfinite(samples.positions).all()
    slope = posterior.gradient(jnp.ones(posterior.example.shape))
    np.testing.assert_allclose(slope, posterior.num_rows + 1.0, rtol=1e-3)
    print(peak())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
