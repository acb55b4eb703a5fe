"""However the loop is cut into blocks, it makes the steps that one would make by hand.

Of a program whose kernel is written for these tests: nothing but the loop is judged.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marked
import sghmc
from marked import LazyMarkedKernel, MarkedKernel, MarkedState
from sghmc.adapt import Adaptation
from sghmc.core import runtime, tree
from sghmc.engine import loop
from sghmc.engine.chain import GRADIENT, MOTION, NEVER, Blocking, RunSpec
from sghmc.engine.layout import Layout, LoopState
from sghmc.gradients import Oracle
from sghmc.types import Evaluation, StepInfo

FIRST, COUNT, THINNING, EVERY = 2, 3, 6, 4
CUT = Blocking(
    period=2,
    draws_per_block=2,
    block_length=2,
    block_has_motion=True,
    is_watched=True,
    adapts=False,
    is_padded=False,
    burnin="kept",
    records_after=False,
)
CUTS = {
    "draws together, the last block not full": CUT,
    "whole blocks": CUT._replace(is_padded=True),
    "steps of a period": CUT._replace(draws_per_block=0, block_length=1, burnin="skipped"),
    "normals step by step, seen once a draw": CUT._replace(
        draws_per_block=0, block_has_motion=False, is_watched=False, burnin="skipped"
    ),
    "one record, after the loop": CUT._replace(
        draws_per_block=0, is_watched=False, burnin="skipped", records_after=True
    ),
}


class CountedKernel(MarkedKernel):
    """Its noise is a number for every step, parameter and chain, quick to compile."""

    def draw(self, key, first_step, num_steps, like):
        starts = np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(like))])
        parts = zip(starts, jax.tree.leaves(like), strict=False)
        return [
            counted(key, MOTION, first_step, num_steps, leaf.size, start) * 0.1
            for start, leaf in parts
        ]


class CountedEstimator(marked.MarkedEstimator):
    """Two rows a step; ½ hyper (2.5 Σ rows · Σ a² + b²), whose gradient is written out."""

    exact: bool = eqx.field(static=True, default=False)
    shared: bool = eqx.field(static=True, default=False)

    @property
    def is_shared(self):
        return self.shared

    def draw(self, key, first_step, num_steps, num_gradients, like):
        return counted(key, GRADIENT, first_step, num_steps, 2, 0) % 5

    def oracle(self, target, noise, anchor=()):
        def evaluate(i, position):
            total = 2.5 * jnp.sum(jnp.asarray(marked.ROWS)[noise])
            a, b = position["a"], position["b"]
            potential = 0.5 * target.hyper * (total * jnp.sum(a**2) + b**2)
            return Evaluation(potential, {"a": target.hyper * total * a, "b": target.hyper * b})

        return Oracle(evaluate, target.potential, False)


def counted(key, stream, first_step, num_steps, width, start):
    steps, slots = np.divmod(np.arange(num_steps * width), width)
    number = 7 * (first_step + jnp.asarray(steps)) + jnp.asarray(3 * (start + slots))
    mark = (key[0] % 11 + stream).astype(jnp.int32)
    if key.ndim > 1:  # of all chains, their axis last
        number, mark = number[:, None], mark[None]
    return (number * (1 + mark)) % 13


def counted_by_hand(key, stream, t, width, start):
    mark = int(key[0]) % 11 + stream
    return ((7 * t + 3 * (start + np.arange(width))) * (1 + mark)) % 13


def update(key, params, target):
    return target.hyper + 0.001 * params["b"]


def program(num_chains=2, shared=False, **parts) -> RunSpec:
    usual = {
        "kernel": CountedKernel(),
        "estimator": CountedEstimator(shared=shared),
        "gibbs": sghmc.Gibbs(update, every=EVERY),
        "averages": {"b": lambda params, hyper: params["b"]},
        "thinning": THINNING,
        "keys": KEYS[:num_chains],
    }
    return marked.program(num_chains, **usual | parts)


KEYS = jnp.asarray(np.random.default_rng(8).integers(0, 1000, (2, 4, 3)), jnp.uint32)
SCALES = (1.0, -0.5)
"""Of the starts of both chains."""


def begun(kernel=None):
    scales = jnp.asarray(SCALES)
    position = jax.tree.map(lambda leaf: leaf[:, None] * scales[None], marked.flat())
    return LoopState(
        kernel=kernel,
        state=MarkedState(position, position),
        hyper=jnp.full(2, 3.0),
        anchor=jnp.zeros(2),
        noise=None,
        sums=tree.RunningSum({"b": jnp.zeros(2)}, {"b": jnp.zeros(2)}, jnp.zeros(2, int)),
        info=StepInfo(jnp.zeros(2)),
        failed_at=jnp.full(2, NEVER, jnp.int32),
    )


class Draws(NamedTuple):
    """Of one chain: what is kept, and what is so at the end."""

    a: np.ndarray
    b: np.ndarray
    hyper: np.ndarray
    potential: np.ndarray
    end: dict
    next_potential: float


def by_hand(chain: int, shared=False, gibbs=True) -> Draws:
    """Draws FIRST, … of one chain, step by step, in NumPy."""
    key = np.asarray(KEYS[chain])
    batch_key = np.asarray(KEYS[0 if shared else chain])[GRADIENT]
    a, b, hyper = SCALES[chain] * np.arange(1.0, 7.0), -2.0 * SCALES[chain], 3.0
    rows = []

    def seen(t):
        batch = marked.ROWS[counted_by_hand(batch_key, GRADIENT, t, 2, 0) % 5]
        total = 2.5 * batch.sum()
        return total, 0.5 * hyper * (total * np.sum(a**2) + b**2)

    end = (FIRST + COUNT) * THINNING
    for t in range(FIRST * THINNING, end):
        total, potential = seen(t)
        noise = 0.1 * counted_by_hand(key[MOTION], MOTION, t, 7, 0)
        a = 0.7 * a + noise[:6] + 0.1 * (t + 1) - 0.01 * hyper * total * a
        b = 0.7 * b + noise[6] + 0.1 * (t + 1) - 0.01 * hyper * b
        if gibbs and (t + 1) % EVERY == 0:
            hyper = hyper + 0.001 * (b - 10 - t)
        if (t + 1) % THINNING == 0:
            rows.append((a + 10 + t, b + 10 + t, hyper, potential))
    kept, others, hypers, potentials = (np.stack(column) for column in zip(*rows, strict=True))
    last = {"a": a, "b": np.array([b])}
    return Draws(kept, others, hypers, potentials, last, seen(end)[1])


@pytest.fixture(scope="module")
def expected():
    return [by_hand(chain) for chain in range(2)]


def made(whole, cut, monkeypatch, num_kept=1, count=COUNT, capacity=4, carry=None) -> Any:
    monkeypatch.setattr(loop, "blocking_of", lambda *_: cut)
    run = eqx.filter_jit(loop.make_draws, **runtime.jit_options("once"))
    numbers = map(np.int32, (FIRST, count, num_kept))
    return run(whole, begun() if carry is None else carry, *numbers, capacity=capacity)


def of_chain(carry, chain):
    return jax.tree.map(lambda leaf: leaf[..., chain], carry.state.position)


def close(found, wanted):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5), found, wanted)


@pytest.mark.parametrize("name", CUTS)
def test_draws_are_those_made_by_hand(name, expected, monkeypatch):
    cut = CUTS[name]
    carry, records = made(program(), cut, monkeypatch)
    for chain, wanted in enumerate(expected):
        close(of_chain(carry, chain), wanted.end)
        assert carry.hyper[chain] == pytest.approx(wanted.hyper[-1], rel=1e-5)
        assert carry.failed_at[chain] == NEVER
        first = COUNT - 1 if cut.records_after else 0  # of the last draw alone
        count = COUNT - first
        assert records.kept["a"].shape == (1 if cut.records_after else 4, 2, 3, 2)
        close(records.kept["a"][:count, ..., chain].reshape(count, 6), wanted.a[first:])
        close(records.kept["b"][:count, chain], wanted.b[first:])
        close(records.hyper[:count, chain], wanted.hyper[first:])
        assert carry.sums.total["b"][chain] == pytest.approx(wanted.b[first:].sum(), rel=1e-5)
        assert carry.sums.num_terms[chain] == count
        heat = (FIRST + 1 + np.arange(first, COUNT)) * THINNING - 1 + 0.5
        np.testing.assert_array_equal(records.info.kinetic_temperature[:count, chain], heat)
        if cut.is_watched:
            close(records.info.potential[:count, chain], wanted.potential[first:])
        else:  # after the last step of a draw, with the batch of the step to come
            assert carry.info.potential[chain] == pytest.approx(wanted.next_potential, rel=1e-4)


def test_draws_of_burnin_are_not_recorded_where_they_are_skipped(monkeypatch, expected):
    cut = CUTS["normals step by step, seen once a draw"]
    carry, records = made(program(), cut, monkeypatch, num_kept=0)
    assert not np.any(records.kept["b"])
    assert carry.sums.num_terms.tolist() == [0, 0]
    close(of_chain(carry, 0), expected[0].end)


def test_one_record_of_burnin_is_not_counted(monkeypatch):
    after, records = made(program(), CUTS["one record, after the loop"], monkeypatch, num_kept=0)
    assert after.sums.num_terms.tolist() == [0, 0]
    assert records.kept["b"].shape == (1, 2)


def test_a_program_without_room_for_records_has_none(monkeypatch, expected):
    carry, records = made(program(), CUT, monkeypatch, capacity=0)
    assert records is None
    close(of_chain(carry, 1), expected[1].end)


def test_blocks_that_do_not_divide_a_period_are_cut_short_and_batches_may_be_shared(monkeypatch):
    whole = program(shared=True, gibbs=None)
    cut = CUT._replace(period=6, draws_per_block=0, block_length=4, burnin="skipped")
    carry, _ = made(whole, cut, monkeypatch)
    for chain in range(2):
        wanted = by_hand(chain, shared=True, gibbs=False)
        close(of_chain(carry, chain), wanted.end)


# Failures


def test_the_first_failure_is_the_one_that_counts():
    failed = [
        int(loop._first_failure(jnp.asarray(at, jnp.int32), 7, jnp.isfinite(seen)))
        for at, seen in ((NEVER, 1.0), (NEVER, np.nan), (3, np.inf), (9, np.nan), (3, 1.0))
    ]
    assert failed == [NEVER, 7, 3, 7, 3]


@pytest.mark.parametrize(("has_info", "late"), [(True, 1), (False, 0)])
def test_a_step_is_judged_by_its_potential_or_else_by_its_state(has_info, late, monkeypatch):
    """The first step's potential is finite where it begins, and its state not where it ends."""
    whole = program(gibbs=None, has_info=has_info, kernel=CountedKernel(3e38), averages={})
    carry = begun()._replace(info=StepInfo(jnp.zeros(2) if has_info else None), sums=None)
    cut = CUT._replace(period=6, is_watched=True, draws_per_block=1)
    after, _ = made(whole, cut, monkeypatch, count=1, capacity=0, carry=carry)
    assert after.failed_at.tolist() == [FIRST * THINNING + late] * 2


