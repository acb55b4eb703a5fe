# %% [markdown]
# # An equinox network, and what it does not know
#
# Any network whose parameters are a pytree will do. This one, of equinox, fits a curve through 80
# noisy points with a gap in their middle: there the posterior should be wide, and say so.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_SAMPLES = 500  # quick: 100
THINNING = 200  # quick: 50
NOISE = 0.2
generator = np.random.default_rng(0)
x = np.concatenate([generator.uniform(-3, -1, 40), generator.uniform(1, 3, 40)]).astype(np.float32)
y = (np.sin(2 * x) + NOISE * generator.normal(size=len(x))).astype(np.float32)

# %% [markdown]
# The parameters are the network's arrays; `eqx.combine` makes a network of them again. Four chains
# start from four networks. A priori a weight is N(0, 4/inputs) and a bias N(0, 1).


# %%
def make(key):
    return eqx.nn.MLP("scalar", "scalar", width_size=32, depth=2, activation=jnp.tanh, key=key)


networks = eqx.filter_vmap(make)(jax.random.split(jax.random.key(0), 4))
starts, static = eqx.partition(networks, eqx.is_inexact_array)


def log_likelihood(params, example):
    x, y = example
    return -0.5 * ((y - eqx.combine(params, static)(x)) / NOISE) ** 2


def log_prior(params):
    leaves = jax.tree.leaves(params)
    return -0.5 * sum(jnp.sum(w**2) * (w.shape[1] / 4 if w.ndim == 2 else 1) for w in leaves)


# %% [markdown]
# A step may look at all 80 points: the gradient is exact, and BAOAB the integrator for that. Kept
# are not the weights, which mean nothing by themselves, but the curve on a grid.

# %%
grid = jnp.linspace(-4, 4, 81)
samples = sghmc.sample(
    jax.random.key(1),
    sghmc.Posterior(log_likelihood, log_prior, (x, y)),
    sghmc.BAOAB(0.003, friction=3.0),
    starts,
    init_axis=0,
    keep=lambda params: jax.vmap(eqx.combine(params, static))(grid),
    num_samples=NUM_SAMPLES,
    num_burnin=50,
    thinning=THINNING,
    num_chains=4,
)
mean, sd = samples.positions.mean((0, 1)), samples.positions.std((0, 1))
is_inside = (np.abs(grid) > 1) & (np.abs(grid) < 3)
is_covered = np.abs(mean - np.sin(2 * grid)) < 2 * sd
print(samples.health())
print(
    f"the true curve is within 2 sd at {np.mean(is_covered[is_inside]):.0%} of the grid with data"
)
print(
    f"sd with data {np.median(sd[is_inside]):.2f}, in the gap {sd[np.abs(grid) < 0.5].mean():.2f}"
)

# %% [markdown]
# Between the points the band is wide. Beyond them the curves do what this prior makes them do, and
# the true curve, which does not stem from it, leaves the band in places.

# %%
figure, axis = plt.subplots(num="Posterior of the curve: narrow at the points, wide between them")
axis.fill_between(grid, mean - 2 * sd, mean + 2 * sd, alpha=0.25, label="mean ± 2 sd")
axis.plot(grid, samples.positions[:, -1].T, color="C0", linewidth=0.8, alpha=0.8)
axis.plot(grid, mean, color="C0", linewidth=2, label="mean")
axis.plot(grid, np.sin(2 * grid), color="black", linestyle="--", label="true curve")
axis.plot(x, y, ".", color="C1", label="data")
axis.set(xlabel="x", ylabel="y", ylim=(-4, 3))
axis.legend(ncols=2, fontsize="small", loc="lower center")
plt.show()
