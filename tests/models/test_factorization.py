"""Matrix factorization against an independent Gibbs sampler of the same model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.models import MatrixFactorization

NUM_USERS, NUM_ITEMS, RANK, NUM_CHAINS = 6, 5, 2, 64


def small_ratings():
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((NUM_USERS, NUM_ITEMS)) < 0.8)
    means = rng.normal(size=(NUM_USERS, RANK)) @ rng.normal(size=(NUM_ITEMS, RANK)).T
    ratings = means[users, items] + 0.5 * rng.normal(size=len(users))
    return users.astype(np.int32), items.astype(np.int32), ratings.astype(np.float32)


USERS, ITEMS, RATINGS = small_ratings()


class ExactGibbs:
    """Every block from its exact conditional, in NumPy, for many chains at once.

    Rows have their bias as last column. A user's row given the rest is a Bayesian linear regression
    of that user's ratings, less the items' biases, on (item factors, 1); items likewise.
    """

    def __init__(self, has_means, has_user_noise, seed):
        self.rng, self.has_means = np.random.default_rng(seed), has_means
        self.has_user_noise, self.noise_rate = has_user_noise, np.ones(NUM_CHAINS)
        shapes = {"user": NUM_USERS, "item": NUM_ITEMS}
        self.rows = {k: self.rng.normal(size=(NUM_CHAINS, n, RANK + 1)) for k, n in shapes.items()}
        self.mean = {k: np.zeros((NUM_CHAINS, RANK + 1)) for k in shapes}
        self.precision = {k: np.ones((NUM_CHAINS, RANK + 1)) for k in shapes}
        self.noise = np.ones((NUM_CHAINS, NUM_USERS))

    def predictions(self, users: np.ndarray = USERS, items: np.ndarray = ITEMS):
        u, v = self.rows["user"][:, users], self.rows["item"][:, items]
        return (u[..., :-1] * v[..., :-1]).sum(-1) + u[..., -1] + v[..., -1]

    def sweep(self):
        for side, own, other in (("user", USERS, ITEMS), ("item", ITEMS, USERS)):
            self._draw_rows(side, own, other)
        for side in ("user", "item"):
            self._draw_hyper(side)
        self._draw_noise((self.predictions() - RATINGS) ** 2)

    def _draw_rows(self, side, own, other):
        rest = self.rows["item" if side == "user" else "user"]
        for i in range(self.rows[side].shape[1]):
            mine = own == i
            x = rest[:, other[mine]].copy()
            target = RATINGS[mine] - x[..., -1]
            x[..., -1] = 1.0
            prior = self.precision[side]
            tau = self.noise[:, USERS[mine]]
            matrix = np.einsum("cn,cni,cnj->cij", tau, x, x)
            matrix += prior[:, None, :] * np.eye(RANK + 1)
            vector = np.einsum("cn,cni,cn->ci", tau, x, target) + prior * self.mean[side]
            mean = np.linalg.solve(matrix, vector[..., None])[..., 0]
            root = np.linalg.cholesky(np.linalg.inv(matrix))
            normal = self.rng.normal(size=mean.shape)
            self.rows[side][:, i] = mean + np.einsum("cij,cj->ci", root, normal)

    def _draw_noise(self, squares):
        if not self.has_user_noise:
            self.noise[:] = self._gamma(len(RATINGS), squares.sum(-1))[:, None]
            return
        is_own = np.eye(NUM_USERS)[USERS]
        rate = self.noise_rate[:, None] + squares @ is_own / 2
        self.noise = self.rng.gamma(3 + is_own.sum(0) / 2, 1 / rate)
        self.noise_rate = self.rng.gamma(1 + 3 * NUM_USERS, 1 / (1 + self.noise.sum(-1)))

    def _draw_hyper(self, side):
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


EVERY_USER, EVERY_ITEM = (axis.ravel() for axis in np.indices((NUM_USERS, NUM_ITEMS)))


def exact_moments(prior, noise):
    """First and second moments of the predictions of all pairs, by chain."""
    gibbs = ExactGibbs(prior == "dimension", noise == "user", seed=1)
    sums = np.zeros(2 * len(EVERY_USER))
    for sweep in range(1000):
        gibbs.sweep()
        if sweep >= 200:
            predicted = gibbs.predictions(EVERY_USER, EVERY_ITEM)
            sums = sums + np.concatenate([predicted, predicted**2], axis=-1)
    return sums / 800


def sampled_moments(prior, noise):
    model = MatrixFactorization(NUM_USERS, NUM_ITEMS, RANK, prior, noise)

    def predicted(params, hyper):
        return model.predict(params, jnp.asarray(EVERY_USER), jnp.asarray(EVERY_ITEM))

    samples = sghmc.sample(
        jax.random.key(0),
        model.posterior(USERS, ITEMS, RATINGS),
        sghmc.SGHMC(0.04, friction=1.5),
        jax.vmap(lambda key: model.init(key, scale=0.5))(
            jax.random.split(jax.random.key(1), NUM_CHAINS)
        ),
        init_axis=0,
        num_chains=NUM_CHAINS,
        num_samples=1000,
        num_burnin=150,
        thinning=20,
        gibbs=model.gibbs(every=2),
        keep=lambda params, hyper: (),
        averages={"mean": predicted, "square": lambda p, h: predicted(p, h) ** 2},
        progress=False,
    )
    return np.concatenate([samples.averages["mean"], samples.averages["square"]], axis=-1)


@pytest.mark.parametrize(
    ("prior", "noise"),
    [("shared", "shared"), pytest.param("dimension", "user", marks=pytest.mark.slow)],
)
def test_predictions_agree_with_exact_gibbs(prior, noise):
    exact, sampled = exact_moments(prior, noise), sampled_moments(prior, noise)
    difference = exact.mean(0) - sampled.mean(0)
    error = np.sqrt((exact.var(0, ddof=1) + sampled.var(0, ddof=1)) / NUM_CHAINS)
    # 60 z-scores below 5: a false alarm once in 30,000 runs, if the ε² bias is small beside them.
    assert np.abs(difference / error).max() < 5


def test_masses_match_the_curvature():
    """To the digit where everybody rated everything: a row's partners are the average ones then."""
    model = MatrixFactorization(NUM_USERS, NUM_ITEMS, RANK)
    params = model.init(jax.random.key(0), scale=1.0)
    posterior = model.posterior(EVERY_USER, EVERY_ITEM, np.zeros(len(EVERY_USER)))
    counts = {"user": jnp.full(NUM_USERS, NUM_ITEMS), "item": jnp.full(NUM_ITEMS, NUM_USERS)}
    kernel = sghmc.SGHMC(0.1, friction=1.0).prepare(params)
    state = kernel.init([jnp.zeros(leaf.size) for leaf in jax.tree.leaves(params)], params)
    adapt = model.adapt(lambda hyper: counts, every=1, until=1)
    adapted, _ = adapt.update(kernel, state, posterior.hyper)
    mass = np.concatenate([np.ravel(leaf) for leaf in adapted.drag.first.values])
    hessian = jax.hessian(lambda flat: posterior.potential(unflatten(flat, params)))
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])
    curvature = np.diag(hessian(flat))
    np.testing.assert_allclose(mass, curvature, rtol=1e-4)


def unflatten(flat, like):
    leaves, start = [], 0
    for leaf in jax.tree.leaves(like):
        leaves.append(flat[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="rank must be a whole number from 1, but is 0"):
        MatrixFactorization(2, 2, 0)
    with pytest.raises(ValueError, match="prior must be"):
        MatrixFactorization(2, 2, 1, prior="flat")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="noise must be"):
        MatrixFactorization(2, 2, 1, noise="none")  # pyright: ignore[reportArgumentType]
    model = MatrixFactorization(2, 2, 1)
    with pytest.raises(ValueError, match="user must be codes from 0 to 1, but they range from 0"):
        model.posterior([0, 2], [0, 1], [1.0, 2.0])
    with pytest.raises(TypeError, match="item must be a vector of whole numbers"):
        model.posterior([0, 1], [0.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="rating holds NaN"):
        model.posterior([0, 1], [0, 1], [1.0, np.nan])
