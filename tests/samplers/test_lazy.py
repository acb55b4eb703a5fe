"""Lazy steps have the law of the sampler itself: enumerated, and run by the engine without noise.

The model is linear in its parameters, so that every step is affine, and all batches of a few
examples are gone through. At temperature 0 nothing is random but the batches, which both samplers
share: then the chains themselves are the same.
"""

import functools
import itertools
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

import sghmc
from laws import sghmc_covariance
from sghmc import theory
from sghmc.core import runtime, tree
from sghmc.engine import driver, loop
from sghmc.engine.chain import RunSpec
from sghmc.engine.driver import Bar
from sghmc.engine.layout import InitialPositions, Layout

USER, ITEM = np.array([0, 2, 0]), np.array([[0, 1], [1, 1], [0, 2]])
RATING = np.array([0.4, -1.2, 0.7], np.float32)
SIZES = {"item": (4, 2), "shift": (), "user": (3, 1)}
"""Nobody sees user 1, nor item 3."""
MASS = {
    "item": np.linspace(0.8, 2.0, 8).reshape(4, 2),
    "shift": 1.3,
    "user": np.array([[0.7], [1.1], [1.6]]),
}
SAMPLER = sghmc.SGHMC(step_size=0.3, friction=0.9, mass=MASS, temperature=0.6)


def log_likelihood(rows, example, hyper):
    mean = jnp.sum(rows["item"] * jnp.array([[0.5, -0.8]])) + rows["user"][0] + rows["shift"]
    return -0.5 * 1.7 * (example["rating"] - mean) ** 2


def law(rows, hyper):
    """One precision for all users, another for each dimension of items, means of their own."""
    mean = {"item": hyper, "shift": 0.1, "user": 0.2 * (1.0 + rows["user"])[:, None]}
    return mean, {"item": jnp.array([1.5, 0.6]), "shift": 0.9, "user": 2.0}


@functools.cache  # one object, so that its programs are found again
def posterior(is_wide=False):
    return sghmc.Posterior(
        sghmc.RowLikelihood(
            log_likelihood,
            lambda example: {"item": example["item"], "shift": None, "user": example["user"]},
        ),
        sghmc.RowPrior(law),
        {"user": USER, "item": ITEM, "rating": RATING},
        hyper=jnp.asarray(0.4),
    )


def params(dtype=None):
    return {name: jnp.zeros(shape, dtype) for name, shape in SIZES.items()}


class Moves:
    """Steps of one chain on given batches, from z = (position, velocity) and given normals."""

    def __init__(self, sampler):
        self.target, self.like = posterior(is_wide=True), params()
        self.layout, self.size = Layout.of(self.like, 1), tree.size(params())
        self.kernel = sampler.prepare(self.like, 8)
        self.estimator = sghmc.Minibatch(2).prepare(self.target, self.like)
        flat = self.layout.flatten(self.like)
        self.state = self.kernel.init([jnp.zeros(leaf.size) for leaf in flat.values()], flat)
        _, self.unravel = ravel_pytree(self.state[:2])
        self.num_normals = self.size * (3 if isinstance(sampler, sghmc.Lazy) else 1)

    def begin(self, z):
        return type(self.state)(*self.unravel(z), *self.state[2:])

    def oracle(self, batch):
        oracle = self.estimator.oracle(self.target, batch)
        return oracle.through(self.layout.shape, self.layout.flatten, keeps_rows=True)

    def step(self, t, state, batch, normals):
        if self.num_normals > self.size:
            return self.kernel.step_by(t, lambda slots: normals[slots], state, self.oracle(batch))[
                0
            ]
        noise = jnp.split(normals, np.cumsum(tree.sizes(self.like))[:-1])
        return self.kernel.step(t, noise, state, self.oracle(batch))[0]

    def settled(self, t, state, normals):
        if self.num_normals == self.size:
            return state
        whatever = self.oracle(jnp.zeros(2, jnp.int32))
        return self.kernel.flush_by(t, lambda slots: normals[slots], state, whatever)

    def law(self, batches, settle_after=()):
        """Of the state after each order of batches: where 0 goes, and the derivatives."""
        num_steps = batches.shape[1]
        is_settled = np.isin(np.arange(num_steps), [*settle_after, num_steps - 1])

        def one(state, step):
            t, batch, normals, is_settled = step
            state = self.step(t, state, batch, normals)
            return lax.cond(
                is_settled, lambda: self.settled(t, state, normals), lambda: state
            ), None

        def end(z, normals, batches):
            steps = jnp.arange(num_steps, dtype=jnp.int32), batches, normals, is_settled
            return ravel_pytree(lax.scan(one, self.begin(z), steps)[0][:2])[0]

        def derivatives(batches):
            origin = jnp.zeros(2 * self.size), jnp.zeros((num_steps, self.num_normals))
            by_state, by_noise = jax.jacfwd(end, (0, 1))(*origin, batches)
            by_noise = by_noise.reshape(2 * self.size, -1)
            return end(*origin, batches), by_state, by_noise @ by_noise.T

        found = jax.jit(jax.vmap(derivatives), **runtime.jit_options("once"))(jnp.asarray(batches))
        return jax.tree.map(np.asarray, found)


