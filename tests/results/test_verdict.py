import dataclasses

import numpy as np

from sghmc.results.health import Verdict, temperature_complaint
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info
from sghmc.tuning.result import TuneReport, precision


@dataclasses.dataclass(frozen=True, repr=False)
class Finding(Verdict):
    reasons: tuple[str, ...]

    @property
    def evidence(self):
        return {"largest R-hat": "1.010", "smallest <size>": "400"}


def test_what_has_no_fault_is_sound():
    sound = Finding(())
    assert sound.is_sound
    assert sound.level == "trustworthy"
    assert (
        str(sound)
        == "verdict: trustworthy: no sign of trouble\nlargest R-hat: 1.010\nsmallest <size>: 400"
    )
    assert "smallest &lt;size&gt;" in sound._repr_html_()


def test_every_fault_is_told_in_lines_of_a_terminal():
    broken = Finding(("chains disagree: draw more", "too hot: " + "smaller steps " * 9))
    assert not broken.is_sound
    assert broken.verdict.startswith("not trustworthy: chains disagree: draw more; too hot")
    assert max(map(len, repr(broken).splitlines())) <= 80


@dataclasses.dataclass(frozen=True, repr=False)
class Careful(Finding):
    cares: tuple[str, ...] = ()  # pyright: ignore[reportIncompatibleMethodOverride]


def test_care_is_between_trust_and_none():
    careful = Careful((), ("few draws",))
    assert (careful.level, careful.is_sound) == ("usable with care", True)
    assert careful.verdict == "usable with care: few draws"
    both = Careful(("hot",), ("few draws",))
    assert both.verdict == "not trustworthy: hot; few draws"


def samples_of(draws, tuning=None, hyper=None):
    info = Info(np.zeros(draws.shape[:2]), np.ones(draws.shape[:2], bool))
    return Samples(draws, hyper, {}, None, info, 1, 1.0, 0.5, tuning=tuning)


def test_one_verdict_is_shown_everywhere():
    """The tuner's report, `health()`, the summary and the page once had opinions of their own."""
    draws = np.random.default_rng(0).normal(size=(4, 500))
    report = TuneReport("exact", 1, 0.0, "FullBatch", 1.0, 1.0, 1.0, 0.05, searched="nowhere else")
    samples = samples_of(draws, dataclasses.replace(report, cares=("draws are few",)))
    words = "usable with care: draws are few"
    assert samples.verdict.verdict == samples.health().verdict == words
    assert samples.tuning.verdict == words
    assert not samples.tuning.is_met
    assert f"verdict: {words}" in str(samples.tuning)
    table = samples.summary()
    assert (table.attrs["verdict"], table.attrs["level"]) == (words, "usable with care")
    assert samples.verdict.evidence["other modes"] == "nowhere else"
    assert samples_of(draws, report).tuning.is_met
    # Another array of draws is another run, with its own verdict.
    apart = dataclasses.replace(samples, positions=draws + 9.0 * np.arange(4.0)[:, None])
    assert apart.tuning.verdict.startswith("not trustworthy: chains disagree")


def test_a_function_of_the_draws_is_judged_instead():
    """Weights that differ in sign from chain to chain, and predictions that agree."""
    weights = np.random.default_rng(0).normal(5.0, 0.5, size=(4, 500, 2)).astype(np.float32)
    weights[::2] *= -1
    samples = samples_of(weights)
    assert samples.verdict.level == "not trustworthy"
    product = samples.verdict(of=lambda w: w[0] * w[1])
    assert product.level == "trustworthy", str(product)
    assert product.slowest == "f"
    assert samples.verdict(of=lambda w: {"a": w}).slowest.startswith("a[")
    hyper = samples_of(weights, hyper=np.abs(weights[..., 0]))
    assert hyper.verdict(of=lambda w, scale: w[0] ** 2 + scale).level == "trustworthy"
    assert samples.verdict(of=lambda w: w[0]).level == "not trustworthy"


def test_no_draws_are_asked_for_where_there_is_no_standard_deviation():
    """Cauchy: 61,000 draws were said to be enough for what no number of draws determines."""
    draws = np.random.default_rng(0).standard_cauchy((4, 1_000))
    samples = samples_of(draws)
    assert precision(samples) is None
    assert samples.verdict.level == "usable with care"
    assert "read quantiles" in samples.verdict.verdict


def test_an_r_hat_of_billions_is_not_printed():
    stuck = np.random.default_rng(0).normal(size=(4, 100)) * 1e-12 + np.arange(4.0)[:, None]
    samples = samples_of(np.tanh(stuck * 0) + stuck)
    words = str(samples.verdict)
    assert samples.verdict.r_hat > 1.05
    assert not any(len(part.split(".")[0]) > 6 for part in words.split() if part[0].isdigit())


def test_momenta_of_a_fall_are_said_to_fall():
    """A run that was merely short was "hotter by 539734 %"."""
    words = temperature_complaint(np.full((4, 50), 5_398.34), 0.05)
    assert words is not None
    assert "539" not in words
    assert "still falling from their starts" in words
