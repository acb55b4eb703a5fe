"""Samples from a file larger than the memory that this process may have: see test_mapped.py.

python limited_run.py FILE LIMIT
"""

import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np

import sghmc


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
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
