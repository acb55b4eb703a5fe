"""Tables of parameters: rows that examples see, and their prior."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import sghmc
from sghmc.posterior.parameter_rows import RowTerms

RNG = np.random.default_rng(0)
DATA = {
    "user": np.array([0, 2, 2, 1, 2]),
    "items": np.array([[0, 1], [1, 1], [3, 0], [2, 2], [1, 3]]),
    "rating": RNG.normal(size=5).astype(np.float32),
}
PARAMS = {
    "item": jnp.asarray(RNG.normal(size=(4, 2, 1)), jnp.float32),
    "scale": jnp.asarray(0.7),
    "user": jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32),
}


def of_rows(rows, example):
    """Of one user, two items, and a number that all examples share."""
    both = jnp.sum(rows["item"], axis=0)[:, 0]
    return -0.5 * (example["rating"] - rows["scale"] * rows["user"] @ both) ** 2


def of_all(params, example):
    items = jnp.stack([params["item"][example["items"][0]], params["item"][example["items"][1]]])
    rows = {"item": items, "scale": params["scale"], "user": params["user"][example["user"]]}
    return of_rows(rows, example)


def rows(example):
    return {"item": example["items"], "scale": None, "user": example["user"]}


def law(rows, hyper):
    """A mean for each dimension of users, a precision for each item, numbers for the rest."""
    mean = {"item": 0.0, "scale": 1.0, "user": jnp.array([0.5, -0.5])}
    of_items = hyper * (1.0 + rows["item"])[:, None, None]
    return mean, {"item": of_items, "scale": 4.0, "user": 2.0}


def posterior():
    prior = sghmc.RowPrior(lambda rows: law(rows, 1.0))
    return sghmc.Posterior(sghmc.RowLikelihood(of_rows, rows), prior, DATA)


def test_a_likelihood_of_rows_is_that_of_all_parameters():
    plain = sghmc.Posterior(of_all, lambda params: jnp.zeros(()), DATA)
    seen, expected = (
        jax.jit(lambda params, target=target: target.log_likelihood_total(params))(PARAMS)
        for target in (posterior(), plain)
    )
    for a, b in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_prior_of_rows_is_normal():
    hyper = jnp.asarray(3.0)
    prior = jax.jit(sghmc.RowPrior(law))
    shift = {"item": 0.1, "scale": -0.3, "user": 0.2}
    moved = jax.tree.map(lambda leaf, by: leaf + by, PARAMS, shift)
    seen = prior(moved, hyper) - prior(PARAMS, hyper)
    spread = {"item": (3 * (1 + np.arange(4.0)))[:, None, None] ** -0.5, "scale": 0.5}
    spread["user"] = 2**-0.5
    mean = {"item": 0.0, "scale": 1.0, "user": np.array([0.5, -0.5])}
    expected = sum(
        np.sum(
            scipy.stats.norm.logpdf(moved[name], mean[name], spread[name])
            - scipy.stats.norm.logpdf(PARAMS[name], mean[name], spread[name])
        )
        for name in PARAMS
    )
    np.testing.assert_allclose(seen, expected, rtol=1e-4)
    # The precisions' own part: 2 entries of each of 4 items.
    np.testing.assert_allclose(
        prior(jax.tree.map(jnp.zeros_like, PARAMS), 5 * hyper)
        - prior(jax.tree.map(jnp.zeros_like, PARAMS), hyper),
        0.5 * 8 * np.log(5),
        rtol=1e-5,
    )


@pytest.mark.slow
def test_the_gradient_of_touched_rows_adds_up_to_that_of_all_parameters():
    """N/n times the batch's sum: rows that come twice have a part each time."""
    target = posterior()
    terms = RowTerms.of(target)
    assert terms is not None
    batch = target.rows(jnp.array([1, 2, 4]))
    touched = terms.touched(batch)
    np.testing.assert_array_equal(touched.rows["user"], [2, 2, 2])
    np.testing.assert_array_equal(touched.rows["item"], [1, 1, 3, 0, 1, 3])
    assert touched.rows["scale"] is None
    taken = {
        "item": PARAMS["item"][touched.rows["item"]],
        "scale": PARAMS["scale"],
        "user": PARAMS["user"][touched.rows["user"]],
    }
    potential, grad = jax.jit(touched.evaluate)(taken)
    data_part, expected = jax.jit(
        jax.value_and_grad(lambda params: -5 / 3 * target.log_likelihood_sum(params, batch))
    )(PARAMS)
    np.testing.assert_allclose(potential, data_part, rtol=1e-5)
    for name in ("item", "user"):
        summed = jnp.zeros_like(PARAMS[name]).at[touched.rows[name]].add(grad[name])
        np.testing.assert_allclose(summed, expected[name], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grad["scale"], expected["scale"], rtol=1e-4)


def test_other_posteriors_have_no_rows_of_parameters():
    likelihood, prior = sghmc.RowLikelihood(of_rows, rows), sghmc.RowPrior(lambda rows: (0.0, 1.0))
    assert RowTerms.of(sghmc.Posterior(of_all, prior, DATA)) is None
    assert RowTerms.of(sghmc.Posterior(likelihood, lambda params: 0.0, DATA)) is None
    assert RowTerms.of(sghmc.Posterior(likelihood, prior, DATA)) is not None


@pytest.mark.slow
def test_a_row_that_no_table_has_is_nan():
    likelihood = sghmc.RowLikelihood(of_rows, rows)
    example = {"user": jnp.asarray(3), "items": jnp.array([0, 1]), "rating": jnp.asarray(1.0)}
    assert np.isnan(likelihood(PARAMS, example))


def any_object(value) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc.RowLikelihood(of_rows, any_object(3)), "rows must be a function, not 3"),
        (lambda: sghmc.RowPrior(any_object(1.0)), "needs a function law"),
        (
            lambda: sghmc.RowLikelihood(of_rows, lambda x: {"user": x["user"]})(
                PARAMS, {"user": 0, "items": jnp.array([0, 1]), "rating": 1.0}
            ),
            "give the number of a row",
        ),
        (
            lambda: sghmc.RowPrior(any_object(lambda rows: 1.0))(PARAMS),
            r"must return \(mean, precision\)",
        ),
        (
            lambda: sghmc.RowPrior(lambda rows: (jnp.zeros(5), 1.0))({"a": jnp.ones((4, 2))}),
            r"shape \(5,\) for rows of shape \(4, 2\)",
        ),
        (
            lambda: sghmc.RowPrior(lambda rows: (jnp.zeros((4, 2)), 1.0))({"a": jnp.ones(4)}),
            r"shape \(4, 2\) for rows of shape \(4,\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
