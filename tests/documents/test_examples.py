"""Every example runs, at its quick size, and what it shows is true.

Keys are fixed. Where a check is stochastic, its false-alarm rate over keys is said beside it.
"""

import re

import numpy as np
import pytest

import gallery
import outputs

SLOW = (
    "logistic_regression",
    "digits",
    "recommender",
    "numpyro_model",
    "calibration",
    "cyclical",
    "equinox_network",
    "flax_training_loop",
    "transformer",
)
"""What they show is tested elsewhere too, and they take longest to compile."""


def assert_close(of_chains, exact):
    """Means over chains against exact values, in standard errors.

    With 16 chains a number is further off than 5 for 1.6 keys in 10,000 (t, 15 degrees of freedom);
    no example has more than eight such numbers.
    """
    of_chains = np.asarray(of_chains, np.float64)
    error = of_chains.std(0, ddof=1) / np.sqrt(len(of_chains))
    assert len(of_chains) >= 16
    assert np.all(error < 0.1 * np.abs(exact)), "too few draws to judge"
    assert np.all(np.abs(of_chains.mean(0) - exact) < 5 * error)


def check_gaussian(names):
    for name, samples in names["runs"].items():
        squares = np.mean(np.square(samples.positions), axis=1, dtype=np.float64)
        assert_close(squares, names["laws"][name].covariance.diagonal())
    told, not_told = names["runs"].values()
    assert told.health().is_sound
    assert not_told.health().predicted_error == pytest.approx(0.29, abs=0.01)  # √1.67 − 1
    assert "by gradient_noise" in not_told.health().verdict


def check_double_well(names):
    fine, density = names["fine"], names["density"]
    fourth_moment = np.sum(fine**4 * density) / np.sum(density)  # the second hardly feels heat
    for name in ("SGHMC", "SGNHT"):
        assert_close(np.mean(names["runs"][name].positions ** 4, axis=1), fourth_moment)
        assert names["distances"][name] < 0.06  # independent draws: 0.025
    assert names["distances"]["naive HMC"] > 0.1


def check_logistic_regression(names):
    """With 1,200 effective draws and more, 0.15 and 10 % are five standard errors and more."""
    assert names["health"].is_sound
    assert np.max(np.abs(names["mean"] - names["exact_mean"]) / names["exact_sd"]) < 0.15
    np.testing.assert_allclose(names["sd"], names["exact_sd"], rtol=0.1)


def check_digits(names):
    """500 digits: where the rate is 3 %, 6 % come out for 3 draws of the digits in 10,000."""
    assert names["error"] < 0.06
    assert names["loss"](names["average"]) < 0.2
    assert names["samples"].info.kinetic_temperature.mean() == pytest.approx(1, abs=0.1)


def check_calibration(names):
    best_fit, average, truth = names["scores"].values()
    assert truth.ece < 0.03
    assert average.ece < 0.08 < best_fit.ece
    assert truth.nll < average.nll < truth.nll + 0.1 < best_fit.nll
    assert names["health"].is_sound


def check_recommender(names):
    """The shares of 2,000 ratings have standard errors of at most 1.1 %."""
    assert names["NOISE"] < names["scores"]["rmse"] < 0.65
    shares = list(names["scores"]["coverage"].values())
    np.testing.assert_allclose(shares, [0.5, 0.8, 0.95], atol=0.05)
    assert names["doubts"][0] > names["doubts"][-1]


def check_numpyro_model(names):
    """400 effective draws here, 600 of NUTS: standard errors of 0.065 and 4.6 %."""
    assert max(map(abs, names["shift"].values())) < 0.3
    np.testing.assert_allclose(list(names["ratio"].values()), 1, atol=0.2)
    assert names["health"].is_sound


def check_equinox_network(names):
    grid, mean, sd, is_inside = (names[key] for key in ("grid", "mean", "sd", "is_inside"))
    errors = mean - np.sin(2 * grid)
    assert np.sqrt(np.mean(errors[is_inside] ** 2)) < 0.15  # the data's noise: 0.2
    assert np.mean(sd[np.abs(grid) < 0.5]) > 3 * np.median(sd[is_inside])


def check_uncertainty(names):
    grid, parts = names["grid"][:, 0], names["parts"]
    is_seen = ((grid > -2.9) & (grid < -1.1)) | ((grid > 0.6) & (grid < 2.9))
    # In the gap and beyond the rows it is not known; the noise mostly is.
    for place in (np.abs(grid + 0.25) < 0.2, np.abs(grid) > 4.5):
        assert parts.epistemic[place].mean() > 3 * parts.epistemic[is_seen].mean()
    ratio = parts.aleatoric[is_seen] / names["truth"](grid[is_seen])[1]
    assert np.median(np.abs(np.log(ratio))) < 0.4
    assert 0.82 < names["covered"] < 0.97


