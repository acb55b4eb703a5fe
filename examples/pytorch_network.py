# %% [markdown]
# # A PyTorch network and its training loop
#
# scikit-learn's digits, a convolutional network, and the loop that everyone has. The optimizer is
# a sampler, and what passes by are draws from the posterior: two chains, one after the other.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from sghmc.torch import SGHMC, Collector, GaussianPrior

NUM_EPOCHS = 300  # quick: 40
NUM_BURNIN = 100  # quick: 20
pixels, classes = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = (
    torch.as_tensor(part)
    for part in train_test_split(
        pixels.reshape(-1, 1, 8, 8).astype(np.float32) / 16,
        classes.astype(np.int64),
        test_size=500,
        random_state=0,
        stratify=classes,
    )
)
train = TensorDataset(train_x, train_y)
batches = DataLoader(train, batch_size=100, sampler=RandomSampler(train, replacement=True))
steps = len(batches)


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.Tanh(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )


# %% [markdown]
# The loss stays the mean over the batch. `num_data` says how many rows there are, and the prior is
# an argument: no weight decay anywhere. The collector keeps one draw an epoch after burn-in.

# %%
torch.manual_seed(0)
model = network()
collector = Collector(model, every=steps, burnin=NUM_BURNIN * steps)
for chain in range(2):
    model.load_state_dict(network().state_dict())  # another start
    sampler = SGHMC.from_learning_rate(
        model.parameters(),
        0.05 / len(train),
        momentum_decay=0.1,
        num_data=len(train),
        prior=GaussianPrior(1.0),
        seed=chain,
    )
    collector.sampler = sampler
    if chain:
        collector.next_chain()
    for _ in range(NUM_EPOCHS):
        for x, y in batches:
            sampler.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            sampler.step()
            collector.step(loss)

# %% [markdown]
# The average over draws predicts better than the last of them, and it knows where it may be wrong:
# digits that the draws disagree on are those it gets wrong.

# %%
prediction = collector.predict(DataLoader(TensorDataset(test_x, test_y), batch_size=500), "softmax")


def log_loss(probabilities: torch.Tensor) -> float:
    return -probabilities[torch.arange(len(test_y)), test_y].log().mean().item()


model.eval()
last = torch.softmax(model(test_x), -1).detach()
is_wrong = prediction.probabilities.argmax(1) != test_y
doubt = prediction.mutual_information
errors = is_wrong.float().mean().item()
heat = collector.samples().info.kinetic_temperature
assert heat is not None
print(
    f"test loss of the average {log_loss(prediction.probabilities):.3f}, of the last draw", end=""
)
print(f" {log_loss(last):.3f}; errors {errors:.1%}")
print(f"doubt (mutual information): right {doubt[~is_wrong].mean():.3f}, wrong ", end="")
print(f"{doubt[is_wrong].mean():.3f}; kinetic temperature {heat.mean():.2f}")

# %%
figure, axes = plt.subplots(
    2, 6, num="The digits of which the draws know least, and those of which they know most"
)
order = np.argsort(doubt.numpy())
for axis, place in zip(axes.ravel(), [*order[-6:], *order[:6]], strict=True):
    axis.imshow(test_x[place, 0].numpy(), cmap="gray_r")
    guess = prediction.probabilities[place].argmax().item()
    axis.set_title(f"{guess} for {test_y[place]}", fontsize="small")
    axis.axis("off")
plt.show()
