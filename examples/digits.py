# %% [markdown]
# # A Bayesian network that reads digits
#
# scikit-learn's 1,797 digits of 8 × 8 pixels, and a network with one hidden layer whose weights
# have standard normal priors. (`gibbs=model.gibbs(every=50)` would learn the precisions of the
# priors, too, as in the paper: its chains need to be longer.)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sghmc
from sghmc.models import MLP

NUM_SAMPLES = 400  # quick: 40
THINNING = 50  # quick: 25
pixels, classes = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(
    (pixels / 16).astype(np.float32), classes, test_size=500, random_state=0, stratify=classes
)
model = MLP((64, 50, 10), activation=jnp.tanh)
posterior = model.posterior(train_x, train_y)

# %% [markdown]
# A network's user wants predictions, not its 3,760 weights. The run keeps the test loss of every
# draw, and averages the probabilities of the test digits as it goes: neither the weights nor the
# probabilities of single draws are stored. `trace` follows how the average gets better.


# %%
def probabilities(params, hyper):
    return jax.nn.softmax(model.apply(params, jnp.asarray(test_x)))


def loss(probabilities):
    return -jnp.mean(jnp.log(probabilities[jnp.arange(len(test_y)), test_y]))


samples = sghmc.sample(
    jax.random.key(0),
    posterior,
    sghmc.SGHMC.from_learning_rate(0.1 / len(train_x), momentum_decay=0.05),
    jax.vmap(lambda key: model.init(key, 0.1))(jax.random.split(jax.random.key(1), 4)),
    init_axis=0,
    gradient=sghmc.Minibatch(100),
    keep=lambda params, hyper: {"loss": loss(probabilities(params, hyper))},
    averages={"probabilities": probabilities},
    trace=lambda averages: loss(averages["probabilities"]),
    num_samples=NUM_SAMPLES,
    num_burnin=80,
    thinning=THINNING,
    num_chains=4,
)

# %% [markdown]
# Weights of a network can be permuted, so chains never agree on them; on the loss they should. The
# kinetic temperature says whether the batches' noise heats the chains: it should be 1.

# %%
average = samples.averages["probabilities"].mean(0)
error = np.mean(average.argmax(1) != test_y)
of_draws = float(samples.positions["loss"].mean())
print(samples.health())
print(
    f"test loss of one draw {of_draws:.3f}, of the average {loss(average):.3f}; errors {error:.1%}"
)

# %%
figure, (left, *images) = plt.subplots(
    1,
    5,
    figsize=(9, 3),
    width_ratios=(4, 1, 1, 1, 1),
    num="Loss against draws averaged, and the four test digits of which the average is least sure",
)
left.plot(np.arange(NUM_SAMPLES) + 1, samples.trace.T, color="C0", alpha=0.6)
left.axhline(of_draws, color="C1", label="one draw, on average")
left.axhline(float(loss(average)), color="black", linestyle="--", label="all chains together")
left.set(xlabel="draws averaged, each chain", ylabel="loss on 500 test digits", xscale="log")
left.legend(fontsize="small")
for axis, digit in zip(images, np.argsort(average.max(1))[:4], strict=True):
    axis.imshow(test_x[digit].reshape(8, 8), cmap="gray_r")
    first, second = np.argsort(-average[digit])[:2]
    axis.set_title(
        f"{first}: {average[digit, first]:.0%}\n{second}: {average[digit, second]:.0%}\n"
        f"is a {test_y[digit]}",
        fontsize="small",
    )
    axis.axis("off")
plt.show()