def assert_same(seen, expected):
    for a, b in zip(seen, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10 * np.max(np.abs(b)))


BATCHES = list(itertools.product(range(3), repeat=2))
"""Of two examples out of three, with replacement: a row may come up to four times in one."""


def orders(num_steps):
    return np.array(list(itertools.product(BATCHES, repeat=num_steps)), np.int32)


ONES = len(BATCHES) ** 3 // 2
"""The order of batches that see the second example only."""


@functools.cache
def laws():
    """Of three steps, by all 729 orders of batches: those of Lazy and of the sampler itself."""
    with jax.enable_x64(True):
        return Moves(sghmc.Lazy(SAMPLER)).law(orders(3)), Moves(SAMPLER).law(orders(3))


def test_every_order_of_batches_has_the_law_of_the_eager_sampler():
    """Where all parameters go at the end, and their noise, is the same for every order."""
    assert_same(*laws())


@pytest.mark.slow
def test_longer_orders_and_settling_in_between_have_the_same_law():
    """Rows skip up to nine steps; settling after some steps changes nothing but the normals."""
    sampler = SAMPLER.with_settings(gradient_noise={"item": 0.7, "shift": 0.2, "user": 0.5})
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        batches = np.array(BATCHES, np.int32)[rng.integers(9, size=(100, 10))]
        batches[:30, 1:] = 1  # user 0 seen once, then never again
        expected = Moves(sampler).law(batches)
        lazy = Moves(sghmc.Lazy(sampler))
        assert_same(lazy.law(batches), expected)
        assert_same(lazy.law(batches, settle_after=(3, 6, 7)), expected)


def test_a_row_that_nobody_sees_has_the_law_of_its_prior():
    """Three steps from the stationary law of SGHMC on a Gaussian end in that law."""
    (end, transition, noise) = (part[ONES] for part in laws()[0])
    place = [tree.size(params()) - 2, 2 * tree.size(params()) - 2]  # user 1
    precision, friction, mass = (np.array([[x]]) for x in (2.0, 0.9, 1.1))
    covariance = sghmc_covariance(precision, 0.3, friction, mass, 0.6)
    units = np.diag([1.0, 0.3 / 1.1])  # the velocity is that of a step
    covariance = units @ covariance @ units
    own, spread = (matrix[np.ix_(place, place)] for matrix in (transition, noise))
    np.testing.assert_allclose(own @ covariance @ own.T + spread, covariance, rtol=1e-10)
    mean = np.array([0.4, 0.0])  # 0.2 (1 + 1)
    np.testing.assert_allclose(own @ mean + end[place], mean, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(transition[place[0]].nonzero()[0], place)


def test_normals_of_a_step_are_all_different_ones():
    kernel = sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)).prepare(params())

    @jax.jit
    def slots():
        firsts = [table.slots(jnp.arange(table.num_rows)).reshape(-1) for table in kernel.tables]
        return jnp.concatenate([first + np.uint32(copy) for first in firsts for copy in range(3)])

    np.testing.assert_array_equal(np.sort(slots()), np.arange(3 * tree.size(params())))


