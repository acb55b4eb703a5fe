"""All statements together: they hold, one that does not is shown, and each can fail.

Theorem 3.1 is simulated, and refuted where the noise is not what is said. Theorem 3.2: π stays, and
does not where friction and noise are a hundredth apart.
"""

import jax
import numpy as np
import pytest

from sghmc import theory
from sghmc.gradients.noise import NoisyGradient
from sghmc.paper import gaussian_laws, theorems
from shown_tables import cells, fits
from statements import ReplacedTheory, failed, failed_with

CONFIG = theorems.TheoremsConfig(**theorems.QUICK)


@pytest.fixture(scope="module")
def result():
    return theorems.run(CONFIG, jax.random.key(0), progress=False)


@pytest.mark.slow
def test_all_hold(result):
    """Two are sampled, each within five standard errors: a false alarm in 800,000 seeds."""
    assert len(result["rows"]) == 16
    assert [row["statement"] for row in result["rows"] if not row["passed"]] == []
    assert all(claim.agrees for claim in theorems.claims({}, result))
    assert fits(theorems.table(result))
    assert len(theorems.plot(result).axes) == 4


@pytest.mark.slow
def test_a_failure_is_shown(result):
    rows = [row | {"passed": i != 3} for i, row in enumerate(result["rows"])]
    failed = {"rows": rows, "curves": {}}
    assert [claim.agrees for claim in theorems.claims({}, failed)] == [i != 3 for i in range(16)]
    assert ["no" in row[-1] for row in cells(theorems.table(failed))] == [i == 3 for i in range(16)]


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
    assert words in failed_with(monkeypatch, theorems.check_entropy, FAULTS[words], *arguments)


def test_the_diffusion_is_half_the_steps_noise():
    assert CONFIG.diffusion == pytest.approx(0.01 * 60 / 2)
    assert np.asarray(CONFIG.sampler.friction) == 0


BOTH = ["Thm 3.2: ∂π/∂t with friction, largest", "Cor 3.1: ∂π/∂t without friction, rms"]


def test_both_statements_hold():
    assert failed(theorems.check_stationarity(jax.random.key(3))) == []


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_both_fail_where_noise_and_friction_differ(monkeypatch, factor):
    faults = {"_NOISE_COVARIANCE": factor * gaussian_laws.FRICTION}
    assert failed_with(monkeypatch, theorems.check_stationarity, faults, jax.random.key(3)) == BOTH
