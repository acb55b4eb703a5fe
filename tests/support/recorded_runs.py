"""Short runs of everything public, whose results `recorded_runs.json` keeps.

    PYTHONPATH=src python tests/support/recorded_runs.py            # record all runs
    PYTHONPATH=src python tests/support/recorded_runs.py lazy gibbs # record only these

Record again only where a change is meant to change results, and say so in the commit. The runs of
PyTorch are recorded where it can be imported, and otherwise kept as they were.
`benchmarks/same_bits.py` compares them with those of another commit, bit for bit.

The tests compare to a tolerance, relative to the root mean square of an array. Another processor or
another version of jax adds numbers up in another order: that moves a float32 by about 1e-7 of
its size, and a few steps more than that by a factor of at most 100. A fault in a formula moves it
by a share of a step, which is 1e-2 and more.
"""

import dataclasses
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from cases import GRADIENTS, SAMPLERS, params, posterior

PATH = pathlib.Path(__file__).with_name("recorded_runs.json")
ROUNDING = 1e-4
"""Largest error of an array of a few steps, over its root mean square: see above."""
LONG_ROUNDING = 2e-3
"""The same for hundreds of steps, in which trajectories of a network part from each other."""
NETWORK_ROUNDING = 0.2
"""The same for networks that are trained and sampled: on four processors they parted by 5.4e-2."""
_NUM_ENTRIES = 24
"""Entries of an array that are stored, from its first to its last; besides, two summaries."""
_DIGITS = 7
KEY = jax.random.key(11)
ROWS = np.random.default_rng(5).normal(size=(40, 3)).astype(np.float32)


QUICK = {
    "hmc, full",
    "sghmc, minibatch without replacement",
    "sghmc schedules, epochs",
    "sgld, full",
    "sgnht, minibatch without replacement",
    "psgld, control variate",
    "sgd, full",
    "momentum, minibatch",
    "dense matrices",
    "stochastic rounding",
    "one chain",
    "many chains, last axis",
    "wide model, first axis",
    "gibbs",
    "control variate at the mode",
    "stacked posteriors",
    "shared batches",
    "trainable",
    "memory-mapped rows",
    "stepper",
    "auto:exact",
    "auto:minibatch",
    "tune without a mode",
    "linear regression",
    "network for numbers, student noise",
}
"""Runs of the default tests, about 25 seconds together, nearly all of them compilation. The others
are slow tests."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A function that returns a pytree of arrays, and how well other machines must agree."""

    results: Callable[[], Any]
    tolerance: float = ROUNDING
    num_devices: int = 1


def by_name() -> dict[str, Run]:
    """All recorded runs but those of PyTorch, which `torch_recorded_runs` has."""
    return {
        **_samplers_and_gradients(),
        **_samplers_of_their_own(),
        **_options(),
        **_adaptations(),
        **_tuned(),
        **_estimators(),
        **_recommenders(),
        **_mesh(),
    }


def all_by_name() -> dict[str, Run]:
    """All recorded runs that this environment can make."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return by_name()
    import torch_recorded_runs

    return by_name() | torch_recorded_runs.by_name()


# What is stored, and how it is compared.


def flat(results: Any) -> dict[str, np.ndarray]:
    """All arrays of a run's results by their path in the pytree."""
    leaves = jax.tree.leaves_with_path(results)
    return {jax.tree_util.keystr(path) or ".": np.asarray(leaf) for path, leaf in leaves}


def stored(array: np.ndarray) -> dict[str, Any]:
    """The type, the shape, the mean, the root mean square and some entries of an array."""
    kind = {"b": "bool", "i": "int", "u": "int"}.get(array.dtype.kind, str(array.dtype))
    values = array.astype(np.float64).ravel()
    some = values[_places(values.size)]
    summary = [values.mean(), np.sqrt(np.mean(values**2))] if values.size else [0.0, 0.0]
    return {
        "type": kind,
        "shape": list(array.shape),
        "mean, rms": [_rounded(each) for each in summary],
        "some": [_rounded(each) for each in some],
    }