# The engine


PAIRS = sghmc.Posterior(
    sghmc.RowLikelihood(
        lambda rows, pair, hyper: -0.5 * (1.0 - rows[0] @ rows[1]) ** 2, lambda pair: pair
    ),
    sghmc.RowPrior(lambda rows, hyper: (hyper, 1.0 + rows[:, None] / 5)),
    np.array([[0, 1], [1, 1], [2, 0]]),
    hyper=jnp.asarray(0.4),
)
"""One table, quick to compile. Nobody sees its last row."""


def further(key, params, posterior):
    """Hyperparameters that look at all rows, those that nobody saw lately among them."""
    return jnp.cos(posterior.hyper + jnp.sum(params))


def heavier(kernel, state, hyper):
    mass = jax.tree.map(lambda leaf: 1.2 + leaf**2, state.position)
    return kernel.with_mass(state, mass)


WARM = sghmc.SGHMC(0.3, friction=0.9, mass=np.linspace(0.8, 2.0, 8).reshape(4, 2))
COLD = WARM.with_settings(temperature=0.0)
OPTIONS = {
    "gibbs": sghmc.Gibbs(further, every=4),
    "averages": {"squares": lambda params, hyper: jax.tree.map(jnp.square, params)},
}
"""The same in all tests, and so their programs."""


def run(sampler, **options):
    return sghmc.sample(
        jax.random.key(0),
        PAIRS,
        sampler,
        jnp.full((4, 2), 0.5),
        gradient=sghmc.Minibatch(1),
        num_samples=3,
        thinning=6,
        progress=False,
        **OPTIONS,
        **options,
    )


