# %% [markdown]
# # Logistic regression on a million rows, nothing tuned by hand
#
# Exact samplers read all rows for every gradient. Here a step reads 500 of a million, and
# `"auto"` chooses everything else: it finds the mode, corrects minibatches there, takes coordinates
# in which all directions have the same scale, and tries its step size before it trusts it.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_ROWS = 1_000_000  # quick: 20_000
NUM_SAMPLES = 1_000  # quick: 400
truth = np.linspace(-1, 1, 10).astype(np.float32)

generator = np.random.default_rng(0)
rows = generator.normal(size=(NUM_ROWS, len(truth))).astype(np.float32)
rows[:, 1] += 2 * rows[:, 0]  # two columns that are hard to tell apart
labels = generator.random(NUM_ROWS) < jax.nn.sigmoid(rows @ truth)


def log_likelihood(weights, example):
    row, label = example
    return jax.nn.log_sigmoid(jnp.where(label, 1, -1) * (row @ weights))


def log_prior(weights):
    return -jnp.sum(weights**2) / 2


posterior = sghmc.Posterior(log_likelihood, log_prior, (rows, labels))

# %%
samples = sghmc.sample(
    jax.random.key(0),
    posterior,
    "auto",
    jnp.zeros(len(truth)),
    num_samples=NUM_SAMPLES,
    num_chains=4,
)
print(samples.tuning)
health = samples.health()
print(health)

# %% [markdown]
# With so many rows the posterior is a Gaussian, up to a small error: its covariance is the inverse
# of the Hessian, XᵀDX + I with D the variances of the labels, and its mean is a Newton step away
# from any point nearby. Both take a pass over all rows, which we can afford once.

# %%
mean, sd = samples.positions.mean((0, 1)), samples.positions.std((0, 1))
chances = np.asarray(jax.nn.sigmoid(rows @ mean))
hessian = (rows * (chances * (1 - chances))[:, None]).T @ rows + np.eye(len(truth))
exact_sd = np.sqrt(np.diag(np.linalg.inv(hessian)))
exact_mean = mean - np.linalg.solve(hessian, posterior.gradient(mean))
print(f"means are off by at most {np.max(np.abs(mean - exact_mean) / exact_sd):.3f} sd,")
print(f"standard deviations by at most {np.max(np.abs(sd / exact_sd - 1)):.1%}")

# %%
figure, (left, right) = plt.subplots(
    1, 2, num="Posterior of each weight around the true one, and its width against the exact width"
)
places = np.arange(len(truth))
left.axhline(0, color="black", linewidth=1, label="true weight")
left.errorbar(places, 1e3 * (mean - truth), 2e3 * sd, fmt="o", markersize=4, label="mean ± 2 sd")
left.set(xlabel="weight", ylabel="difference from the true one × 1,000", xticks=places)
left.legend(fontsize="small")
right.axhline(1, color="black", linewidth=1)
right.errorbar(places, sd / exact_sd, 2 * samples.summary()["mcse_sd"] / sd, fmt="o", markersize=4)
right.set(xlabel="weight", ylabel="sd / exact sd (± 2 standard errors)", xticks=places)
right.set_ylim(0.85, 1.15)
plt.show()
