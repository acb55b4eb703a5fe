"""What theory is asked about a run's settings, and what is made of its answer."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.core import matrices
from sghmc.results import prediction
from sghmc.results.prediction import BiasPrediction, Origin

ROWS = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
THETA = jnp.zeros(2)


def posterior(hyper=None):
    """Precision 7 · (1, 3) + 2: of the data, and of the prior."""
    scales = jnp.array([1.0, 3.0])
    if hyper is None:
        return sghmc.Posterior(
            lambda theta, x: -0.5 * jnp.sum(scales * (x - theta) ** 2),
            lambda theta: -jnp.sum(theta**2),
            ROWS,
        )
    return sghmc.Posterior(
        lambda theta, x, hyper: -0.5 * hyper * jnp.sum((x - theta) ** 2),
        lambda theta, hyper: -jnp.sum(theta**2),
        ROWS,
        hyper,
    )


def origin(sampler=None, gradient=None, target: Any = None, temperature=1.0, **others):
    target = posterior() if target is None else target
    gradient = sghmc.FullBatch() if gradient is None else gradient
    sampler = sghmc.SGHMC(0.1, friction=2.0) if sampler is None else sampler
    return Origin(target, sampler, gradient, gradient.prepare(target, THETA), temperature, **others)


def law(errors, temperature):
    return SimpleNamespace(
        standard_deviation_error=np.array(errors), effective_temperature=temperature
    )


@pytest.fixture
def asked(monkeypatch):
    """What `theory.stationary_law` is asked; with noise it answers 1.2, without 0.8."""
    calls = []

    def stationary_law(sampler, curvature, noise):
        calls.append((sampler, curvature, noise))
        return law([0.1, -0.3], 1.2) if np.any(noise) else law([0.05, 0.02], 0.8)

    monkeypatch.setattr(prediction.theory, "stationary_law", stationary_law)
    return calls


POINTS = np.array([[0.5, -1.0], [1.5, 2.0], [1.0, 5.0]])


def test_the_law_is_asked_for_with_the_curvature_at_the_mean_and_with_the_noise(asked):
    target = sghmc.Potential(lambda theta: theta[0] ** 4 / 12 + theta[0] * theta[1] + theta[1] ** 2)
    points = np.array([[1.0, -1.0], [3.0, 2.0], [5.0, 5.0]])
    noise = np.array([0.3, 0.7])
    found = prediction._bias_by_direction(origin(target=target), target, points, noise)
    (_, curvature, with_noise), (_, again, without) = asked
    np.testing.assert_allclose(curvature, [[9.0, 1.0], [1.0, 2.0]], rtol=1e-5)
    np.testing.assert_array_equal(again, curvature)
    np.testing.assert_array_equal(with_noise, np.diag(noise))
    np.testing.assert_array_equal(without, np.zeros((2, 2)))
    assert found.noise_share == pytest.approx(1.2 / 0.8 - 1)
    assert found == BiasPrediction(found.noise_share, -0.3, 0.05)


def test_settings_by_parameter_are_those_of_the_vector_that_the_law_is_of(asked):
    target = sghmc.Potential(lambda theta: jnp.sum(theta["b"] ** 2) + theta["a"] ** 2)
    mass = {"b": jnp.asarray(2.0), "a": jnp.asarray(3.0)}
    points = {"b": POINTS, "a": POINTS[:, 0]}
    sampler = sghmc.SGHMC(0.1, friction=2.0, mass=mass)
    whole = Origin(target, sampler, sghmc.FullBatch(), None, 1.0)  # pyright: ignore[reportArgumentType]
    assert prediction._bias_by_direction(whole, target, points, np.zeros(())).complaint is None
    assert asked[0][0].mass.tolist() == [3.0, 2.0, 2.0]


def test_a_matrix_of_noise_and_none_at_all(asked):
    target = sghmc.Potential(lambda theta: theta[0] ** 2 + theta[0] * theta[1] + theta[1] ** 2)
    dense = np.array([[0.5, 0.2], [0.2, 0.9]])
    prediction._bias_by_direction(origin(target=target), target, POINTS, dense)
    np.testing.assert_array_equal(asked[0][2], dense)
    found = prediction._bias_by_direction(origin(target=target), target, POINTS, np.zeros(()))
    assert len(asked) == 3
    assert found == BiasPrediction(0.0, 0.05, 0.05)


def test_where_there_is_no_mode_or_no_law_that_is_said(monkeypatch):
    saddle = sghmc.Potential(lambda theta: theta[0] ** 2 - theta[1] ** 2)
    found = prediction._bias_by_direction(origin(target=saddle), saddle, POINTS, np.zeros(()))
    assert "at the mean of the draws there is no mode" in str(found.skipped)
    bowl = sghmc.Potential(lambda theta: jnp.sum(theta**2))

    def refuse(*_):
        raise ValueError("too large a step")

    monkeypatch.setattr(prediction.theory, "stationary_law", refuse)
    found = prediction._bias_by_direction(origin(target=bowl), bowl, POINTS, np.zeros(()))
    assert found.complaint == "the settings have no law here: too large a step"
    monkeypatch.setattr(prediction.theory, "stationary_law", lambda *_: law([0.0], 0.0))
    found = prediction._bias_by_direction(origin(target=bowl), bowl, POINTS, np.zeros(()))
    assert "at temperature 0 it is a point" in str(found.skipped)


def test_an_estimated_noise_is_taken_off_whole_or_by_its_diagonal():
    """A diagonal estimate leaves correlations in the law: V̂ is then diag(V), not V."""
    noise = np.array([[0.5, 0.2], [0.2, 0.9]])

    def known(sampler) -> Any:
        return prediction._with_known_noise(sampler, noise)

    def estimating(**settings):
        return sghmc.SGHMC(0.1, 2.0, gradient_noise=sghmc.EmpiricalFisher(**settings))

    diagonal = known(estimating(diagonal=True)).gradient_noise
    np.testing.assert_array_equal(diagonal, np.diag([0.5, 0.9]))
    np.testing.assert_array_equal(known(estimating(diagonal=False)).gradient_noise, noise)
    plain = sghmc.SGHMC(0.1, 2.0, gradient_noise=0.3)
    assert known(plain) is plain
    root = np.array([[2.0, 0.0], [1.0, 3.0]])
    whitened = sghmc.Whitened(estimating(diagonal=False), np.zeros(2), root)
    np.testing.assert_allclose(known(whitened).dynamics.gradient_noise, root.T @ noise @ root)


def test_many_parameters_have_the_mean_of_what_noise_adds():
    """εV/(2τC) of SGHMC, εPV/(2τ) of SGLD, by hand."""
    like = {"a": np.zeros(2), "b": np.zeros(())}
    noise = np.array([0.3, 0.7, 1.1])

    def average(sampler, noise=noise, temperature=1.7):
        given: Any = SimpleNamespace(sampler=sampler, temperature=temperature)
        return prediction._average_bias(given, noise, like)

    friction = {"a": np.array([2.0, 4.0]), "b": np.array(5.0)}
    share = np.mean(0.1 * noise / (2 * 1.7 * np.array([2.0, 4.0, 5.0])))
    assert average(sghmc.SGHMC(0.1, friction)).noise_share == pytest.approx(share)
    assert average(sghmc.SGHMC(0.1, friction)).predicted_error == pytest.approx(
        np.sqrt(1 + share) - 1
    )
    assert average(sghmc.SGHMC(0.1, friction)).step_error == 0
    precondition = {"a": np.array([2.0, 4.0]), "b": np.array(5.0)}
    share = np.mean(0.1 * noise * np.array([2.0, 4.0, 5.0]) / (2 * 1.7))
    assert average(sghmc.SGLD(0.1, precondition)).noise_share == pytest.approx(share)
    one = average(sghmc.SGHMC(0.1, 3.0), np.asarray(0.6)).noise_share
    assert one == pytest.approx(0.1 * 0.6 / (2 * 1.7 * 3))
    subtracted = sghmc.SGHMC(0.1, 3.0, gradient_noise=sghmc.EmpiricalFisher())
    assert average(subtracted) == BiasPrediction(0.0, 0.0)


def test_many_parameters_without_a_constant_friction_are_not_judged():
    like = np.zeros(3)

    def words(sampler):
        given: Any = SimpleNamespace(sampler=sampler, temperature=1.0)
        return prediction._average_bias(given, np.ones(3), like).skipped or ""

    schedule = sghmc.SGHMC(lambda t: 0.1 / (1 + t), 3.0)
    for sampler in (schedule, sghmc.SGHMC(0.1, lambda t: 3.0), sghmc.HMC(0.1, 3, metropolis=False)):
        assert "constant SGHMC and SGLD only" in words(sampler)
    assert "too many parameters" in words(sghmc.SGHMC(0.1, 3 * np.eye(3)))


def test_the_noise_of_each_kind_of_gradient():
    points = jnp.asarray(POINTS)

    def noise(gradient, target=None, diagonal=False):
        run = origin(gradient=gradient, target=target)
        return prediction._gradient_noise(run, run.target, points, diagonal=diagonal)

    each = np.array([0.3, 0.7])
    np.testing.assert_array_equal(noise(sghmc.NoisyGradient(each)), each)
    np.testing.assert_array_equal(noise(sghmc.NoisyGradient(0.4)), [0.4, 0.4])
    assert noise(sghmc.FullBatch()) == 0
    assert "cancels over a pass" in noise(sghmc.Minibatch(3, replacement="epochs"))
    moving = sghmc.ControlVariate(3, center=np.zeros(2), renew_every=4)
    assert "its center moves with the chain" in noise(moving)
    flat = sghmc.Potential(lambda theta: jnp.sum(theta**2))
    assert noise(sghmc.FullBatch(), flat) == 0


def test_known_noise_is_given_in_any_way_that_a_gradient_takes():
    """As a pytree like the parameters, in the shape of a matrix of parameters, or dense."""

    def noise(variance, points, diagonal):
        gradient = sghmc.NoisyGradient(variance)
        run: Any = SimpleNamespace(gradient=gradient, estimator=None)
        return prediction._gradient_noise(run, posterior(), points, diagonal=diagonal)

    points = {"a": np.zeros((3, 2)), "b": np.zeros(3)}
    variance = {"a": np.array([0.3, 0.7]), "b": 1.1}
    np.testing.assert_array_equal(noise(variance, points, False), [0.3, 0.7, 1.1])
    table = np.array([[0.1, 0.2], [0.3, 0.4]])
    np.testing.assert_array_equal(noise(table, np.zeros((3, 2, 2)), True), [0.1, 0.2, 0.3, 0.4])
    dense = np.array([[0.5, 0.2], [0.2, 0.9]])
    np.testing.assert_array_equal(noise(dense, POINTS, False), dense)
    np.testing.assert_array_equal(noise(dense, POINTS, True), [0.5, 0.9])


def test_the_noise_of_batches_is_measured_at_the_draws(monkeypatch):
    """Rows chosen at random, at most four times as many as there are, for each of three draws."""
    calls = []

    def measured(estimator, target, points, rows, *, diagonal):
        calls.append((points, rows, diagonal))
        return jnp.eye(2)

    monkeypatch.setattr(prediction, "mean_gradient_noise", measured)
    run = origin(gradient=sghmc.Minibatch(3))
    for diagonal in (True, False):
        found = prediction._gradient_noise(run, run.target, POINTS, diagonal=diagonal)
        np.testing.assert_array_equal(found, np.eye(2))
        points, rows, asked = calls[-1]
        assert asked == diagonal
        np.testing.assert_array_equal(points, POINTS.astype(np.float32))
        assert rows.shape == (3, 28)
        assert set(np.unique(rows)) == set(range(7))
    monkeypatch.setattr(prediction, "_MAX_NUMBERS", 22)
    prediction._gradient_noise(run, run.target, POINTS, diagonal=True)
    assert calls[-1][1].shape == (3, 11)


def test_draws_are_taken_evenly_from_the_finite_ones(monkeypatch):
    monkeypatch.setattr(prediction, "_NUM_POINTS", 3)
    positions = {"a": np.arange(20.0, dtype=np.float32).reshape(2, 5, 2)}
    target = sghmc.Potential(lambda p: jnp.sum(p["a"] ** 2))
    is_finite = np.ones((2, 5), bool)
    is_finite[0, 0] = is_finite[1, 4] = False
    found: Any = prediction._choose_points(target, positions, is_finite)
    np.testing.assert_array_equal(found["a"], [[2, 3], [8, 9], [16, 17]])
    assert found["a"].dtype == np.float64
    nothing = prediction._choose_points(target, positions, np.zeros((2, 5), bool))
    assert nothing == "no draw is finite"
    other = prediction._choose_points(target, {"b": positions["a"]}, is_finite)
    assert "the draws kept are not the parameters" in other
    monkeypatch.setattr(prediction, "_MAX_PARAMETERS", 1)
    assert "too many parameters" in prediction._choose_points(target, positions, is_finite)


@pytest.mark.parametrize("hyper", [None, np.arange(6.0, dtype=np.float32).reshape(2, 3)])
def test_hyperparameters_are_those_of_the_mean(hyper, monkeypatch):
    seen = []

    def record(origin, target, points, noise):
        seen.append(target.hyper)
        return BiasPrediction()

    monkeypatch.setattr(prediction, "_bias_by_direction", record)
    run = origin(target=posterior(hyper=jnp.asarray(1.5)))
    prediction.predict(run, POINTS[None], hyper, np.ones((1, 3), bool))
    assert (float(seen[0]), seen[0].dtype) == (1.5 if hyper is None else 2.5, np.float32)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (origin(is_adapted=True), "adapted in burn-in"),
        (origin(sghmc.PSGLD(0.1)), "not those of a linear step"),
        (origin(temperature=0.0), "at temperature 0 it is a point"),
        (
            origin(target=sghmc.Potential(lambda p, key: jnp.sum(p), stochastic=True)),
            "the potential is stochastic",
        ),
    ],
    ids=["adapted", "not affine", "cold", "stochastic"],
)
def test_settings_without_a_law_are_left_out(run, words):
    found = prediction.predict(run, POINTS[None], None, np.ones((1, 3), bool))
    assert str(found.skipped).startswith("the law of the settings: ")
    assert words in str(found.skipped)
    assert found.predicted_error is None


def test_an_accept_step_is_exact_and_other_settings_have_a_law():
    exact = origin(sghmc.HMC(0.1, 3))
    is_finite = np.ones((1, 3), bool)
    assert prediction.predict(exact, POINTS[None], None, is_finite) == BiasPrediction(0.0, 0.0)
    assert prediction._why_unknown(origin()) is None


@pytest.mark.parametrize("limit", [2, 1])
def test_up_to_a_limit_all_directions_are_looked_at(limit, monkeypatch):
    monkeypatch.setattr(prediction, "_MAX_DENSE", limit)
    monkeypatch.setattr(prediction, "_gradient_noise", lambda *args, diagonal: ("noise", diagonal))
    for name in ("_bias_by_direction", "_average_bias"):
        monkeypatch.setattr(prediction, name, lambda *args, name=name: (name, args))
    found: Any = prediction.predict(origin(), POINTS[None], None, np.ones((1, 3), bool))
    name, args = found
    if limit == 2:
        assert (name, args[3]) == ("_bias_by_direction", ("noise", False))
    else:
        assert (name, args[1]) == ("_average_bias", ("noise", True))
        np.testing.assert_array_equal(args[2], POINTS[0])
    monkeypatch.setattr(prediction, "_gradient_noise", lambda *args, diagonal: "nobody knows")
    found = prediction.predict(origin(), POINTS[None], None, np.ones((1, 3), bool))
    assert found == BiasPrediction(skipped="nobody knows")


def test_numbers_of_rows_and_draws_that_a_prediction_rests_on():
    assert (prediction._MAX_DENSE, prediction._NUM_CURVATURE_ROWS) == (150, 20_000)
    assert (prediction._NUM_POINTS, prediction._NUM_ROWS) == (32, 512)
    assert prediction._number_that_fits(32, 2, 1 << 25) == 2
    assert prediction._number_that_fits(32, 2, 1 << 21) == 16


def test_what_gradient_noise_is_relative_to():
    like = np.zeros(2)
    friction = prediction._damping(sghmc.SGHMC(0.1, 3.0).dynamics, like)
    preconditioner = prediction._damping(sghmc.SGLD(0.1, 4.0).dynamics, like)
    assert isinstance(friction, matrices.Diagonal)
    assert isinstance(preconditioner, matrices.Diagonal)
    np.testing.assert_allclose(friction.vector([2]), [3, 3])
    np.testing.assert_allclose(preconditioner.vector([2]), [0.25, 0.25])


def test_a_stream_has_no_rows_to_look_at_again():
    stream = sghmc.data.Stream([{"x": np.ones((3, 5))}], size=3)
    target = sghmc.Posterior(lambda t, x: 0.0, lambda t: 0.0, stream)
    found = prediction._choose_points(target, POINTS[None], np.ones((1, 3), bool))
    assert "a stream's rows cannot be looked at again" in found
    assert jax.tree.leaves(found) == [found]