def assert_equal_runs(seen, expected):
    """To rounding, which a few dozen steps have let grow."""
    for a, b in zip(*(jax.tree.leaves(each) for each in (seen, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-5 * np.max(np.abs(b)))


@pytest.mark.slow
@pytest.mark.parametrize("has_burnin", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_noise_a_run_is_that_of_the_eager_sampler(has_burnin):
    """Gibbs updates, changes of mass, draws and averages all see every row up to date."""
    adapt = sghmc.Adapt(heavier, every=3, until=12)
    options = {"adapt": adapt, "num_burnin": 2} if has_burnin else {}
    eager, lazy = (run(sampler, **options) for sampler in (COLD, sghmc.Lazy(COLD)))
    assert np.ptp(eager.positions[0, :, 3]) > 0.01  # rows that nobody sees move, too
    for name in ("positions", "hyper", "averages"):
        assert_equal_runs(getattr(lazy, name), getattr(eager, name))
    assert np.all(np.isfinite(lazy.info.potential))


@pytest.mark.slow
@pytest.mark.parametrize("observe", ["end", "middle"])
def test_several_chains_of_large_tables_without_noise(observe, monkeypatch):
    """The chain axis is then the first, and rows are settled in more than one stretch."""
    monkeypatch.setattr("sghmc.samplers.lazy._FLUSHED_ON_CPU", 100)
    rng = np.random.default_rng(1)
    data = rng.integers(301, size=(40, 2))
    target = sghmc.Posterior(
        sghmc.RowLikelihood(
            lambda rows, x: -0.5 * (1.0 - rows[0] @ rows[1]) ** 2, lambda pair: pair
        ),
        sghmc.RowPrior(lambda rows: (0.3, 1.0 + rows[:, None] / 300)),
        data,
    )

    def draw(sampler):
        return sghmc.sample(
            jax.random.key(0),
            target,
            sampler,
            jnp.full((3, 301, 2), 0.5) + 0.1 * jnp.arange(3.0)[:, None, None],
            init_axis=0,
            num_chains=3,
            gradient=sghmc.Minibatch(4, "epochs"),
            num_samples=3,
            thinning=7,
            progress=False,
        ).positions

    sampler = sghmc.SGHMC(0.1, friction=2.0, temperature=0.0, observe=observe)
    assert_equal_runs(draw(sghmc.Lazy(sampler)), draw(sampler))


@pytest.mark.slow
def test_a_run_with_noise_has_the_law_of_the_eager_sampler():
    """Means and variances against the exact law of the eager sampler, its batches enumerated.

    12 of each from 64 chains of 60 draws that are far apart (the standard errors allow for a
    correlation of 0.1), within 5 standard errors: one key of 10⁴ would fail.
    """
    sampler, gradient = SAMPLER.with_settings(step_size=0.15), sghmc.Minibatch(2)
    samples = sghmc.sample(
        jax.random.key(0),
        posterior(),
        sghmc.Lazy(sampler),
        params(),
        gradient=gradient,
        num_samples=60,
        num_burnin=2,
        thinning=150,
        num_chains=64,
        progress=False,
    )
    with jax.enable_x64(True):
        law = theory.minibatch_law(sampler, posterior(is_wide=True), gradient, params())
    draws = np.concatenate(
        [leaf.reshape(64 * 60, -1) for leaf in jax.tree.leaves(samples.positions)], axis=1
    )
    precision, mean = exact_law()
    exact = np.sqrt(0.6 * np.diag(np.linalg.inv(precision)))
    variance = np.diag(law.covariance)
    error = np.sqrt(1.2 / len(draws))
    away = (draws.mean(0) - mean - law.mean_error * exact) / np.sqrt(variance)
    assert np.max(np.abs(away)) < 5 * error
    # Batches make a mixture of Gaussians: its kurtosis is measured, not 3.
    kurtosis = np.mean((draws - draws.mean(0)) ** 4, 0) / draws.var(0) ** 2
    assert np.max(np.abs(draws.var(0) / variance - 1) / np.sqrt(kurtosis - 1)) < 5 * error


def exact_law():
    """Precision and mean of the posterior."""
    with jax.enable_x64(True):
        target, like = posterior(is_wide=True), params(jnp.float64)
        flat, unravel = ravel_pytree(like)
        precision = np.asarray(jax.hessian(lambda x: target.potential(unravel(x)))(flat))
        grad = np.asarray(ravel_pytree(target.gradient(like))[0])
    return precision, -np.linalg.solve(precision, grad)


def test_the_same_key_gives_the_same_chain_however_it_is_cut(tmp_path, monkeypatch):
    class CtrlC(Bar):
        def update(self, num_done, failed_at):
            if num_done == 6:
                signal.raise_signal(signal.SIGINT)

    whole = run(sghmc.Lazy(WARM))
    folder = sghmc.Checkpoint(tmp_path / "run", every=1)
    monkeypatch.setattr(driver, "Bar", CtrlC)
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)  # a draw at a time
    with pytest.warns(UserWarning, match="Interrupted after 1"):
        run(sghmc.Lazy(WARM), checkpoint=folder)
    monkeypatch.undo()
    resumed = run(sghmc.Lazy(WARM), checkpoint=folder)
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    assert np.ptp(whole.positions[0, :, 3]) > 0.01


def large_program(num_rows, num_steps):
    """A table, whose masses adapt and whose prior is learned, as a recommender's."""
    like = jax.ShapeDtypeStruct((num_rows, 3), jnp.float32)
    target = sghmc.Posterior(
        sghmc.RowLikelihood(lambda rows, x, hyper: -jnp.sum(rows**2), lambda pair: pair),
        sghmc.RowPrior(lambda rows, hyper: (0.0, hyper)),
        np.zeros((64, 2), np.int32),
        hyper=jnp.ones(3),
    )
    return RunSpec(
        target=target,
        kernel=sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)).prepare(like, num_steps),
        estimator=sghmc.Minibatch(8).prepare(target, like),
        gibbs=sghmc.Gibbs(lambda key, params, posterior: posterior.hyper, every=num_steps),
        adapt=sghmc.Adapt(heavier_rows, every=num_steps, until=num_steps),
        keep=lambda params, hyper: params[0],
        averages={},
        trace=None,
        keys=jnp.zeros((1, 4, 3), jnp.uint32),
        layout=Layout.of(like, 1),
        thinning=num_steps,
        is_stacked=False,
        has_info=False,
    )