# What is due between steps


class Doubling(Adaptation):
    every: int = 5
    until: int = 11
    start: int = 0

    def revise(self, moment, memory):
        kernel = eqx.tree_at(lambda k: k.scale, moment.kernel, 2 * moment.kernel.scale)
        return kernel, moment.state, memory


def updater(whole, *, adapts=True, **parts) -> Any:
    """What the only chain of a program has before and after the updates that follow step t."""
    state = MarkedState(marked.flat(), marked.flat())
    before = LoopState(
        kernel=eqx.filter(whole.kernel, eqx.is_array) if whole.adapt else None,
        state=state,
        hyper=jnp.asarray(3.0),
        anchor=jnp.asarray(0.5),
        noise=None,
        sums=None,
        info=StepInfo(jnp.asarray(0.0)),
        failed_at=jnp.asarray(NEVER, jnp.int32),
    )._replace(**parts)
    run = eqx.filter_jit(
        lambda t: loop.make_updates(whole, t, before, adapts=adapts), **runtime.jit_options("once")
    )
    return lambda t: (before, run(jnp.int32(t)))


def test_updates_are_made_after_the_steps_that_they_are_due_after():
    estimator = marked.MarkedEstimator(exact=False, every=3)
    gibbs = sghmc.Gibbs(lambda key, params, target: target.hyper + 1, every=4, start=5)
    kernel = MarkedKernel(jnp.asarray(1.0))
    whole = marked.program(kernel=kernel, estimator=estimator, gibbs=gibbs, adapt=Doubling())
    updated, found = updater(whole), {}
    for t in (1, 2, 3, 4, 7, 9, 11, 14):
        before, after = updated(t)
        found[t] = (
            bool(after.hyper != before.hyper),
            bool(after.anchor != before.anchor),
            bool(after.kernel.scale != before.kernel.scale),
        )
    nothing = (False, False, False)
    assert found == {
        1: nothing,
        2: (False, True, False),
        3: nothing,  # a Gibbs update that begins with step 5 only
        4: (False, False, True),
        7: (True, True, False),  # new hyperparameters renew the memory
        9: (False, False, True),
        11: (True, True, False),
        14: (False, True, False),  # after `until` nothing adapts
    }
    # Hyperparameters first, then the memory of where the chain has come to.
    _, after = updated(11)
    assert after.anchor == 0.5 + 100 * 4.0 + 4.0 * marked.start()["a"][1, 2]
    _, after = updater(whole, adapts=False)(4)
    assert after.kernel.scale == 1.0


