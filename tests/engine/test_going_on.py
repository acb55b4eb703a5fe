"""A run goes on where it ended, with the bits of one longer run, or says why it cannot."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sghmc
from sghmc.results.selection import thinned

KEY = jax.random.key(3)
ROWS = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
POSTERIOR = sghmc.Posterior(
    lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2), lambda theta: -0.5 * jnp.sum(theta**2), ROWS
)
SCALED = sghmc.Posterior(
    lambda theta, x, scale: -0.5 * scale * jnp.sum((x - theta) ** 2),
    lambda theta, scale: -0.5 * jnp.sum(theta**2),
    ROWS,
    hyper=jnp.ones(()),
)
SGHMC = sghmc.SGHMC(0.05, friction=4.0)
CASES = {
    "one chain": (POSTERIOR, SGHMC, {"num_chains": 1, "num_burnin": 3}),
    "epochs, averages, trace": (
        POSTERIOR,
        SGHMC,
        {
            "gradient": sghmc.Minibatch(5, replacement="epochs"),
            "averages": {"square": lambda theta: theta**2},
            "trace": lambda averages: averages["square"],
            "thinning": 2,
        },
    ),
    "HMC": (POSTERIOR, sghmc.HMC(0.1, num_steps=3), {"keep": lambda theta: theta[0]}),
    "anchor": (POSTERIOR, SGHMC, {"gradient": sghmc.ControlVariate(5, renew_every=4)}),
    "Gibbs": (
        SCALED,
        SGHMC,
        {
            "gibbs": sghmc.Gibbs(
                lambda key, theta, posterior: 1 + 0.1 * jax.random.uniform(key), every=3
            )
        },
    ),
    "adapt": (
        POSTERIOR,
        SGHMC,
        {"adapt": sghmc.AdaptMass(until=12, first_window=4), "num_burnin": 12},
    ),
    "noise": (
        POSTERIOR,
        sghmc.SGHMC(0.02, friction=9.0, gradient_noise=sghmc.EmpiricalFisher(every=4)),
        {"gradient": sghmc.Minibatch(5)},
    ),
}


def draw(target, sampler, num_samples, **options):
    options = {"num_chains": 2, "progress": False} | options
    return sghmc.sample(KEY, target, sampler, jnp.zeros(2), num_samples=num_samples, **options)


def same(one, other, *, clock=True):
    parts = ("positions", "hyper", "trace", "averages", "num_steps")
    for found, wanted in [*((getattr(one, n), getattr(other, n)) for n in parts)]:
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
    jax.tree.map(np.testing.assert_array_equal, vars(one.info), vars(other.info))
    if clock:
        assert one.clock.shape == other.clock.shape
        assert (np.diff(one.clock) >= 0).all()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case == "one chain" else pytest.mark.slow) for case in CASES],
)
def test_more_draws_are_those_of_one_longer_run(case):
    target, sampler, options = CASES[case]
    short = draw(target, sampler, 5, **options)
    first = np.array(jax.tree.leaves(short.positions)[0])
    longer = short.more(4).more(2)
    same(longer, draw(target, sampler, 11, **options))
    same(short.more(6), longer)  # from one run as often as one likes
    np.testing.assert_array_equal(jax.tree.leaves(short.positions)[0], first)
    assert longer.seconds > short.seconds


def test_thinned_draws_go_on_thinned():
    short, long = draw(POSTERIOR, SGHMC, 8), draw(POSTERIOR, SGHMC, 15)
    same(thinned(short, 3).more(3), thinned(long, 3), clock=False)


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_more_draws(tmp_path):
    def run(num_samples, path="run"):
        saved = sghmc.Checkpoint(tmp_path / path)
        return draw(POSTERIOR, SGHMC, num_samples, checkpoint=saved)

    run(5)
    whole = draw(POSTERIOR, SGHMC, 9)
    longer = run(9)
    same(longer, whole)
    same(run(5, "other").more(4), whole)
    assert isinstance(longer.positions, np.ndarray)
    with pytest.raises(sghmc.CheckpointError, match="has 9 draws of each chain, more than the 7"):
        run(7)
    same(run(9), whole)  # nothing was lost


@pytest.mark.slow
def test_rows_of_a_file_are_read_on(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    source = sghmc.data.MemoryMapped(tmp_path / "rows.npy")
    target = sghmc.Posterior(POSTERIOR.log_likelihood, POSTERIOR.log_prior, source)
    options = {"gradient": sghmc.Minibatch(5, replacement="epochs")}
    same(draw(target, SGHMC, 5, **options).more(4), draw(target, SGHMC, 9, **options))


def test_a_run_that_was_stopped_goes_on_from_there():
    stopped = draw(POSTERIOR, SGHMC, None, until=sghmc.Until(gradients=2 * 7))
    assert stopped.num_draws == 7
    same(stopped.more(4), draw(POSTERIOR, SGHMC, 11))


@pytest.mark.slow
def test_what_belongs_to_a_length_is_refused(tmp_path):
    decay = sghmc.SGLD(optax.linear_schedule(0.01, 0.001, 8))
    for sampler in (decay, sghmc.Cyclical(SGHMC, cycle_length=4)):
        samples = draw(POSTERIOR, sampler, 4)
        with pytest.raises(ValueError, match=r"cannot go on: .* follows a schedule or cycles"):
            samples.more(1)
        saved = {"checkpoint": sghmc.Checkpoint(tmp_path / sampler.name)}
        draw(POSTERIOR, sampler, 4, **saved)
        with pytest.raises(sghmc.CheckpointError, match="num_samples was 4, is 5"):
            draw(POSTERIOR, sampler, 5, **saved)


def test_draws_without_a_state_are_refused(monkeypatch):
    samples = draw(POSTERIOR, SGHMC, 4)
    with pytest.raises(ValueError, match="n must be a whole number"):
        samples.more(0)
    with pytest.raises(ValueError, match="cannot go on: these draws have no state"):
        dataclasses.replace(samples, continuation=None).more(1)
    monkeypatch.setattr("sghmc.engine.run._MAX_STATE_BYTES", 1)
    with pytest.raises(ValueError, match="too large to be kept"):
        draw(POSTERIOR, SGHMC, 4).more(1)


def test_a_chain_that_is_lost_later_gives_all_draws():
    target = sghmc.Potential(lambda theta: -jnp.sum(jnp.exp(theta)))
    samples = sghmc.sample(
        KEY, target, sghmc.SGLD(0.01), jnp.zeros(1), num_samples=10, progress=False
    )
    with pytest.raises(sghmc.DivergenceError) as caught:
        samples.more(1000)
    assert caught.value.samples.num_draws > 10
    np.testing.assert_array_equal(caught.value.samples.positions[:, :10], samples.positions)


def test_the_last_positions_start_a_run_on_other_data():
    samples = draw(POSTERIOR, SGHMC, 4)
    np.testing.assert_array_equal(samples.last, samples.positions[:, -1])
    with pytest.raises(ValueError, match="keep stored something else"):
        _ = draw(POSTERIOR, SGHMC, 4, keep=lambda theta: theta[0]).last