def check_flax_training_loop(names):
    assert names["errors"] < 0.06
    assert names["loss"](names["averages"][-1]) < 0.2
    np.testing.assert_allclose(*names["halves"], rtol=0.3)


def check_pytorch_network(names):
    """500 digits: where the rate is 3 %, 6 % come out for 3 draws of the digits in 10,000."""
    assert names["errors"] < 0.06
    assert names["log_loss"](names["prediction"].probabilities) < 0.2
    assert names["heat"].mean() == pytest.approx(1, abs=0.15)


def check_transformer(names):
    """Gains of half of what the fixed keys give; how they spread over keys was not counted."""
    assert names["settling"][-1] < names["of_training"] - 0.03
    assert names["after"] < names["before"] - 0.14
    assert names["heat"] == pytest.approx(1, abs=0.15)
    assert names["information"]["test"].mean() > 0.01
    assert names["share"] < 0.1


def check_streaming(names):
    for rows, period in names["periods"].items():
        draws, (mean, sd) = names["samples"].positions[:, period], names["exact"][rows]
        assert_close(1 + np.mean((draws - mean) / sd, axis=1), np.ones(2))
        assert_close(np.mean(((draws - mean) / sd) ** 2, axis=1), np.ones(2))
    assert 5 < names["samples"].settling_draws() < 100


def check_resume(names):
    assert 0 < names["interrupted"].num_draws < names["NUM_SAMPLES"]
    np.testing.assert_array_equal(names["resumed"].positions, names["undisturbed"].positions)
    assert names["resumed"].positions.shape == (4, names["NUM_SAMPLES"], 3)


def check_cyclical(names):
    sghmc_share, cyclical, replicas = names["found"].values()
    assert sghmc_share[0] == 1
    assert np.all(cyclical > 0.1)  # 1,600 cycles, each mode a fifth of them
    of_chains = np.stack([names["shares"](c) for c in names["runs"]["ReplicaExchange"].positions])
    error = of_chains.std(0, ddof=1) / 4
    assert np.all(np.abs(replicas - names["weights"]) < 5 * error)  # as in assert_close
    assert np.max(np.abs(cyclical - names["weights"])) > 0.05  # finds, does not weigh


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
EXAMPLES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in gallery.ORDER
]


@pytest.mark.slow_cases(
    "double_well", "gaussian", "pytorch_network", "resume", "streaming", "uncertainty"
)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_what_is_true(name):
    if not outputs.can_run(gallery.script(name).read_text("utf-8")):
        pytest.skip("PyTorch is not installed")
    example = gallery.run(name, quick=True)
    assert example.printed
    assert example.figures
    assert all(len(figure.description) > 20 for figure in example.figures)
    CHECKS[name](example.names)


def test_all_scripts_are_in_the_gallery_and_checked():
    scripts = {path.stem for path in (gallery.ROOT / "examples").glob("*.py")}
    assert scripts == set(gallery.ORDER) == set(CHECKS)
    navigation = (gallery.ROOT / "mkdocs.yml").read_text("utf-8")
    assert tuple(re.findall(r"gallery/(\w+)\.md", navigation)) == ("index", *gallery.ORDER)


SCRIPT = """\
# %% [markdown]
# # Title
#
# Text.

# %%
SIZE = 4  # quick: 2
print("=" * SIZE)
"""


def test_a_script_becomes_cells_of_text_and_code():
    text, code = gallery.cells(gallery.sized(SCRIPT, quick=True))
    assert text == gallery.Cell(True, "# Title\n\nText.", 1)
    assert code == gallery.Cell(False, 'SIZE = 2\nprint("=" * SIZE)', 6)
    assert gallery.cells(gallery.sized(SCRIPT, quick=False))[1].source.startswith("SIZE = 4\n")


def test_a_page_has_text_code_output_and_figures():
    text, code = gallery.cells(SCRIPT)
    figure = gallery.Figure(b"", "What it shows")
    example = gallery.Example(
        "name", [gallery.Shown(text), gallery.Shown(code, "==\n", (figure,))], {}
    )
    page = gallery.page(example)
    assert page.startswith("# Title\n\nText.\n\n```python\nSIZE = 4")
    assert "\n```text\n==\n```\n\n![What it shows](name-1.png)\n" in page
    assert example.title == "Title"
