# %% [markdown]
# # A Gaussian: the answer beside the draws
#
# Two parameters, each with standard deviation 1 and correlated by 0.9: U(θ) = ½ θᵀAθ. The law of a
# sampler can be computed here, so that every number below has another one to be held against.
#
# The gradient is noisy, as a minibatch would make it: each evaluation adds N(0, V) with V = 40.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc

NUM_SAMPLES = 2_000  # quick: 400
covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
precision = np.linalg.inv(covariance)
noise = 40.0

target = sghmc.Potential(lambda theta: theta @ jnp.asarray(precision, theta.dtype) @ theta / 2)

# %% [markdown]
# Friction takes out the heat that the noise brings in. How much there is to take out the sampler
# must know: `gradient_noise` is subtracted from the noise that it adds itself. One sampler is told,
# the other is not. `theory` says what will come of it before anything is drawn.

# %%
samplers = {
    "told of the noise": sghmc.SGHMC(0.1, friction=3.0, gradient_noise=noise),
    "not told": sghmc.SGHMC(0.1, friction=3.0),
}
laws = {
    name: sghmc.theory.stationary_law(sampler, precision, noise)
    for name, sampler in samplers.items()
}

# %%
runs = {
    name: sghmc.sample(
        jax.random.key(number),
        target,
        sampler,
        jnp.zeros(2),
        gradient=sghmc.NoisyGradient(noise),
        num_samples=NUM_SAMPLES,
        num_burnin=50,
        thinning=10,
        num_chains=16,
    )
    for number, (name, sampler) in enumerate(samplers.items())
}
for name, samples in runs.items():
    predicted = np.sqrt(laws[name].covariance[0, 0])
    print(f"{name}: sd {samples.positions[..., 0].std():.3f}, predicted {predicted:.3f}, exact 1")
    print(f"    {samples.health().verdict}")

# %% [markdown]
# The draws do what the theory says. And `health()` sees the trouble without knowing the answer: it
# takes the noise of the gradient and the curvature where the chains are, and computes the law.

# %%
angles = np.linspace(0, 2 * np.pi, 200)
circle = np.stack([np.cos(angles), np.sin(angles)])
ellipse = np.sqrt(5.991) * np.linalg.cholesky(covariance) @ circle  # 95 % of a 2-D Gaussian

figure, axes = plt.subplots(
    1, 2, sharex=True, sharey=True, num="Draws of both samplers with the exact 95 % ellipse"
)
for axis, color, (name, samples) in zip(axes, ("C0", "C1"), runs.items(), strict=True):
    draws = samples.positions.reshape(-1, 2)
    distance = np.einsum("ni,ij,nj->n", draws, precision, draws)
    axis.plot(*draws[::8].T, ".", color=color, markersize=3, alpha=0.4)
    axis.plot(*ellipse, color="black", label="exact, 95 %")
    axis.set(title=f"{name}: {np.mean(distance < 5.991):.1%} inside", xlabel="θ₁", aspect="equal")
axes[0].set_ylabel("θ₂")
axes[0].legend(loc="upper left")
plt.show()
