"""Control variates judged exactly: over all batches there are, and where no noise is left."""

import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import laws
import sghmc
from cases import params, posterior
from sghmc.core import random
from sghmc.engine.driver import OneDevice
from sghmc.gradients import Minibatch, control_variate
from sghmc.gradients.noise import scatter
from sghmc.posterior import mode
from sghmc.posterior.mode import find_mode

N, BATCH = 5, 3
DATA = np.array([[1.0, 0.3], [-2.0, 0.5], [0.4, 4.0], [3.0, -1.0], [0.2, 0.7]])
THETA = np.array([0.3, -0.7])
FAR = np.array([2.0, 5.0])
HYPER = 1.3


def log_likelihood(theta, x, hyper):
    """Neither Gaussian nor alike for all rows; the hyperparameter matters."""
    return -hyper * jnp.sum(jnp.logaddexp(0.0, x * theta)) - 0.1 * jnp.prod(theta - x)


def target(hyper=HYPER):
    return sghmc.Posterior(
        log_likelihood, lambda theta, hyper: -0.85 * hyper * jnp.sum(theta**2), DATA, hyper
    )


def all_batches(replacement):
    draw = itertools.product if replacement else itertools.permutations
    repeat = {"repeat": BATCH} if replacement else {"r": BATCH}
    return np.array(list(draw(range(N), **repeat)))


def estimates(gradient, position, batches, other_anchor=lambda estimator, target: None):
    """Ũ and ∇Ũ of every batch, in double precision, and the exact ones."""
    with jax.enable_x64(True):
        model, position = target(), jnp.asarray(position)
        estimator = gradient.prepare(model, position)
        anchor = other_anchor(estimator, model) or estimator.init_anchor(model)
        oracle = jax.jit(jax.vmap(lambda rows: estimator.oracle(model, rows, anchor)(0, position)))
        return jax.tree.map(np.asarray, (oracle(batches), model.evaluate(position)))


@pytest.mark.slow_cases("with-near")
@pytest.mark.parametrize("center", [THETA + 0.1, FAR], ids=["near", "far"])
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
def test_over_all_batches_the_mean_is_exact_and_the_covariance_as_foretold(replacement, center):
    gradient = sghmc.ControlVariate(BATCH, center, replacement)
    seen, exact = estimates(gradient, THETA, all_batches(replacement))
    np.testing.assert_allclose(seen.grad.mean(0), exact.grad, rtol=1e-10)
    np.testing.assert_allclose(seen.potential.mean(), exact.potential, rtol=1e-10)
    with jax.enable_x64(True):
        slope = jax.vmap(jax.grad(log_likelihood), (None, 0, None))
        change = slope(jnp.asarray(THETA), DATA, HYPER) - slope(jnp.asarray(center), DATA, HYPER)
        change = np.asarray(change)
    spread = np.cov(change.T, ddof=0 if replacement else 1)
    foretold = N**2 / BATCH * (1 if replacement else 1 - BATCH / N) * spread
    laws.assert_close(np.cov(seen.grad.T, ddof=0), foretold)
    assert np.linalg.eigvalsh(foretold)[0] > 1e-6


@pytest.mark.parametrize("fault", ["N/n forgotten", "nothing at the center", "prior scaled"])
def test_a_wrong_estimate_is_seen(fault, monkeypatch):
    class Faulty(sghmc.Posterior):
        def log_likelihood_sum(self, params, batch):
            scale = {"N/n forgotten": BATCH / N, "nothing at the center": 1.0, "prior scaled": 1.0}
            total = scale[fault] * super().log_likelihood_sum(params, batch)
            return total + (self.log_prior_at(params) if fault == "prior scaled" else 0.0)

        def log_likelihood_total(self, params):
            total = super().log_likelihood_total(params)
            return jax.tree.map(jnp.zeros_like, total) if "nothing" in fault else total

    monkeypatch.setattr(sghmc, "Posterior", Faulty)
    seen, _ = estimates(sghmc.ControlVariate(BATCH, FAR), THETA, all_batches(True))
    monkeypatch.undo()
    _, exact = estimates(sghmc.ControlVariate(BATCH, FAR), THETA, all_batches(True))
    assert np.max(np.abs(seen.grad.mean(0) - exact.grad)) > 0.05


