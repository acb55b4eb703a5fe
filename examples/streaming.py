# %% [markdown]
# # Data that keep coming
#
# A linear regression whose rows arrive while the chains run: 1,000 at first, then 4,000. With known
# noise the posterior is Gaussian and known for every number of rows, so that we can watch the
# chains follow it.

# %%
import itertools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_SAMPLES = 4_000  # quick: 1_000
BATCH, CHAINS = 250, 16
generator = np.random.default_rng(0)
x = generator.normal(size=(4_000, 2)).astype(np.float32)
y = (x @ [1.0, -0.5] + generator.normal(size=4_000)).astype(np.float32)


def log_likelihood(weights, row):
    return -0.5 * (row["y"] - row["x"] @ weights) ** 2


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


# %% [markdown]
# A stream is anything that yields batches; here, rows drawn at random from all that have come so
# far. `size` says how many that is. When it grows, the posterior counts more rows, and the
# sampler's mass, friction and gradient noise grow with it.


# %%
def batches():
    known = 1_000
    for number in itertools.count():
        if number * 1_000 == NUM_SAMPLES // 2 * CHAINS * BATCH:  # in the middle of the run
            known = stream.size = 4_000
        rows = np.random.default_rng(number).integers(0, known, 1_000)
        yield {"x": x[rows], "y": y[rows]}


stream = sghmc.data.Stream(batches, size=1_000, independent=True, read_ahead=100_000)

# %% [markdown]
# Settings are those for the first 1,000 rows, N: the curvature is about N, the mass too, and the
# gradient of a batch has variance N²/250. In the middle of a drift the step size leaves no bias.

# %%
sampler = sghmc.SGHMC(
    0.2, friction=2_000.0, mass=1_000.0, gradient_noise=1_000**2 / BATCH, observe="middle"
)
samples = sghmc.sample(
    jax.random.key(0),
    sghmc.Posterior(log_likelihood, log_prior, stream),
    sampler,
    jnp.zeros(2),
    gradient=sghmc.Minibatch(BATCH),
    num_samples=NUM_SAMPLES,
    num_chains=CHAINS,
)
(grown,) = samples.growth
print(f"at draw {grown.draw:,} the rows grew from {grown.num_before:,} to {grown.num_examples:,}")
print(f"the chains need about {samples.settling_draws():.0f} draws to settle again")

# %% [markdown]
# Rows are read ahead, so that the last draws before `grown.draw` have seen some of the new ones
# already; they are left out of the comparison, and so are those that had to settle.

# %%
periods = {1_000: slice(100, grown.draw - 100), 4_000: slice(grown.draw + 100, NUM_SAMPLES)}
exact, ratios, shifts = {}, {}, {}
for rows, period in periods.items():
    covariance = np.linalg.inv(x[:rows].T @ x[:rows] + np.eye(2))
    exact[rows] = covariance @ x[:rows].T @ y[:rows], np.sqrt(np.diag(covariance))
    mean, sd = exact[rows]
    draws = samples.positions[:, period]
    shifts[rows], ratios[rows] = (draws.mean((0, 1)) - mean) / sd, draws.std((0, 1)) / sd
    print(f"{rows:,} rows: means {shifts[rows].round(2)} sd off, sds × {ratios[rows].round(2)}")

# %%
figure, axes = plt.subplots(
    2, 1, sharex=True, figsize=(8, 5), num="Both weights of four chains as the data grow"
)
times = np.arange(0, NUM_SAMPLES, NUM_SAMPLES // 500)
for number, axis in enumerate(axes):
    axis.plot(times, samples.positions[:4, times, number].T, linewidth=0.5, color="C0", alpha=0.7)
    for rows, ends in {1_000: (0, grown.draw), 4_000: (grown.draw, NUM_SAMPLES)}.items():
        mean, sd = (value[number] for value in exact[rows])
        axis.fill_between(ends, mean - 2 * sd, mean + 2 * sd, color="C1", alpha=0.3, linewidth=0)
    axis.set_ylabel(f"weight {number + 1}")
    axis.set_ylim(exact[1_000][0][number] + 5 * exact[1_000][1][number] * np.array([-1, 1]))
axes[0].set_title("four chains, and mean ± 2 sd of the exact posterior")
axes[1].set_xlabel("draw")
plt.show()
