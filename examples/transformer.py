# %% [markdown]
# # A transformer that knows what it does not know
#
# A small transformer reads text character by character. We train it, sample it from where training
# left it, and then fine-tune it to other text by sampled adapters. The text is the manual that
# comes with Python or, where `SGHMC_DATA` has it, `text/shakespeare.txt.gz`.

# %%
import gzip
import os
import pathlib
import tempfile
from pydoc_data.topics import topics

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import sghmc
from sghmc.models import Adapters, Transformer

NUM_CHARACTERS = 40_000  # quick: 8_000
NUM_STEPS = 1_500  # quick: 200
NUM_DRAWS = 24  # quick: 8
THINNING = 60  # quick: 10
BATCH = 16


def read():
    file = pathlib.Path(os.environ.get("SGHMC_DATA", ""), "text", "shakespeare.txt.gz")
    text = gzip.decompress(file.read_bytes()).decode() if file.is_file() else None
    return text or "\n".join(topics[name] for name in sorted(topics))


def encoded(text):
    """Codes of printable characters; others are left out."""
    numbers = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    codes = np.where(numbers == ord("\n"), 95, numbers.astype(int) - 32)
    return codes[(codes >= 0) & (codes <= 95)]


codes = encoded(read())
train, test = np.split(codes[: NUM_CHARACTERS + 6_000], [NUM_CHARACTERS])

# %% [markdown]
# The prior of a weight is normal with variance 9/inputs. An example is a window of 32 predictions;
# windows begin everywhere, and count 1/32 each, so that every character counts once. Temperature 1
# is then the posterior given these characters.

# %%
model = Transformer(96, context=32, width=32, depth=2, num_heads=2, prior_scale=3.0)
posterior = model.posterior(train)
optimizer = optax.adamw(3e-3)


@jax.jit
def trained(params):
    def step(carry, key):
        params, state = carry
        rows = posterior.rows(jax.random.randint(key, (BATCH,), 0, posterior.num_rows))
        grad = jax.grad(lambda p: -jnp.mean(posterior.log_likelihoods(p, rows)))(params)
        updates, state = optimizer.update(grad, state, params)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(jax.random.key(1), NUM_STEPS)
    return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]


params = trained(model.init(jax.random.key(0)))

# %% [markdown]
# `tune_network` measures how curved the potential is, leaf by leaf, and chooses masses, friction
# and step size by it. Draws go to a folder as they come, which is how it is done for networks whose
# draws do not fit into memory. There is no burn-in, since the chain starts from a network that was
# trained. Batches are small; so that their noise hardly heats the chain, momenta lose three tenths
# in a step. The page on [large networks](../large-networks.md) says what temperatures below 1 do.

# %%
sampler = sghmc.tune_network(jax.random.key(2), posterior, params, momentum_decay=0.3)
with tempfile.TemporaryDirectory() as folder:
    samples = sghmc.sample(
        jax.random.key(3),
        posterior,
        sampler,
        params,
        gradient=sghmc.Minibatch(BATCH),
        num_samples=NUM_DRAWS,
        thinning=THINNING,
        checkpoint=sghmc.Checkpoint(pathlib.Path(folder) / "run"),
    )
    draws = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), samples.positions)
heat = samples.info.kinetic_temperature.mean()
print(f"step size {sampler.step_size:.4f}, kinetic temperature {heat:.2f} (1 is right)")

# %% [markdown]
# Predictions of the draws are averaged. On the test text they are better than those of the network
# that was trained. And where draws disagree, that is information which the text would give about
# the weights: there is more of it in text of another kind, here the same words spelled backwards.


# %%
@jax.jit
def probabilities(network, windows):
    return jax.nn.softmax(jax.vmap(lambda window: model.apply(network, window))(windows))


@jax.jit
def of_each(networks, windows):
    return jax.lax.map(lambda network: probabilities(network, windows), networks)


def windows_of(codes):
    whole = codes[: len(codes) // 33 * 33].reshape(-1, 33)
    return jnp.asarray(whole[:, :-1]), whole[:, 1:]


def bits(probabilities, truth):
    return -np.log2(np.take_along_axis(np.asarray(probabilities), truth[..., None], 2)).mean()


def entropy(p):
    return -np.sum(p * np.log2(np.maximum(p, 1e-30)), axis=-1)


seen, truth = windows_of(test)
of_training = bits(probabilities(params, seen), truth)
of_draws = np.asarray(of_each(draws, seen))
settling = [bits(of_draws[: i + 1].mean(0), truth) for i in range(NUM_DRAWS)]
print(f"bits per character: trained {of_training:.3f}, {NUM_DRAWS} draws {settling[-1]:.3f}")

backwards = encoded(" ".join(word[::-1] for word in bytes(test + 32).decode("ascii").split(" ")))
information = {}
for name, text in {"test": test, "backwards": backwards}.items():
    shown, _ = windows_of(text)
    each = np.asarray(of_each(draws, shown))
    information[name] = (entropy(each.mean(0)) - entropy(each).mean(0)).mean(1)
    print(f"information, {name}: {information[name].mean():.3f} bits per character")

# %% [markdown]
# ## Adapters
#
# Now a little text of another kind: 3,000 characters of NumPy's docstrings. The network is held,
# and every linear layer gets a change of rank 2. Four chains share one network; draws are adapters
# alone. Masses are the prior's precisions, and momenta lose a tenth in a step.

# %%
docstrings = encoded("\n".join(str(each.__doc__) for each in (np.einsum, np.mean, np.sort)))
few, other = docstrings[:3_000], docstrings[3_000:9_000]
adapters = Adapters(rank=2, scale=0.5)
network, trainable = adapters.insert(jax.random.key(4), params)
of_few = model.posterior(few, log_prior=adapters.log_prior)
mass = adapters.precisions(network)
adapted = sghmc.sample(
    jax.random.key(5),
    of_few,
    sghmc.SGHMC(0.02, jax.tree.map(lambda of_leaf: 0.1 / 0.02 * of_leaf, mass), mass),
    network,
    trainable=trainable,
    gradient=sghmc.Minibatch(BATCH),
    num_samples=NUM_DRAWS // 2,
    thinning=THINNING,
    num_chains=4,
)
seen, truth = windows_of(other)
every = jax.tree.map(  # the second half of each chain
    lambda leaf: leaf[:, NUM_DRAWS // 4 :].reshape(-1, *leaf.shape[2:]), adapted.positions
)
of_adapted = np.asarray(
    jax.lax.map(lambda draw: probabilities(eqx.combine(draw, network), seen), every)
)
before, after = bits(probabilities(params, seen), truth), bits(of_adapted.mean(0), truth)
share = sum(leaf[0].size for leaf in jax.tree.leaves(every)) / sum(
    leaf.size for leaf in jax.tree.leaves(params)
)
print(f"NumPy's docstrings: before {before:.3f} bits per character, adapted {after:.3f}")
print(f"a draw is {share:.0%} of the network")

# %%
figure, (left, right) = plt.subplots(
    1, 2, num="Bits per character by the number of draws; information on two kinds of text"
)
left.plot(range(1, NUM_DRAWS + 1), settling, label="mean of so many draws")
left.axhline(of_training, color="C1", linestyle="--", label="the trained network")
left.set(xlabel="draws", ylabel="bits per character, test")
left.legend()
bins = np.linspace(0, max(part.max() for part in information.values()), 30)
for name, part in information.items():
    right.hist(part, bins, alpha=0.6, density=True, label=name)
right.set(xlabel="information, bits per character of a window", yticks=[])
right.legend()
plt.show()