def test_at_the_center_every_batch_gives_the_full_gradient():
    seen, exact = estimates(sghmc.ControlVariate(BATCH, THETA), THETA, all_batches(True))
    np.testing.assert_allclose(seen.grad, np.tile(exact.grad, (N**BATCH, 1)), rtol=1e-12)
    np.testing.assert_allclose(seen.potential, np.full(N**BATCH, exact.potential), rtol=1e-12)


def test_noise_falls_with_the_square_of_the_distance_from_the_center():
    batches = all_batches(True)

    def noise(gradient):
        return np.trace(np.cov(estimates(gradient, THETA, batches)[0].grad.T))

    near, nearer = (
        noise(sghmc.ControlVariate(BATCH, THETA + distance)) for distance in (0.02, 0.01)
    )
    assert near / nearer == pytest.approx(4, rel=0.05)
    assert near < noise(Minibatch(BATCH)) / 100


def test_a_center_that_follows_the_chain_stays_unbiased():
    def follow(estimator, model):
        return estimator.move_anchor(model, estimator.init_anchor(model), jnp.asarray(THETA + 0.2))

    gradient = sghmc.ControlVariate(BATCH, FAR, renew_every=3)
    seen, exact = estimates(gradient, THETA, all_batches(True), follow)
    np.testing.assert_allclose(seen.grad.mean(0), exact.grad, rtol=1e-10)
    stayed, _ = estimates(gradient, THETA, all_batches(True))
    assert np.all(seen.grad.std(0) < stayed.grad.std(0) / 2)


@pytest.mark.slow
def test_scatter_of_its_example_gradients_is_its_noise():
    """Over all rows: what one batch estimates, without the chance of a batch."""
    with jax.enable_x64(True):
        model = target()
        estimator = sghmc.ControlVariate(BATCH, FAR).prepare(model, jnp.asarray(THETA))
        anchor = estimator.init_anchor(model)
        terms = estimator.example_gradients(model, jnp.asarray(THETA), model.data, anchor)
        noise = np.asarray(estimator.noise_scale * scatter(terms, diagonal=False))
    seen, _ = estimates(sghmc.ControlVariate(BATCH, FAR), THETA, all_batches(True))
    laws.assert_close(np.cov(seen.grad.T, ddof=0), noise * (N - 1) / N)


def quadratic():
    with jax.enable_x64(True):
        return sghmc.Posterior(
            lambda theta, x: -0.7 * jnp.sum((x - theta) ** 2),
            lambda theta: -0.4 * jnp.sum((theta - 1) ** 2),
            np.array([0.3, -1.2, 2.5, 0.9]),
        )


def test_where_curvature_is_the_same_for_all_rows_no_noise_is_left():
    """The law of the exact gradient, for batches of any rows and a center far away."""
    batches = np.array(list(itertools.product(range(4), repeat=2)))
    sampler = sghmc.SGLD(0.05, temperature=1.7)
    gradient = sghmc.ControlVariate(2, center=np.array([9.0]))
    laws.judge_minibatch(quadratic(), sampler, gradient, batches, 0.0)
    with pytest.raises(AssertionError):
        laws.judge_minibatch(quadratic(), sampler, sghmc.Minibatch(2), batches, 0.0)


def double_hyper(key, theta, posterior):
    return 1.5 * posterior.hyper


def chain(gradient, **settings):
    return sghmc.sample(
        jax.random.key(0),
        target(jnp.float32(0.2)),
        sghmc.SGHMC(0.05, friction=2.0),
        jnp.asarray(THETA, jnp.float32),
        gradient=gradient,
        num_samples=4,
        thinning=2,
        progress=False,
        **settings,
    ).positions


def judge_memory(gradient, **settings):
    """A batch of all rows has no noise: the chain is that of the exact gradient."""
    np.testing.assert_allclose(
        chain(gradient, **settings), chain(sghmc.FullBatch(), **settings), rtol=1e-4, atol=1e-5
    )


