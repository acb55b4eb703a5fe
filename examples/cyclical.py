# %% [markdown]
# # Many modes: finding them, and weighing them
#
# Five Gaussians on a ring, so far apart that a chain in one of them stays there. They weigh 30, 25,
# 20, 15 and 10 %. The gradient is noisy, as minibatches make it.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_SAMPLES = 1_000  # quick: 100
weights = np.array([0.30, 0.25, 0.20, 0.15, 0.10], np.float32)
angles = 2 * np.pi * np.arange(5) / 5
centers = 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
sd, noise = 0.4, 160.0


def potential(theta):
    squares = jnp.sum((theta[None] - centers) ** 2, axis=1)
    return -jax.nn.logsumexp(-squares / (2 * sd**2), b=weights)


# %% [markdown]
# Three samplers. All their chains start in the first mode.
#
# - `SGHMC`, told of the noise, samples the mode that it is in.
# - `Cyclical` starts every cycle with large steps, in which the gradient's noise carries it about:
#   here it is worth a temperature of εV/2C = 8. The steps get smaller, and it settles in some mode;
#   we keep one draw a cycle, at its end. Which mode that is depends on the basins, *not* on the
#   weights, and the last steps are too small to cool down altogether: it finds modes, but has no
#   law.
# - `ReplicaExchange` has two hotter copies that cross between the modes, and trades places with
#   them by an accept step. That takes three gradients a step, and gives the modes their weights.

# %%
base = sghmc.SGHMC(0.02, friction=2.0, gradient_noise=noise)
samplers = {
    "SGHMC": (base, 50),
    "Cyclical": (sghmc.Cyclical(sghmc.SGHMC(0.1, friction=1.0), cycle_length=400), 400),
    "ReplicaExchange": (sghmc.ReplicaExchange(base, temperatures=[1.0, 3.0, 9.0]), 50),
}
runs = {
    name: sghmc.sample(
        jax.random.key(number),
        sghmc.Potential(potential),
        sampler,
        centers[0],
        gradient=sghmc.NoisyGradient(noise),
        num_samples=NUM_SAMPLES,
        num_burnin=20,
        thinning=thinning,
        num_chains=16,
    )
    for number, (name, (sampler, thinning)) in enumerate(samplers.items())
}


# %%
def shares(positions):
    distance = np.linalg.norm(positions.reshape(-1, 1, 2) - centers, axis=2)
    return np.bincount(distance.argmin(1), minlength=5) / len(distance)


found = {name: shares(samples.positions) for name, samples in runs.items()}
for name, samples in runs.items():
    print(f"{name:16} {found[name].round(2)}  R-hat {samples.health().r_hat:.2f}")
print(f"{'truth':16} {weights}")

# %% [markdown]
# R-hat compares chains: where all of them missed the same modes, it cannot know.

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(9, 3.9), sharex=True, sharey=True, num="Draws of three samplers on five modes"
)
for axis, color, (name, samples) in zip(axes, ("C1", "C2", "C0"), runs.items(), strict=True):
    draws = samples.positions.reshape(-1, 2)
    axis.plot(*draws[:: max(1, len(draws) // 2_000)].T, ".", markersize=2, alpha=0.4, color=color)
    for center, share, weight in zip(centers, found[name], weights, strict=True):
        axis.text(
            *(1.85 * center), f"{share:.0%}\n({weight:.0%})", ha="center", va="center", size=9
        )
    axis.set(title=name, xlabel="θ₁", aspect="equal", xlim=(-7, 7), ylim=(-7, 7))
    axis.set(xticks=[-4, 0, 4], yticks=[-4, 0, 4])
axes[0].set_ylabel("θ₂")
figure.suptitle("share of the draws at each mode (its true weight)", fontsize="medium")
plt.show()
