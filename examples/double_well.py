# %% [markdown]
# # A double well, with noisy gradients
#
# The first figure of the paper that SGHMC comes from (Chen, Fox & Guestrin, 2014): U(θ) = θ⁴ − 2θ²
# has two wells, and its gradient is seen with noise of variance 4. One dimension, so that numerical
# integration gives the exact density.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_SAMPLES = 4_000  # quick: 600
noise = 4.0
target = sghmc.Potential(lambda theta: theta**4 - 2 * theta**2)

# %% [markdown]
# Three samplers. *Naive* is Hamiltonian Monte Carlo that takes the gradients for exact, and leaves
# out the accept step, which would need the exact potential: all data, in practice. *SGHMC* has
# friction, and is told the variance of the noise. *SGNHT* is not told: a thermostat finds out.

# %%
samplers = {
    "naive HMC": (sghmc.HMC(0.1, 50, metropolis=False), 1),
    "SGHMC": (sghmc.SGHMC(0.1, friction=3.0, gradient_noise=noise), 50),
    "SGNHT": (sghmc.SGNHT(0.1, 3.0), 50),
}
runs = {
    name: sghmc.sample(
        jax.random.key(number),
        target,
        sampler,
        jnp.zeros(()),
        gradient=sghmc.NoisyGradient(noise),
        num_samples=NUM_SAMPLES,
        num_burnin=20,
        thinning=thinning,
        num_chains=16,
    )
    for number, (name, (sampler, thinning)) in enumerate(samplers.items())
}

# %% [markdown]
# How far is a histogram from the truth? The total variation distance is the share of the draws that
# would have to move. Independent draws in this number have some of it too, by chance.

# %%
edges = np.linspace(-3, 3, 61)
fine = np.linspace(-3, 3, 6_001)
density = np.exp(2 * fine**2 - fine**4)
density /= density.sum() * (fine[1] - fine[0])
shares = np.histogram(fine, edges, weights=density)[0]
shares /= shares.sum()


def distance(draws):
    counts = np.histogram(draws, edges)[0]
    return 0.5 * np.abs(counts / draws.size - shares).sum() + 0.5 * (1 - counts.sum() / draws.size)


independent = np.random.default_rng(0).choice(fine, 16 * NUM_SAMPLES, p=density / density.sum())
distances = {name: distance(samples.positions) for name, samples in runs.items()}
print(", ".join(f"{name} {value:.3f}" for name, value in distances.items()))
print(f"independent draws {distance(independent):.3f}")

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(9, 3.4), sharey=True, num="Histograms of three samplers with the exact density"
)
for axis, color, (name, samples) in zip(axes, ("C1", "C0", "C2"), runs.items(), strict=True):
    axis.hist(samples.positions.ravel(), edges, density=True, color=color, alpha=0.6)
    axis.plot(fine, density, color="black", label="exact")
    axis.set(title=f"{name}: {distances[name]:.3f} off", xlabel="θ")
axes[0].set_ylabel("density")
axes[0].legend(loc="upper left", fontsize="small")
plt.show()
