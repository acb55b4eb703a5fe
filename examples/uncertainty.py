# %% [markdown]
# # Uncertainty that grows away from the data
#
# A network knows nothing of where it has seen no rows, and should say so. And where it has seen
# many, what is left is noise, which more rows do not take away. `BayesianMLPRegressor` tells them
# apart. Here the truth is known: a wave with a gap in the rows, and noise that grows to the right.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sghmc.estimators import BayesianMLPRegressor

NUM_STEPS = 6_000  # quick: 1_500
generator = np.random.default_rng(0)
x = np.concatenate([generator.uniform(-3, -1, 80), generator.uniform(0.5, 3, 120)])[:, None]


def truth(x):
    return np.sin(2 * x), 0.05 + 0.1 * np.clip(x + 1, 0, None)


mean, noise = truth(x[:, 0])
y = mean + noise * generator.normal(size=len(x))

# %% [markdown]
# Nothing need be tuned: each chain trains its own start, explores, and then samples with an accept
# step. `noise_` says which noise was found on rows held out inside, `diagnostics()` whether the
# chains agree in what they predict.

# %%
model = BayesianMLPRegressor(num_steps=NUM_STEPS, noise="input", random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    model.fit(x, y)
print(model.diagnostics())
grid = np.linspace(-5, 5, 201)[:, None]
intervals = model.predict_interval(grid, 0.9)
parts = model.predict_uncertainty(grid)
new_x = np.concatenate([generator.uniform(-3, -1, 400), generator.uniform(0.5, 3, 600)])
new_mean, new_noise = truth(new_x)
new_y = new_mean + new_noise * generator.normal(size=len(new_x))
low, high = model.predict_interval(new_x[:, None], 0.9).T
covered = np.mean((low < new_y) & (new_y < high))
print(f"{covered:.1%} of 1,000 new observations lie in their 90 % intervals")

# %%
figure, (left, right) = plt.subplots(
    1, 2, num="Predictions with 90 % intervals, and the two parts of their uncertainty"
)
left.fill_between(grid[:, 0], *intervals.T, alpha=0.25, label="90 % of observations")
left.plot(grid[:, 0], model.predict(grid), label="mean")
left.plot(grid[:, 0], truth(grid[:, 0])[0], color="black", linewidth=1, label="truth")
left.plot(x[:, 0], y, ".", color="black", markersize=3)
left.set(xlabel="x", ylabel="y", ylim=(-4, 4))
right.plot(grid[:, 0], parts.epistemic, label="epistemic: not known yet")
right.plot(grid[:, 0], parts.aleatoric, label="aleatoric: noise")
right.plot(grid[:, 0], truth(grid[:, 0])[1], color="black", linewidth=1, label="true noise")
right.set(xlabel="x", ylabel="standard deviation", ylim=(0, 2))
left.legend(fontsize="small", loc="upper left")
right.legend(fontsize="small", loc="upper center")
plt.show()