def differences(recorded: dict[str, Any], results: Any, tolerance: float) -> list[str]:
    """Sentences that say where results differ from what is recorded by more than `tolerance`.

    Truth values and integers must be equal. The tolerance is relative to the root mean square.
    """
    found = {name: stored(array) for name, array in flat(results).items()}
    if found.keys() != recorded.keys():
        return [f"The arrays are {sorted(found)}, but were {sorted(recorded)}."]
    return [
        f"{name}: {words}"
        for name in recorded
        for words in _difference(recorded[name], found[name], tolerance)
    ]


def _difference(old: dict[str, Any], new: dict[str, Any], tolerance: float) -> Iterable[str]:
    for part in ("type", "shape"):
        if old[part] != new[part]:
            yield f"its {part} is {new[part]}, but was {old[part]}."
            return
    scale = abs(old["mean, rms"][1])
    is_real = old["type"] not in ("bool", "int") and np.isfinite(scale)
    allowed = tolerance * scale if is_real else 0.0
    for part in ("mean, rms", "some"):
        before, now = (np.array(each[part], np.float64) for each in (old, new))
        error = np.abs(now - before)
        error[np.isnan(error)] = np.inf
        error[(before == now) | (np.isnan(before) & np.isnan(now))] = 0
        if not np.all(error <= allowed):
            worst = int(np.argmax(error))
            yield (
                f"{part}[{worst}] is {now[worst]:.7g}, but was {before[worst]:.7g}; "
                f"{allowed:.2g} is allowed."
            )


def _places(size: int) -> np.ndarray:
    return np.unique(np.linspace(0, size - 1, min(size, _NUM_ENTRIES)).round().astype(int))


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


# How runs are made: those of several devices in one process that has as many.


def results(names: Iterable[str], runs: dict[str, Run] | None = None) -> dict[str, Any]:
    """All arrays of these runs by name and path; where a run raised an error, its text."""
    runs, found = all_by_name() if runs is None else runs, {}
    for name in names:
        try:
            found[name] = flat(runs[name].results())
        except Exception as error:  # as for a commit that lacks something
            found[name] = f"{type(error).__name__}: {error}"
    return found


