"""The demonstration's picture: transparent, small, and there when HMC has nothing to show."""

import math

import numpy as np
import pytest

from demo_results import demo_result, drawn
from sghmc.paper import demo


@pytest.mark.parametrize("num_draws", [0, 8, 200])
def test_it_is_small_and_transparent(tmp_path, num_draws):
    result = demo_result(drawn(1000), drawn(num_draws))
    demo.save_picture(result, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").stat().st_size < 200_000
    from matplotlib import image

    pixels = image.imread(tmp_path / "demo.png")
    assert pixels.shape[1] == 1600
    corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert np.all(corners[:, 3] == 0)


def test_every_panel_shows_its_own(tmp_path):
    result = demo_result(drawn(1000), drawn(8))
    auto, hmc, errors = demo.plot(result).axes
    assert '"auto": 4,000 draws in 12 s' in auto.get_title()
    assert "exact HMC: 32 draws in 13 s" in hmc.get_title()
    for axis, name in ((auto, "auto"), (hmc, "hmc")):
        (cloud,) = axis.collections
        np.testing.assert_allclose(np.asarray(cloud.get_offsets()), result[name]["points"])
    points = {line.get_label(): np.asarray(line.get_xydata()) for line in errors.lines}
    for label, name in (('"auto"', "auto"), ("exact HMC", "hmc")):
        expected = np.stack([result[name]["mean_errors"], result[name]["sd_ratios"]], axis=1)
        np.testing.assert_allclose(points[label], expected)
    assert "no draw yet" in [
        text.get_text() for text in demo.plot(demo_result(drawn(9), drawn(0))).axes[1].texts
    ]


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.9])
def test_an_ellipse_has_its_distance_from_the_mean(correlation):
    covariance = np.array([[1, correlation], [correlation, 1]])
    points = np.array(demo._ellipse(2.0, correlation))
    distances = np.einsum("in,ij,jn->n", points, np.linalg.inv(covariance), points)
    np.testing.assert_allclose(distances, 4.0)
    assert math.isclose(points[0].max(), 2.0, rel_tol=1e-3)
