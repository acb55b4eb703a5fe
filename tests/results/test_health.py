"""The verdict on a run: it sees runs made to fail, and leaves sound ones alone."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.mode import find_mode, hessian
from sghmc.results import health as health_module
from sghmc.results import prediction, summaries
from sghmc.results.health import Health, _bias, _lost_chains, assess, temperature_complaint
from sghmc.results.prediction import BiasPrediction, Origin, SavedOrigin
from sghmc.results.selection import thinned
from sghmc.results.summaries import Info

NUM_EXAMPLES = 4_000
TOLERANCE = 0.05


def make_posterior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, 3))
    x[:, 1] += x[:, 0]
    y = rng.random(NUM_EXAMPLES) < 1 / (1 + np.exp(-x @ [0.5, -0.3, 0.8]))

    def log_likelihood(weights, row):
        return -jax.nn.softplus(jnp.where(row["y"], -1.0, 1.0) * (row["x"] @ weights))

    data = {"x": x.astype(np.float32), "y": y}
    return sghmc.Posterior(log_likelihood, lambda weights: -0.5 * jnp.sum(weights**2), data)


POSTERIOR = make_posterior()
MODE = find_mode(POSTERIOR, jnp.zeros(3))
COVARIANCE = np.linalg.inv(hessian(POSTERIOR, MODE.position))
SPREAD = np.sqrt(np.diag(COVARIANCE))
FACTOR = np.linalg.cholesky(COVARIANCE)


def whitened(sampler):
    return sghmc.Whitened(sampler, MODE.position, FACTOR)


def learned(decay, rate=0.1, **settings):
    return sghmc.SGHMC.from_learning_rate(rate / NUM_EXAMPLES, decay, **settings)


def draw(sampler, gradient, *, init=None, num_samples=400, thinning=10, num_burnin=40):
    return sghmc.sample(
        jax.random.key(7),
        POSTERIOR,
        sampler,
        MODE.position if init is None else init,
        gradient=gradient,
        num_samples=num_samples,
        num_burnin=num_burnin,
        thinning=thinning,
        num_chains=8,
        progress=False,
        throw=False,
    )


SOUND = {
    "control variate": lambda: draw(whitened(sghmc.SGHMC(0.2, 1.5)), sghmc.ControlVariate(200)),
    "all data": lambda: draw(whitened(sghmc.SGHMC(0.2, 1.5)), sghmc.FullBatch()),
    "noise subtracted": lambda: draw(
        learned(0.5, rate=0.05, gradient_noise=sghmc.EmpiricalFisher(diagonal=False)),
        sghmc.Minibatch(500),
        thinning=40,
    ),
    "langevin": lambda: draw(whitened(sghmc.SGLD(0.05)), sghmc.ControlVariate(200)),
    "accept step": lambda: draw(whitened(sghmc.HMC(0.5, 3)), sghmc.FullBatch(), thinning=2),
}

FAILING = {
    "batch too small": lambda: draw(learned(0.1), sghmc.Minibatch(10)),
    "batch small": lambda: draw(learned(0.1), sghmc.Minibatch(100)),
    "batch small, little friction": lambda: draw(learned(0.01), sghmc.Minibatch(500)),
    "langevin, batch small": lambda: draw(whitened(sghmc.SGLD(0.1)), sghmc.Minibatch(50)),
    "step too large": lambda: draw(whitened(sghmc.SGHMC(1.2, 1.0)), sghmc.FullBatch()),
    "langevin, step too large": lambda: draw(whitened(sghmc.SGLD(0.5)), sghmc.FullBatch()),
    "step beyond stability": lambda: draw(whitened(sghmc.SGHMC(2.5, 0.3)), sghmc.FullBatch()),
    "mode wrong": lambda: draw(
        whitened(sghmc.SGHMC(0.3, 1.0)), sghmc.ControlVariate(20, MODE.position + 1.0)
    ),
    "no friction": lambda: draw(
        whitened(sghmc.HMC(0.3, 5, metropolis=False)), sghmc.Minibatch(20), thinning=2
    ),
    "run too short": lambda: draw(
        sghmc.SGHMC(1e-4, 10.0),
        sghmc.FullBatch(),
        init=MODE.position + jnp.asarray(5 * SPREAD, jnp.float32),
    ),
}


def worst_error(samples) -> float:
    draws = samples.positions[samples.info.is_finite]
    return float(np.max(np.abs(draws.std(0) / SPREAD - 1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_are_left_alone(name):
    samples = SOUND[name]()
    health = samples.health(TOLERANCE)
    assert health.is_sound, str(health)
    assert health.verdict == "trustworthy: no sign of trouble"
    # Over 1,000 effective draws: an error of 2.3 % or less in each of three, so below one false
    # alarm in 10⁴ for each name.
    assert worst_error(samples) < TOLERANCE + 4 * 0.023


@pytest.mark.slow
def test_runs_made_to_fail_are_seen():
    """Nine of ten at least; and each of these did fail."""
    seen = {}
    for name, make in FAILING.items():
        samples = make()
        assert worst_error(samples) > TOLERANCE or not samples.info.is_finite.all(), name
        seen[name] = not samples.health(TOLERANCE).is_sound
    assert sum(seen.values()) >= 9, seen


@pytest.mark.slow
def test_the_predicted_error_is_the_one_that_happens():
    samples = FAILING["batch small"]()
    health = samples.health()
    # 3,200 draws, about 1,000 of them independent: 2.3 % of Monte Carlo error in each of three.
    assert health.predicted_error is not None
    assert abs(health.predicted_error - worst_error(samples)) < 0.1
    assert "gradient noise adds" in health.verdict
    assert "use ControlVariate or FullBatch()" in health.verdict


@pytest.mark.slow
def test_the_verdict_names_the_step_size():
    health = FAILING["step too large"]().health()
    assert "step size is too large" in health.verdict
    assert "too wide" in str(health)


@pytest.mark.slow
def test_a_summary_says_it_aloud():
    samples = FAILING["step too large"]()
    with pytest.warns(sghmc.HealthWarning, match="step size is too large"):
        table = samples.summary()
    assert "too wide" in table.attrs["verdict"]
    assert table.attrs["predicted_error"] > TOLERANCE
    sound = SOUND["all data"]().summary()
    assert sound.attrs["verdict"] == "trustworthy: no sign of trouble"


@pytest.mark.slow
def test_what_cannot_be_looked_at_is_said():
    samples = sghmc.sample(
        jax.random.key(0),
        POSTERIOR,
        learned(0.1),
        MODE.position,
        gradient=sghmc.Minibatch(100),
        num_samples=50,
        num_chains=2,
        keep=jnp.sum,
        progress=False,
    )
    health = samples.health()
    assert health.predicted_error is None
    assert any("not the parameters" in each for each in health.skipped)


@pytest.mark.slow
def test_many_parameters_get_the_share_of_gradient_noise():
    rng = np.random.default_rng(0)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        rng.normal(size=(100, 200)).astype(np.float32),
    )
    samples = sghmc.sample(
        jax.random.key(0),
        target,
        sghmc.SGHMC(0.01, friction=5.0),
        jnp.zeros(200),
        gradient=sghmc.Minibatch(10),
        num_samples=100,
        num_burnin=20,
        thinning=20,
        num_chains=4,
        progress=False,
    )
    # Examples scatter by 1 in each coordinate: V = N²/n, so the share is εN²/(2nC) = 1.
    assert samples.health().noise_share == pytest.approx(1.0, rel=0.05)


def verdict_on(draws, **info):
    """What is said of draws without any run: axes (chain, draw, number)."""
    shape = draws.shape[:2]
    found = Info(**{"potential": np.zeros(shape), "is_finite": np.ones(shape, bool)} | info)
    table = summaries.SummaryTable.of({"weights": draws})
    return assess(table, None, {"weights": draws}, None, found, TOLERANCE)


def mixing(num_draws=500, memory=0.0, apart=0.0):
    """Four chains of two numbers, of which the second remembers, or sits apart in one chain."""
    draws = np.random.default_rng(0).normal(size=(4, num_draws, 2))
    for i in range(1, num_draws):
        fresh = np.sqrt(1 - memory**2) * draws[:, i, 1]
        draws[:, i, 1] = memory * draws[:, i - 1, 1] + fresh
    draws[0, :, 1] += apart
    return draws


def test_draws_that_mix_are_left_alone():
    health = verdict_on(mixing())
    assert health.is_sound, health.verdict
    assert health.r_hat < 1.02
    assert health.effective > 1_000


def test_chains_that_disagree_are_named_with_their_remedy():
    """R-hat of 1.4, of 1.1, and of 1.02, which short runs have by chance."""
    for apart, is_sound in ((2.2, False), (0.9, False), (0.2, True)):
        health = verdict_on(mixing(apart=apart))
        assert health.is_sound == is_sound, health.verdict
        if not is_sound:
            assert f"chains disagree on weights[1] (R-hat {health.r_hat:.2f})" in health.verdict
            assert "run longer, with more burn-in" in health.verdict
            assert "effective draws" not in health.verdict, "one fault, told once"


def test_few_effective_draws_are_told_and_of_which_number():
    health = verdict_on(mixing(num_draws=300, memory=0.97))
    if health.r_hat > 1.05:  # so few draws of slow chains may disagree as well
        assert "chains disagree" in health.verdict
    slow = verdict_on(mixing(num_draws=40))
    assert not verdict_on(mixing(num_draws=20)).is_sound
    assert "effective draws of weights" in verdict_on(mixing(num_draws=20)).verdict
    assert "run longer" in verdict_on(mixing(num_draws=20)).verdict
    assert slow.slowest in ("weights[0]", "weights[1]")


def test_lost_chains_and_no_draws_are_told():
    is_finite = np.ones((4, 500), bool)
    is_finite[2, 100:] = False
    health = verdict_on(mixing(), is_finite=is_finite)
    assert "1 of 4 chains became non-finite" in health.verdict
    nothing = verdict_on(np.empty((4, 0, 2)), kinetic_temperature=np.empty((4, 0)))
    assert "there are no draws: run longer" in nothing.verdict
    assert "not known" in str(nothing)


@pytest.mark.parametrize("excess", [-0.2, 0.2])
def test_momenta_of_another_temperature_are_told(excess):
    heat = 1 + excess + 0.1 * np.random.default_rng(0).normal(size=(4, 500))
    fault = temperature_complaint(heat, TOLERANCE)
    assert fault is not None
    assert ("hotter" if excess > 0 else "colder") in fault
    assert "20%" in fault
    assert "halve it" in fault
    assert temperature_complaint(heat - excess, TOLERANCE) is None
    assert temperature_complaint(heat - excess + 0.05, TOLERANCE) is None, (
        "an sd 2.5 % off is within"
    )


def biased(noise_share, step_error, gradient) -> Any:
    origin = Origin(POSTERIOR, learned(0.1), gradient, None, 1.0)  # pyright: ignore
    error = step_error + noise_share / 2
    return _bias(BiasPrediction(noise_share, error, step_error), origin, TOLERANCE)


def test_the_remedy_is_that_of_the_fault():
    words = biased(0.0, 0.2, sghmc.FullBatch())
    assert "20% too wide: the step size is too large for the stiffest direction; halve it" in words
    words = biased(0.0, -0.2, sghmc.FullBatch())
    assert "20% too narrow" in words
    words = biased(0.4, 0.0, sghmc.Minibatch(100))
    assert "gradient noise adds 40% to the injected noise" in words
    assert "use ControlVariate or batches of 800" in words, "noise falls with the batch"
    words = biased(0.4, 0.0, sghmc.ControlVariate(100))
    assert "use a center nearer the mode or batches of 800" in words
    assert biased(0.02, 0.01, sghmc.Minibatch(100)) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sghmc.HealthWarning")
@pytest.mark.parametrize(
    "sampler", [sghmc.SGD(1e-5), sghmc.Momentum(1e-5, 0.1), learned(0.1, temperature=0.0)]
)
def test_runs_without_noise_have_a_verdict(sampler, tmp_path):
    """Of minibatches at temperature 0, which have no law to hold them against."""
    samples = draw(sampler, sghmc.Minibatch(100), num_samples=20, thinning=1, num_burnin=0)
    assert any("temperature 0" in words for words in samples.health().skipped)
    assert len(samples.summary()) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sghmc.HealthWarning")
def test_a_run_of_no_draws_has_a_verdict():
    """As a chain leaves that diverges, or is interrupted, in burn-in."""
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    settings = {"num_samples": 5, "progress": False}
    sampler = sghmc.SGHMC(0.1, friction=1.0)
    whole = sghmc.sample(jax.random.key(0), target, sampler, jnp.zeros(2), **settings)
    samples = thinned(whole, 6)
    assert samples.num_draws == 0
    assert "no draws" in samples.health().verdict
    assert np.isnan(samples.summary()["mean"].to_numpy()).all()


@pytest.mark.parametrize(("size", "count"), [(100, 512), (1 << 20, 32), (1 << 24, 8)])
def test_rows_are_as_many_as_fit(size, count):
    assert prediction._number_that_fits(512, 8, size) == count


@pytest.mark.slow
def test_networks_are_judged_by_fewer_rows(monkeypatch):
    """Gradient noise known exactly, in 400 directions; no more than 8 gradients at once."""
    monkeypatch.setattr(prediction, "_MAX_NUMBERS", 3_000)
    rows = np.random.default_rng(0).normal(size=(500, 400)).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: 0.0, rows
    )
    sampler = sghmc.SGHMC(0.01, friction=500.0, mass=500.0)
    samples = sghmc.sample(
        jax.random.key(0), target, sampler, jnp.zeros(400), gradient=sghmc.Minibatch(10),
        num_samples=20, num_chains=2, progress=False,
    )  # fmt: skip
    exact = 0.01 * (500**2 / 10 * rows.var(0).mean()) / (2 * 500)
    # 7 draws × 8 rows × 400 directions: a share 0.01 of the exact value, of which five are allowed.
    assert samples.health().noise_share == pytest.approx(exact, rel=0.05)
    monkeypatch.setattr(prediction, "_MAX_PARAMETERS", 399)
    health = dataclasses.replace(samples).health()
    assert health.noise_share is None
    assert "too many parameters" in health.skipped[0]


# The verdict, fact by fact: tables and origins by hand


def made_table(**columns):
    """Two numbers, "a" and "b", with nothing wrong but what is given."""
    usual = {"r_hat": [1.0, 1.0], "ess_bulk": [500.0, 400.0], "ess_tail": [600.0, 700.0]}
    return summaries.SummaryTable(
        ["a", "b"], {k: np.array(v) for k, v in (usual | columns).items()}
    )


def made_origin(sampler=None, gradient=None, temperature=1.0, target=POSTERIOR, **others):
    sampler = learned(0.1) if sampler is None else sampler
    gradient = sghmc.FullBatch() if gradient is None else gradient
    estimator = gradient.prepare(target, jnp.zeros(3))
    return Origin(target, sampler, gradient, estimator, temperature, **others)


def made_verdict(table=None, origin=None, predicted=None, monkeypatch=None, positions=None, **info):
    if monkeypatch is not None:
        monkeypatch.setattr(health_module, "predict", lambda *args: predicted)
    info = Info(**{"potential": np.zeros((2, 6)), "is_finite": np.ones((2, 6), bool)} | info)
    positions = np.zeros((2, 6, 3), np.float32) if positions is None else positions
    return assess(table or made_table(), origin, positions, None, info, TOLERANCE)


def test_the_effective_size_is_the_smallest_of_bulks_and_tails():
    found = made_verdict()
    assert (found.effective, found.slowest, found.r_hat) == (400, "b", 1.0)
    tail = made_verdict(made_table(ess_tail=[99.0, 700.0]))
    assert (tail.effective, tail.slowest) == (99, "a")
    assert tail.verdict.startswith("not trustworthy: only 99 effective draws of a: run longer")
    unknown = made_verdict(made_table(ess_bulk=[np.nan, np.nan], ess_tail=[120.0, 130.0]))
    assert (unknown.effective, unknown.slowest) == (120, "a")
    assert unknown.is_sound


@pytest.mark.parametrize(("effective", "is_sound"), [(99.9, False), (100.0, True), (np.nan, True)])
def test_a_hundred_effective_draws_are_enough(effective, is_sound):
    both = {"ess_bulk": [effective] * 2, "ess_tail": [effective] * 2}
    assert made_verdict(made_table(**both)).is_sound == is_sound


@pytest.mark.parametrize(("r_hat", "is_sound"), [(1.05, True), (1.0501, False), (np.nan, True)])
def test_an_r_hat_of_more_than_105_hundredths_is_told(r_hat, is_sound):
    found = made_verdict(made_table(r_hat=[1.0, r_hat]))
    assert found.is_sound == is_sound
    if not is_sound:
        assert found.verdict.startswith("not trustworthy: chains disagree on b (R-hat 1.05): ")
    # One fault, told once: the few draws of chains that disagree go without saying.
    both = made_verdict(made_table(r_hat=[1.0, r_hat], ess_bulk=[9.0, 9.0]))
    assert len(both.reasons) == 1


def test_kinetic_temperatures_are_relative_to_that_of_the_run(monkeypatch):
    """And where the law of the settings explains them, they are not told once more."""
    heat = 1.4 * 2.5 + 0.001 * np.arange(12.0).reshape(2, 6)
    origin = made_origin(temperature=2.5)
    found = made_verdict(None, origin, BiasPrediction(), monkeypatch, kinetic_temperature=heat)
    assert found.kinetic_temperature == pytest.approx(heat.mean() / 2.5)
    assert "the momenta are hotter than they should be by 40%" in found.verdict
    known = BiasPrediction(0.0, 0.06, 0.06)
    found = made_verdict(None, origin, known, monkeypatch, kinetic_temperature=heat)
    assert "momenta" not in found.verdict
    assert "standard deviations may be 6% too wide" in found.verdict
    almost = BiasPrediction(0.0, -0.05, -0.05)
    found = made_verdict(None, origin, almost, monkeypatch, kinetic_temperature=heat)
    assert len(found.reasons) == 1
    assert "momenta" in found.verdict
    cold = made_origin(temperature=0.0)
    found = made_verdict(None, cold, BiasPrediction(), monkeypatch, kinetic_temperature=heat)
    assert found.kinetic_temperature is None


def test_what_theory_says_comes_into_the_verdict(monkeypatch):
    predicted = BiasPrediction(0.013, 0.021, complaint="no law", skipped="the weather")
    found = made_verdict(None, made_origin(), predicted, monkeypatch)
    assert (found.noise_share, found.predicted_error) == (0.013, 0.021)
    assert found.reasons == ("no law",)
    assert found.skipped == ("the weather",)
    found = made_verdict(None, made_origin(), BiasPrediction(), monkeypatch)
    assert (found.reasons, found.skipped) == ((), ())


def test_draws_without_their_target_have_no_law():
    assert made_verdict().skipped == ("the run does not say what made it",)
    saved = SavedOrigin({"sampler": "SGHMC"}, 2.0)
    found = made_verdict(None, saved, kinetic_temperature=np.full((2, 6), 2.0))
    assert found.skipped == ("the law of the settings: the draws came without their target",)
    assert found.kinetic_temperature == 1.0
    assert found.is_sound


def test_moves_lost_in_rounding_are_told_where_no_accept_step_mends_them(monkeypatch):
    positions = np.full((2, 6, 3), 1e5, np.float32)
    small = sghmc.SGHMC(0.003, 1.0)
    right = BiasPrediction(0.0, 0.0)
    found = made_verdict(None, made_origin(small), right, monkeypatch, positions)
    assert "moves are lost in rounding" in found.verdict
    found = made_verdict(None, made_origin(small), BiasPrediction(), monkeypatch, positions)
    assert found.is_sound, "the draws may not be the parameters"
    exact = made_origin(sghmc.HMC(0.003, 3))
    assert made_verdict(None, exact, right, monkeypatch, positions).is_sound


def test_the_error_of_temperatures_is_that_of_the_means_of_chains():
    """They may be off by 2 · 5 % and four standard errors: sd/√(chains) of the chains' means."""
    away = np.array([-0.03, 0.01, 0.02])
    error = away.std(ddof=1) / np.sqrt(3)
    for sign in (-1, 1):
        reach = 0.1 + 4 * error
        for excess, is_told in ((0.999 * reach, False), (1.001 * reach, True)):
            means = 1 + sign * excess + away
            heat = means[:, None] + np.array([-0.5, 0.5, 0.0, 0.0])
            assert (temperature_complaint(heat, 0.05) is not None) == is_told


