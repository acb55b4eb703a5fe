"""NumPyro models: densities are NumPyro's, in full and in batches; what cannot be is refused."""

# pyright: reportIndexIssue=false, reportOptionalSubscript=false, reportArgumentType=false
# pyright: reportCallIssue=false
# (numpyro.sample is typed as anything array-like)

import dataclasses
import re
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import pytest
from flax import linen
from numpyro import handlers
from numpyro.contrib.module import random_flax_module
from numpyro.infer.util import potential_energy
from scipy import stats

import numpyro_models as models
import sghmc
from numpyro_models import CASES
from sghmc.interop import numpyro as numpyro_interop
from sghmc.interop.numpyro import NumPyroPosterior, Rows, Whole, posterior
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info


@pytest.fixture(autouse=True)
def _as_numpyro_computes():
    """Some of its distributions broadcast between ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


@cache
def case(name) -> NumPyroPosterior:
    model, args, kwargs = CASES[name]
    return posterior(model, *args, **kwargs)


def start(target: NumPyroPosterior):
    return target.init(jax.random.key(1), radius=1.0)


@eqx.filter_jit
def evaluate(target: sghmc.Posterior, theta):
    return target.evaluate(theta)


def assert_close(tree, other, rtol=1e-5):
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-5 * np.max(np.abs(y)))


SLOW = ("correlated", "local simplex", "network", "horseshoe")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_densities_are_numpyros_in_full_and_in_batches(name):
    model, args, kwargs = CASES[name]
    target = case(name)
    args = tuple(int(a) if np.ndim(a) == 0 else a for a in args)
    theta = start(target)
    expected = jax.jit(jax.value_and_grad(lambda z: potential_energy(model, args, kwargs, z)))(
        theta
    )
    assert_close(evaluate(target, theta), expected)
    # The mean over all batches of one row is the whole: batches are unbiased.
    singles = jax.tree.map(lambda leaf: leaf[:, None], target.data)
    estimates = jax.jit(jax.vmap(target.estimate, (None, 0)))(theta, singles)
    np.testing.assert_allclose(np.mean(estimates), expected[0], rtol=1e-4)


@pytest.mark.slow_cases("by index")
@pytest.mark.parametrize(
    "subsampling",
    [
        lambda: posterior(models.indexed, batch=7),
        lambda: posterior(models.subsampled, models.X, models.LINEAR, models.N, batch=7),
    ],
    ids=["by index", "by numpyro.subsample"],
)
def test_a_models_own_subsampling_gives_way_to_ours(subsampling):
    target = subsampling()
    full = case("subsample")
    assert target.num_examples == models.N
    assert_close(evaluate(target, start(full)), evaluate(full, start(full)))


def axis_lengths(target):
    """Of all arrays in the compiled gradient on a batch of two."""
    batch = target.rows(jnp.array([3, 5]))
    compiled = jax.jit(jax.grad(target.estimate)).lower(start(target), batch).compile().as_text()
    assert compiled
    return {
        int(n) for shape in re.findall(r"[fsu]\d+\[([\d,]+)\]", compiled) for n in shape.split(",")
    }


@pytest.mark.slow_cases("logistic", "varying intercepts")
@pytest.mark.parametrize("name", ["logistic", "varying intercepts", "subsample"])
def test_a_batch_costs_its_own_rows_only(name):
    assert case(name).num_examples == models.N
    assert models.N not in axis_lengths(case(name))


def test_the_cost_of_all_data_would_be_seen():
    assert models.N in axis_lengths(case("no plate"))


@pytest.mark.slow
def test_without_a_plate_all_data_are_one_example():
    assert case("no plate").num_examples == 1
    inside = case("logistic")
    outside = posterior(models.logistic, models.X, y=models.LABELS, plate=None)
    assert (inside.num_examples, outside.num_examples) == (models.N, 1)
    assert_close(evaluate(outside, start(inside)), evaluate(inside, start(inside)))
    batch = outside.rows(jnp.zeros(5, int))
    estimate = jax.jit(outside.estimate)(start(inside), batch)
    np.testing.assert_allclose(estimate, evaluate(inside, start(inside)).potential, rtol=1e-5)


@pytest.mark.slow
def test_marks_say_which_arguments_are_rows():
    y = models.LINEAR.reshape(20, 3)
    both = (models.two_series, np.float32(0.5), y)
    with pytest.raises(ValueError, match="which one counts examples: name it with plate"):
        posterior(models.two_series, np.ones(3, np.float32), y)
    by_time = posterior(*both)
    by_series = posterior(models.two_series, np.float32(0.5), Rows(y, axis=1))
    named = posterior(models.two_series, np.float32(0.5), Rows(y, axis=1), plate="series")
    assert [t.num_examples for t in (by_time, by_series, named)] == [20, 3, 3]
    theta = start(by_time)
    assert_close(evaluate(by_series, theta), evaluate(by_time, theta))

    def with_knots(knots, x, y):
        slope = numpyro.sample("slope", dist.Normal(jnp.mean(knots), 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(slope * x[:, 0] + jnp.max(knots), 1.0), obs=y)

    knots = np.linspace(0, 1, models.N, dtype=np.float32)
    with pytest.raises(ValueError, match=r"rows of args\[0\] and args\[1\] and args\[2\]: Row 0"):
        posterior(with_knots, knots, models.X, models.LINEAR)
    assert posterior(with_knots, Whole(knots), models.X, models.LINEAR).num_examples == models.N


@pytest.mark.slow_cases("correlated", "local simplex")
@pytest.mark.parametrize("name", ["correlated", "local simplex", "autoregression"])
def test_unconstrain_is_the_inverse_of_constrain(name):
    target = case(name)
    theta = start(target)
    back = jax.jit(lambda theta: target.unconstrain(target.constrain(theta)))(theta)
    assert_close(back, theta, rtol=1e-3)


@pytest.mark.slow
def test_draws_predictions_and_arviz():
    model, args, kwargs = CASES["varying intercepts"]
    target = case("varying intercepts")
    starts = jax.vmap(target.init)(jax.random.split(jax.random.key(0), 2))
    samples = sghmc.sample(
        jax.random.key(1),
        target,
        sghmc.SGHMC(0.02, friction=5.0),
        starts,
        init_axis=0,
        num_samples=3,
        num_chains=2,
        averages={"spread": lambda theta: target.constrain(theta)["spread"]},
        progress=False,
    )
    draws = target.draws(samples)
    assert set(draws) == {*target.shapes, "intercepts"}
    np.testing.assert_allclose(draws["spread"], np.exp(samples.positions["spread"]), rtol=1e-6)
    np.testing.assert_allclose(
        draws["intercepts"],
        draws["center"][..., None] + draws["spread"][..., None] * draws["raw"],
        rtol=1e-5,
    )
    np.testing.assert_allclose(samples.averages["spread"], draws["spread"].mean(1), rtol=1e-5)
    assert list(target.draws(samples, ["scale"])) == ["scale"]

    new = target.predictive(jax.random.key(2), samples, models.X[:7], models.GROUP[:7], 4)
    assert new["y"].shape == (2, 3, 7)
    mean = draws["intercepts"][..., models.GROUP[:7]] + draws["weights"] @ models.X[:7].T
    # 42 standard normals: outside of these bounds less often than once in 10⁶ keys.
    assert 0.5 < np.sqrt(np.mean(((new["y"] - mean) / draws["scale"][..., None]) ** 2)) < 1.6

    data = target.to_arviz(samples, coords={"group": list("abcd")}, dims={"weights": ["column"]})
    try:
        from arviz.data.io_numpyro import infer_dims  # arviz warns when this is its first import
    except ImportError:  # ArviZ 1
        from arviz_base.io_numpyro import infer_dims  # pyright: ignore[reportMissingImports]

    inferred = infer_dims(model, args, kwargs)
    for name, variable in data["posterior"].data_vars.items():
        shown = list(variable.dims)
        if name != "weights":
            assert shown[2:] == inferred.get(name, shown[2:])
        np.testing.assert_array_equal(variable, draws[name])
    assert data["posterior"]["weights"].dims == ("chain", "draw", "column")
    assert list(data["posterior"]["intercepts"]["group"].values) == list("abcd")
    assert data["observed_data"]["y"].dims == ("data",)
    assert "diverging" in data["sample_stats"]

    with pytest.raises(ValueError, match="There is no site 'slope' to draw: there are"):
        target.draws(samples, ["slope"])
    kept = dataclasses.replace(samples, positions={"scale": samples.positions["scale"]})
    with pytest.raises(ValueError, match="leave keep= out"):
        target.draws(kept)


@pytest.mark.slow
def test_double_precision():
    with jax.enable_x64(True):
        target = posterior(models.logistic, models.X.astype(float), y=models.LABELS)
        evaluation = evaluate(target, start(target))
        assert {leaf.dtype for leaf in jax.tree.leaves(evaluation)} == {np.dtype(np.float64)}


@pytest.mark.slow
def test_networks_of_flax_in_a_model():
    def model(network, x, y):
        prior = dist.Normal(0.0, 1.0)
        apply = random_flax_module("network", network, prior=prior, input_shape=(models.D,))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(apply(x)[:, 0], 0.5), obs=y)

    network = linen.Sequential([linen.Dense(4), linen.tanh, linen.Dense(1)])
    target = posterior(model, network, models.X, models.LINEAR)
    assert target.num_examples == models.N
    theta = start(target)
    first = {"kernel": theta["network/layers_0.kernel"], "bias": theta["network/layers_0.bias"]}
    last = {"kernel": theta["network/layers_2.kernel"], "bias": theta["network/layers_2.bias"]}
    mean = network.apply({"params": {"layers_0": first, "layers_2": last}}, models.X)[:, 0]
    fit = np.sum(dist.Normal(mean, 0.5).log_prob(models.LINEAR))
    prior = sum(np.sum(dist.Normal(0.0, 1.0).log_prob(leaf)) for leaf in theta.values())
    potential = evaluate(target, theta).potential
    np.testing.assert_allclose(potential, -fit - prior, rtol=1e-5)


@pytest.mark.slow
def test_posteriors_of_one_model_stack():
    whole = case("logistic")
    part = posterior(models.logistic, models.X[:40], y=models.LABELS[:40])
    theta = start(whole)
    stacked = sghmc.Posterior.stack([whole, part])
    assert_close(evaluate(stacked[1], theta), evaluate(part, theta))


def centered(x, y):
    slopes = models.weights()
    x = x - x.mean(0)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


def scaled_prior(x, y):
    slopes = models.weights(scale=2.5 * jnp.std(y))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)


def discrete(y):
    with numpyro.plate("data", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(kind, 1.0), obs=y)


def two_tables(x, y, small):
    slopes = models.weights()
    with numpyro.plate("large", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)
    with numpyro.plate("small", small.shape[0]):
        numpyro.sample("z", dist.Normal(slopes[0], 1.0), obs=small)


def two_subsamples(y):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with (
        numpyro.plate("time", y.shape[0], subsample_size=5, dim=-2) as times,
        numpyro.plate("series", y.shape[1], subsample_size=2, dim=-1) as series,
    ):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y[times][:, series])


def counting(group, y):
    with numpyro.plate("group", int(jnp.max(group)) + 1):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)


def no_latent(y):
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


X, Y = models.X, models.LINEAR
SMALL, SQUARE = np.zeros(7, np.float32), models.LINEAR.reshape(20, 3)
BAD = {
    "no model": (None, (), {}, TypeError, "needs a NumPyro model, a function, not None"),
    "discrete": (discrete, (Y,), {}, ValueError, "'kind' is discrete .* sum it out"),
    "no data": (models.logistic, (X,), {}, ValueError, "no observed site"),
    "no latent": (no_latent, (Y,), {}, ValueError, "nothing to sample"),
    "two plates": (
        two_tables, (X, Y, SMALL), {}, ValueError,
        r"different plates, 'large' and 'small' \(sizes 60, 7\).*plate=…",
    ),
    "two subsamples": (
        two_subsamples, (SQUARE,), {}, ValueError, "'time' and 'series' are both subsampled"
    ),
    "wrong plate": (
        models.logistic, (X, models.LABELS), {"plate": "rows"}, ValueError,
        "plate is 'rows', but the plates with observed sites are 'data'",
    ),
    "rows in the likelihood": (centered, (X, Y), {}, ValueError, "Row .* depends on other rows"),
    "rows in the prior": (scaled_prior, (X, Y), {}, ValueError, "depends on the rows"),
    "count from data": (
        counting, (models.GROUP, Y), {}, ValueError, "must be a plain number among the arguments"
    ),
    "data from elsewhere": (
        lambda x: two_tables(x, Y, Y), (X,), {"plate": "large"}, ValueError,
        "cannot run on some of the 60 members",
    ),
    "table": (
        models.logistic, (pandas.DataFrame(X),), {}, TypeError,
        r"args\[0\] is a DataFrame, not an array",
    ),
    "words": (
        models.logistic, (X,), {"y": np.array(["a"] * 60)}, TypeError,
        r"kwargs\['y'\] is an array of dtype <U1",
    ),
    "list": (models.logistic, (X.tolist(),), {"y": Y}, ValueError, "does not run"),
    "list of labels": (
        models.logistic, (X,), {"y": models.LABELS.tolist()}, ValueError,
        r"kwargs\['y'\].* lists of numbers: did you mean arrays",
    ),
    "wrong axis": (
        models.logistic, (Rows(X, axis=1), models.LABELS), {}, ValueError,
        r"args\[0\] is marked as Rows\(…, axis=1\) and has shape \(60, 3\)",
    ),
    "marked number": (models.logistic, (Whole(3),), {}, TypeError, "but is no array: 3"),
}  # fmt: skip


@pytest.mark.slow_cases("rows in the prior")
@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    model, args, kwargs, error, message = BAD[name]
    with pytest.raises(error, match=message):
        posterior(model, *args, **kwargs)


@pytest.mark.slow
def test_remedies_that_errors_name():
    """`plate` named among several; all data at once; rows computed before the model."""
    assert posterior(two_tables, X, Y, SMALL, plate="large").num_examples == models.N
    assert posterior(two_subsamples, SQUARE, plate="time").num_examples == 20
    for model in (centered, scaled_prior):
        assert posterior(model, X, Y, plate=None).num_examples == 1
    with pytest.raises(ValueError, match="values has no \\['intercept'\\]"):
        case("logistic").unconstrain({"weights": jnp.zeros(3)})


# By hand: one small model whose densities are written out


def small(x, group, y=None):
    """Levels of two groups, and for every row an excess of its own; half of the tilt counts."""
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    with handlers.scale(scale=0.5):
        numpyro.factor("tilt", -0.6 * spread)
    with numpyro.plate("group", 2):
        level = numpyro.sample("level", dist.Normal(1.0, spread))
    with numpyro.plate("data", x.shape[0]):
        excess = numpyro.sample("excess", dist.Exponential(1.5))
        mean = numpyro.deterministic("mean", level[group] * x + excess)
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


SMALL_X = np.array([0.5, -1.0, 2.0], np.float32)
SMALL_GROUP = np.array([0, 1, 1])
SMALL_Y = np.array([0.3, 1.2, -0.7], np.float32)
SMALL_THETA = {
    "spread": jnp.asarray(0.3),
    "level": jnp.array([0.4, -0.9]),
    "excess": jnp.array([0.2, -0.5, 0.8]),
}


@cache
def small_posterior() -> NumPyroPosterior:
    return posterior(small, SMALL_X, SMALL_GROUP, y=SMALL_Y)


def small_densities(theta=None):
    """Log densities of the three rows, and of the rest, with their Jacobians."""
    theta = SMALL_THETA if theta is None else theta
    u, level, v = (np.asarray(theta[name], float) for name in ("spread", "level", "excess"))
    mean = level[SMALL_GROUP] * SMALL_X + np.exp(v)
    rows = stats.norm.logpdf(SMALL_Y, mean, 0.5) + stats.expon.logpdf(np.exp(v), scale=1 / 1.5) + v
    rest = stats.halfnorm.logpdf(np.exp(u), scale=2.0) + u - 0.3 * np.exp(u)
    return rows, rest + stats.norm.logpdf(level, 1.0, np.exp(u)).sum()


@eqx.filter_jit
def small_evaluations(target, theta, numbers):
    """Everything of a model at once: to compile each by itself would take longer."""
    values = target.constrain(theta)
    return (
        target.log_prior(theta),
        target.log_likelihoods(theta, target.rows(numbers)),
        target.model.log_densities(theta, target.data),
        values,
        target.unconstrain(values),
    )


def test_the_densities_and_values_of_a_small_model_by_hand():
    """Rows out of order, and one twice: each is itself wherever it is in a batch."""
    target = small_posterior()
    rows, rest = small_densities()
    assert target.num_examples == 3
    prior, batch, (together, others), values, back = small_evaluations(
        target, SMALL_THETA, jnp.array([2, 0, 2, 1])
    )
    np.testing.assert_allclose(prior, rest, rtol=1e-5)
    np.testing.assert_allclose(batch, rows[[2, 0, 2, 1]], rtol=1e-5)
    np.testing.assert_allclose(together, rows, rtol=1e-5)
    np.testing.assert_allclose(others, rest, rtol=1e-5)
    assert set(values) == set(target.shapes) == set(SMALL_THETA)
    np.testing.assert_allclose(values["spread"], np.exp(0.3), rtol=1e-6)
    np.testing.assert_allclose(values["level"], [0.4, -0.9], rtol=1e-6)
    np.testing.assert_allclose(values["excess"], np.exp([0.2, -0.5, 0.8]), rtol=1e-6)
    assert_close(back, SMALL_THETA)


def test_a_model_without_its_plate_is_one_example():
    """What is observed is the example; its latent values belong to the prior."""
    target = posterior(small, SMALL_X, SMALL_GROUP, y=SMALL_Y, plate=None)
    assert target.num_examples == 1
    rows, rest = small_densities()
    mean = np.array([0.4, -0.9])[SMALL_GROUP] * SMALL_X + np.exp([0.2, -0.5, 0.8])
    seen = stats.norm.logpdf(SMALL_Y, mean, 0.5).sum() - 0.3 * np.exp(0.3)
    prior, alone, *_ = small_evaluations(target, SMALL_THETA, jnp.zeros(1, int))
    np.testing.assert_allclose(alone, [seen], rtol=1e-5)
    np.testing.assert_allclose(prior, rest + rows.sum() - seen, rtol=1e-5)


def small_samples():
    """Two chains of three draws: the parameters above, moved by 0.1 a draw."""
    shift = 0.1 * np.arange(6.0, dtype=np.float32).reshape(2, 3)
    positions = {
        name: np.asarray(leaf) + shift.reshape(2, 3, *(1,) * jnp.ndim(leaf))
        for name, leaf in SMALL_THETA.items()
    }
    info = Info(potential=shift, is_finite=np.ones((2, 3), bool))
    return Samples(positions, None, {}, None, info, num_steps=3, seconds=1.0, startup_seconds=0.5)


def test_draws_of_a_small_model_are_its_sites():
    target, samples = small_posterior(), small_samples()
    draws = target.draws(samples)
    assert set(draws) == {"spread", "level", "excess", "mean"}
    np.testing.assert_allclose(draws["spread"], np.exp(samples.positions["spread"]), rtol=1e-6)
    mean = draws["level"][..., SMALL_GROUP] * SMALL_X + np.exp(samples.positions["excess"])
    np.testing.assert_allclose(draws["mean"], mean, rtol=1e-5, atol=1e-6)
    assert list(target.draws(samples, ["mean"])) == ["mean"]
    with pytest.raises(ValueError, match="There is no site 'slope' to draw: there are"):
        target.draws(samples, ["slope"])
    with pytest.raises(ValueError, match="leave keep= out"):
        target.draws(dataclasses.replace(samples, positions=samples.positions["level"]))
    data = target.to_arviz(samples, dims={"level": ["which"]})
    assert data["posterior"]["level"].dims == ("chain", "draw", "which")
    assert data["posterior"]["mean"].dims == ("chain", "draw", "data")
    np.testing.assert_array_equal(data["sample_stats"]["potential"], samples.info.potential)
    np.testing.assert_array_equal(data["observed_data"]["y"], SMALL_Y)
    assert list(data["observed_data"].data_vars) == ["y"]


def test_predictions_of_a_small_model_follow_its_draws():
    """18 standard normals: all below 5 but for one key in 10⁵, and some above 0.5."""
    target, samples = small_posterior(), small_samples()
    x, group = np.array([1.0, 3.0, -1.0], np.float32), np.array([1, 0, 1])
    found = target.predictive(jax.random.key(0), samples, x, group)
    mean = samples.positions["level"][..., group] * x + np.exp(samples.positions["excess"])
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)
    assert 0.5 < np.abs((found["y"] - mean) / 0.5).max() < 5


def test_a_start_is_uniform_and_each_parameter_has_its_own_key():
    first = small_posterior().init(jax.random.key(3), radius=0.5)
    wide = small_posterior().init(jax.random.key(3))
    drawn = np.concatenate([np.ravel(leaf) for leaf in first.values()])
    assert np.abs(drawn).max() < 0.5
    assert (drawn < 0).any()
    assert len(set(drawn.tolist())) == 6
    for name, leaf in wide.items():
        np.testing.assert_allclose(leaf, 4 * first[name], rtol=1e-5)


def test_log_densities_differ_by_more_than_rounding():
    differ = numpyro_interop._differ
    assert not differ(np.array(100.05), np.array(100.0))
    assert differ(np.array(100.2), np.array(100.0))
    assert differ(np.array(99.8), np.array(100.0))
    assert not differ(np.array(0.0009), np.array(0.0))
    assert not differ(np.array(-np.inf), np.array(-np.inf))
    assert not differ(np.array(np.nan), np.array(np.nan))
    assert differ(np.array(np.nan), np.array(0.0))
    assert differ(np.array(-np.inf), np.array(0.0))
