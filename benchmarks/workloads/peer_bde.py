"""bde by its README's settings, in its own environment: rows in, Gaussians of new rows out.

python peer_bde.py ROWS.npz LAWS.npz SEED
"""

import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np

NUM_MEMBERS = 8
SMALLEST_STD = 1e-6
"""What bde adds to its softplus."""


def main(rows: str, laws: str, seed: int) -> None:
    import jax.numpy as jnp
    from bde import BdeRegressor  # pyright: ignore[reportMissingImports]
    from bde.loss import GaussianNLL  # pyright: ignore[reportMissingImports]

    with np.load(rows) as file:
        x, y, new_x = file["x"], file["y"], file["new_x"]
    center, scale = x.mean(0), x.std(0) + 1e-8
    level, unit = y.mean(), y.std() + 1e-8
    model = BdeRegressor(
        hidden_layers=[16, 16],
        n_members=NUM_MEMBERS,
        seed=seed,
        loss=GaussianNLL(),
        epochs=200,
        validation_split=0.15,
        lr=1e-3,
        weight_decay=1e-4,
        warmup_steps=5000,
        n_samples=2000,
        n_thinning=2,
        patience=10,
    )
    started, cpu_started = time.perf_counter(), time.process_time()
    model.fit(
        x=jnp.asarray((x - center) / scale), y=jnp.asarray(((y - level) / unit).reshape(-1, 1))
    )
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    raw = np.asarray(model.predict(jnp.asarray((new_x - center) / scale), raw=True), float)
    raw = raw.reshape(-1, *raw.shape[-2:])
    np.savez(
        laws,
        mean=level + unit * raw[..., 0],
        std=unit * (np.logaddexp(0, raw[..., 1]) + SMALLEST_STD),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
