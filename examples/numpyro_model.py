# %% [markdown]
# # A NumPyro model by minibatches, beside NUTS
#
# A robust regression, written as for NumPyro's own samplers. Its plate says what one example is;
# nothing else has to change for batches of it. `scale` is positive: the chain moves its logarithm,
# and the draws are mapped back.

# %%
import arviz
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import sghmc
from sghmc.interop import nuts
from sghmc.interop.numpyro import posterior as numpyro_posterior

NUM_ROWS = 50_000  # quick: 5_000
NUM_SAMPLES = 1_000  # quick: 300
generator = np.random.default_rng(0)
x = generator.normal(size=(NUM_ROWS, 2)).astype(np.float32)
y = (0.5 + x @ [1.0, -2.0] + generator.standard_t(4, NUM_ROWS)).astype(np.float32)


def model(x, y):
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4, intercept + x @ slopes, scale), obs=y)


posterior = numpyro_posterior(model, x, y)

# %% [markdown]
# Steps look at 500 rows. That would be noisy; corrected at the mode by a control variate it is not.
# Every parameter here has a curvature of about the number of rows, so that with as much mass they
# all oscillate about once in 2π/ε steps.

# %%
init = posterior.unconstrain({"intercept": 0.0, "slopes": jnp.zeros(2), "scale": 1.0})
samples = sghmc.sample(
    jax.random.key(0),
    posterior,
    sghmc.SGHMC(0.2, friction=2.0 * NUM_ROWS, mass=float(NUM_ROWS)),
    init,
    gradient=sghmc.ControlVariate(500),
    num_samples=NUM_SAMPLES,
    num_burnin=50,
    thinning=10,
    num_chains=4,
)
health = samples.health()
print(health)

# %% [markdown]
# NUTS on the same posterior takes all rows for every gradient, and is exact.

# %%
exact = nuts(
    jax.random.key(1), posterior, init, num_samples=NUM_SAMPLES, num_burnin=300, num_chains=2
)
ours, theirs = (arviz.extract(posterior.to_arviz(run)) for run in (samples, exact))
draws = {
    "intercept": (ours["intercept"], theirs["intercept"]),
    "slope 1": (ours["slopes"][0], theirs["slopes"][0]),
    "slope 2": (ours["slopes"][1], theirs["slopes"][1]),
    "scale": (ours["scale"], theirs["scale"]),
}
shift = {k: float((a.mean() - b.mean()) / b.std()) for k, (a, b) in draws.items()}
ratio = {k: float(a.std() / b.std()) for k, (a, b) in draws.items()}
print(f"{samples.num_steps:,} steps of 500 rows; NUTS reads {NUM_ROWS:,} for each gradient")
print(
    f"means differ by at most {max(map(abs, shift.values())):.2f} sd; "
    f"ratios of sds {min(ratio.values()):.3f} to {max(ratio.values()):.3f}"
)

# %%
figure, axes = plt.subplots(
    1, 4, figsize=(9.5, 3.2), num="Marginal posteriors by SGHMC and by NUTS, with the truth"
)
for axis, (name, (mine, other)), truth in zip(axes, draws.items(), (0.5, 1, -2, 1), strict=True):
    bins = np.linspace(float(other.min()), float(other.max()), 25)
    axis.hist(mine, bins, density=True, alpha=0.6, label="SGHMC")
    axis.hist(other, bins, density=True, histtype="step", color="C1", linewidth=2, label="NUTS")
    axis.axvline(truth, color="black", linestyle="--", label="truth")
    axis.set(title=name, yticks=[])
    axis.locator_params(axis="x", nbins=3)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()
