"""Matrix factorization: density and conditionals exactly, its chain against an exact sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sghmc
from exact_factorization import ExactGibbs, conditional, make_ratings, predictions
from sghmc.models import MatrixFactorization

NUM_USERS, NUM_ITEMS, RANK, NUM_CHAINS = 6, 5, 2, 64
DATA = make_ratings(NUM_USERS, NUM_ITEMS, RANK)
KINDS = [("shared", "shared"), ("dimension", "user")]


def make_model(prior, noise, resolution=0.0):
    return MatrixFactorization(NUM_USERS, NUM_ITEMS, RANK, prior, noise, resolution)


def random_hyper(rng, model, posterior):
    """Hyperparameters of which none is 0 or 1."""
    hyper = {
        side: {
            "mean": jnp.asarray(rng.normal(size=RANK + 1), jnp.float32),
            "precision": jnp.asarray(rng.gamma(3.0, size=RANK + 1), jnp.float32),
        }
        for side in ("user", "item")
    }
    size = NUM_USERS if model.noise == "user" else ()
    hyper |= {"noise": jnp.asarray(rng.gamma(3.0, size=size), jnp.float32)}
    return {**posterior.hyper, **hyper}


@pytest.fixture(scope="module", params=KINDS)
def case(request):
    """A model, its posterior at random hyperparameters, random parameters; all as arrays, too."""
    rng = np.random.default_rng(3)
    model = make_model(*request.param)
    posterior = model.posterior(*DATA[:3])
    posterior = posterior.with_hyper(random_hyper(rng, model, posterior))
    params = jax.random.normal(jax.random.key(0), (NUM_USERS + NUM_ITEMS, RANK + 1))
    hyper = jax.tree.map(lambda leaf: np.asarray(leaf, float), posterior.hyper)
    noise = np.broadcast_to(hyper["noise"], NUM_USERS)
    sides = {side: np.asarray(rows, float) for side, rows in model.sides(params).items()}
    return model, posterior, params, sides, hyper, noise


def test_the_potential_is_the_log_density(case):
    """Up to the constant of N numbers that are normal: ½ log 2π each."""
    _, posterior, params, sides, hyper, noise = case
    means = predictions(sides["user"][DATA.user], sides["item"][DATA.item])
    expected = stats.norm.logpdf(DATA.rating, means, noise[DATA.user] ** -0.5).sum()
    count = len(DATA.rating)
    for side, rows in sides.items():
        law = hyper[side]
        expected += stats.norm.logpdf(rows, law["mean"], law["precision"] ** -0.5).sum()
        count += rows.size
    constant = count * np.log(2 * np.pi) / 2
    assert -float(posterior.potential(params)) == pytest.approx(expected + constant, rel=1e-5)


def test_the_gradient_is_that_of_each_rows_exact_conditional(case):
    """A row given the other side is Gaussian: ∇U = A(x − m), A and m by dense linear algebra."""
    model, posterior, params, sides, hyper, noise = case
    gradient = model.sides(posterior.gradient(params))
    for side, other in (("user", "item"), ("item", "user")):
        law = hyper[side]
        for i, row in enumerate(sides[side]):
            matrix, mean = conditional(
                DATA, side, i, sides[other], noise, law["mean"], law["precision"]
            )
            expected = matrix @ (row - mean)
            scale = np.abs(matrix).max() * np.abs(row - mean).max()
            np.testing.assert_allclose(gradient[side][i], expected, atol=1e-5 * scale)


@pytest.mark.slow
def test_the_resolution_counts_in_the_potential_and_not_in_the_gradient():
    params = make_model("dimension", "user").init(jax.random.key(0), scale=1.0)
    posteriors = [make_model("dimension", "user", s).posterior(*DATA[:3]) for s in (0.0, 0.5)]
    hyper = {**posteriors[0].hyper, "noise": 2.0 + jnp.arange(NUM_USERS)}
    plain, blurred = (posterior.with_hyper(hyper) for posterior in posteriors)
    added = np.sum((2.0 + DATA.user) * 0.5**2 / 2)
    assert float(blurred.potential(params) - plain.potential(params)) == pytest.approx(
        added, rel=1e-5
    )
    np.testing.assert_array_equal(blurred.gradient(params), plain.gradient(params))


@pytest.mark.slow_cases("shared")
@pytest.mark.parametrize("noise", ["shared", "user"])
def test_masses_match_the_curvature(noise):
    """Where everybody rated everything a row's partners are the average ones: equal to the digit.

    (For items with unequal users to the mean of the users' precisions, weighted by their ratings.)
    """
    rng = np.random.default_rng(4)
    model = make_model("dimension", noise)
    params = model.init(jax.random.key(0), scale=1.0)
    posterior = model.posterior([0], [0], [0.0])
    hyper = random_hyper(rng, model, posterior)
    counts = {"user": jnp.full(NUM_USERS, NUM_ITEMS), "item": jnp.full(NUM_ITEMS, NUM_USERS)}
    kernel = sghmc.SGHMC(0.1, friction=1.0).prepare(params)
    state = kernel.init([jnp.zeros(params.size)], params)
    adapt = model.adapt(lambda hyper: counts, every=1, until=1)
    adapted, _ = adapt.update(kernel, state, hyper)
    mass = np.concatenate([np.ravel(leaf) for leaf in adapted.drag.first.values])
    tau = np.broadcast_to(np.asarray(hyper["noise"], float), NUM_USERS)
    user, item = (np.asarray(rows, float) for rows in model.sides(params).values())
    user[:, -1], item[:, -1] = 1.0, 1.0
    prior = {side: np.asarray(hyper[side]["precision"], float) for side in ("user", "item")}
    expected = [
        tau[:, None] * (item**2).sum(0) + prior["user"],
        np.tile(tau.mean() * (user**2).sum(0) + prior["item"], (NUM_ITEMS, 1)),
    ]
    np.testing.assert_allclose(mass, np.concatenate(expected).ravel(), rtol=1e-5)


EVERY_USER, EVERY_ITEM = (axis.ravel() for axis in np.indices((NUM_USERS, NUM_ITEMS)))


def exact_moments(prior, noise):
    """First and second moments of the predictions of all pairs, by chain."""
    kinds = {"has_means": prior == "dimension", "has_user_noise": noise == "user"}
    gibbs = ExactGibbs(DATA, RANK, **kinds, num_chains=NUM_CHAINS, seed=1)
    sums = np.zeros(2 * len(EVERY_USER))
    for sweep in range(1000):
        gibbs.sweep()
        if sweep >= 200:
            predicted = gibbs.predictions(EVERY_USER, EVERY_ITEM)
            sums = sums + np.concatenate([predicted, predicted**2], axis=-1)
    return sums / 800


def sampled_moments(prior, noise):
    model = make_model(prior, noise)

    def predicted(params, hyper):
        return model.predict(params, jnp.asarray(EVERY_USER), jnp.asarray(EVERY_ITEM))

    samples = sghmc.sample(
        jax.random.key(0),
        model.posterior(*DATA[:3]),
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


@pytest.mark.slow
@pytest.mark.parametrize(("prior", "noise"), KINDS)
def test_predictions_agree_with_exact_gibbs(prior, noise):
    exact, sampled = exact_moments(prior, noise), sampled_moments(prior, noise)
    difference = exact.mean(0) - sampled.mean(0)
    error = np.sqrt((exact.var(0, ddof=1) + sampled.var(0, ddof=1)) / NUM_CHAINS)
    # 60 z-scores below 5: a false alarm once in 30,000 runs, if the ε² bias is small beside them.
    assert np.abs(difference / error).max() < 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be a whole number from 1, but is 0"),
        ({"num_users": 2.5}, "num_users must be a whole number from 1, but is 2.5"),
        ({"prior": "flat"}, "prior must be"),
        ({"noise": "none"}, "noise must be"),
        ({"resolution": -0.1}, "resolution must be 0 or more, but is -0.1"),
        ({"resolution": np.nan}, "resolution must be 0 or more"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MatrixFactorization(**{"num_users": 2, "num_items": 2, "rank": 1} | settings)


def test_wrong_ratings_are_refused():
    model = MatrixFactorization(2, 2, 1)
    with pytest.raises(ValueError, match="user must be codes from 0 to 1, but they range from 0"):
        model.posterior([0, 2], [0, 1], [1.0, 2.0])
    with pytest.raises(ValueError, match="range from -1 to 1"):
        model.posterior([0, 1], [-1, 1], [1.0, 2.0])
    with pytest.raises(TypeError, match="item must be a vector of whole numbers"):
        model.posterior([0, 1], [0.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="rating holds NaN"):
        model.posterior([0, 1], [0, 1], [1.0, np.nan])
