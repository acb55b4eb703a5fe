"""An independent sampler of matrix factorizations: every block from its exact conditional.

In NumPy and double precision, for many chains at once. Rows have their bias as last column. A
user's row given the rest is a Bayesian linear regression of that user's ratings, less the items'
biases, on (item factors, 1); items likewise.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

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

    `others` (…, row, column), `noise` (…, user), `mean` and `precision` (…, column); ratings may
    have leading axes, too.
    """
    mine = getattr(data, side) == i
    x = others[..., getattr(data, OTHER[side])[mine], :].copy()
    target = data.rating[..., mine] - x[..., -1]
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

    def center(self, side: str, i: int) -> np.ndarray:
        """What row i of a side lies around."""
        return self.mean[side]

    def sweep(self) -> None:
        for side in OTHER:
            self._draw_rows(side)
        for side in OTHER:
            self._draw_hyper(side)
        errors = self.predictions(self.data.user, self.data.item) - self.data.rating
        self._draw_noise(errors**2)

    def _draw_rows(self, side: str) -> None:
        others, precision = self.rows[OTHER[side]], self.precision[side]
        for i in range(self.rows[side].shape[1]):
            center = self.center(side, i)
            matrix, mean = conditional(self.data, side, i, others, self.noise, center, precision)
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


class ExactOrdinal(ExactGibbs):
    """Ratings are levels between two cuts that stay; hidden numbers take their place."""

    def __init__(self, data: Ratings, cuts: np.ndarray, rank, *, num_chains, seed):
        self.level, self.edges = data.rating.astype(int), np.concatenate([[-40.0], cuts, [40.0]])
        hidden = np.zeros((num_chains, len(data.rating)))
        options = {"has_means": True, "has_user_noise": True, "num_chains": num_chains}
        super().__init__(data._replace(rating=hidden), rank, **options, seed=seed)

    def sweep(self) -> None:
        mean = self.predictions(self.data.user, self.data.item)
        scale = self.noise[:, self.data.user] ** -0.5
        bounds = ((self.edges[self.level + k] - mean) / scale for k in (0, 1))
        normal = stats.truncnorm.rvs(*bounds, random_state=self.rng)
        self.data = self.data._replace(rating=mean + scale * normal)
        super().sweep()


class ExactWithFeatures(ExactGibbs):
    """Rows of users lie around what their features say, all of one group.

    Precisions are drawn given means and weights, which then are drawn given those: other blocks
    than the recommender's.
    """

    def __init__(self, data: Ratings, features: np.ndarray, rank, *, num_chains, seed):
        options = {"has_means": True, "has_user_noise": True, "num_chains": num_chains}
        super().__init__(data, rank, **options, seed=seed)
        self.features = features
        self.weights = np.zeros((num_chains, features.shape[1], rank + 1))
        self.scale = np.ones((num_chains, 2))

    def center(self, side: str, i: int) -> np.ndarray:
        if side == "item":
            return self.mean[side]
        return self.mean[side] + np.einsum("f,cfk->ck", self.features[i], self.weights)

    def _draw_hyper(self, side: str) -> None:
        if side == "item":
            super()._draw_hyper(side)
            return
        rows, count = self.rows[side], self.weights.shape[1]
        width = rows.shape[2]
        kinds = (np.arange(width) == width - 1).astype(int)
        has_mean = kinds == 0
        for kind in (0, 1):
            mine = kinds == kind
            squares = (self.precision[side][:, None] * self.weights**2)[..., mine].sum((1, 2))
            self.scale[:, kind] = self._gamma(count * mine.sum(), squares)
        relative = self.scale[:, kinds]
        center = self.mean[side][:, None] + np.einsum("nf,cfk->cnk", self.features, self.weights)
        squares = ((rows - center) ** 2).sum(1) + relative * (self.weights**2).sum(1)
        squares += self.mean[side] ** 2
        self.precision[side] = self._gamma(rows.shape[1] + count + has_mean, squares)
        design = np.column_stack([np.ones(rows.shape[1]), self.features])
        for k in range(width):
            used = np.arange(0 if has_mean[k] else 1, count + 1)
            x = design[:, used]
            for chain in range(len(rows)):
                prior = np.append(1.0, np.full(count, relative[chain, k]))[used]
                precision = self.precision[side][chain, k]
                root = np.linalg.cholesky(precision * (x.T @ x + np.diag(prior)))
                half = np.linalg.solve(root, precision * x.T @ rows[chain, :, k])
                drawn = np.zeros(count + 1)
                normal = self.rng.normal(size=len(used))
                drawn[used] = np.linalg.solve(root.T, half + normal)
                self.mean[side][chain, k], self.weights[chain, :, k] = drawn[0], drawn[1:]
