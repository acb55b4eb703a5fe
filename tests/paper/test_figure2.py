"""Fig. 2: clouds against their exact radius, and the verdict both ways."""

import jax
import numpy as np
import pytest

from recorded_draw import RecordedDraw
from sghmc import theory
from sghmc.paper import figure2
from shown_tables import fits

CONFIG = figure2.Figure2Config(num_steps=1000, num_chains=400)


@pytest.fixture(scope="module")
def result():
    return figure2.run(CONFIG, jax.random.key(0), progress=False)


@pytest.mark.slow
def test_radii_are_the_expected_ones(result):
    """At 20 times each, of three random clouds within five standard errors of the mean square.

    Squares of 400 chains have a relative standard error of at most √(2/400) (two normals or one):
    a false alarm once in 30,000 seeds. The fourth cloud has no noise.
    """
    for name, cloud in result["clouds"].items():
        ratio = np.square(cloud["rms_radius"]) / np.square(cloud["expected_rms_radius"])
        limit = 1e-3 if name == "hamiltonian" else 5 * np.sqrt(2 / 400)
        assert len(ratio) == 20
        assert np.abs(ratio - 1).max() < limit
        assert abs(cloud["end"]["z_score"]) < 5
    assert result["steps"] == list(range(50, 1001, 50))


@pytest.mark.slow
def test_the_expected_radius_is_that_of_the_dynamics(result):
    """E|z|² = 1 + nε²V to order ε: each kick adds 0.04; friction leaves the stationary law."""
    clouds = result["clouds"]
    end = {name: cloud["end"]["expected_rms_radius"] for name, cloud in clouds.items()}
    assert end["noisy"] == pytest.approx(np.sqrt(1 + 1000 * 0.04), rel=0.01)
    assert end["hamiltonian"] == pytest.approx(1, rel=0.06)
    # S_θθ = 1 + ¼ε²/g, S_rr = 1/g with g = 1 − ½εC − ¼ε².
    g = 1 - 0.15 - 0.0025
    assert end["friction"] == pytest.approx(np.sqrt(1 + 0.0025 / g + 1 / g), rel=1e-3)
    assert end["resampled"] < end["noisy"] / 2


@pytest.mark.parametrize(("noise", "radius"), [(4.0, 24.5), (0.25, 6.2)])
def test_the_cloud_ends_where_the_paper_has_it(noise, radius):
    config = figure2.Figure2Config(gradient_noise=noise)
    sampler, variance = figure2._settings(config)["noisy"]
    square = figure2.expected_square_radius(config, sampler, variance)[-1]
    assert np.sqrt(square) == pytest.approx(radius, abs=0.06)


def test_surprise_is_in_standard_errors():
    squares = np.array([1.0, 2.0, 3.0, 6.0])
    error = squares.std(ddof=1) / 2
    end = figure2._end(squares, 3.0 - 2 * error)
    assert end["z_score"] == pytest.approx(2)
    assert (end["rms_radius"], end["expected_rms_radius"]) == pytest.approx(
        (np.sqrt(3), np.sqrt(3 - 2 * error))
    )
    assert figure2._end(np.full(4, 2.0), 2.0)["z_score"] == 0


def made_up(**radii):
    usual = {"noisy": 20.0, "resampled": 4.0, "friction": 1.5, "hamiltonian": 1.0} | radii
    return {"clouds": {name: {"end": {"rms_radius": r}} for name, r in usual.items()}}


@pytest.mark.parametrize(
    ("radii", "agrees"),
    [
        ({}, [True, True, True]),
        ({"noisy": 4.9}, [False, True, False]),
        ({"hamiltonian": 4.1}, [False, True, True]),
        ({"friction": 2.1}, [True, False, True]),
        ({"resampled": 10.1}, [True, True, False]),
    ],
)
def test_the_verdict_can_be_no(radii, agrees):
    assert [claim.agrees for claim in figure2.claims({}, made_up(**radii))] == agrees


@pytest.mark.slow
def test_the_run_agrees_with_the_paper_and_is_shown(result):
    assert all(claim.agrees for claim in figure2.claims({}, result))
    assert fits(figure2.table(result))
    assert len(figure2.plot(result).axes) == 2


def test_momenta_are_the_moves_of_shown_steps(monkeypatch):
    config = figure2.Figure2Config(num_steps=100, num_chains=2)
    positions = np.array([np.arange(100.0) ** 2, np.sqrt(np.arange(100.0))])
    monkeypatch.setattr(figure2, "draw", RecordedDraw(positions=positions))
    theta, r = figure2._trajectories(config, None, 0.0, None, False)
    np.testing.assert_array_equal(theta, positions[:, [49, 99]])
    before = positions[:, [48, 98]]
    np.testing.assert_allclose(r, (theta - before) / config.step_size, rtol=1e-6)


def test_moments_are_shown_after_every_fiftieth_step():
    """S ← F S Fᵀ + L Lᵀ from N(0, τ) momenta at θ = 1, and fresh ones after every fiftieth."""
    config = figure2.Figure2Config(num_steps=100)
    for name, (sampler, variance) in figure2._settings(config).items():
        plain, fresh = (
            theory.affine_map(sampler, 1.0, variance, t=t, num_steps=100) for t in (1, 50)
        )
        moments, squares = np.diag([1.0, 0.0 if name in ("noisy", "hamiltonian") else 1.0]), []
        for t in range(100):
            step = fresh if t == 50 else plain
            moments = step.transition @ moments @ step.transition.T + step.noise @ step.noise.T
            squares.append(np.trace(moments))
        found = figure2.expected_square_radius(config, sampler, variance)
        np.testing.assert_allclose(found, [squares[49], squares[99]], rtol=1e-9, err_msg=name)


def test_the_axes_say_what_they_show():
    cloud = {"position": [0.1, 0.2], "momentum": [0.3, 0.4], "end": {}}
    cloud |= {"rms_radius": [1.0, 2.0], "expected_rms_radius": [1.5, 2.5]}
    shown = figure2.plot({"steps": [50, 100], "clouds": dict.fromkeys(figure2.LABELS, cloud)})
    clouds, radius = shown.axes
    assert (clouds.get_xlabel(), clouds.get_ylabel()) == (r"$\theta$", r"$r$")
    assert radius.get_xlabel() == "step"
    assert "rms" in radius.get_ylabel()
    assert radius.get_title() == "radius over all trajectories"
    assert [np.array(line.get_ydata()).tolist() for line in radius.lines[:2]] == [
        [1.0, 2.0],
        [1.5, 2.5],
    ]
