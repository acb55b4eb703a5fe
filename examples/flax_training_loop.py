# %% [markdown]
# # Sampling from a training loop: a flax network, an optax loop
#
# Where a training loop exists already, the sampler can take the place of its optimizer. This is the
# usual loop, for a network of flax on scikit-learn's digits; only the lines that make `sampler` and
# `optimizer` are ours, and the parameters that pass by are then draws from the posterior.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import linen
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sghmc
from sghmc.interop.optax import transformation

NUM_STEPS = 20_000  # quick: 3_000
pixels, classes = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(
    (pixels / 16).astype(np.float32), classes, test_size=500, random_state=0, stratify=classes
)
network = linen.Sequential([linen.Dense(32), jnp.tanh, linen.Dense(10)])

# %% [markdown]
# The loss is a mean over the batch, as always, plus the prior over N: `size` is that N, by which
# the sampler multiplies. The prior is standard normal.


# %%
def mean_loss(params, x, y):
    losses = optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y)
    return jnp.mean(losses) + 0.5 * optax.tree.norm(params, squared=True) / len(train_x)


sampler = sghmc.SGHMC.from_learning_rate(0.1 / len(train_x), momentum_decay=0.05)
optimizer = transformation(sampler, jax.random.key(0), size=len(train_x))


@jax.jit
def train_step(params, state, x, y):
    grads = jax.grad(mean_loss)(params, x, y)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


predict = jax.jit(lambda params: jax.nn.softmax(network.apply(params, test_x)))

# %%
params = network.init(jax.random.key(1), test_x)
state, generator = optimizer.init(params), np.random.default_rng(0)
draws = []
for step in range(NUM_STEPS):
    batch = generator.integers(0, len(train_x), 100)
    params, state = train_step(params, state, train_x[batch], train_y[batch])
    if step >= NUM_STEPS // 4 and step % 50 == 0:
        draws.append(predict(params))

# %% [markdown]
# The loop sees one chain, and nothing else watches over it. Two halves of the chain should agree.


# %%
def loss(probabilities):
    return -np.mean(np.log(probabilities[np.arange(len(test_y)), test_y]))


draws = np.stack(draws)
averages = np.cumsum(draws, axis=0) / (np.arange(len(draws)) + 1)[:, None, None]
halves = [loss(half.mean(0)) for half in np.array_split(draws, 2)]
errors = np.mean(averages[-1].argmax(1) != test_y)
print(f"test loss of the average {loss(averages[-1]):.3f}; errors {errors:.1%}")
print(f"of the two halves of the chain: {halves[0]:.3f}, {halves[1]:.3f}")

# %%
figure, axis = plt.subplots(num="Test loss of each draw, and of the average over draws so far")
steps = NUM_STEPS // 4 + 50 * np.arange(len(draws))
axis.plot(steps, [loss(draw) for draw in draws], color="C1", linewidth=0.8, label="this draw")
axis.plot(steps, [loss(average) for average in averages], color="C0", label="average so far")
axis.set(xlabel="step of the training loop", ylabel="loss on 500 test digits", ylim=(0, None))
axis.legend()
plt.show()
