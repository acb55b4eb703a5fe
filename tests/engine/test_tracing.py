"""Whatever a run computes with is seen: what a user's function closes over, wherever it is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc

DATA = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
VALUE = {"now": 1.0}


def value():
    """What jax does not see is an argument."""
    return VALUE["now"]


def log_likelihood(theta, x, hyper):
    return -0.5 * hyper * jnp.sum((x - theta) ** 2)


def log_prior(theta, hyper):
    return -0.5 * jnp.sum(theta**2)


class Own(sghmc.Kernel):
    def init(self, normals, position):
        return sghmc.SGLD(0.001).prepare(position).init(normals, position)

    def step(self, t, noise, state, oracle):
        evaluation = oracle(0, state.position)
        moved = jax.tree.map(lambda x, g: x - 0.001 * value() * g, state.position, evaluation.grad)
        return state._replace(position=moved), sghmc.StepInfo(evaluation.potential)


class OwnSampler(sghmc.Sampler):
    def prepare(self, like, num_steps=1):
        return Own()


def gibbs(key, params, posterior):
    return posterior.hyper * value()


CALLS = {
    "target": {"log_prior": lambda theta, hyper: -0.5 * value() * jnp.sum(theta**2)},
    "keep": {"keep": lambda theta, hyper: value() * theta},
    "averages": {"averages": {"a": lambda theta, hyper: value() * theta}},
    "trace": {
        "averages": {"a": lambda theta, hyper: theta},
        "trace": lambda averages: value() * averages["a"],
    },
    "gibbs": {"gibbs": sghmc.Gibbs(gibbs, every=2)},
    "schedule": {"sampler": sghmc.SGHMC(lambda t: 0.001 * value() / (1 + t), 5.0)},
    "sampler": {"sampler": OwnSampler()},
}


def run(folder, **options):
    sampler = options.pop("sampler", sghmc.SGHMC(0.001, 5.0))
    prior = options.pop("log_prior", log_prior)
    data = options.pop("data", DATA)
    posterior = sghmc.Posterior(log_likelihood, prior, data, hyper=jnp.ones(()))
    return sghmc.sample(
        jax.random.key(0),
        posterior,
        sampler,
        jnp.zeros(2),
        gradient=sghmc.Minibatch(5),
        num_samples=6,
        checkpoint=sghmc.Checkpoint(folder),
        progress=False,
        **options,
    )


@pytest.mark.slow_cases("averages", "gibbs", "keep", "schedule", "target", "trace")
@pytest.mark.parametrize("name", CALLS)
def test_a_value_that_changed_is_seen_wherever_it_is_used(name, tmp_path, monkeypatch):
    first = run(tmp_path, **CALLS[name])
    again = run(tmp_path, **CALLS[name])
    np.testing.assert_array_equal(first.positions, again.positions)
    monkeypatch.setitem(VALUE, "now", 2.0)
    words = r"target\.log_prior was" if name == "target" else "what the run computes"
    with pytest.raises(sghmc.CheckpointError, match=words):
        run(tmp_path, **CALLS[name])


@pytest.mark.slow
def test_rows_of_a_source_are_traced_by_shape(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", DATA)
    source = sghmc.data.MemoryMapped(tmp_path / "x.npy")
    keep = CALLS["keep"]
    run(tmp_path / "run", data=source, num_chains=2, **keep)
    run(tmp_path / "run", data=source, num_chains=2, **keep)
    monkeypatch.setitem(VALUE, "now", 2.0)
    with pytest.raises(sghmc.CheckpointError, match="what the run computes"):
        run(tmp_path / "run", data=source, num_chains=2, **keep)