def whole(center: np.ndarray | None = FAR, **settings):
    return sghmc.ControlVariate(N, center, replacement=False, **settings)


GIBBS = sghmc.Gibbs(double_hyper, every=3)


@pytest.mark.slow
@pytest.mark.parametrize(("every", "num_chains"), [(None, 1), (2, 1), (3, 2)])
def test_memory_is_renewed_when_hyperparameters_or_the_center_change(every, num_chains):
    judge_memory(whole(renew_every=every), gibbs=GIBBS, num_chains=num_chains)


@pytest.mark.slow
@pytest.mark.parametrize("stale", ["renew_anchor", "move_anchor"])
def test_memory_that_is_not_renewed_is_seen(stale, monkeypatch):
    kind = control_variate._ControlEstimator
    if stale == "renew_anchor":
        monkeypatch.setattr(kind, "renew_anchor", lambda self, target, anchor: anchor)
    else:  # the center moves, the sums over all data do not
        monkeypatch.setattr(
            kind,
            "move_anchor",
            lambda self, target, anchor, position: anchor._replace(center=position),
        )
    jax.clear_caches()
    with pytest.raises(AssertionError):
        judge_memory(whole(renew_every=None if stale == "renew_anchor" else 2), gibbs=GIBBS)
    jax.clear_caches()


@pytest.mark.slow
def test_the_center_moves_to_the_chain(monkeypatch):
    carries = []
    advance = OneDevice.advance

    def recorded(*args, **settings):
        carry, records = advance(*args, **settings)
        carries.append(jax.tree.map(np.array, carry.anchor.center))
        return carry, records

    monkeypatch.setattr(OneDevice, "advance", recorded)
    positions = chain(sghmc.ControlVariate(BATCH, FAR, renew_every=4))[0]
    np.testing.assert_array_equal(carries[-1], positions[3])  # draws are 2 steps: after step 8
    assert len(carries) > 1
    np.testing.assert_array_equal(carries[0], FAR.astype(np.float32))


SIZES = (11, 7)


def heavy_tails(theta, x, hyper):
    return -0.5 * hyper["precision"] * jnp.sum(jnp.log1p((x - theta) ** 2))


def log_prior(theta, hyper):
    return -0.5 * jnp.sum(theta**2)


def posteriors():
    rng = np.random.default_rng(0)
    return [
        sghmc.Posterior(
            heavy_tails,
            log_prior,
            rng.normal(size=(n, 2)).astype(np.float32) + i,
            {"precision": 1.0 + i},
        )
        for i, n in enumerate(SIZES)
    ]


@pytest.mark.slow
def test_every_stacked_posterior_has_its_own_mode(monkeypatch):
    estimators = []
    begin = OneDevice.begin

    def recorded(self, spec, positions, *, evaluates):
        estimators.append(spec.estimator)
        return begin(self, spec, positions, evaluates=evaluates)

    monkeypatch.setattr(OneDevice, "begin", recorded)

    def run(target, **settings):
        return sghmc.sample(
            jax.random.key(0),
            target,
            sghmc.SGHMC(0.05, friction=2.0),
            jnp.zeros(2),
            gradient=sghmc.ControlVariate(3),
            num_samples=10,
            num_chains=2,
            progress=False,
            **settings,
        ).positions

    together = run(sghmc.Posterior.stack(posteriors()), posterior_axis=0)
    for i, each in enumerate(posteriors()):
        mode = find_mode(each, jnp.zeros(2)).position
        np.testing.assert_allclose(estimators[0].center[i], mode, rtol=1e-5)
        np.testing.assert_allclose(together[i], run(each)[i], rtol=2e-4, atol=2e-5)
    assert not np.allclose(*estimators[0].center, rtol=0.1)


def test_any_pytree_and_any_number_as_center():
    center = {"bias": 1, "layers": (np.zeros((3, 2)), np.array([0, 1]))}
    estimator = sghmc.ControlVariate(3, center).prepare(posterior(), params())
    kinds = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), estimator.center)
    assert kinds == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params())