def test_the_error_of_the_temperatures_of_one_chain_is_that_of_its_draws():
    away = np.array([-0.3, 0.1, 0.2, 0.4, -0.4])
    reach = 0.1 + 4 * away.std() / np.sqrt(5)
    for excess, is_told in ((0.999 * reach, False), (1.001 * reach, True)):
        assert (temperature_complaint(1 + excess + away[None], 0.05) is not None) == is_told
    assert temperature_complaint(np.array([[9.0, np.nan]]), 0.05) is None


def test_the_tolerance_of_an_error_is_met_exactly():
    for error, is_told in ((0.05, False), (-0.05, False), (0.0501, True), (-0.0501, True)):
        origin = made_origin()
        assert (_bias(BiasPrediction(0.0, error, error), origin, 0.05) is not None) == is_told
    assert _bias(BiasPrediction(), origin, 0.05) is None


def test_whose_fault_an_error_is_depends_on_the_larger_share():
    """The larger error comes first; batches of half the data or more are FullBatch."""
    both = biased(0.4, 0.051, sghmc.Minibatch(100))
    assert both.index("gradient noise adds 40%") < both.index("besides, the step size")
    assert "step size" in biased(0.09, 0.051, sghmc.Minibatch(100))
    assert "step size" in biased(0.05, 0.05, sghmc.Minibatch(100))
    assert "gradient noise adds 6%" in biased(0.06, 0.05, sghmc.Minibatch(100))
    words = biased(0.41, 0.0, sghmc.NoisyGradient(3.0))
    assert words.endswith(
        "adds 41% to the injected noise; tell the sampler of it by gradient_noise"
    )
    words = biased(0.123, 0.0, sghmc.Minibatch(1_000))
    assert words.endswith("use ControlVariate or FullBatch()")  # 2,460 of 2,000 rows
    assert biased(0.123, 0.0, sghmc.Minibatch(100)).endswith("or batches of 246")