def results_elsewhere(
    names: Iterable[str], num_devices: int = 1, tree: pathlib.Path | None = None
) -> dict[str, Any]:
    """Return the results of a process with so many CPU devices, or of another checkout's runs."""
    names, here = list(names), pathlib.Path(__file__)
    if tree is not None:
        here = tree / "tests" / "support" / here.name
    if not names:
        return {}
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    flags = os.environ.get("XLA_FLAGS", "")
    environment["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={num_devices}"
    paths = [str(tree / "src")] if tree else []
    paths += [str(here.parent), *(path for path in sys.path if path)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "results"
        command = [sys.executable, str(here), "--results", str(file), *names]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )
        if done.returncode:
            raise RuntimeError(f"The process of the recorded runs failed:\n{done.stderr}")
        return pickle.loads(file.read_bytes())


def record(names: Iterable[str]) -> None:
    """Write the results of these runs, or of all; forget runs that are no more."""
    runs, old = all_by_name(), json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    names = list(names) or list(runs)
    found = results([name for name in names if runs[name].num_devices == 1])
    found |= results_elsewhere([name for name in names if runs[name].num_devices == 2], 2)
    for name in names:
        if isinstance(found[name], str):
            raise RuntimeError(f"{name}: {found[name]}")
        old[name] = {path: stored(array) for path, array in found[name].items()}
    kept = [name for name in old if name in runs or name.startswith("torch ")]
    order = [name for name in runs if name in kept] + [name for name in kept if name not in runs]
    lines = [f" {json.dumps(name)}: {_lines(old[name])}" for name in order]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _lines(arrays: dict[str, Any]) -> str:
    """A line for each array, so that a change can be read."""
    lines = [f"  {json.dumps(path)}: {json.dumps(each)}" for path, each in arrays.items()]
    return "{\n" + ",\n".join(lines) + "\n }"


# The runs.


def sample(target, sampler, init, **options):
    """Positions, hyperparameters, averages and diagnostics of a short run."""
    return told(_sampled(target, sampler, init, **options))


def _sampled(target, sampler, init, **options) -> sghmc.Samples:
    options = {"num_samples": 4, "thinning": 2, "num_chains": 3, "progress": False} | options
    return sghmc.sample(KEY, target, sampler, init, **options)


def told(samples: sghmc.Samples) -> dict[str, Any]:
    """All numbers of a run that its key decides."""
    parts = {
        "position": samples.positions,
        "hyper": samples.hyper,
        "average": samples.averages,
        "trace": samples.trace,
        "info": vars(samples.info),
    }
    return {name: part for name, part in parts.items() if jax.tree.leaves(part)}


def _samplers_and_gradients() -> dict[str, Run]:
    """Every sampler of the contract tests, with a gradient in turn, so that all have a turn."""
    names, runs = [name for name in GRADIENTS if name != "palindrome"], {}
    for i, (name, sampler) in enumerate(SAMPLERS.items()):
        allowed = [
            each
            for each in names
            if GRADIENTS[each].is_independent or not sampler.subtracts_gradient_noise
        ]
        gradient = allowed[i % len(allowed)]
        runs[f"{name}, {gradient}"] = Run(
            lambda sampler=sampler, gradient=GRADIENTS[gradient]: sample(
                posterior(), sampler, params(low=jnp.float32), gradient=gradient
            )
        )
    return runs


def _samplers_of_their_own() -> dict[str, Run]:
    """Samplers that need another posterior than the contract tests have."""
    return {
        "ubu, palindromes": Run(
            lambda: regression(sghmc.Minibatch(7, "palindrome"), sghmc.UBU(0.05, 2.0))
        ),
        "dense matrices": Run(_dense),
        "lazy": Run(_lazy),
        "stochastic rounding": Run(_rounding, tolerance=2e-3),
        "fisher": Run(lambda: _estimated_noise(diagonal=True)),
        "dense fisher": Run(lambda: _estimated_noise(diagonal=False)),
    }


def _options() -> dict[str, Run]:
    return {
        "one chain": Run(lambda: _gaussian(1)),
        "many chains, last axis": Run(lambda: _gaussian(64)),
        "wide model, first axis": Run(_wide),
        "gibbs": Run(_gibbs),
        "renewed control variate": Run(
            lambda: regression(sghmc.ControlVariate(5, center=jnp.zeros(2), renew_every=4))
        ),
        "control variate at the mode": Run(lambda: regression(sghmc.ControlVariate(5))),
        "stacked posteriors": Run(_stacked),
        "shared batches": Run(lambda: regression(sghmc.Minibatch(5, shared=True))),
        "constrained": Run(_constrained),
        "trainable": Run(_trainable),
        "memory-mapped rows": Run(_mapped),
        "stop and resume": Run(_resumed),
        "stepper": Run(_stepper),
    }


def _adaptations() -> dict[str, Run]:
    minibatch = sghmc.Minibatch(10)
    mass, scale = sghmc.AdaptMass(until=40, first_window=10), sghmc.AdaptScale(until=40)
    return {
        "adapt mass": Run(lambda: regression(minibatch, num_burnin=20, adapt=mass)),
        "adapt scale": Run(lambda: regression(minibatch, num_burnin=20, adapt=scale)),
        "adapt hmc": Run(
            lambda: regression(
                sghmc.FullBatch(),
                sghmc.HMC(0.02, 3),
                num_burnin=40,
                adapt=sghmc.AdaptHMC(until=70),
            )
        ),
    }


def _tuned() -> dict[str, Run]:
    """Engines are named and thinning is given: nothing is left to measured seconds.

    Hundreds of steps, on a posterior nearly Gaussian, whose trajectories stay together.
    """
    return {
        "auto:exact": Run(lambda: _auto("auto:exact"), LONG_ROUNDING),
        "auto:minibatch": Run(lambda: _auto("auto:minibatch"), LONG_ROUNDING),
        "tune without a mode": Run(_modeless, LONG_ROUNDING),
        "tune network": Run(_network_settings),
        "llc": Run(_learning_coefficient, LONG_ROUNDING),
    }


def _gaussian(num_chains):
    return sample(
        sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2 + 0.1 * jnp.sum(theta) ** 4),
        sghmc.SGHMC(0.1, 1.3),
        jnp.array([0.5, -1.0]),
        num_chains=num_chains,
        averages={"square": lambda theta: theta**2},
        trace=lambda averages: averages["square"][0],
    )


def log_likelihood(weights, row):
    return -0.5 * (row[2] - row[:2] @ weights) ** 2


def log_prior(weights):
    return -0.5 * jnp.sum(weights**2)


def regression_posterior(rows=ROWS):
    return sghmc.Posterior(log_likelihood, log_prior, rows)