def heavier_rows(kernel, state, hyper):
    return kernel.with_mass(state, jnp.full_like(state.position, 2.0))


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="reads what XLA makes for CPUs")
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_no_step_touches_a_whole_table():
    """In the loop over steps nothing is as large as a table but four writes of rows, in place: of
    the velocity, of its kicks, of the position and of the number of steps. No copy, no sum."""
    num_rows = 5003
    program = large_program(num_rows, num_steps=16)
    start = InitialPositions(jnp.zeros((1, num_rows, 3)), 0)
    carry = driver.OneDevice().begin(program, start, evaluates=False).carry
    one = np.int32(1)
    lowered = loop.compiled_draws().lower(program, carry, one, one, one, capacity=4)
    text = lowered.compile().compiled.as_text()
    parts = {part.split(" ")[0]: part for part in re.split(r"\n(?=%|ENTRY)", text)}
    loops = [parts[name] for name in re.findall(r"body=(%[\w.-]+)", text)]
    (steps,) = [body for body in loops if "scatter" in body]
    whole = rf"%(\S+) = \w+\[(?:{num_rows}|{num_rows},3|{3 * num_rows})\]\S* ([\w-]+)\("
    made = [
        name
        for name, kind in re.findall(whole, steps)
        if kind not in ("parameter", "get-tuple-element", "bitcast")
    ]
    assert len(made) == 4
    assert all("scatter" in name for name in made), made


# What it is not for


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda: sghmc.Lazy(sghmc.SGLD(0.1)), "Lazy needs SGHMC"),
        (lambda: sghmc.Lazy(sghmc.SGHMC(lambda t: 0.1, 1.0)), "step_size follows a schedule"),
        (lambda: sghmc.Lazy(sghmc.SGHMC(0.1, 1.0, resample_every=5)), "leave resample_every out"),
        (
            lambda: sghmc.Lazy(sghmc.SGHMC(0.1, 1.0, gradient_noise=sghmc.EmpiricalFisher())),
            "give gradient_noise as numbers",
        ),
        (lambda: sghmc.Cyclical(sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)), 10), "step_size follows"),
    ],
)
def test_what_lazy_steps_cannot_be_is_refused(sampler, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sampler().prepare(params(), 100)


def test_dense_matrices_are_refused():
    sampler = sghmc.Lazy(sghmc.SGHMC(0.1, 1.0, mass=np.eye(12) + 0.1))
    with pytest.raises(ValueError, match="not as dense matrices"):
        sampler.prepare(params())


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)), {"gradient": sghmc.FullBatch()}),
        (
            sghmc.Whitened(sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)), params(), 2.0),
            {"gradient": sghmc.Minibatch(2)},
        ),
        (
            sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)),
            {
                "gradient": sghmc.Minibatch(2),
                "trainable": {"item": True, "shift": False, "user": True},
            },
        ),
    ],
    ids=["all data", "other coordinates", "fixed parameters"],
)
def test_where_nothing_says_which_rows_a_batch_sees_it_is_an_error(sampler, options):
    with pytest.raises(TypeError, match="not known which they are"):
        sghmc.sample(jax.random.key(0), posterior(), sampler, params(), progress=False, **options)


def test_a_stepper_takes_the_sampler_inside():
    with pytest.raises(TypeError, match="give the sampler inside"):
        sghmc.Stepper(
            posterior(),
            sghmc.Lazy(sghmc.SGHMC(0.1, 1.0)),
            params(),
            gradient=sghmc.Minibatch(2),
        )


@pytest.mark.slow
def test_theory_knows_its_law():
    sampler = sghmc.SGHMC(0.3, friction=0.9, mass=1.3)
    seen, expected = (theory.stationary_law(s, 2.0) for s in (sghmc.Lazy(sampler), sampler))
    np.testing.assert_array_equal(seen.covariance, expected.covariance)
