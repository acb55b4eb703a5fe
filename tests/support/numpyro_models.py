"""Models as NumPyro's examples have them, written anew: (model, args, kwargs) of each."""

# pyright: reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false
# (numpyro.sample is typed as anything array-like)

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam

RNG = np.random.default_rng(0)
N, D, GROUPS = 60, 3, 4
X = RNG.normal(size=(N, D)).astype(np.float32)
GROUP = RNG.integers(0, GROUPS, N)
NOISE = RNG.normal(size=N).astype(np.float32)
MEAN = X @ np.array([1.0, -0.5, 0.0], np.float32)
LINEAR = (MEAN + 0.7 * NOISE).astype(np.float32)
LABELS = (MEAN + NOISE > 0).astype(np.int32)
COUNTS = RNG.poisson(np.exp(0.3 + 0.5 * MEAN))
SERIES = np.cumsum(0.3 * NOISE[:20]).astype(np.float32)
EIGHT = (
    8,
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32),
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32),
)


def weights(scale=1.0):
    return numpyro.sample("weights", dist.Normal(0.0, scale).expand([D]).to_event(1))


def logistic(x, y=None):
    slopes = weights()
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)


def student(x, y=None):
    slopes = weights()
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    freedom = numpyro.sample("freedom", dist.Gamma(4.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.StudentT(2.0 + freedom, x @ slopes, scale), obs=y)


def poisson(x, y=None):
    slopes = weights()
    rate = jnp.exp(numpyro.sample("intercept", dist.Normal(0.0, 1.0)) + x @ slopes)
    numpyro.deterministic("rate", rate)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def horseshoe(x, y=None):
    spread = numpyro.sample("spread", dist.HalfCauchy(jnp.ones(D)).to_event(1))
    overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
    raw = numpyro.sample("raw", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    slopes = numpyro.deterministic("slopes", overall * spread * raw)
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, precision**-0.5), obs=y)


def varying_intercepts(x, group, num_groups, y=None):
    slopes = weights()
    center = numpyro.sample("center", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("group", num_groups):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
        intercepts = numpyro.deterministic("intercepts", center + spread * raw)
    scale = numpyro.sample("scale", dist.Exponential(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercepts[group] + x @ slopes, scale), obs=y)


def eight_schools(num_schools, sigma, y=None):
    center = numpyro.sample("center", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("school", num_schools):
        raw = numpyro.sample("raw", dist.Normal(0.0, 1.0))
        effect = numpyro.deterministic("effect", center + spread * raw)
        numpyro.sample("y", dist.Normal(effect, sigma), obs=y)


def network(x, y=None, width=4):
    first = numpyro.sample("first", dist.Normal(jnp.zeros((D, width)), 1.0))
    second = numpyro.sample("second", dist.Normal(jnp.zeros((width, 1)), 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        mean = jnp.squeeze(jnp.tanh(x @ first) @ second, -1)
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def indexed(size=N, batch=None):
    """Data from elsewhere, picked by the plate's indices."""
    slopes = weights()
    with numpyro.plate("data", size, subsample_size=batch) as rows:
        x, y = jnp.asarray(X)[rows], jnp.asarray(LINEAR)[rows]
        numpyro.sample("y", dist.Normal(x @ slopes, 0.7), obs=y)


def subsampled(x, y, size, batch=None):
    slopes = weights()
    with numpyro.plate("data", size, subsample_size=batch):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ slopes, 0.7), obs=y)


def no_plate(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ weights(), scale), obs=y)


def autoregression(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    decay = numpyro.sample("decay", dist.Uniform(-1.0, 1.0))

    def transition(level, observed):
        level = numpyro.sample("level", dist.Normal(decay * level, scale))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=observed)
        return level, level

    scan(transition, jnp.zeros(()), y)


def correlated(group, num_groups, x, y):
    """Dense, simplex and dynamic supports; a plate of groups outside of the examples'."""
    factor = numpyro.sample("factor", dist.LKJCholesky(2, concentration=2.0))
    share = numpyro.sample("share", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    upper = numpyro.sample("upper", dist.Uniform(1.0, 3.0))
    inner = numpyro.sample("inner", dist.Uniform(0.0, upper))
    with numpyro.plate("group", num_groups):
        effect = numpyro.sample("effect", dist.MultivariateNormal(jnp.zeros(2), scale_tril=factor))
    with numpyro.plate("data", x.shape[0]):
        mean = effect[group, 0] + effect[group, 1] * x[:, 0] + inner * (x @ share)
        numpyro.sample("y", dist.Normal(mean, upper), obs=y)


def local_simplex(y):
    """Latent sites of each example, with an event of their own, in a plate that is not last."""
    base = numpyro.sample("base", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", y.shape[0], dim=-2), numpyro.plate("part", 2, dim=-1):
        share = numpyro.sample("share", dist.Dirichlet(base * jnp.ones(3)))
        numpyro.sample("y", dist.Normal(share[..., 0], 0.5), obs=y)


def factors(x, y):
    """A likelihood by hand, a mask, a weight, and a factor that belongs to the prior."""
    slopes = weights()
    numpyro.factor("small", -jnp.sum(jnp.abs(slopes)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("fit", -((y - x @ slopes) ** 2))
        with handlers.mask(mask=y > 0):
            numpyro.sample("positive", dist.Normal(x @ slopes, 1.0), obs=y)
        with handlers.scale(scale=0.3):
            numpyro.sample("weighted", dist.Normal(x @ slopes, 2.0), obs=y)


def improper(x, y):
    slopes = numpyro.sample("slopes", dist.ImproperUniform(dist.constraints.real_vector, (), (D,)))
    rates = numpyro.sample("rates", dist.ImproperUniform(dist.constraints.positive, (), ()))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slopes, rates), obs=y)


def two_series(level, y):
    """Examples along the second axis."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("time", y.shape[0], dim=-2), numpyro.plate("series", y.shape[1], dim=-1):
        numpyro.sample("y", dist.Normal(slope * level, 1.0), obs=y)


reparametrized = handlers.reparam(
    varying_intercepts, config={"weights": LocScaleReparam(0.3), "center": LocScaleReparam(0.0)}
)

Case = tuple[Any, tuple, dict[str, Any]]
CASES: dict[str, Case] = {
    "logistic": (logistic, (X,), {"y": LABELS}),
    "student": (student, (X, LINEAR), {}),
    "poisson": (poisson, (X,), {"y": COUNTS}),
    "horseshoe": (horseshoe, (X, LINEAR), {}),
    "varying intercepts": (varying_intercepts, (X, GROUP, GROUPS), {"y": LINEAR}),
    "eight schools": (eight_schools, EIGHT, {}),
    "network": (network, (X, LINEAR), {"width": 3}),
    "indexed": (indexed, (), {}),
    "subsample": (subsampled, (X, LINEAR, N), {}),
    "no plate": (no_plate, (X, LINEAR), {}),
    "autoregression": (autoregression, (SERIES,), {}),
    "correlated": (correlated, (GROUP, np.array(GROUPS), X, LINEAR), {}),
    "local simplex": (local_simplex, (LINEAR.reshape(30, 2),), {}),
    "factors": (factors, (X, LINEAR), {}),
    "improper": (improper, (X, LINEAR), {}),
    "reparametrized": (reparametrized, (X, GROUP, GROUPS), {"y": LINEAR}),
}
"""Each with the arguments that NumPyro would get, and no subsampling."""
