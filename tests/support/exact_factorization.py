"""An independent sampler of matrix factorizations: every block from its exact conditional.

In NumPy and double precision, for many chains at once. Rows have their bias as last column. A
user's row given the rest is a Bayesian linear regression of that user's ratings, less the items'
biases, on (item factors, 1); items likewise.
"""

from typing import NamedTuple

import numpy as np

OTHER = {"user": "item", "item": "user"}


class Ratings(NamedTuple):
    """Codes of users and items, ratings, and how many users and items there are."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    num_users: int
    num_items: int


def make_ratings(num_users: int, num_items: int, rank: int, seed: int = 0) -> Ratings:
    """Four fifths of all pairs, rated with noise 0.5."""
    rng = np.random.default_rng(seed)
    users, items = np.nonzero(rng.random((num_users, num_items)) < 0.8)
    means = rng.normal(size=(num_users, rank)) @ rng.normal(size=(num_items, rank)).T
    ratings = means[users, items] + 0.5 * rng.normal(size=len(users))
    codes = users.astype(np.int32), items.astype(np.int32)
    return Ratings(*codes, ratings.astype(np.float32), num_users, num_items)


def predictions(user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Of rows of users and items, pair by pair."""
    return (user[..., :-1] * item[..., :-1]).sum(-1) + user[..., -1] + item[..., -1]


def conditional(data: Ratings, side: str, i: int, others, noise, mean, precision):
    """Precision matrix and mean of row i of a side, given the rows of the other side.

    `others` (…, row, column), `noise` (…, user), `mean` and `precision` (…, column).
    """
    mine = getattr(data, side) == i
    x = others[..., getattr(data, OTHER[side])[mine], :].copy()
    target = data.rating[mine] - x[..., -1]
    x[..., -1] = 1.0
    tau = noise[..., data.user[mine]]
    matrix = np.einsum("...n,...ni,...nj->...ij", tau, x, x)
    matrix += precision[..., None, :] * np.eye(x.shape[-1])
    vector = np.einsum("...n,...ni,...n->...i", tau, x, target) + precision * mean
    return matrix, np.linalg.solve(matrix, vector[..., None])[..., 0]


class ExactGibbs:
    def __init__(self, data: Ratings, rank, *, has_means, has_user_noise, num_chains, seed):
        self.data, self.rng = data, np.random.default_rng(seed)
        self.has_means, self.has_user_noise = has_means, has_user_noise
        sizes = {"user": data.num_users, "item": data.num_items}
        self.rows = {
            side: self.rng.normal(size=(num_chains, size, rank + 1)) for side, size in sizes.items()
        }
        self.mean = {side: np.zeros((num_chains, rank + 1)) for side in sizes}
        self.precision = {side: np.ones((num_chains, rank + 1)) for side in sizes}
        self.noise, self.noise_rate = np.ones((num_chains, data.num_users)), np.ones(num_chains)

    def predictions(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return predictions(self.rows["user"][:, users], self.rows["item"][:, items])

    def sweep(self) -> None:
        for side in OTHER:
            self._draw_rows(side)
        for side in OTHER:
            self._draw_hyper(side)
        errors = self.predictions(self.data.user, self.data.item) - self.data.rating
        self._draw_noise(errors**2)

    def _draw_rows(self, side: str) -> None:
        others, prior = self.rows[OTHER[side]], (self.mean[side], self.precision[side])
        for i in range(self.rows[side].shape[1]):
            matrix, mean = conditional(self.data, side, i, others, self.noise, *prior)
            root = np.linalg.cholesky(np.linalg.inv(matrix))
            normal = self.rng.normal(size=mean.shape)
            self.rows[side][:, i] = mean + np.einsum("cij,cj->ci", root, normal)

    def _draw_noise(self, squares: np.ndarray) -> None:
        if not self.has_user_noise:
            self.noise[:] = self._gamma(squares.shape[1], squares.sum(-1))[:, None]
            return
        num_users = self.data.num_users
        is_own = np.eye(num_users)[self.data.user]
        rate = self.noise_rate[:, None] + squares @ is_own / 2
        self.noise = self.rng.gamma(3 + is_own.sum(0) / 2, 1 / rate)
        self.noise_rate = self.rng.gamma(1 + 3 * num_users, 1 / (1 + self.noise.sum(-1)))

    def _draw_hyper(self, side: str) -> None:
        rows = self.rows[side]
        factors, biases, count = rows[..., :-1], rows[..., -1], rows.shape[1]
        self.precision[side][:, -1] = self._gamma(count, (biases**2).sum(-1))
        if not self.has_means:
            shared = self._gamma(factors[0].size, (factors**2).sum((1, 2)))
            self.precision[side][:, :-1] = shared[:, None]
            return
        average = factors.mean(1)
        spread = ((factors - average[:, None]) ** 2).sum(1) + count / (count + 1) * average**2
        precision = self._gamma(count, spread)
        self.precision[side][:, :-1] = precision
        error = self.rng.normal(size=average.shape) / np.sqrt(precision * (count + 1))
        self.mean[side][:, :-1] = count / (count + 1) * average + error

    def _gamma(self, count, squares):
        return self.rng.gamma(1 + count / 2, 1 / (1 + squares / 2))