def test_the_noise_is_estimated_after_every_so_many_steps(monkeypatch):
    def update_noise(self, t, carry):
        return carry._replace(noise=carry.noise + t)

    monkeypatch.setattr(RunSpec, "update_noise", update_noise)
    kernel = MarkedKernel(1.0, sghmc.EmpiricalFisher(every=3))
    updated = updater(marked.program(kernel=kernel), noise=jnp.asarray(100))
    assert [int(updated(t)[1].noise) for t in (1, 2, 3, 5)] == [100, 102, 100, 105]


def test_a_lazy_state_is_settled_before_whatever_looks_at_it():
    gibbs = sghmc.Gibbs(lambda key, params, target: params["b"], every=4)
    whole = marked.program(
        kernel=LazyMarkedKernel(), estimator=marked.MarkedEstimator(exact=False),
        gibbs=gibbs, thinning=3,
    )  # fmt: skip
    updated = updater(whole)
    for t, moved in ((0, 0.0), (2, 1002.0), (3, 1003.0)):
        before, after = updated(t)
        assert after.state.position["b"][0] - before.state.position["b"][0] == moved
    assert after.hyper == marked.start()["b"] + 1003 - 10 - 3


# Variates


def test_a_part_is_one_steps_share_of_all():
    variates = jnp.arange(12.0)
    np.testing.assert_array_equal(loop._part(variates, 2, 4), [6, 7, 8])
    assert loop._part(variates, 5, 1) is variates