def regression(gradient, sampler=None, **options):
    sampler = sampler or sghmc.SGHMC(0.05, 2.0)
    return sample(regression_posterior(), sampler, jnp.zeros(2), gradient=gradient, **options)


def _dense():
    matrix = np.array([[1.5, 0.4], [0.4, 0.8]])
    return sample(
        sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2),
        sghmc.SGHMC(0.1, 2 * matrix, mass=matrix, gradient_noise=0.5 * matrix),
        jnp.zeros(2),
        gradient=sghmc.NoisyGradient(0.5 * matrix),
    )


def _lazy():
    likelihood = sghmc.RowLikelihood(
        lambda rows, x: -0.5 * (x["value"] - rows @ jnp.array([1.0, -0.7])) ** 2,
        lambda x: x["row"],
    )
    prior = sghmc.RowPrior(lambda rows: (0.2, 1.7))
    data = {"row": np.arange(30) % 9, "value": np.linspace(-1, 2, 30, dtype=np.float32)}
    target = sghmc.Posterior(likelihood, prior, data)
    sampler = sghmc.Lazy(sghmc.SGHMC(0.1, 1.3, mass=1.7))
    return sample(target, sampler, jnp.zeros((9, 2)), gradient=sghmc.Minibatch(3), thinning=4)


def _rounding():
    """Entries whose last digit is 1/256 of them: float32's rounding seldom decides one."""
    return sample(
        sghmc.Potential(lambda theta: jnp.sum(theta.astype(jnp.float32) ** 2) / 2),
        sghmc.StochasticRounding(sghmc.SGHMC(0.1, 1.3)),
        jnp.linspace(-1.0, 1.5, 6).astype(jnp.bfloat16),
    )


def _estimated_noise(*, diagonal):
    noise = sghmc.EmpiricalFisher(diagonal=diagonal, every=3)
    return regression(sghmc.Minibatch(20), sghmc.SGHMC(0.02, 20.0, gradient_noise=noise))


def _wide(**options):
    def network(weights, row):
        return -0.5 * (row[2] - jnp.mean(jnp.tanh(row[:2] @ weights))) ** 2

    target = sghmc.Posterior(network, log_prior, ROWS)
    init = jnp.asarray(np.random.default_rng(6).normal(size=(2, 200)), jnp.float32)
    return sample(target, sghmc.SGHMC(0.01, 2.0), init, gradient=sghmc.Minibatch(7), **options)


def _near(theta, row, hyper):
    return -0.5 * jnp.sum((row - theta) ** 2)


def _gibbs_posterior(prior):
    return sghmc.Posterior(_near, prior.log_density, ROWS, prior.start(jnp.zeros(3)))


def _gibbs(**options):
    prior = sghmc.GaussianPrior(2.0, 1.0)
    return sample(
        _gibbs_posterior(prior),
        sghmc.SGHMC(0.05, 1.0),
        jnp.zeros(3),
        **{"gradient": sghmc.ControlVariate(5, center=jnp.zeros(3)), "gibbs": prior.gibbs(3)}
        | options,
    )


def _stacked():
    target = sghmc.Posterior.stack([regression_posterior(ROWS[i:]) for i in range(3)])
    return sample(target, sghmc.SGLD(0.01), jnp.zeros(2), posterior_axis=0)


def _constrained():
    transforms = sghmc.transforms
    space = transforms.Space({"sd": transforms.Positive(), "share": transforms.Simplex()})

    def density(values, row):
        return -0.5 * (row[0] / values["sd"]) ** 2 - jnp.log(values["sd"])

    def prior(values):
        return -values["sd"] + jnp.sum(jnp.log(values["share"]) * jnp.array([1.0, 2.0, 0.5]))

    init = space.unconstrain({"sd": 1.3, "share": jnp.array([0.2, 0.5, 0.3])})
    target = space.posterior(density, prior, ROWS)
    found = sample(target, sghmc.SGHMC(0.05, 2.0), init, gradient=sghmc.Minibatch(7))
    return found | {"values": space.constrain(found["position"])}


def _trainable():
    init = {"moving": jnp.array([0.3, -0.2]), "fixed": jnp.array([1.5, 0.5])}
    return sample(
        sghmc.Potential(lambda theta: jnp.sum((theta["moving"] - theta["fixed"]) ** 2)),
        sghmc.SGHMC(0.1, 1.3),
        init,
        trainable={"moving": True, "fixed": False},
        keep=lambda theta: theta["moving"] * theta["fixed"],
    )


