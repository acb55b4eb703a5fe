"""What a run does to one chain: which state, key, step and hyperparameters each part is given."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marked
import sghmc
from marked import LazyMarkedKernel, MarkedEstimator, MarkedKernel, MarkedState
from sghmc.adapt import Adaptation
from sghmc.core import random, runtime, tree
from sghmc.engine import chain as chain_file
from sghmc.engine.chain import GIBBS, GRADIENT, INIT, MOTION, NEVER, RunSpec
from sghmc.engine.layout import Batches, LoopState, Variates
from sghmc.types import StepInfo

T = 4


def same(found, wanted, rtol=1e-6):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol), found, wanted)


def carry(**parts) -> LoopState:
    usual = {
        "kernel": None,
        "state": MarkedState(marked.flat(), marked.flat(0.1)),
        "hyper": jnp.asarray(3.0),
        "anchor": jnp.asarray(7.0),
        "noise": None,
        "sums": None,
        "info": StepInfo(jnp.asarray(5.0), jnp.asarray(0.25), jnp.asarray(0.75)),
        "failed_at": jnp.asarray(NEVER, jnp.int32),
    }
    return LoopState(**usual | parts)


def observed(t=T):
    return jax.tree.map(lambda leaf: leaf + 10 + t, marked.start())


# What is kept of a draw


def test_draws_and_averages_are_taken_where_the_kernel_observes_a_step():
    """Neither at the end of the step, where the state is, nor where Gibbs updates look."""
    chain = marked.alone(averages={"a": lambda params, hyper: hyper * params["a"]})
    sums = tree.RunningSum.zeros({"a": marked.LIKE["a"]})
    after, record = chain.observe(T, carry(sums=sums), True)
    same(record.kept, observed())
    same(record.hyper, jnp.asarray(3.0))
    assert after.sums is not None
    same(after.sums.mean(), {"a": 3.0 * observed()["a"]})
    assert after.sums.num_terms == 1
    assert record.trace is None


def test_a_draw_carries_what_its_last_step_said():
    _, record = marked.alone().observe(T, carry(), True)
    assert record.info.potential == 5.0
    assert record.info.acceptance == 0.25
    assert record.info.data_share == 0.75
    assert record.info.kinetic_temperature == T + 0.5
    assert record.info.is_finite
    _, bare = marked.alone(has_info=False).observe(T, carry(), True)
    assert bare.info[:4] == (None, None, None, None)
    assert bare.info.is_finite


@pytest.mark.parametrize(
    ("parts", "is_finite"),
    [
        ({"failed_at": jnp.asarray(T, jnp.int32)}, False),
        ({"failed_at": jnp.asarray(T + 1, jnp.int32)}, True),
        ({"hyper": jnp.asarray(np.inf)}, False),
        ({"state": MarkedState(marked.flat() | {"b": jnp.full(1, np.nan)}, marked.flat())}, False),
        ({"state": MarkedState(marked.flat(), marked.flat(np.nan))}, True),
    ],
)
def test_a_draw_is_finite_if_its_numbers_are_and_no_step_up_to_it_failed(parts, is_finite):
    chain = marked.alone(averages={"b": lambda params, hyper: params["b"]})
    sums = tree.RunningSum.zeros({"b": marked.LIKE["b"]})
    after, record = chain.observe(T, carry(**{"sums": sums} | parts), True)
    assert record.info.is_finite == is_finite
    assert after.sums is not None
    assert after.sums.num_terms == is_finite


def test_a_draw_that_does_not_count_adds_nothing_and_a_trace_sees_the_mean_with_the_draw():
    chain = marked.alone(
        averages={"b": lambda params, hyper: params["b"]}, trace=lambda means: 2 * means["b"]
    )
    nothing = tree.RunningSum.zeros({"b": marked.LIKE["b"]})
    before = nothing.add({"b": jnp.asarray(1.0)}, jnp.asarray(True))
    after, record = chain.observe(T, carry(sums=before), True)
    assert record.trace == pytest.approx(2 * (1.0 + observed()["b"]) / 2)
    after, record = chain.observe(T, carry(sums=before), False)
    assert after.sums is not None
    assert after.sums.num_terms == 1
    assert record.trace == pytest.approx(2.0)
    _, record = chain.observe(T, carry(sums=None), True)
    assert record.trace is None


def test_keep_sees_hyperparameters_where_there_are_any():
    _, record = marked.alone(keep=lambda params, hyper: params["b"] * hyper).observe(
        T, carry(), True
    )
    assert record.kept == pytest.approx(3.0 * observed()["b"])
    _, record = marked.alone(keep=lambda params: params["a"][0]).observe(T, carry(hyper=None), True)
    same(record.kept, observed()["a"][0])


# Hyperparameters and memories


def test_a_gibbs_update_has_the_chains_key_the_step_the_middle_and_the_hyperparameters_of_now():
    seen = {}

    def update(key, params, target):
        seen.update(key=key, params=params, hyper=target.hyper)
        return target.hyper + 1

    chain = marked.alone(2, gibbs=sghmc.Gibbs(update))
    after = chain.update_hyper(T, carry())
    own = jax.random.fold_in(jax.random.fold_in(jax.random.key(21), 0), GIBBS)
    wanted = jax.random.key_data(jax.random.fold_in(own, T))
    np.testing.assert_array_equal(jax.random.key_data(seen["key"]), wanted)
    same(seen["params"], jax.tree.map(lambda leaf: leaf - 10 - T, marked.start()))
    assert seen["hyper"] == 3.0
    assert after.hyper == 4.0
    assert after.anchor == 7.0 + 100 * 4.0  # renewed, under the new hyperparameters
    # The state knows the gradient under them, too: that of ½ hyper (Σ rows · a² + b²).
    wanted = {"a": 4.0 * marked.ROWS.sum() * marked.flat()["a"], "b": 4.0 * marked.flat()["b"]}
    same(after.state.momentum, wanted)
    same(after.state.position, marked.flat())


def test_a_memory_follows_the_end_of_a_step_under_the_hyperparameters_of_now():
    after = marked.alone().move_anchor(carry(hyper=jnp.asarray(5.0)))
    assert after.anchor == 7.0 + 5.0 * 6.0


# The beginning


class Remembering(Adaptation):
    every: int = 2
    until: int = 9
    start: int = 0

    def begin(self, kernel, position):
        return position["a"][1, 0]

    def revise(self, moment, memory):
        kernel = eqx.tree_at(lambda k: k.scale, moment.kernel, moment.kernel.scale + 1)
        state = jax.tree.map(lambda leaf: 2 * leaf, moment.state)
        seen = (moment.t, moment.state.position["a"].shape, moment.hyper, moment.acceptance)
        return kernel, state, (memory, seen, moment.gradient())


def test_a_chain_begins_with_the_momenta_of_its_own_stream_and_knows_its_target():
    chain = marked.alone(estimator=MarkedEstimator(exact=False))
    begun = chain.initial_state(marked.flat(), 0)
    normals = random.normals_like(chain.keys[INIT], 0, 1, chain.layout.flat_like)
    same(jax.tree.leaves(begun.state.momentum), normals)
    same(begun.state.position, marked.flat())
    assert begun.hyper == 3.0
    assert begun.anchor == 3.0
    assert begun.failed_at == NEVER
    assert begun.kernel is begun.noise is begun.sums is begun.adaptation is None
    assert begun.info == StepInfo(None)
    exact = marked.alone().initial_state(marked.flat(), 0)
    assert exact.state.momentum["b"] == pytest.approx(3.0 * -2.0)  # cached


def test_averages_begin_with_no_terms():
    chain = marked.alone(averages={"a": lambda params, hyper: params["a"][0]})
    sums = chain.initial_state(marked.flat(), 0).sums
    same(sums, tree.RunningSum.zeros({"a": jnp.zeros(3)}))


def test_an_adaptation_begins_with_the_kernel_and_the_start_in_its_shape():
    chain = marked.alone(adapt=Remembering(), kernel=MarkedKernel(2.5))
    begun = chain.initial_state(marked.flat(), 0)
    assert begun.adaptation == marked.start()["a"][1, 0]
    assert isinstance(begun.kernel, MarkedKernel)
    assert begun.kernel.scale == 2.5
    assert isinstance(begun.kernel.scale, jax.Array)


def test_an_adaptation_sees_this_moment_and_a_gradient_of_the_next_step():
    chain = marked.alone(
        adapt=Remembering(),
        kernel=MarkedKernel(jnp.asarray(2.5)),
        estimator=sghmc.Minibatch(2).prepare(marked.POSTERIOR, marked.LIKE),
    )
    after = chain.update_kernel(T, carry(adaptation=jnp.asarray(11.0)))
    memory, (t, shape, hyper, acceptance), gradient = after.adaptation
    assert (memory, t, shape, hyper, acceptance) == (11.0, T, (2, 3), 3.0, 0.25)
    assert isinstance(after.kernel, MarkedKernel)
    assert after.kernel.scale == 3.5
    same(after.state.position, marked.flat(2.0))
    rows = random.integers(chain.keys[GRADIENT], T + 1, 1, 2, 5)
    total = 2.5 * marked.ROWS[np.asarray(rows)].sum()  # N/n, of the next step's batch
    wanted = {"a": 3.0 * total * marked.start()["a"], "b": 3.0 * marked.start()["b"]}
    same(gradient, jax.tree.map(lambda leaf: 2 * leaf, wanted))  # in the kernel's coordinates


# Variates and steps


def test_motion_and_gradients_have_streams_of_their_own():
    estimator = sghmc.Minibatch(2).prepare(marked.POSTERIOR, marked.LIKE)
    chain = marked.alone(estimator=estimator, kernel=MarkedKernel(gradients=3))
    motion = random.normals_like(chain.keys[MOTION], T, 2, chain.layout.flat_like)
    same(chain.draw(T, 2).motion, motion)
    rows = random.integers(chain.keys[GRADIENT], T, 2, 3 * 2, 5)
    np.testing.assert_array_equal(chain.draw(T, 2).gradient, rows)
    drawn = chain.draw(T)
    same(drawn.motion, random.normals_like(chain.keys[MOTION], T, 1, chain.layout.flat_like))
    np.testing.assert_array_equal(drawn.gradient, rows[:6])
    assert chain.draw(T, motion=False).motion is chain.draw(T, gradient=False).gradient is None
    same(chain.draw(T, gradient=False).motion, drawn.motion)
    np.testing.assert_array_equal(chain.draw(T, motion=False).gradient, rows[:6])


def test_a_look_is_the_first_evaluation_of_a_step():
    estimator = sghmc.Minibatch(2).prepare(marked.POSTERIOR, marked.LIKE)
    chain = marked.alone(estimator=estimator, kernel=MarkedKernel(gradients=3))
    rows = np.asarray(random.integers(chain.keys[GRADIENT], T, 1, 6, 5))[:2]
    at = marked.flat(0.5)
    seen = chain.evaluate(T, at, carry(hyper=jnp.asarray(2.0)))
    wanted = 2.5 * np.sum(marked.ROWS[rows]) * np.sum(np.asarray(at["a"]) ** 2) + at["b"][0] ** 2
    assert seen.potential == pytest.approx(0.5 * 2.0 * float(wanted))
    assert seen.grad["a"].shape == (6,)


def test_a_step_moves_by_its_number_its_noise_and_its_batch():
    estimator = sghmc.Minibatch(2).prepare(marked.POSTERIOR, marked.LIKE)
    chain = marked.alone(estimator=estimator)
    noise = [jnp.arange(6.0), jnp.asarray([9.0])]
    state, info = chain.step(T, Variates(noise, jnp.asarray([2, 4])), carry())
    total = 2.5 * (2.0 - 3.0)
    flat = marked.flat()
    wanted = 0.7 * flat["a"] + noise[0] + 0.1 * (T + 1) - 0.01 * 3.0 * total * flat["a"]
    same(state.position["a"], wanted)
    assert info.potential == pytest.approx(0.5 * 3.0 * (total * 91.0 + 4.0))
    bare = marked.alone(estimator=estimator, has_info=False)
    state, info = bare.step(T, Variates(noise, jnp.asarray([2, 4])), carry())
    assert info.potential is None
    same(state.position["a"], wanted)


def test_a_lazy_state_is_settled_to_the_end_of_its_step():
    given = carry()
    assert marked.alone().flush(T, given) is given
    chain = marked.alone(kernel=LazyMarkedKernel())
    after = chain.flush(T, carry())
    same(after.state.position, jax.tree.map(lambda leaf: leaf + 1000 + T, marked.flat()))
    same(jax.tree.leaves(after.state.momentum), chain.draw(T).motion)


def test_rows_of_a_source_are_those_of_the_steps_asked_for():
    rows = {"x": jnp.arange(30.0).reshape(10, 3)}
    places = jnp.asarray([[9, 8], [7, 6], [5, 4], [3, 2]], jnp.int32)
    batches = Batches(rows, places, jnp.asarray(20, jnp.int32))
    taken = batches.of_steps(21, 2)
    np.testing.assert_array_equal(taken["x"], np.asarray(rows["x"])[[7, 6, 5, 4]])
    chain = marked.alone(batches=batches)
    np.testing.assert_array_equal(chain.draw(22).gradient["x"], np.asarray(rows["x"])[[5, 4]])


def test_a_chains_own_kernel_takes_the_programs_place():
    chain = marked.alone(kernel=MarkedKernel(2.0, accepts=True))
    own = eqx.filter(MarkedKernel(jnp.asarray(3.0), accepts=True), eqx.is_array)
    assert isinstance(chain, RunSpec)
    kernel = chain.with_kernel(own).kernel
    assert isinstance(kernel, MarkedKernel)
    assert kernel.scale == 3.0
    assert kernel.accepts


# Estimated gradient noise


@pytest.mark.parametrize("diagonal", [True, False])
def test_the_noise_is_estimated_from_the_rows_of_the_coming_step(diagonal):
    """V̂ = (N²/n) s² of gradients in the kernel's coordinates: all of it, or its diagonal."""
    fisher = sghmc.EmpiricalFisher(diagonal, every=3, window=2)
    estimator = sghmc.Minibatch(3).prepare(marked.POSTERIOR, marked.LIKE)
    chain = marked.alone(estimator=estimator, kernel=MarkedKernel(jnp.asarray(1.5), fisher))

    def estimate(step, scale, hyper):
        rows = marked.ROWS[np.asarray(random.integers(chain.keys[GRADIENT], step, 1, 3, 5))]
        a = scale * np.arange(1.0, 7.0)
        gradients = np.concatenate([2 * hyper * rows[:, None] * a, np.zeros((3, 1))], axis=1)
        covariance = 25 / 3 * np.cov(gradients.T)
        return np.diag(covariance) if diagonal else covariance

    options = runtime.jit_options("once")
    begun = eqx.filter_jit(lambda: chain.initial_state(marked.flat(), 0), **options)()
    update = eqx.filter_jit(lambda given: chain.update_noise(jnp.int32(T), given), **options)
    first = estimate(0, 1.0, 3.0)
    assert begun.noise is not None
    assert isinstance(begun.kernel, MarkedKernel)
    same(begun.noise.mean, first.astype(np.float32), rtol=1e-4)
    assert begun.noise.mean.shape == ((7,) if diagonal else (7, 7))
    assert begun.noise.num_estimates == 1
    assert begun.noise.failed_at == 0
    assert begun.noise.allowed == pytest.approx(0.001)
    assert begun.kernel.scale == 1.5

    state = MarkedState(marked.flat(0.5), marked.flat())
    moved = begun._replace(state=state, hyper=jnp.asarray(2.0))
    moved = moved._replace(noise=begun.noise._replace(failed_at=jnp.asarray(NEVER, jnp.int32)))
    after = update(moved)
    second = estimate(T + 1, 0.5, 2.0)
    assert after.noise is not None
    same(after.noise.mean, ((first + second) / 2).astype(np.float32), rtol=1e-4)
    assert after.noise.failed_at == T + 1
    assert after.noise.allowed == pytest.approx(0.001 * (T + 2))
    # The window is of two: from the third on, half of what is new.
    third = update(after)
    assert third.noise is not None
    wanted = (first + second) / 4 + second / 2
    same(third.noise.mean, wanted.astype(np.float32), rtol=1e-4)


def test_streams_are_four_different_ones():
    """Equal ones would have gradients' noise follow that of the steps."""
    streams = (chain_file.MOTION, chain_file.GRADIENT, chain_file.GIBBS, chain_file.INIT)
    assert streams == (0, 1, 2, 3)
    assert chain_file.NUM_STREAMS == 4
