"""The transformer: its function by hand, what a window counts, and what its prior is."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import sghmc
from sghmc.models import Transformer

MODEL = Transformer(num_symbols=7, context=6, width=16, depth=3, num_heads=2, prior_scale=1.5)
PARAMS = MODEL.init(jax.random.key(0))
TEXT = np.random.default_rng(0).integers(0, 7, 40)
APPLY = jax.jit(MODEL.apply)


def normalized(x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def turned(x, time):
    """One head's numbers as complex ones, each turned by its own angle."""
    half = len(x) // 2
    pairs = (x[:half] + 1j * x[half:]) * np.exp(1j * time * 10_000.0 ** -(np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag])


def by_hand(params, codes):
    """The logits, symbol by symbol and head by head, in double precision."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = params["embedding"][codes]
    for number in range(MODEL.depth):
        w1, w2, w3, w4 = (
            params["blocks"][name].weight[number]
            for name in ("attend", "attended", "expand", "contract")
        )
        found = np.zeros_like(x)
        parts = (normalized(x) @ w1.T).reshape(len(x), 3, MODEL.num_heads, -1)
        for head in range(MODEL.num_heads):
            keys = np.stack([turned(part, t) for t, part in enumerate(parts[:, 1, head])])
            for t in range(len(x)):
                scores = keys[: t + 1] @ turned(parts[t, 0, head], t) / np.sqrt(keys.shape[1])
                share = scipy.special.softmax(scores)
                found[t].reshape(MODEL.num_heads, -1)[head] = share @ parts[: t + 1, 2, head]
        x = x + found @ w2.T
        hidden = normalized(x) @ w3.T
        cubic = np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)
        x = x + (0.5 * hidden * (1 + np.tanh(cubic))) @ w4.T
    return normalized(x) @ params["readout"].weight.T


def test_its_function_is_the_one_written_down():
    codes = TEXT[:6]
    np.testing.assert_allclose(APPLY(PARAMS, jnp.asarray(codes)), by_hand(PARAMS, codes), atol=2e-5)


def test_what_comes_later_is_not_seen():
    changed = TEXT[:6].copy()
    changed[4] = (changed[4] + 1) % 7
    before, after = (np.asarray(APPLY(PARAMS, jnp.asarray(codes))) for codes in (TEXT[:6], changed))
    np.testing.assert_array_equal(before[:4], after[:4])
    assert np.abs(before[4:] - after[4:]).max() > 1e-3


def log_probability(codes):
    """Of the last L of L + 1 symbols."""
    scores = scipy.special.log_softmax(by_hand(PARAMS, codes[:-1]), axis=1)
    return scores[np.arange(len(codes) - 1), codes[1:]].sum()


def of_text(stride):
    posterior = MODEL.posterior(TEXT, stride, log_prior=lambda params: jnp.zeros(()))
    return posterior, -float(posterior.potential(PARAMS))


def test_a_text_cut_into_windows_counts_each_symbol_once():
    posterior, total = of_text(6)
    assert posterior.num_examples == 6  # windows of 6 predictions each, of 39
    expected = sum(log_probability(TEXT[start : start + 7]) for start in range(0, 34, 6))
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_windows_from_every_symbol_are_the_mean_over_all_cuts():
    posterior, total = of_text(1)
    assert posterior.num_examples == 34
    cuts = [
        sum(log_probability(TEXT[start : start + 7]) for start in range(first, 34, 6))
        for first in range(6)
    ]
    np.testing.assert_allclose(total, np.mean(cuts), rtol=1e-5)


def test_the_prior_is_normal_with_the_precisions():
    precisions = MODEL.precisions(PARAMS)
    leaves, of_leaves = jax.tree.leaves(PARAMS), jax.tree.leaves(precisions)
    expected = sum(
        scipy.stats.norm.logpdf(leaf, scale=precision**-0.5).sum()
        - scipy.stats.norm.logpdf(0, scale=precision**-0.5) * leaf.size
        for leaf, precision in zip(leaves, of_leaves, strict=True)
    )
    np.testing.assert_allclose(MODEL.log_prior(PARAMS), expected, rtol=1e-5)
    assert precisions["embedding"] == pytest.approx(1.5**-2)
    assert precisions["readout"].weight == pytest.approx(16 / 1.5**2)
    assert precisions["blocks"]["expand"].weight == pytest.approx(16 / 1.5**2)
    assert precisions["blocks"]["contract"].weight == pytest.approx(64 * 6 / 1.5**2)


def test_it_starts_from_its_prior():
    wide = Transformer(50, 4, 64, 2, 2)
    params = wide.init(jax.random.key(1))
    precisions = jax.tree.leaves(wide.precisions(params))
    for leaf, precision in zip(jax.tree.leaves(params), precisions, strict=True):
        # A χ² of n numbers, five standard errors: one false alarm in a million for each.
        square = precision * np.sum(np.square(leaf, dtype=np.float64))
        assert abs(square - leaf.size) < 5 * np.sqrt(2 * leaf.size)
    layers = np.asarray(params["blocks"]["expand"].weight)
    assert np.abs(np.corrcoef(layers[0].ravel(), layers[1].ravel())[0, 1]) < 5 / np.sqrt(64 * 256)


@pytest.mark.slow_cases("remat")
@pytest.mark.parametrize(
    ("change", "tolerance"),
    [({"remat": True}, 1e-5), ({"compute_type": "bfloat16"}, 0.1)],
    ids=["remat", "bfloat16"],
)
def test_memory_and_speed_do_not_change_the_gradient(change, tolerance):
    def gradient(model):
        posterior = model.posterior(TEXT)
        batch = posterior.rows(jnp.arange(5))
        return jax.jit(jax.grad(lambda params: posterior.estimate(params, batch)))(PARAMS)

    expected, found = gradient(MODEL), gradient(dataclasses.replace(MODEL, **change))
    for of_one, of_other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert of_one.dtype == of_other.dtype == jnp.float32
        assert np.linalg.norm(of_one - of_other) < tolerance * np.linalg.norm(of_one)


def test_more_blocks_are_no_larger_a_program():
    def length(depth):
        model = dataclasses.replace(MODEL, depth=depth)
        params = jax.eval_shape(model.init, jax.random.key(0))
        codes = jax.ShapeDtypeStruct((6,), jnp.int32)
        loss = eqx.filter_jit(lambda params, codes: jnp.sum(model.apply(params, codes)))
        return len(jax.jit(jax.grad(loss)).lower(params, codes).as_text())

    assert length(24) < 1.01 * length(2)


@pytest.mark.slow
def test_it_learns_what_comes_next():
    """A text that repeats: draws know it, and the momenta are as warm as they should be."""
    text = np.tile([0, 1, 2, 3, 1, 4], 60)
    model = Transformer(5, 12, 16, 1, 2)
    params = model.init(jax.random.key(0))
    posterior = model.posterior(text)
    sampler = sghmc.SGHMC(0.02, friction=5.0, mass=model.precisions(params))
    samples = sghmc.sample(
        jax.random.key(1), posterior, sampler, params, gradient=sghmc.Minibatch(32),
        num_samples=40, num_burnin=40, thinning=25, num_chains=4, progress=False,
    )  # fmt: skip
    likelihood = jax.vmap(jax.vmap(posterior.log_likelihood, (None, 0)), (0, None))
    draws = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, -1]), samples.positions)
    loss = -np.mean(likelihood(draws, posterior.data)) * 12  # nats a window, of 12 symbols
    assert loss < 0.3 * 12 * np.log(5)
    # Four chains of 3,000 numbers: a share of 0.02 is eight standard errors and more.
    assert samples.info.kinetic_temperature is not None
    assert abs(samples.info.kinetic_temperature.mean() - 1) < 0.02


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"width": 18}, ValueError, "width must be a multiple of twice num_heads"),
        ({"depth": 0}, ValueError, "depth"),
        ({"prior_scale": 0.0}, ValueError, "prior_scale must be positive"),
        ({"compute_type": "float16"}, ValueError, "compute_type"),
    ],
)
def test_impossible_networks_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(MODEL, **change)


@pytest.mark.parametrize(
    ("codes", "stride", "error", "message"),
    [
        (TEXT + 1, 1, ValueError, "codes must be codes from 0 to 6"),
        (TEXT[:6], 1, ValueError, r"6 symbols, but a window needs context \+ 1 = 7"),
        (TEXT, 0, ValueError, "stride"),
    ],
)
def test_wrong_texts_are_refused(codes, stride, error, message):
    with pytest.raises(error, match=message):
        MODEL.posterior(codes, stride)