def variates(whole):
    """Of steps 3 and 4: those of a block, and those of each chain alone."""
    alone = [dataclasses.replace(whole, keys=whole.keys[chain]) for chain in range(2)]
    of_chains = [own.draw(3, 2) for own in alone]
    return loop._block(whole, 3, 2, has_motion=True), of_chains


@pytest.mark.parametrize("size", [7, 300])
def test_a_block_has_the_variates_of_every_chain_step_after_step(size):
    """Small models have the chain axis last, large ones first; shared batches have none."""
    like = marked.LIKE if size == 7 else {"a": jnp.zeros((2, 150)), "b": jnp.zeros(())}
    layout = Layout.of(like, 2)
    for shared in (False, True):
        whole = program(shared=shared, layout=layout)
        block, of_chains = eqx.filter_jit(variates, **runtime.jit_options("once"))(whole)
        assert block.num_steps == 2
        for chain, (motion, gradients) in enumerate(of_chains):
            axis = -1 if size == 7 else 0
            found = [np.take(np.asarray(leaf), chain, axis) for leaf in block.variates.motion]
            jax.tree.map(np.testing.assert_array_equal, found, motion)
            seen = np.asarray(block.variates.gradient)
            seen = seen if shared else np.take(seen, chain, axis)
            wanted = of_chains[0][1] if shared else gradients
            np.testing.assert_array_equal(seen, wanted)
    assert loop._block(whole, 3, 2, has_motion=False).variates.motion is None
