"""Pictures of draws: what they show, in both colours."""

import base64
import io

import numpy as np
import pytest
from matplotlib import image

from sghmc import display
from sghmc.results.summaries import _import_arviz


def pixels(address):
    kind, _, content = address.partition(",")
    assert kind == "data:image/png;base64"
    return image.imread(io.BytesIO(base64.b64decode(content)))


@pytest.fixture
def axes(monkeypatch):
    """The axes of the pictures drawn, in place of their addresses."""
    drawn = []

    def keep(figure, **options):
        drawn.append(figure.axes[0])
        return ""

    monkeypatch.setattr(display, "picture_address", keep)
    return drawn


def test_every_picture_is_there_for_bright_and_for_dark_pages():
    values = np.random.default_rng(0).normal(size=(2, 50))
    for pair in (
        display.trace_picture(values, level=1.0),
        display.rank_picture(values),
        display.autocorrelation_picture(values),
        display.replicates_picture(0.5, values.ravel()),
    ):
        light, dark = map(pixels, pair)
        assert light.shape == dark.shape == (200, 440, 4)
        seen = light[..., 3] > 0.5  # transparent elsewhere
        assert light[seen][:, :3].mean() < dark[seen][:, :3].mean()


def test_correlations_are_those_of_arviz():
    arviz = _import_arviz()
    if not arviz.__version__.startswith("0."):
        pytest.skip("ArviZ 1 has no such function")
    chain = np.cumsum(np.random.default_rng(0).normal(size=101))
    np.testing.assert_allclose(display.correlations(chain), arviz.autocorr(chain), atol=1e-12)


def test_correlations_are_lag_products():
    chain = np.random.default_rng(1).normal(size=40) ** 2
    away = chain - chain.mean()
    expected = [np.sum(away[: 40 - lag] * away[lag:]) / np.sum(away**2) for lag in range(40)]
    np.testing.assert_allclose(display.correlations(chain), expected, atol=1e-12)
    assert np.isnan(display.correlations(np.ones(5))).all()


def test_a_trace_has_a_line_for_each_chain_thinned_to_a_screen(axes):
    values = np.arange(20_000.0).reshape(10, 2_000)
    display.trace_picture(values, "name", level=3.0)
    *chains, level = axes[0].lines
    assert len(chains) == 8
    assert level.get_ydata() == [3.0, 3.0]
    for k, line in enumerate(chains):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(0, 2_000, 2))
        np.testing.assert_array_equal(line.get_ydata(), values[k, ::2])
    assert axes[0].get_title() == "name"


def test_ranks_are_level_where_chains_agree_and_are_not_elsewhere(axes):
    mixed = np.arange(400).reshape(200, 2).T  # the chains take turns
    display.rank_picture(mixed)
    for stairs in axes[0].patches:
        np.testing.assert_allclose(stairs.get_data().values, 1.0)
    display.rank_picture(np.arange(400).reshape(2, 200))  # one below the other
    low, high = (stairs.get_data().values for stairs in axes[2].patches)
    np.testing.assert_array_equal(low, [2.0] * 10 + [0.0] * 10)
    np.testing.assert_array_equal(high, low[::-1])


def test_autocorrelations_are_shown_by_lag(axes):
    values = np.random.default_rng(0).normal(size=(3, 100))
    display.autocorrelation_picture(values)
    *chains, _ = axes[0].lines
    for chain, line in zip(values, chains, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), display.correlations(chain)[:60])


def test_replicates_stand_around_the_observed(axes):
    display.replicates_picture(0.5, np.arange(60.0))
    (line,) = axes[0].lines
    assert line.get_xdata() == [0.5, 0.5]
    assert sum(bar.get_height() for bar in axes[0].patches) == 60
