# %% [markdown]
# # Is 80 % really 80 %?
#
# A network trained to the best fit is often too sure of itself. Averaging over the posterior helps,
# if the model is about right. Here labels are coin flips with chances that we know, so that both
# can be held against the truth and not only against each other.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sghmc
from sghmc.models import MLP
from sghmc.results.scores import class_scores

NUM_SAMPLES = 500  # quick: 100
generator = np.random.default_rng(0)
x = generator.normal(size=(4_100, 2)).astype(np.float32)
chance = np.array(jax.nn.sigmoid(2 * np.sin(2 * x[:, 0]) + 2 * x[:, 1]))
y = (generator.random(len(x)) < chance).astype(np.int32)
(x, test_x), (y, test_y), (_, chance) = (jnp.split(rows, [100]) for rows in (x, y, chance))

# %% [markdown]
# 100 examples, and a network with 50 hidden units. The *best fit* is where `Momentum` is after
# 5,000 steps down the likelihood alone. The *posterior* has a standard normal prior on every weight
# (its precisions are 1 as long as no `gibbs=` draws them), and `SGHMC` samples it.

# %%
model = MLP((2, 50, 2), activation=jnp.tanh)
likelihood = sghmc.Posterior(
    lambda params, row: model.log_likelihood(params, row, {}), lambda params: 0.0, {"x": x, "y": y}
)
starts = jax.vmap(lambda key: model.init(key, 0.5))(jax.random.split(jax.random.key(0), 4))


def probabilities(params, hyper=None):
    return jax.nn.softmax(model.apply(params, test_x))


best_fit = sghmc.sample(
    jax.random.key(1),
    likelihood,
    sghmc.Momentum(1e-3, momentum_decay=0.1),
    jax.tree.map(lambda leaf: leaf[0], starts),
    keep=probabilities,
    num_samples=1,
    thinning=5_000,
)
samples = sghmc.sample(
    jax.random.key(2),
    model.posterior(x, y),
    sghmc.SGHMC.from_learning_rate(1e-3, momentum_decay=0.1),
    starts,
    init_axis=0,
    keep=lambda params, hyper: {"loss": class_scores(probabilities(params), test_y).nll},
    averages={"probabilities": probabilities},
    num_samples=NUM_SAMPLES,
    num_burnin=50,
    thinning=20,
    num_chains=4,
)
health = samples.health()
print(health)

# %% [markdown]
# The confidence of a prediction is the probability of the class it takes. In bins of confidence,
# how often is that class the right one? The calibration error is the mean distance of the two.

# %%
predictions = {
    "best fit": best_fit.positions[0, 0],
    "posterior average": samples.averages["probabilities"].mean(0),
}
truth = np.stack([1 - chance, chance], axis=1)
scores = {name: class_scores(p, test_y) for name, p in {**predictions, "truth": truth}.items()}
for name, score in scores.items():
    print(f"{name}: calibration error {score.ece:.3f}, log loss {score.nll:.3f}")

# %%
figure, (left, right) = plt.subplots(
    1, 2, num="How often predictions of each confidence are right, and how often each is made"
)
left.axline((0.5, 0.5), slope=1, color="black", linewidth=1, label="calibrated")
edges = np.linspace(0.5, 1, 9)
for color, (name, predicted) in zip(("C1", "C0"), predictions.items(), strict=True):
    confidence, is_right = predicted.max(1), predicted.argmax(1) == test_y
    bins = np.clip(np.digitize(confidence, edges) - 1, 0, 7)
    counts, right_ones, total = (
        np.bincount(bins, weights, minlength=8) for weights in (None, is_right, confidence)
    )
    rate = right_ones / counts
    bars = 2 * np.sqrt(rate * (1 - rate) / counts)
    left.errorbar(total / counts, rate, bars, fmt="o-", color=color, markersize=4, label=name)
    right.stairs(counts, edges, color=color, label=name, linewidth=2)
counts, _ = np.histogram(truth.max(1), edges)
right.stairs(counts, edges, color="black", linestyle="--", label="true chances")
left.set(xlabel="confidence", ylabel="share that is right (± 2 standard errors)")
right.set(xlabel="confidence", ylabel="test examples")
left.legend(fontsize="small", loc="upper left")
right.legend(fontsize="small", loc="upper left")
plt.show()
