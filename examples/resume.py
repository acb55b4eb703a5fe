# %% [markdown]
# # Interrupted, resumed, the same to the last bit
#
# A run with a `Checkpoint` saves itself as it goes. Called again with the same arguments it goes on
# from its last save, and the draws are those of a run that was never stopped. Here Ctrl-C stops a
# run; `kill -9` would do as well.

# %%
import signal
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_SAMPLES = 4_000  # quick: 2_000
generator = np.random.default_rng(0)
rows = generator.normal(size=(5_000, 3)).astype(np.float32)
labels = generator.random(5_000) < jax.nn.sigmoid(rows @ np.array([1, -2, 0.5], np.float32))


def log_likelihood(weights, example):
    row, label = example
    return jax.nn.log_sigmoid(jnp.where(label, 1, -1) * (row @ weights))


def log_prior(weights):
    return -jnp.sum(weights**2) / 2


posterior = sghmc.Posterior(log_likelihood, log_prior, (rows, labels))


def sample(checkpoint=None):
    return sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGHMC(1e-3, friction=60.0),
        jnp.zeros(3),
        gradient=sghmc.Minibatch(500),
        num_samples=NUM_SAMPLES,
        num_burnin=100,
        thinning=20,
        num_chains=4,
        checkpoint=checkpoint,
    )


# %% [markdown]
# The first call is interrupted as soon as it has saved itself once, and returns what it has.

# %%
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name) / "run"
checkpoint = sghmc.Checkpoint(folder, every=200)


def press_ctrl_c():
    while not any(folder.glob("saves/[0-9]*")):
        time.sleep(0.01)
    signal.raise_signal(signal.SIGINT)


threading.Thread(target=press_ctrl_c).start()
interrupted = sample(checkpoint)
print(f"interrupted after {interrupted.num_draws:,} of {NUM_SAMPLES:,} draws")

# %% [markdown]
# The same call again. Then, for comparison, a run that nobody disturbs, and that saves nothing.

# %%
resumed = sample(checkpoint)
undisturbed = sample()
are_equal = np.array_equal(resumed.positions, undisturbed.positions)
print(f"resumed: {resumed.num_draws:,} draws, equal to the last bit: {are_equal}")
print(resumed.health())

# %%
figure, axis = plt.subplots(num="Trace of a weight, with the place where the run was interrupted")
shown = slice(max(0, interrupted.num_draws - 100), interrupted.num_draws + 100)
draws = np.arange(NUM_SAMPLES)[shown]
axis.plot(draws, undisturbed.positions[0, shown, 1], "C1", linewidth=5, alpha=0.4)
axis.plot(draws, resumed.positions[0, shown, 1], "C0", linewidth=1.2)
axis.axvline(interrupted.num_draws, color="black", linestyle="--")
axis.set(xlabel="draw of the first chain", ylabel="second weight")
figure.legend(["undisturbed", "resumed", "Ctrl-C"], loc="outside upper center", ncols=3)
plt.show()
scratch.cleanup()
