"""Effective sizes, errors and R-hat: against closed forms, and against arviz where it is there."""

import numpy as np
import pytest

from sghmc.results import convergence

RNG = np.random.default_rng(0)


def chains(correlation, shape, rng=RNG):
    """AR(1) with unit variance: its effective size is n(1 − ρ)/(1 + ρ)."""
    noise = rng.normal(size=shape)
    draws = noise.copy()
    for i in range(1, shape[-1]):
        fresh = np.sqrt(1 - correlation**2) * noise[..., i]
        draws[..., i] = correlation * draws[..., i - 1] + fresh
    return draws


@pytest.mark.parametrize("correlation", [-0.4, 0.0, 0.5, 0.9])
def test_sizes_and_times_of_an_autoregression(correlation):
    draws = chains(correlation, (20, 4, 5_000))
    size = 20_000 * (1 - correlation) / (1 + correlation)
    # Of 20 numbers on average: the estimate of each is off by 10 % where ρ is 0.9.
    for found in (convergence.bulk_size(draws), convergence.effective_size(draws)):
        assert found.mean() == pytest.approx(size, rel=0.1)
    time = 1 / (1 - correlation)
    assert convergence.autocorrelation_time(draws).mean() == pytest.approx(time, rel=0.1)
    one = convergence.slowest_time(np.moveaxis(draws[:3], 0, -1))
    assert one == pytest.approx(convergence.autocorrelation_time(draws[:3]).max())


def test_chains_that_sit_apart_have_a_large_r_hat():
    """Apart by 1 sd: total variance 1 + 1/4 + …, within 1; of ranks nearly so."""
    draws = RNG.normal(size=(2, 4, 2_000))
    draws[1, :2] += 1.0
    alike, apart = convergence.r_hat(draws)
    assert alike == pytest.approx(1, abs=0.01)
    assert apart == pytest.approx(np.sqrt(1 + 1 / 3), rel=0.08)
    wide = RNG.normal(size=(1, 4, 2_000)) * np.array([1, 1, 3, 3])[None, :, None]
    assert convergence.r_hat(wide)[0] > 1.1, "same means, other spreads"
    assert np.isnan(convergence.r_hat(draws[:, :1])).all()


def test_moments_and_intervals_of_known_draws():
    draws = RNG.gamma(2.0, size=(4, 5_000))
    found = convergence.summarize([draws])
    assert found["mean"][0] == pytest.approx(draws.mean())
    assert found["sd"][0] == pytest.approx(draws.std(ddof=1))
    low, high = found["hdi_3%"][0], found["hdi_97%"][0]
    assert np.mean((draws >= low) & (draws <= high)) == pytest.approx(0.94, abs=0.001)
    assert low < np.quantile(draws, 0.03) / 2, "the shortest interval of a skewed law is lower"
    # Independent draws: the error of a mean is σ/√n, and of an sd σ√(κ − 1)/2√n, κ = 6.
    assert found["mcse_mean"][0] == pytest.approx(np.sqrt(2 / 20_000), rel=0.1)
    assert found["mcse_sd"][0] == pytest.approx(np.sqrt(2 * 5 / 20_000) / 2, rel=0.15)


@pytest.mark.parametrize("kind", ["slow", "apart", "tied", "odd", "short", "constant", "lost"])
def test_the_same_as_arviz(kind):
    arviz = pytest.importorskip("arviz")
    rng = np.random.default_rng(1)
    draws = {
        "slow": lambda: chains(0.95, (4, 800), rng),
        "apart": lambda: rng.normal(size=(4, 500)) + np.arange(4)[:, None],
        "tied": lambda: rng.integers(0, 4, (4, 300)).astype(float),
        "odd": lambda: rng.standard_cauchy((3, 301)),
        "short": lambda: rng.normal(size=(2, 5)),
        "constant": lambda: np.ones((4, 100)),
        "lost": lambda: np.where(np.arange(100) > 90, np.nan, rng.normal(size=(4, 100))),
    }[kind]()
    found = convergence.summarize([draws])
    with np.errstate(all="ignore"):
        expected = {
            "ess_bulk": arviz.ess(draws, method="bulk"),
            "ess_tail": arviz.ess(draws, method="tail"),
            "r_hat": arviz.rhat(draws),
            "mcse_mean": arviz.mcse(draws, method="mean"),
            "mcse_sd": arviz.mcse(draws, method="sd"),
        }
    for name, value in expected.items():
        if kind == "constant" and name in ("r_hat", "mcse_mean", "mcse_sd"):
            continue  # 0/0: no two versions agree
        np.testing.assert_allclose(found[name][0], value, rtol=1e-6, err_msg=name)


def test_no_draws_are_no_fault():
    found = convergence.summarize([np.empty((4, 0))] * 3)
    assert all(np.isnan(column).all() and len(column) == 3 for column in found.values())


@pytest.mark.parametrize("num_draws", [4, 1])
def test_one_r_hat_for_all_quantities_by_hand(num_draws):
    """√(1 + ΣB/Σ(W + noise)): of halves, where there are two draws or more."""
    rng = np.random.default_rng(0)
    draws, noise = rng.normal(size=(3, 2, num_draws)), rng.uniform(1, 2, (3, 2, num_draws))
    parts = [part for chain in range(2) for part in np.split(draws[:, chain], [2], 1)]
    parts = [part for part in parts if part.size] if num_draws == 4 else list(draws.swapaxes(0, 1))
    within = np.mean([part.var(1) for part in parts], 0) + noise.mean((1, 2))
    between = np.var([part.mean(1) for part in parts], axis=0, ddof=1)
    expected = np.sqrt(1 + between.sum() / within.sum())
    assert convergence.pooled_r_hat(draws, noise) == pytest.approx(expected)


def test_a_single_chain_of_one_draw_agrees_with_itself():
    assert convergence.pooled_r_hat(np.ones((2, 1, 1)), np.ones((2, 1, 1))) == 1
