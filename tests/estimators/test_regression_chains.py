"""Plans, step sizes and groups of the regression network's chains, and the law they sample."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.estimators import regression_chains
from sghmc.estimators.regression_chains import (
    ChainPlan,
    Explorer,
    ExplorerState,
    RegressionChains,
    Run,
    in_threads,
    num_groups,
)
from sghmc.estimators.regression_network import Kind, RegressionNetwork, columns
from sghmc.estimators.weighted_rows import WeightedRows
from sghmc.gradients import Oracle
from sghmc.samplers.microcanonical import MCHMC, MCHMCNoise
from sghmc.types import Evaluation

NETWORK = RegressionNetwork(2, (), "silu")
TABLE = columns(WeightedRows(np.zeros((30, 2)), np.zeros(30), np.ones(30)))
CHAINS = RegressionChains(NETWORK, TABLE, Kind.of("constant"))
SIZE = NETWORK.num_parameters


@pytest.mark.parametrize(
    ("num_steps", "num_draws", "plan"),
    [
        (9000, 50, ChainPlan(explore=300, settle=50, keep=100, length=20)),
        (9000, 400, ChainPlan(explore=1200, settle=200, keep=400, length=5)),
        (90, 50, ChainPlan(explore=60, settle=10, keep=50, length=1)),
    ],
)
def test_two_thirds_explore_a_ninth_settles_and_two_ninths_are_kept(num_steps, num_draws, plan):
    assert ChainPlan.of(num_steps, num_draws) == plan
    assert plan.going_on() == plan._replace(explore=plan.explore // 4)


def kernel_of(explore: int, settle: int, num_steps: int = 7):
    return Explorer(0.5, num_steps, explore, settle).prepare(jnp.zeros(3))


def state(**changed: Any) -> ExplorerState:
    values = {"log_step": np.log(0.5), "log_mean": -0.4, "error": 3.0, "weight": 2.0} | changed
    numbers = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
    return ExplorerState(jnp.zeros(3), jnp.array([1.0, 0, 0]), None, **numbers)


@pytest.mark.parametrize("error", [0.5, 40.0])
def test_exploration_takes_the_step_size_of_the_wanted_energy_error(error):
    """ε⁶ goes with the error; the wanted one is 5 (1/100)^(t/80) up to number 80 of 100."""
    for t, wanted in ((40, 0.5), (95, 0.05)):
        found = kernel_of(100, 10).with_new_step(t, state(), error, 0.9)
        errors, old = 0.8 * 3 + error, np.log(0.5)
        step = np.clip(np.log(wanted * (0.8 * 2 + 1) / errors) / 6, old - 0.5, old + 0.5)
        np.testing.assert_allclose([found.log_step, found.log_mean], step, rtol=1e-5)
        np.testing.assert_allclose([found.error, found.weight], [errors, 2.6], rtol=1e-5)


@pytest.mark.parametrize("acceptance", [0.95, 0.2])
def test_the_acceptance_settles_the_step_size_and_then_nothing_changes_it(acceptance):
    kernel = kernel_of(100, 10)
    found = kernel.with_new_step(106, state(), 0.5, acceptance)
    step = np.log(0.5) + (acceptance - 0.85) * 2 / (6 + 2) ** 0.6
    np.testing.assert_allclose(found.log_step, step, rtol=1e-5)
    np.testing.assert_allclose(found.log_mean, -0.4 + 4 / 7 * (step + 0.4), rtol=1e-5)
    kept = kernel.with_new_step(110, state(), 0.5, acceptance)
    np.testing.assert_allclose([kept.log_step, kept.log_mean], [np.log(0.5), -0.4], rtol=1e-5)


def bowl(theta):
    return jnp.sum(jnp.array([1.0, 4.0, 0.3]) * theta**2) / 2


def stepped(kernel, t, before, potential, normals=(0.3, -1.0, 0.7), uniforms=(0.5, 0.5)):
    oracle = Oracle(
        lambda i, theta: Evaluation(*jax.value_and_grad(potential)(theta)), potential, True
    )
    noise = MCHMCNoise([jnp.array(normals)], jnp.array(uniforms))
    step = jax.jit(lambda t, before: kernel.step(t, noise, before, oracle))
    return step(jnp.asarray(t), before._replace(cached=oracle(0, before.position)))


def test_an_exact_trajectory_is_that_of_the_public_sampler():
    """From the same start with the same noise: position, acceptance and the chosen step size."""
    before = state(log_step=-3.0, log_mean=np.log(0.4))._replace(position=jnp.array([0.5, -1.0, 2]))
    found, info = stepped(kernel_of(2, 3), 9, before, bowl, uniforms=(0.01, 0.8))
    plain = MCHMC(0.4, 7, jitter=0.4).prepare(jnp.zeros(3))
    public = plain.init([jnp.zeros(3)], before.position)
    wanted, said = stepped(plain, 9, public, bowl, uniforms=(0.01, 0.8))
    np.testing.assert_allclose(found.position, wanted.position, rtol=1e-5)
    np.testing.assert_allclose(info.acceptance, said.acceptance, rtol=1e-4)
    assert not np.allclose(found.position, before.position)


def test_the_first_exact_trajectory_has_three_tenths_of_the_explorers_step():
    after, _ = stepped(kernel_of(5, 3), 5, state(), bowl)
    assert abs(float(after.log_step) - np.log(0.15)) < 2 / 2**0.6


def test_exploration_takes_every_finite_trajectory_and_no_other():
    before = state(log_step=1.5)._replace(position=jnp.array([0.5, -1.0, 2.0]))
    moved, info = stepped(kernel_of(5, 3), 2, before, bowl, uniforms=(1.0, 0.5))
    assert info.acceptance < 1
    assert not np.allclose(moved.position, before.position)
    for t in (2, 6):
        kept, info = stepped(
            kernel_of(5, 3), t, before, lambda x: jnp.where(x[0] == 0.5, bowl(x), jnp.nan)
        )
        np.testing.assert_array_equal(kept.position, before.position)
        assert info.acceptance == 0


@pytest.mark.slow
def test_after_exploration_the_law_is_exact():
    """Of a Gaussian in four dimensions, through the engine, from far away.

    400 chains of 100 trajectories. Second moments have standard errors below 2 %, shown by the
    chains themselves: five of them, for eight comparisons, fail once in 10⁵ seeds.
    """
    precision = jnp.array([1.0, 4.0, 0.25, 2.0])
    samples = sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(lambda theta: jnp.sum(precision * theta**2) / 2),
        Explorer(0.01, 5, 60, 40),
        jnp.full(4, 9.0),
        num_burnin=100,
        num_samples=100,
        num_chains=400,
        progress=False,
    )
    assert samples.info.acceptance is not None
    assert 0.75 < samples.info.acceptance.mean() < 0.95
    for values, truth in ((samples.positions, 0.0), (samples.positions**2, 1 / precision)):
        by_chain = values.mean(1)
        error = by_chain.std(0) / 20
        assert np.all(np.abs(by_chain.mean(0) - truth) < 5 * error)
        assert np.all(error < 0.04 / np.asarray(precision) ** 0.5)


# The chains of a fit.


def drawn(levels, acceptance, value=0.0) -> Run:
    count = len(levels)
    draws = np.full((count, 3, SIZE), value) + np.arange(count)[:, None, None]
    return Run(draws, np.repeat(np.array(levels)[:, None], 3, 1), np.array(acceptance))


def test_chains_that_fell_behind_or_stand_still_draw_again(monkeypatch):
    """Those left behind from where the median chain is; those that did well keep their draws."""
    first = [drawn([1.0, 900.0], [0.9, 0.9]), drawn([2.0, 1.5], [0.9, 0.1], value=2.0)]
    second = [drawn([1.0, 1.5], [0.0, 0.8], value=100.0), drawn([9e9, 1.0], [0.0, 0.2], value=200)]
    third = [drawn([0.0, 1.0], [0.9, 0.7], value=300.0)]
    calls = []

    def run(chains, keys, starts, size, plan):
        calls.append((starts, plan))
        return [first, second, third][len(calls) - 1][-len(chains) :]

    monkeypatch.setattr(regression_chains, "in_threads", run)
    monkeypatch.setattr(regression_chains, "num_groups", lambda num_chains: 2)
    plan = ChainPlan.of(90_000, 3)
    found = CHAINS.sample(jax.random.key(0), 4, plan)
    short = plan._replace(explore=plan.explore // 20)
    assert [given for _, given in calls] == [plan, short, short]
    assert all(start is None for start in calls[0][0])
    # The second chain goes on from the third, whose potential is the median.
    np.testing.assert_array_equal(np.concatenate(calls[1][0])[:, 0], [0, 2, 2, 3])
    # Then the last one's acceptance is still too low: its group alone runs again.
    np.testing.assert_array_equal(np.concatenate(calls[2][0])[:, 0], [2, 201])
    np.testing.assert_array_equal(found.draws[:, 0, 0], [0, 101, 2, 301])
    np.testing.assert_array_equal(found.acceptance, [0.9, 0.8, 0.9, 0.7])
    assert found.num_replaced == 1


def test_threads_draw_by_keys_and_starts_of_their_own(monkeypatch):
    seen = []

    def words(key):
        return jax.random.key_data(key).tolist()

    def draw(self, key, position, plan, progress=False):
        seen.append((words(key), float(position[0, 0]), plan.keep))
        return Run(np.asarray(position)[:, None], np.zeros((2, 1)), np.ones(2))

    def train(self, key, num_chains):
        return np.full((num_chains, SIZE), 7.0)

    monkeypatch.setattr(RegressionChains, "draw", draw)
    monkeypatch.setattr(RegressionChains, "train", train)
    keys, plan = [jax.random.key(seed) for seed in (0, 1)], ChainPlan(10, 5, 5, 2)
    runs = in_threads([CHAINS, CHAINS], keys, [None, np.full((2, SIZE), 3.0)], 2, plan)
    assert [run.draws[0, 0, 0] for run in runs] == [7, 3]
    of_compiling, *of_groups = [
        words(jax.random.fold_in(jax.random.key(seed), number))
        for seed, number in ((0, 2), (0, 1), (1, 1))
    ]
    # One draw first, which compiles for both.
    assert seen[0] == (of_compiling, 7.0, 1)
    assert sorted(seen[1:]) == sorted([(of_groups[0], 7.0, 5), (of_groups[1], 3.0, 5)])


def test_chains_are_cut_in_halves_on_a_processor():
    is_host = jax.default_backend() == "cpu"
    assert [num_groups(count) for count in (1, 3, 8)] == [1, 1, 2 if is_host else 1]


def test_ctrl_c_ends_the_fit(monkeypatch):
    short = types.SimpleNamespace(positions=np.zeros((2, 3, SIZE)))
    monkeypatch.setattr(regression_chains, "run", lambda *arguments: short)
    with pytest.raises(KeyboardInterrupt):
        CHAINS.draw(jax.random.key(0), np.zeros((2, SIZE)), ChainPlan(10, 5, 5, 2))