def _mapped():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.npy"
        np.save(path, ROWS)
        target = sghmc.Posterior(log_likelihood, log_prior, sghmc.data.MemoryMapped(path))
        sampler = sghmc.SGHMC(0.05, 2.0)
        return sample(target, sampler, jnp.zeros(2), gradient=sghmc.Minibatch(5))


def _resumed():
    """A run without its last two saves, as if it had been stopped before them, goes on."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = sghmc.Checkpoint(folder, every=2)
        whole = _gibbs(num_samples=6, checkpoint=checkpoint)
        whole = jax.tree.map(np.array, whole)  # draws are in files that change
        for save in sorted((pathlib.Path(folder) / "saves").iterdir())[-2:]:
            shutil.rmtree(save)
        resumed = _gibbs(num_samples=6, checkpoint=checkpoint)
        return {"whole": whole, "resumed": jax.tree.map(np.array, resumed)}


def _stepper():
    stepper = sghmc.Stepper(
        regression_posterior(), sghmc.SGHMC(0.05, 2.0), jnp.zeros(2), gradient=sghmc.Minibatch(5)
    )
    step, draws = eqx.filter_jit(stepper.step), []
    state = stepper.init(KEY, jnp.array([0.3, -0.2]))
    for _ in range(4):
        state, draw = step(state)
        draws.append((draw.position, draw.potential))
    return draws


def _logistic_posterior():
    def log_likelihood(theta, row):
        return jax.nn.log_sigmoid(jnp.where(row[2] > 0, 1.0, -1.0) * (row[:2] @ theta))

    return sghmc.Posterior(log_likelihood, log_prior, ROWS)


def _auto(engine):
    samples = _sampled(
        _logistic_posterior(),
        engine,
        jnp.zeros(2),
        gradient=sghmc.Minibatch(20),
        num_samples=20,
        num_chains=4,
    )
    return told(samples) | {"step size": samples.tuning.step_size}


def _modeless():
    tuned = sghmc.tune(
        KEY, _logistic_posterior(), jnp.zeros(2), mode=False, num_gradients=4000, num_samples=20
    )
    return {"step size": tuned.report.step_size, "starts": tuned.init}


def _network_settings():
    sampler: Any = sghmc.tune_network(KEY, posterior(), params(low=jnp.float32))
    return {"step size": sampler.step_size, "mass": sampler.mass, "friction": sampler.friction}


def _learning_coefficient():
    found = sghmc.llc(
        KEY,
        lambda theta: jnp.sum(jnp.array([1.0, 2.0, 0.0]) * theta**2),
        jnp.zeros(3),
        num_examples=1000,
        localization=1.0,
        num_samples=20,
        num_burnin=10,
        num_chains=2,
        check=False,
    )
    return {"estimate": found.estimate, "error": found.standard_error}


def _table(num_columns=2):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(24, num_columns))
    y = np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rng.normal(size=24)
    return x, y


def _estimators() -> dict[str, Run]:
    """Fits of hundreds of steps on 24 rows; what is compared are predictions."""
    return {
        "linear regression": Run(_linear, LONG_ROUNDING),
        "logistic regression, two classes": Run(lambda: _logistic(2), LONG_ROUNDING),
        "logistic regression, three classes": Run(lambda: _logistic(3), LONG_ROUNDING),
        "network for numbers, constant noise": Run(
            lambda: _regressor("constant"), NETWORK_ROUNDING
        ),
        "network for numbers, noise by input": Run(lambda: _regressor("input"), NETWORK_ROUNDING),
        "network for numbers, student noise": Run(
            lambda: _regressor("student", updates=True), NETWORK_ROUNDING
        ),
        "network for numbers, batches": Run(
            lambda: _regressor("constant", batch_size=8), NETWORK_ROUNDING
        ),
        "network for numbers, chosen noise": Run(lambda: _regressor("auto"), NETWORK_ROUNDING),
        "network for classes": Run(_classifier, NETWORK_ROUNDING),
        "network for classes, learned precision": Run(
            lambda: _classifier(prior_precision=None, likelihood_power=1, sharpness=1),
            NETWORK_ROUNDING,
        ),
    }


def _quiet(fit):
    """Fits this short warn that their chains disagree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit()


