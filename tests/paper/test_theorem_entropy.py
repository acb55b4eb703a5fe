"""Theorem 3.1: simulated, and refuted where the noise is not what is said."""

import jax
import numpy as np
import pytest

from sghmc import theory
from sghmc.gradients.exact import NoisyGradient
from sghmc.paper import theorems
from sghmc.paper.theorems import entropy
from statements import ReplacedTheory, failed_with

CONFIG = theorems.Config(**theorems.QUICK)


def hot_growth(times, curvature, mass, diffusion, temperature):
    return theory.entropy_growth(times, curvature, mass, 1.4 * diffusion, temperature)


def hot_map(sampler, precision, gradient_noise, **options):
    return theory.affine_map(sampler, precision, 1.1 * gradient_noise, **options)


FAULTS = {
    "Thm 3.1: entropy gained": {"theory": ReplacedTheory(entropy_growth=hot_growth)},
    "Thm 3.1: energy gained, tr(BM⁻¹)t": {
        "NoisyGradient": lambda variance: NoisyGradient(1.4 * variance)
    },
    "Cor 3.1: entropy rate at π > 0": {"theory": ReplacedTheory(affine_map=hot_map)},
}


@pytest.mark.slow
@pytest.mark.parametrize("words", FAULTS)
def test_a_statement_fails_where_it_is_wrong(monkeypatch, words):
    arguments = CONFIG, jax.random.key(0), False
    assert words in failed_with(monkeypatch, entropy, FAULTS[words], *arguments)


def test_the_diffusion_is_half_the_steps_noise():
    assert CONFIG.diffusion == pytest.approx(0.01 * 60 / 2)
    assert np.asarray(CONFIG.sampler.friction) == 0
