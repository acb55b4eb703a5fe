"""The demonstration: what it measures, and that its verdict can be no."""

import dataclasses

import jax
import pytest

from sghmc.experiments import demo

TINY = demo.Config(
    step_size=0.1, thinning=2, hmc_num_steps=3, num_samples=40, num_burnin=5, num_chains=2
)


@pytest.fixture(scope="module")
def tiny_result():
    return demo.run(TINY, jax.random.key(0), progress=False)


def test_demo_compares_all_coefficients(tiny_result):
    assert len(tiny_result["names"]) == 31
    for sampler in ("hmc", "sghmc"):
        for quantity in ("mean", "sd", "effective_size", "r_hat"):
            assert len(tiny_result[sampler][quantity]) == 31
    worst = max(abs(difference) for difference in tiny_result["mean_differences"])
    assert abs(tiny_result["mean_differences"][tiny_result["worst_mean"]]) == worst


def test_the_verdict_can_be_no(tiny_result):
    exact = tiny_result["hmc"] | {"effective_size": [1e6] * 31}
    wide = exact | {"sd": [1.2 * sd for sd in exact["sd"]]}
    moved = exact | {"mean": [m + 0.2 * s for m, s in zip(exact["mean"], exact["sd"], strict=True)]}
    for minibatch, agrees in ((exact, True), (wide, False), (moved, False)):
        compared = demo._compare(exact, minibatch, TINY)
        assert compared["agrees"] is agrees
        said = demo.verdict(tiny_result | {"hmc": exact, "sghmc": minibatch} | compared)
        assert ("DOES NOT AGREE" in said) is not agrees


def test_the_mode_is_one_and_the_curvature_is_its_hessian():
    posterior, names = demo.breast_cancer_posterior(1.0)
    mode, curvature = demo.mode_and_curvature(posterior, len(names))
    assert abs(posterior.gradient(mode)).max() < 1e-3
    # Σ p(1 − p) x xᵀ + I, the Hessian of a logistic regression.
    rows = posterior.data[0]
    p = jax.nn.sigmoid(rows @ mode)
    expected = (rows * (p * (1 - p))[:, None]).T @ rows + jax.numpy.eye(len(names))
    assert abs(curvature - expected).max() < 1e-3 * abs(curvature).max()


@pytest.mark.slow
def test_the_demo_at_full_size_agrees():
    result = demo.run(demo.Config(), jax.random.key(1), progress=False)
    config = dataclasses.asdict(demo.Config())
    assert result["agrees"]
    assert max(result["hmc"]["r_hat"] + result["sghmc"]["r_hat"]) < 1.01
    assert abs(result["sd_ratios"][result["worst_sd"]] - 1) < config["close_sds"]
    assert abs(result["mean_differences"][result["worst_mean"]]) < config["close_means"]