@pytest.mark.slow
def test_rows_are_those_of_a_minibatch():
    for replacement in (True, False, "epochs", "palindrome"):
        plain, controlled = (
            gradient.prepare(posterior(), params()).draw(
                random.words(jax.random.key(0)), 2, 3, 1, params()
            )
            for gradient in (
                Minibatch(3, replacement),
                sghmc.ControlVariate(3, params(), replacement),
            )
        )
        np.testing.assert_array_equal(plain, controlled)
    assert not sghmc.ControlVariate(3, replacement="epochs").is_independent


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1, but is 0"),
        ({"batch_size": 3, "replacement": "no"}, "replacement must be True, False, "),
        ({"batch_size": 3, "renew_every": 0}, "renew_every must be None or a whole number from 1"),
        ({"batch_size": 3, "renew_every": 2.5}, "renew_every must be None or .* but is 2.5"),
    ],
)
def test_what_cannot_be_is_refused_on_construction(settings, message):
    with pytest.raises(ValueError, match=message):
        sghmc.ControlVariate(**settings)


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (sghmc.ControlVariate(3, np.zeros(3)), r"center must be .*\(2,\), but is \(3,\)"),
        (sghmc.ControlVariate(3, {"a": THETA}), r"center must be a pytree like the parameters"),
        (sghmc.ControlVariate(3, np.array([np.nan, 0])), "center is not finite"),
        (sghmc.ControlVariate(6, THETA, False), "batch_size is 6, but the data have 5 rows"),
    ],
)
def test_what_does_not_fit_is_refused(gradient, message):
    with pytest.raises(ValueError, match=message):
        chain(gradient)


def test_a_potential_has_no_rows():
    flat = sghmc.Potential(lambda theta: theta @ theta)
    with pytest.raises(TypeError, match="ControlVariate needs data to draw from: give a Posterior"):
        sghmc.ControlVariate(3, THETA).prepare(flat, jnp.zeros(2))


