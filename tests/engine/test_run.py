"""sample(): what it keeps, what repeats, what it says when something goes wrong."""

import functools
import io
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich
from rich.console import Console

import sghmc
from cases import halving, params, posterior
from sghmc.engine import chain, driver
from sghmc.engine import run as run_file
from sghmc.engine.chain import GRADIENT, MOTION
from sghmc.engine.driver import Bar

KEY = jax.random.key(7)
SAMPLER = sghmc.SGHMC(0.1, 2.0)
START = jnp.array([0.5, -1.0])


def potential(theta):
    return 0.5 * jnp.sum(theta**2) + 0.1 * jnp.sum(theta) ** 4


TARGET = sghmc.Potential(potential)
DATA = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)


def log_likelihood(theta, x):
    return -0.5 * jnp.sum((x - theta) ** 2)


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, DATA)


def sample(
    target: Any = TARGET, sampler: Any = SAMPLER, init: Any = START, *, key: Any = KEY, **given: Any
):
    settings = {"num_samples": 12, "progress": False} | given
    return sghmc.sample(key, target, sampler, init, **settings)


def close(one, other, rtol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6), one, other)


class Asked(Exception):
    """What a driver was made of."""


def driven(monkeypatch, **given):
    """The arguments of the driver of a run, which is not made."""

    class NoDriver:
        def __init__(self, *parts):
            raise Asked(*parts)

    monkeypatch.setattr(run_file, "Driver", NoDriver)
    with pytest.raises(Asked) as seen:
        sample(**given)
    return seen.value.args


def test_a_driver_gets_the_parts_of_its_run(monkeypatch):
    """The temperature of the last step; V̂, masses and whatever else is told of settings."""
    sampler = sghmc.SGLD(lambda t: 0.1 / (1 + t), temperature=lambda t: 1.0 + t)
    gradient = sghmc.Minibatch(2, shared=True)
    spec, positions, is_kept, origin, folder, reader, _ = driven(
        monkeypatch,
        target=POSTERIOR,
        sampler=sampler,
        gradient=gradient,
        num_burnin=2,
        num_samples=3,
        thinning=4,
        num_chains=2,
        keep=jnp.sum,
        averages={"mean": jnp.mean},
        info=False,
    )
    np.testing.assert_array_equal(is_kept, [False, False, True, True, True])
    assert (folder, reader, spec.thinning, spec.has_info) == (None, None, 4, False)
    assert (spec.keep, list(spec.averages), spec.is_stacked) == (jnp.sum, ["mean"], False)
    np.testing.assert_array_equal(spec.keys[0, GRADIENT], spec.keys[1, GRADIENT])
    assert np.any(spec.keys[0, MOTION] != spec.keys[1, MOTION])
    assert positions.init is START
    assert (origin.target, origin.sampler, origin.gradient) == (POSTERIOR, sampler, gradient)
    assert (origin.temperature, origin.is_adapted, origin.keeps_positions) == (20.0, False, False)


def test_a_driver_knows_what_adapts_and_which_draws_a_cycle_keeps(monkeypatch):
    adapt = sghmc.AdaptMass(until=8, first_window=4)
    spec, _, is_kept, origin, *_ = driven(
        monkeypatch, adapt=adapt, num_burnin=8, num_samples=4, num_chains=2, gibbs=None
    )
    assert (origin.is_adapted, origin.keeps_positions, spec.adapt) == (True, True, adapt)
    assert len(is_kept) == 12
    assert np.any(spec.keys[0, GRADIENT] != spec.keys[1, GRADIENT])
    cycles = sghmc.Cyclical(sghmc.SGLD(0.1), cycle_length=8)
    *_, is_kept, _, _, _, _ = driven(
        monkeypatch, sampler=cycles, num_burnin=2, num_samples=3, thinning=3
    )
    # Steps 2, 5, …: those of the second half of a cycle count; the last draw kept ends the run.
    wanted = [False, False, False, False, True, False, True, True]
    np.testing.assert_array_equal(is_kept, wanted)
    late = sghmc.SGLD(lambda t: jnp.where(t < 11, 0.1, -1.0))
    with pytest.raises(ValueError, match="is -1 at step 11"):
        sample(sampler=late, num_samples=6, thinning=2)


