# %% [markdown]
# # A recommender that says how sure it is
#
# 400 people rate some of 150 films, on a scale without ends: made up here from factors, with noise
# of half a star. On average nobody can predict ratings better than up to that noise.

# %%
import matplotlib.pyplot as plt
import numpy as np

from sghmc.estimators import MatrixFactorization
from sghmc.recommender.ratings import folds, synthetic_ratings

NUM_DRAWS = 100  # quick: 40
THINNING = 50  # quick: 10
NUM_BURNIN = 1_000  # quick: 300
NOISE = 0.5

generator = np.random.default_rng(0)
ratings = synthetic_ratings(seed=0, num_users=400, num_items=150, density=0.5, noise=NOISE)
eagerness = generator.random(ratings.num_users) ** 2  # some rate most of what they see, most few
ratings = ratings.take(np.flatnonzero(generator.random(len(ratings)) < eagerness[ratings.user]))
train, test = (ratings.take(rows) for rows in folds(ratings, num_folds=5)[0])

# %% [markdown]
# The model averages over draws of all factors, so that it knows how wide their posterior is:
# `predict` returns the standard deviation of a rating to come, and `evaluate` says how often
# intervals made from it hold the rating that came.

# %%
model = MatrixFactorization(
    rank=4, num_draws=NUM_DRAWS, thinning=THINNING, num_burnin=NUM_BURNIN
).fit(train)
scores = model.evaluate(test)
print(f"error {scores['rmse']:.3f} stars; the mean of all ratings has {test.rating.std():.3f}")
print("intervals hold:", ", ".join(f"{k}: {v:.1%}" for k, v in scores["coverage"].items()))

# %% [markdown]
# Of somebody who rated little, little is known. Is the model less sure there, by as much as it
# errs? Test ratings in eight groups, by how many training ratings their user has:

# %%
predicted, sd = model.predict(test.users[test.user], test.items[test.item], return_std=True)
activity = np.bincount(train.user, minlength=ratings.num_users)[test.user]
groups = np.array_split(np.argsort(activity, kind="stable"), 8)
errors = [np.sqrt(np.mean((predicted - test.rating)[group] ** 2)) for group in groups]
doubts = [np.sqrt(np.mean(sd[group] ** 2)) for group in groups]
counts = [activity[group].mean() for group in groups]
best = model.recommend(user=7, k=3)
print("for user 7:", *(f"film {i} ({r:.1f} ± {s:.1f})" for i, r, s in zip(*best, strict=True)))

# %%
figure, (left, right) = plt.subplots(
    1, 2, num="Predicted against given ratings, and error and predicted error by activity of users"
)
left.plot(predicted, test.rating, ".", markersize=3, alpha=0.4)
left.axline((3.5, 3.5), slope=1, color="black", linewidth=1)
left.set(xlabel="predicted rating", ylabel="rating that came", aspect="equal")
chance = 2 * np.array(errors) / np.sqrt([2 * len(group) for group in groups])
right.errorbar(counts, errors, chance, fmt="o", color="C1", label="error (± 2 standard errors)")
right.plot(counts, doubts, color="C0", label="what the model predicts")
right.axhline(NOISE, color="black", linestyle="--", label="noise of the ratings")
right.set(xlabel="ratings of the user in training", ylabel="stars")
right.legend(fontsize="small")
plt.show()