def make_runs(gradient_of):
    """Four chains on a small posterior, with batches of their own and with shared ones."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 2)).astype(np.float32)
    target = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x * theta - 1) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        data,
    )
    return [
        sghmc.sample(
            jax.random.key(0),
            target,
            sghmc.SGHMC(0.05, friction=3.0, temperature=0.0),
            jnp.ones(2),
            gradient=gradient_of(shared),
            num_samples=30,
            num_chains=4,
            progress=False,
        ).positions
        for shared in (False, True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [sghmc.Minibatch, sghmc.ControlVariate])
def test_shared_batches_are_those_of_the_first_chain(kind):
    """Without injected noise batches are all that chains differ by, but for their momenta: none."""
    own, shared = make_runs(lambda shared: kind(5, shared=shared))
    np.testing.assert_allclose(shared[0], own[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shared[1:], np.broadcast_to(shared[:1], shared[1:].shape), rtol=1e-6)
    assert not np.allclose(own[1], own[0], rtol=1e-3)


def test_stacked_posteriors_do_not_share_batches():
    posterior = sghmc.Posterior(
        lambda theta, x: -0.5 * (x - theta) ** 2, lambda theta: -0.5 * theta**2, jnp.arange(6.0)
    )
    with pytest.raises(ValueError, match="cannot be shared"):
        sghmc.sample(
            jax.random.key(0),
            sghmc.Posterior.stack([posterior, posterior]),
            sghmc.SGLD(0.01),
            jnp.zeros(()),
            gradient=sghmc.Minibatch(2, shared=True),
            num_chains=2,
            posterior_axis=0,
        )


def test_without_a_center_it_is_the_mode_not_the_start():
    rng = np.random.default_rng(0)
    posterior = sghmc.Posterior(
        lambda theta, x: -0.5 * (x - theta) ** 2,
        lambda theta: -0.5 * theta**2,
        rng.normal(3.0, 1.0, 50).astype(np.float32),
    )
    estimator: Any = sghmc.ControlVariate(5).prepare(posterior, jnp.asarray(-4.0))
    expected = posterior.data.sum() / 51
    assert float(estimator.center) == pytest.approx(float(expected), abs=1e-3)


def test_a_center_that_has_moved_stays_there_when_hyperparameters_change():
    posterior = sghmc.Posterior(
        lambda theta, x, hyper: -0.5 * hyper * (x - theta) ** 2,
        lambda theta, hyper: -0.5 * theta**2,
        jnp.asarray([1.0, 2.0, 4.0]),
        hyper=jnp.asarray(1.0),
    )
    center = jnp.asarray(0.0)
    estimator: Any = sghmc.ControlVariate(2, center, renew_every=5).prepare(posterior, center)
    moved = estimator.move_anchor(posterior, estimator.init_anchor(posterior), jnp.asarray(2.0))
    renewed = estimator.renew_anchor(posterior.with_hyper(jnp.asarray(3.0)), moved)
    assert float(renewed.center) == 2.0
    # Σ hyper·(x − θ) at the new center, under the new hyperparameter.
    assert float(renewed.total.grad) == pytest.approx(3 * (1.0 - 0.0 - 2.0 + 2.0))


def test_an_estimate_is_that_of_its_formula_for_one_batch():
    """−∇log p(θ) − Σ∇ℓ(θ̂) − (N/n) Σ [∇ℓ(θ) − ∇ℓ(θ̂)], rows of the second batch; and for Ũ."""
    x = np.array([0.5, -1.0, 2.0, 3.0], np.float32)
    model = sghmc.Posterior(
        lambda theta, x: x * theta**3, lambda theta: -0.7 * theta**2, jnp.asarray(x)
    )
    theta, center, rows = 0.9, 0.4, [3, 0, 3]
    gradient = sghmc.ControlVariate(3, jnp.asarray(center), renew_every=7, shared=True)
    estimator: Any = gradient.prepare(model, jnp.asarray(theta))
    numbers = jnp.array([1, 1, 1, *rows])

    @jax.jit
    def facts(theta):
        anchor = estimator.init_anchor(model)
        examples = model.rows(numbers[3:])
        oracle = estimator.oracle(model, numbers, anchor)
        assert not oracle.is_exact
        return (
            oracle(1, theta),
            anchor.total,
            estimator.example_gradients(model, theta, examples, anchor),
            estimator.examples(model, numbers),
        )

    (value, grad), total, each, first = facts(jnp.asarray(theta))
    batch = x[rows].sum()
    slope = -(-1.4 * theta) - 3 * x.sum() * center**2
    slope -= 4 / 3 * batch * 3 * (theta**2 - center**2)
    np.testing.assert_allclose(grad, slope, rtol=1e-5)
    potential = 0.7 * theta**2 - x.sum() * center**3 - 4 / 3 * batch * (theta**3 - center**3)
    np.testing.assert_allclose(value, potential, rtol=1e-5)
    np.testing.assert_allclose(total, [x.sum() * center**3, 3 * x.sum() * center**2], rtol=1e-5)
    np.testing.assert_allclose(each, -3 * x[rows] * (theta**2 - center**2), rtol=1e-5)
    assert (estimator.renew_every, estimator.is_shared, estimator.takes_rows) == (7, True, True)
    assert estimator.noise_scale == pytest.approx(16 / 3)
    np.testing.assert_array_equal(first, x[[1, 1, 1]])


def test_by_default_the_center_stays_and_chains_have_their_own_batches():
    usual = sghmc.ControlVariate(3)
    assert (usual.center, usual.renew_every, usual.shared) == (None, None, False)
    assert usual.replacement is True


def test_a_center_that_is_no_mode_is_told(monkeypatch):
    """Where a Hessian says so: of many parameters, without one, nothing is known."""
    model = sghmc.Posterior(lambda t, x: x * t, lambda t: -(t**2), jnp.ones(3))
    for hessian, distance, is_told in ((np.eye(1), 9.0, True), (np.eye(1), 0.0, False),
                                       (None, 9.0, False)):  # fmt: skip
        found = mode.Mode(jnp.asarray(2.0), 0.0, hessian, distance)
        monkeypatch.setattr(control_variate, "find_mode", lambda *args, found=found: found)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            estimator: Any = sghmc.ControlVariate(3).prepare(model, jnp.asarray(1.0))
        assert float(estimator.center) == 2.0
        assert any("No mode was found" in str(each.message) for each in seen) == is_told