@pytest.fixture(scope="module")
def plain():
    return sample()


@pytest.fixture
def terminal(monkeypatch):
    """What the progress bar writes to a terminal."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr(rich, "_console", console)
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)
    return written


# What is kept


@pytest.mark.slow
def test_the_draws_of_every_leaf_in_its_own_shape_and_dtype():
    start = params()
    samples = sample(posterior(), init=start, num_samples=3, num_chains=2)
    assert jax.tree.structure(samples.positions) == jax.tree.structure(start)
    for drawn, leaf in zip(*map(jax.tree.leaves, (samples.positions, start)), strict=True):
        assert isinstance(drawn, np.ndarray)
        assert drawn.shape == (2, 3, *leaf.shape)
        assert drawn.dtype == leaf.dtype
        assert np.all(drawn[0] != drawn[1])


@pytest.mark.slow
def test_burnin_is_what_comes_first(plain):
    samples = sample(num_burnin=5, num_samples=7)
    close(samples.positions, plain.positions[:, 5:])
    close(samples.info.potential, plain.info.potential[:, 5:])
    assert samples.num_steps == plain.num_steps == 12


@pytest.mark.slow
@pytest.mark.parametrize("thinning", [2, 3])
def test_a_thinned_run_is_every_kth_draw_of_the_whole(thinning, plain):
    samples = sample(num_burnin=1, num_samples=12 // thinning - 1, thinning=thinning)
    close(samples.positions, plain.positions[:, 2 * thinning - 1 :: thinning])
    assert samples.num_steps == 12


@pytest.mark.slow
def test_keep_says_what_is_stored(plain):
    samples = sample(keep=lambda theta: {"norm": jnp.sum(theta**2), "first": theta[0]})
    close(samples.positions["norm"], np.sum(plain.positions**2, axis=-1))
    close(samples.positions["first"], plain.positions[..., 0])


@pytest.mark.slow
def test_averages_are_means_of_the_kept_draws_even_if_nothing_is_kept():
    averages = {"mean": lambda theta: theta, "square": lambda theta: jnp.sum(theta**2)}
    for settings in ({}, {"num_chains": 3}):
        draws = sample(num_burnin=3, thinning=2, **settings).positions
        samples = sample(
            num_burnin=3, thinning=2, keep=lambda theta: (), averages=averages, **settings
        )
        assert samples.positions == ()
        close(samples.averages["mean"], draws.mean(axis=1))
        close(samples.averages["square"], np.sum(draws**2, axis=-1).mean(axis=1))


def test_a_trace_follows_the_averages(plain):
    samples = sample(averages={"mean": lambda theta: theta}, trace=lambda means: means["mean"][0])
    steps = np.arange(1, 13)
    close(samples.trace, np.cumsum(plain.positions[..., 0], axis=1) / steps)


def test_info_of_each_draw(plain):
    assert plain.info.potential.shape == (1, 12)
    assert np.all(plain.info.is_finite)
    assert plain.info.acceptance is None
    before = np.concatenate([START[None], plain.positions[0, :-1]])
    close(plain.info.potential[0], jax.vmap(potential)(before))  # a step looks where it begins
    velocity = np.diff(np.concatenate([START[None], plain.positions[0]]), axis=0) / 0.1
    close(plain.info.kinetic_temperature[0], (1 - 0.1) * np.mean(velocity**2, axis=1), rtol=1e-3)


@pytest.mark.slow
def test_info_of_hmc_has_the_acceptance_and_the_potential_of_the_draw():
    samples = sample(sampler=sghmc.HMC(0.9, 3), num_samples=40)
    acceptance, draws = samples.info.acceptance, samples.positions
    assert acceptance is not None
    assert acceptance.shape == (1, 40)
    assert np.all((acceptance >= 0) & (acceptance <= 1))
    assert acceptance.min() < 1
    stayed = np.all(draws[:, 1:] == draws[:, :-1], axis=-1)
    assert np.all(acceptance[:, 1:][stayed] < 1)
    close(samples.info.potential[0], jax.vmap(potential)(draws[0]))


# What repeats


def test_the_same_key_gives_the_same_draws_and_another_key_others(plain):
    np.testing.assert_array_equal(sample().positions, plain.positions)
    assert np.all(sample(key=jax.random.key(8)).positions != plain.positions)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 300])
def test_a_chain_does_not_depend_on_how_many_there_are(size):
    """Few parameters have the chain axis last, many have it first, one chain has none."""
    target = sghmc.Potential(lambda theta: 0.5 * jnp.sum(theta**2))
    starts = jnp.asarray(np.random.default_rng(1).normal(size=(3, size)), jnp.float32)
    runs = {
        count: sample(target, init=starts[:count], init_axis=0, num_chains=count, num_samples=5)
        for count in (1, 2, 3)
    }
    for count in (1, 2):
        close(runs[count].positions, runs[3].positions[:count])
        close(runs[count].info.potential, runs[3].info.potential[:count])
    assert np.all(runs[3].positions[0] != runs[3].positions[1])


@pytest.mark.slow
def test_init_without_an_axis_is_the_start_of_every_chain():
    samples = sample(sampler=sghmc.SGD(0.1), num_chains=3, num_samples=2)
    close(samples.positions[1:], samples.positions[:2])
    one = START - 0.1 * TARGET.gradient(START)
    close(samples.positions[0, 0], one)


@pytest.mark.slow
@pytest.mark.parametrize("thinning", [1, 5])
def test_draws_do_not_depend_on_blocks_of_variates(thinning, monkeypatch):
    settings = {"num_samples": 6, "thinning": thinning, "num_chains": 2}
    usual = sample(POSTERIOR, gradient=sghmc.Minibatch(3), **settings)
    for variates in (1, 25):  # one step at a time; two steps, so that blocks do not fit draws
        monkeypatch.setattr(chain, "_BLOCK_VARIATES", variates)
        anew = functools.partial(log_likelihood)  # another function: nothing compiled fits it
        target = sghmc.Posterior(anew, log_prior, DATA)
        samples = sample(target, gradient=sghmc.Minibatch(3), **settings)
        close(samples.positions, usual.positions)


@pytest.mark.slow
def test_draws_do_not_depend_on_segments_or_the_progress_bar(plain, monkeypatch, capsys):
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)  # a draw at a time
    monkeypatch.setattr(driver, "_BLOCK_BYTES", 100)
    segmented = sample(progress=True, num_burnin=2, num_samples=10)
    close(segmented.positions, plain.positions[:, 2:])
    assert capsys.readouterr() == ("", "")  # no terminal, no bar
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e9)
    close(sample(num_burnin=2, num_samples=10).positions, plain.positions[:, 2:])


def test_nothing_is_traced_again_for_another_key_number_length_or_data_of_the_same_shape():
    traces = []

    def counted(theta, x):
        traces.append(1)
        return log_likelihood(theta, x)

    def go(seed, sampler, data, **given):
        target = sghmc.Posterior(counted, log_prior, data)
        settings = {"gradient": sghmc.Minibatch(3), "num_burnin": 2, "num_samples": 4} | given
        return sample(target, sampler, key=jax.random.key(seed), **settings).positions

    first = go(0, SAMPLER, DATA)
    once = len(traces)
    assert once > 0
    others = [
        go(1, SAMPLER, DATA),
        go(0, sghmc.SGHMC(0.05, 1.5, mass=2.0, temperature=0.5), DATA),
        go(0, SAMPLER, DATA + 1),
    ]
    assert len(traces) == once
    assert all(np.all(other != first) for other in others)
    longer = go(0, SAMPLER, DATA, num_samples=9)
    np.testing.assert_array_equal(longer[:, :4], first)
    go(0, SAMPLER, DATA, num_burnin=5)
    assert len(traces) == once


def test_schedules_count_steps_from_0_with_burnin_and_thinning():
    """Without a gradient SGD with rate t moves nowhere; a linear one adds up the rates."""
    line = sghmc.Potential(lambda theta: -jnp.sum(theta))
    sampler = sghmc.SGD(lambda t: 1.0 * t)
    samples = sample(line, sampler, jnp.zeros(()), num_burnin=2, thinning=3, num_samples=4)
    last = np.array([8, 11, 14, 17])  # the last step of each draw
    np.testing.assert_array_equal(samples.positions[0], last * (last + 1) / 2)


@pytest.mark.slow
def test_schedules_reach_the_loop_in_double_precision_too():
    with jax.enable_x64(True):
        sampler = sghmc.SGHMC(halving(0.1), halving(2.0), temperature=halving(1.0))
        samples = sample(sampler=sampler, init=jnp.zeros(2), thinning=2, num_burnin=1)
        assert samples.positions.dtype == np.float64
        assert np.all(samples.info.is_finite)


@pytest.mark.slow
def test_an_old_generator_is_welcome():
    key = jax.random.key(0, impl="rbg")
    one, three = (sample(key=key, num_chains=count, num_samples=2) for count in (1, 3))
    close(one.positions, three.positions[:1])


# Gibbs


def counting_posterior():
    return sghmc.Posterior(
        lambda theta, x, hyper: -0.5 * jnp.sum((x - theta) ** 2),
        lambda theta, hyper: -0.5 * jnp.sum(theta**2),
        DATA,
        hyper={"count": 0, "seen": jnp.zeros(2), "bits": jnp.zeros((), jnp.uint32)},
    )


def count_update(key, theta, posterior):
    return {
        "count": posterior.hyper["count"] + 1,
        "seen": theta,
        "bits": jax.random.bits(key, (), jnp.uint32),
    }


@pytest.mark.slow
def test_gibbs_updates_follow_every_kth_step_of_one_counter():
    settings = {"gibbs": sghmc.Gibbs(count_update, every=3), "num_chains": 2}
    samples = sample(counting_posterior(), num_burnin=1, thinning=2, num_samples=6, **settings)
    steps_done = 2 * (1 + np.arange(1, 7))
    np.testing.assert_array_equal(samples.hyper["count"], np.stack([steps_done // 3] * 2))
    every_draw = samples.hyper["bits"]
    assert len(np.unique(every_draw)) == 2 * len(np.unique(steps_done // 3))


@pytest.mark.slow
def test_gibbs_looks_half_a_drift_back():
    """With a constant step the position there is the mean of the last two."""
    settings = {"gibbs": sghmc.Gibbs(count_update), "num_samples": 5}
    samples = sample(counting_posterior(), **settings)
    path = np.concatenate([START[None], samples.positions[0]])
    close(samples.hyper["seen"][0], (path[1:] + path[:-1]) / 2)
    plain_sgld = sample(counting_posterior(), sghmc.SGLD(0.01), **settings)
    close(plain_sgld.hyper["seen"], plain_sgld.positions)


def test_the_next_step_and_keep_and_averages_see_new_hyperparameters():
    target = sghmc.Posterior(
        lambda theta, x, hyper: 0.0 * theta, lambda theta, hyper: hyper * theta, DATA, hyper=1.0
    )
    samples = sample(
        target,
        sghmc.SGD(1.0),
        jnp.zeros(()),
        gibbs=sghmc.Gibbs(lambda key, theta, posterior: 2 * posterior.hyper, every=2),
        keep=lambda theta, hyper: (theta, hyper),
        averages={"hyper": lambda theta, hyper: hyper},
        num_samples=6,
    )
    theta, hyper = samples.positions
    np.testing.assert_array_equal(hyper[0], [1, 2, 2, 4, 4, 8])
    np.testing.assert_array_equal(theta[0], [1, 2, 4, 6, 10, 14])
    np.testing.assert_array_equal(samples.hyper, hyper)
    assert samples.averages["hyper"] == pytest.approx(21 / 6)


# When something goes wrong

CLIFF = sghmc.Potential(lambda theta: -theta * jnp.where(theta > 3.5, jnp.nan, 1.0))
STARTS = jnp.array([0.0, -100.0, 1.0])
"""SGD(1.0) walks right by 1 a step: chain 0 stands at 4 after step 3, chain 2 after step 2."""


def walk(**given: Any):
    settings = {"num_samples": 6, "num_chains": 3, "init_axis": 0} | given
    return sample(CLIFF, sghmc.SGD(1.0), settings.pop("init", STARTS), **settings)


def test_divergence_raises_with_chain_step_and_remedy_and_carries_the_draws(monkeypatch):
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e9)
    with pytest.raises(sghmc.DivergenceError, match=r"step_size.*throw=False") as caught:
        walk()
    message = str(caught.value)
    assert "Chain 2 became non-finite at step 3" in message
    assert "2 of 3 chains did" in message
    samples = caught.value.samples
    assert samples.positions.shape[0] == 3
    assert samples.positions.shape[1] >= 4
    np.testing.assert_array_equal(samples.positions[:, :3], np.asarray(STARTS)[:, None] + [1, 2, 3])


def test_the_draws_of_an_error_stay_when_another_run_takes_their_files(tmp_path):
    """Of a mapped file that another run has cut short, a read would end the process (SIGBUS)."""
    with pytest.raises(sghmc.DivergenceError) as caught:
        walk(checkpoint=sghmc.Checkpoint(tmp_path / "run"))
    files = [*(tmp_path / "run").rglob("c.*")]
    assert files
    for path in files:
        path.write_bytes(bytes(path.stat().st_size))
    positions = caught.value.samples.positions
    np.testing.assert_array_equal(positions[:, :3], np.asarray(STARTS)[:, None] + [1, 2, 3])


def test_the_bar_tells_speed_and_health(terminal):
    sample(progress=True)
    shown = terminal.getvalue()
    assert "sampling" in shown
    assert "100 %" in shown
    assert "steps/s" in shown
    assert "all finite" in shown
    walk(progress=True, throw=False)
    assert "2 of 3 chains not finite" in terminal.getvalue()


def test_divergence_in_burnin_raises_too():
    with pytest.raises(sghmc.DivergenceError, match="Chain 2 became") as caught:
        walk(num_burnin=5)
    assert caught.value.samples.positions.shape == (3, 0)
    assert caught.value.samples.info.potential.shape == (3, 0)


def test_without_throw_draws_are_flagged_and_other_chains_unharmed():
    samples = walk(throw=False, averages={"mean": lambda theta: theta})
    sound = walk(init=jnp.array([-50.0, -100.0, -20.0]), averages={"mean": lambda theta: theta})
    expected = np.ones((3, 6), bool)
    expected[0, 4:] = expected[2, 3:] = False
    np.testing.assert_array_equal(samples.info.is_finite, expected)
    np.testing.assert_array_equal(samples.positions[1], sound.positions[1])
    np.testing.assert_array_equal(samples.averages["mean"], [2.5, -96.5, 3.0])


def test_a_chain_that_recovers_its_numbers_stays_flagged():
    """A potential that is not finite on the way says that the chain is lost from there on."""
    gap = sghmc.Potential(lambda theta: -theta + jnp.where(jnp.abs(theta - 3) < 0.1, jnp.inf, 0.0))
    samples = sample(gap, sghmc.SGD(1.0), jnp.zeros(()), num_samples=6, throw=False)
    np.testing.assert_array_equal(samples.positions[0], np.arange(1, 7))
    np.testing.assert_array_equal(samples.info.is_finite[0], [1, 1, 1, 0, 0, 0])


def test_a_last_draw_that_is_not_finite_does_not_pass():
    """The gradient of 0·√(3.5 − θ)₊ is not a number from 3.5 on, while the potential is one."""
    edge = sghmc.Potential(lambda theta: -theta + 0 * jnp.sqrt(jnp.maximum(3.5 - theta, 0)))
    settings = {"init": jnp.zeros(()), "sampler": sghmc.SGD(1.0), "num_samples": 5}
    with pytest.raises(sghmc.DivergenceError, match="Chain 0 became non-finite at step 4"):
        sample(edge, **settings)
    samples = sample(edge, throw=False, **settings)
    np.testing.assert_array_equal(samples.info.is_finite[0], [1, 1, 1, 1, 0])
    assert np.all(np.isfinite(samples.info.potential))


@pytest.mark.slow
def test_without_info_draws_are_the_same_and_no_potential_is_computed(plain):
    looks = []

    def counted(theta):
        looks.append(theta)
        return np.float32(0)

    @jax.custom_jvp
    def quadratic(theta):
        seen = jax.pure_callback(counted, jax.ShapeDtypeStruct((), jnp.float32), theta)
        return jnp.sum(theta**2) / 2 + seen

    quadratic.defjvp(lambda at, by: (quadratic(*at), jnp.sum(at[0] * by[0])))
    target, settings = sghmc.Potential(quadratic), {"init": jnp.ones(2), "num_samples": 40}
    full = sample(target, **settings)
    num_looks = len(looks)
    bare = sample(target, info=False, **settings)
    assert num_looks >= 40 > len(looks) - num_looks
    close(bare.positions, full.positions)
    assert bare.num_draws == 40
    assert bare.info.is_finite.all()
    assert bare.info.potential is bare.info.kinetic_temperature is bare.info.acceptance is None
    assert list(bare.to_arviz()["sample_stats"]) == ["diverging"]


@pytest.mark.parametrize("num_burnin", [0, 5])
def test_without_info_a_chain_that_diverges_is_found(num_burnin):
    steep = sghmc.Potential(lambda theta: 50 * theta**4)
    settings = {"num_chains": 2, "init_axis": 0, "num_burnin": num_burnin}
    with pytest.raises(sghmc.DivergenceError, match="Chain 1 became") as caught:
        sample(steep, sghmc.SGD(1e-3), jnp.array([0.01, 100.0]), info=False, **settings)
    assert caught.value.samples.num_draws == 0 or num_burnin == 0, "found after burn-in only"


def test_a_run_where_every_draw_is_lost_has_no_average():
    samples = walk(num_burnin=8, throw=False, averages={"mean": lambda theta: theta})
    assert np.all(np.isnan(samples.averages["mean"][[0, 2]]))
    assert np.isfinite(samples.averages["mean"][1])


class CtrlC(Bar):
    """A progress bar at which the user presses Ctrl-C, some times, after 100 draws."""

    times = 1

    def update(self, num_done, failed_at):
        if num_done > 100:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


def test_ctrl_c_returns_what_was_drawn(monkeypatch, plain):
    monkeypatch.setattr(driver, "Bar", CtrlC)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.warns(UserWarning, match=r"Interrupted after \d+ of 10000000 draws") as caught:
        samples = sample(num_samples=10**7, averages={"mean": lambda theta: theta})
    assert caught[0].filename == __file__
    assert signal.getsignal(signal.SIGINT) is handler
    count = samples.positions.shape[1]
    assert 100 < count < 10**7
    assert samples.num_steps == count
    assert samples.info.potential.shape == (1, count)
    close(samples.positions[:, :12], plain.positions)
    close(samples.averages["mean"], samples.positions.mean(axis=1, dtype=float), rtol=1e-4)


def test_ctrl_c_in_the_last_block_does_not_vanish(monkeypatch):
    class AtTheEnd(Bar):
        def update(self, num_done, failed_at):
            if num_done == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(driver, "Bar", AtTheEnd)
    with pytest.warns(UserWarning, match="Interrupted after 5 of 5 draws"):
        samples = sample(num_samples=5)
    assert samples.num_draws == 5
    assert samples.is_interrupted


def test_a_second_ctrl_c_stops_at_once(monkeypatch):
    monkeypatch.setattr(driver, "Bar", CtrlC)
    monkeypatch.setattr(CtrlC, "times", 2)
    # A shell starts background jobs with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            sample(num_samples=10**7)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_works_outside_the_main_thread(plain):
    """Where Python allows no signal handlers."""
    found = []
    thread = threading.Thread(target=lambda: found.append(sample()))
    thread.start()
    thread.join()
    close(found[0].positions, plain.positions)


@pytest.mark.parametrize("is_shared", [False, True])
def test_chains_see_batches_of_their_own_unless_they_share_them(is_shared):
    """Without noise of its own a chain is what its batches make of it."""
    samples = sample(
        POSTERIOR,
        sghmc.SGD(0.01),
        gradient=sghmc.Minibatch(2, shared=is_shared),
        num_chains=2,
        num_samples=3,
    )
    assert np.array_equal(*samples.positions) == is_shared


@pytest.mark.slow
def test_thinned_draws_are_every_third_of_the_same_chain():
    """Also what is told of them, which depends on the step where settings change with it."""
    sampler = sghmc.SGHMC(lambda t: 0.1 / (1 + t), 2.0)
    every, third = (sample(sampler=sampler, num_samples=12 // k, thinning=k) for k in (1, 3))
    close(third.positions, every.positions[:, 2::3])
    heats = every.info.kinetic_temperature
    assert heats is not None
    close(third.info.kinetic_temperature, heats[:, 2::3])
