"""A run for several processes: the same in every process that imports this."""

import contextlib
import functools
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import sghmc

KEY = 5
NUM_ROWS, FEW, MANY = 96, 10, 3000
INIT = np.linspace(-0.5, 0.5, 3).astype(np.float32)
SAMPLER = sghmc.SGHMC(0.05, 1.0)


def table():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(NUM_ROWS, 3)).astype(np.float32)
    return {"x": x, "y": (rng.random(NUM_ROWS) < 0.4).astype(np.float32)}


def log_likelihood(theta, row):
    return jax.nn.log_sigmoid((2 * row["y"] - 1) * jnp.dot(row["x"], theta))


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def square(theta):
    return theta**2


def own_rows(mesh) -> dict:
    """The table as one array over all processes, of which this one has only its own rows."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def spread(column):
        return jax.make_array_from_callback(column.shape, sharding, lambda index: column[index])

    return {name: spread(column) for name, column in table().items()}


def unequal_rows(kind: str, mesh, index: int, folder: pathlib.Path):
    """Data that differ from one process to another."""
    own = {name: column[: 48 + 2 * index] for name, column in table().items()}
    if kind == "array":
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        spread = functools.partial(jax.make_array_from_process_local_data, sharding)
        return {name: spread(column) for name, column in own.items()}
    if kind == "order":
        return {name: np.roll(column, index, 0) for name, column in table().items()}
    import pyarrow
    import pyarrow.parquet

    columns = {"x": list(own["x"]), "y": own["y"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{index}.parquet")
    return sghmc.data.Parquet(folder / f"{index}.parquet")


def go(mesh=None, data=None, num_samples=FEW, **given):
    return sghmc.sample(
        jax.random.key(KEY),
        sghmc.Posterior(log_likelihood, log_prior, table() if data is None else data),
        SAMPLER,
        jnp.asarray(INIT),
        gradient=sghmc.Minibatch(20),
        num_samples=num_samples,
        num_chains=2,
        averages={"square": square},
        progress=False,
        mesh=mesh,
        **given,
    )


def automatic(mesh=None, data=None) -> sghmc.Samples:
    return sghmc.sample(
        jax.random.key(KEY),
        sghmc.Posterior(log_likelihood, log_prior, table() if data is None else data),
        "auto",
        jnp.asarray(INIT),
        num_samples=FEW,
        num_chains=2,
        averages={"square": square},
        progress=False,
        mesh=mesh,
    )


def saved(folder: pathlib.Path, num_samples: int) -> sghmc.Checkpoint:
    return sghmc.Checkpoint(folder / "checkpoint", every=max(5, num_samples // 60))


def main(index: int, count: int, port: int, folder: str, num_samples: int, shape: str) -> None:
    """One of `count` processes; `shape` is as in "chain=2,data=2" or "data=2;unequal=array"."""
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    shape, _, unequal = shape.partition(";unequal=")
    axes = {name: int(size) for name, size in (part.split("=") for part in shape.split(","))}
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes))
    place = pathlib.Path(folder)
    data = own_rows(mesh) if "data" in axes else None
    data = unequal_rows(unequal, mesh, index, place) if unequal not in ("", "auto") else data
    if unequal == "auto":
        samples = automatic(mesh)
        with contextlib.suppress(ValueError):
            automatic(mesh, own_rows(mesh))
            raise AssertionError("rows that process 0 does not have were tuned on")
    else:
        samples = go(mesh, data, num_samples, checkpoint=saved(place, num_samples))
    if sys.platform == "linux":  # no thread interrupts another, gloo's neither: `be_unhurried`
        threads = map(int, os.listdir("/proc/self/task"))
        assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
    np.savez(place / f"{index}.npz", positions=samples.positions, square=samples.averages["square"])
    print("finished", flush=True)


if __name__ == "__main__":
    import processes_run  # by the name that tests have: functions are known by their modules

    place, shape = sys.argv[4], sys.argv[6]
    index, count, port, num_samples = (int(sys.argv[i]) for i in (1, 2, 3, 5))
    processes_run.main(index, count, port, place, num_samples, shape)