def _linear():
    x, y = _table()
    model = sghmc.estimators.BayesianLinearRegression(num_draws=8, num_chains=2, random_state=3)
    model.fit(x, y)
    fitted = model.predict(x[:6], return_std=True)
    return fitted, model.partial_fit(x[:9], y[:9] + 1).predict(x[:6], return_std=True)


def _logistic(num_classes):
    x, y = _table()
    labels = np.digitize(y, [0.0, 0.6][: num_classes - 1])
    model = sghmc.estimators.BayesianLogisticRegression(num_draws=8, num_chains=2, random_state=3)
    return model.fit(x, labels).predict_proba(x[:6])


def _regressor(noise, updates=False, **options):
    x, y = _table()
    model = sghmc.estimators.BayesianMLPRegressor(
        (4,), noise=noise, num_draws=8, num_chains=2, num_steps=40, random_state=3, **options
    )
    _quiet(lambda: model.fit(x, y))
    found = [model.predict(x[:6], return_std=True)]
    if updates:
        _quiet(lambda: model.partial_fit(x[:9], y[:9] + 0.5))
        found.append(model.predict(x[:6], return_std=True))
    return found


def _classifier(**options):
    x, y = _table()
    model = sghmc.estimators.BayesianMLPClassifier(
        (4,), num_draws=8, num_chains=2, num_steps=40, random_state=3, **options
    )
    _quiet(lambda: model.fit(x, np.digitize(y, [0.0, 0.6])))
    return model.predict_proba(x[:6]), model.sharpness_


def _recommenders() -> dict[str, Run]:
    return {
        "recommender, gaussian": Run(lambda: _recommender("gaussian")),
        "recommender, updates": Run(lambda: _recommender("gaussian", updates=True)),
        "recommender, features": Run(lambda: _recommender("gaussian", features=True)),
        "recommender, ordinal": Run(lambda: _recommender("ordinal")),
        "recommender, implicit": Run(lambda: _recommender("implicit")),
        "recommender, counts": Run(lambda: _recommender("counts")),
    }


def _ratings():
    rng = np.random.default_rng(9)
    user, item = np.divmod(rng.permutation(7 * 5)[:22], 5)
    return {"user": user, "item": item, "rating": 1.0 + rng.integers(0, 4, size=22)}


def _recommender(likelihood, updates=False, features=False):
    model = sghmc.estimators.MatrixFactorization(
        2,
        likelihood=likelihood,
        num_draws=4,
        thinning=2,
        num_burnin=6,
        num_update_steps=4,
        batch_size=10,
        random_state=3,
    )
    tables = {}
    if features:
        tables["users"] = {"user": np.arange(7), "age": np.linspace(0.2, 3.0, 7)}
    model.fit(_ratings(), **tables)
    users, items = np.arange(8), np.arange(8) % 5  # nobody knows user 7
    found = [model.predict(users, items, return_std=True)]
    if updates:
        model.fold_in({"user": [8, 8], "item": [1, 3], "rating": [4.0, 1.0]})
        found.append(model.predict([8, 8], [0, 2], return_std=True))
        model.partial_fit({"user": [2, 9], "item": [4, 4], "rating": [3.0, 2.0]})
        found.append(model.predict([2, 9], [0, 2], return_std=True))
    return found


def _mesh() -> dict[str, Run]:
    """Runs over two devices; `results_elsewhere` makes them where this process has one."""
    return {
        "mesh, chains": Run(lambda: _meshed("chain"), num_devices=2),
        "mesh, data": Run(lambda: _meshed("data"), num_devices=2),
        "mesh, model": Run(lambda: _meshed("model"), num_devices=2),
    }


def _meshed(axis):
    options: dict[str, Any] = {"mesh": jax.make_mesh((2,), (axis,)), "num_chains": 2}
    if axis == "model":
        options["sharding"] = [("", jax.sharding.PartitionSpec(None, "model"))]
        return _wide(**options)
    return _gibbs(gradient=sghmc.Minibatch(10), **options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--results"]:
        pathlib.Path(sys.argv[2]).write_bytes(pickle.dumps(results(sys.argv[3:])))
    else:
        record(sys.argv[1:])