def test_what_a_tuning_knows_comes_after_the_reasons_of_the_draws():
    health = Health(("first",), 1.0, 200.0, None, None, None)

    class Tuning:
        complaints, unsettled, cares, searched = ("second", "third"), (), (), "here"
        engine = "exact"

    assert health.after(Tuning()).reasons == ("first", "second", "third")
    assert health.after(None) == health
    assert health.after(Tuning()).searched == "here"


@pytest.mark.parametrize(
    ("engine", "level"), [("exact", "trustworthy"), ("minibatch", "usable with care")]
)
def test_pilots_that_did_not_settle_are_answered_by_the_run(engine, level):
    """A non-centred logit and a local level were right, and called unsound for their pilots."""

    class Tuning:
        complaints, unsettled, cares, searched = (), ("pilots did not settle",), (), ""

        def __init__(self):
            self.engine = engine

    sound = Health((), 1.0, 500.0, None, None, None)
    assert sound.after(Tuning()).level == level
    apart = Health(("chains disagree",), 1.2, 500.0, None, None, None)
    assert apart.after(Tuning()).reasons == ("chains disagree", "pilots did not settle")


def test_the_evidence_has_every_number():
    health = Health((), 1.0123, 123.4, 0.98765, 0.0123, -0.0456, ("this", "that"), "w[0]")
    assert health.evidence == {
        "largest R-hat": "1.012",
        "smallest effective size": "123, of w[0]",
        "kinetic temperature (1 is right)": "0.988",
        "gradient noise adds to the injected noise": "+1.2%",
        "predicted error of standard deviations": "-4.6%",
        "other modes": "not searched: the draws show only those where a chain has been",
        "not looked at": "this; that",
    }
    bare = Health((), np.nan, np.nan, None, None, None).evidence
    assert [words for words in bare.values() if words != "not known"] == [bare["other modes"]]
    assert len(bare) == 6


def test_lost_chains_are_counted():
    is_finite = np.ones((3, 4), bool)
    assert _lost_chains(is_finite) is None
    is_finite[0, 1] = is_finite[0, 2] = is_finite[2, 3] = False
    assert _lost_chains(is_finite) == "2 of 3 chains became non-finite"
