"""Fig. 4: test error of a Bayesian network on MNIST under SGD, momentum, SGLD and SGHMC.

The paper's network (784-100-10, sigmoid) and settings; several seeds as chains of one program. The
optimizers have a fixed regularizer and predict with their last iterate; the samplers learn the
precisions by Gibbs steps and predict with the average over draws after burn-in.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.data.mnist import Images, load_mnist
from sghmc.experiments import methods, pictures
from sghmc.experiments.claims import Claim
from sghmc.experiments.methods import OPTIMIZERS
from sghmc.gradients.minibatch import Minibatch
from sghmc.models.mlp import MLP
from sghmc.posterior.posterior import Posterior
from sghmc.results.samples import Samples
from sghmc.results.scores import ClassScores, class_scores
from sghmc.samplers.base import Sampler
from sghmc.samplers.sghmc import SGHMC
from sghmc.sampling import sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

LABELS = methods.LABELS | {"sghmc_ours": "SGHMC, our setting"}


@dataclasses.dataclass(frozen=True)
class Config:
    """Step sizes are factors before the gradient of the whole potential, as in the supplement.

    Without a GPU and without `full` the run is cut to `small_epochs` and `small_seeds`.
    """

    data: str | None = None
    dataset: str = "mnist"
    full: bool = False
    search: bool = False
    num_hidden: int = 100
    batch_size: int = 500
    num_epochs: int = 800
    num_burnin: int = 50
    num_seeds: int = 16
    small_epochs: int = 30
    small_burnin: int = 5
    small_seeds: int = 2
    num_quiet_epochs: int = 1
    num_validation: int = 10_000
    sgd_step: float = 0.16e-4
    momentum_step: float = 0.4e-5
    sgld_step: float = 0.2e-4
    sghmc_step: float = 0.2e-5
    momentum_decay: float = 0.01
    regularizer: float = 1.0
    ours_step: float = 0.4e-5
    ours_decay: float = 0.01
    ours_temperature: float = 0.1
    ours_regularizer: float = 1.0

    @classmethod
    def quick(cls) -> "Config":
        return cls(
            dataset="digits",
            full=True,
            num_hidden=20,
            batch_size=100,
            num_epochs=120,
            num_burnin=60,
            num_seeds=3,
            num_quiet_epochs=40,
            num_validation=200,
            sgd_step=3e-3,
            momentum_step=3e-4,
            sgld_step=1e-3,
            sghmc_step=1e-4,
            momentum_decay=0.05,
            ours_step=1e-4,
            ours_decay=0.05,
        )


class Split(NamedTuple):
    train: Images
    validation: Images
    test: Images


def run(config: Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    config, note = _sized(config)
    split = _load(config)
    found: dict[str, Any] = {}
    if config.search:
        config, found = _searched(config, split, jax.random.fold_in(key, 2), progress)
    result: dict[str, Any] = {"note": note, "search": found, "methods": {}, "curves": {}}
    for name in LABELS:
        samples = _run_method(config, name, split.train, split.test, key, progress)
        result["methods"][name] = _summary(config, name, samples, split)
        result["curves"][name] = _curve(methods.over_time(name, samples).error)
    result["comparisons"] = {
        name: _compare(result["methods"][name], result["methods"]["sghmc"])
        for name in LABELS
        if name != "sghmc"
    }
    result["first_epoch"] = config.num_burnin + 1
    result["num_epochs"], result["num_seeds"] = config.num_epochs, config.num_seeds
    return result


def _sized(config: Config) -> tuple[Config, str]:
    if not methods.is_cut(config):
        return config, f"{config.num_epochs} epochs, {config.num_seeds} seeds"
    smaller = dataclasses.replace(
        config,
        num_epochs=config.small_epochs,
        num_burnin=config.small_burnin,
        num_seeds=config.small_seeds,
    )
    note = (
        f"no accelerator: {smaller.num_epochs} epochs and {smaller.num_seeds} seeds where the full "
        f"run (--full) has {config.num_epochs} and {config.num_seeds}"
    )
    return smaller, note


def _load(config: Config) -> Split:
    """Pixels divided by 256; the validation rows are a random part of the training rows."""
    if config.dataset == "mnist":
        train, test = load_mnist(config.data)
    elif config.dataset == "digits":
        train, test = _digits()
    else:
        raise ValueError(f'dataset must be "mnist" or "digits", but is {config.dataset!r}.')
    train, test = (Images(x.astype(np.float32) / 256, y) for x, y in (train, test))
    order = np.random.default_rng(0).permutation(len(train.y))
    held, rest = order[: config.num_validation], order[config.num_validation :]
    return Split(Images(train.x[rest], train.y[rest]), Images(train.x[held], train.y[held]), test)


def _digits() -> tuple[Images, Images]:
    """scikit-learn's 8 × 8 digits, brought to the range of MNIST's pixels."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    x, y = 16 * digits.data[order], digits.target[order].astype(np.int32)
    return Images(x[:1297], y[:1297]), Images(x[1297:], y[1297:])


def _run_method(config, name, train: Images, test: Images, key, progress) -> Samples:
    """All seeds of one method; every method has the same starts and batches for a seed."""
    model = MLP((train.x.shape[1], config.num_hidden, 10))
    x, y = jnp.asarray(test.x), jnp.asarray(test.y)
    steps = len(train.y) // config.batch_size
    is_optimizer = name in OPTIMIZERS

    def predict(params, hyper):
        return jax.nn.softmax(model.apply(params, x))

    posterior = model.posterior(*train)
    fixed = _regularizer(config, name)
    if fixed is not None:
        posterior = _regularized(posterior, fixed)
    of_starts, of_run = (jax.random.fold_in(key, i) for i in range(2))
    starts = jax.vmap(model.init)(jax.random.split(of_starts, config.num_seeds))
    return sample(
        of_run,
        posterior,
        _sampler(config, name, steps * config.num_quiet_epochs),
        starts,
        init_axis=0,
        num_chains=config.num_seeds,
        gradient=Minibatch(config.batch_size, replacement="epochs"),
        thinning=steps,
        num_burnin=config.num_burnin,
        num_samples=config.num_epochs - config.num_burnin,
        gibbs=None
        if fixed is not None
        else model.gibbs(steps, start=steps * (config.num_quiet_epochs - 1)),
        keep=(lambda p, h: class_scores(predict(p, h), y)) if is_optimizer else (lambda p, h: ()),
        averages=None if is_optimizer else {"probability": predict},
        trace=None if is_optimizer else (lambda means: class_scores(means["probability"], y)),
        progress=progress,
    )


def _regularizer(config: Config, name: str) -> float | None:
    """The fixed precision of all weights; None where precisions are learned."""
    if name in OPTIMIZERS:
        return config.regularizer
    return config.ours_regularizer if name == "sghmc_ours" else None


def _sampler(config: Config, name: str, num_quiet_steps: int) -> Sampler:
    if name != "sghmc_ours":
        return methods.sampler(config, name, num_quiet_steps)
    warm = methods.warm_after(num_quiet_steps, config.ours_temperature)
    return SGHMC.from_learning_rate(config.ours_step, config.ours_decay, temperature=warm)


def _regularized(posterior: Posterior, regularizer: float) -> Posterior:
    """The likelihood of `posterior` with a fixed Gaussian prior, as the optimizers have it."""

    def log_prior(params, hyper):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return -0.5 * hyper["regularizer"] * squares

    return Posterior(
        posterior.log_likelihood, log_prior, posterior.data, {"regularizer": regularizer}
    )


def _searched(config: Config, split: Split, key, progress) -> tuple[Config, dict[str, Any]]:
    """The supplement's grids, each method's best setting by validation error.

    Both optimizers have momentum's regularizer in the end, which is chosen after SGD's.
    """
    scaled, grid, decays = methods.scaled, methods.grid, [0.0, 0.1, 1.0, 10.0, 100.0]
    grids = {
        "sgd": grid(regularizer=decays, sgd_step=scaled(1e-4, 0.06, 0.1, 0.16, 0.2, 0.4, 0.8)),
        "momentum": grid(regularizer=decays, momentum_step=scaled(1e-5, 0.1, 0.2, 0.4, 0.8)),
        "sgld": grid(sgld_step=scaled(1e-4, 0.1, 0.2, 0.4, 0.8)),
        "sghmc": grid(sghmc_step=scaled(1e-5, 0.1, 0.2, 0.4, 0.8)),
    }

    def score(tried: Config, name: str) -> float:
        tried = dataclasses.replace(tried, num_seeds=1)
        samples = _run_method(tried, name, split.train, split.validation, key, progress)
        return _last(name, samples).error[0].item()

    return methods.search(config, grids, score)


def _last(name: str, samples: Samples) -> ClassScores:
    scores = methods.over_time(name, samples)
    return ClassScores(*(values[:, -1].astype(np.float64) for values in scores))


def _summary(config: Config, name: str, samples: Samples, split: Split) -> dict[str, Any]:
    scores = _last(name, samples)
    summary: dict[str, Any] = {
        "test_error": {**_spread(scores.error), "seeds": scores.error.tolist()},
        **{score: _spread(getattr(scores, score)) for score in ("nll", "brier", "ece")},
        "seconds": samples.seconds,
        "seconds_after_compilation": samples.seconds - samples.startup_seconds,
        "setting": _setting(config, name),
    }
    if name not in OPTIMIZERS:
        together = class_scores(
            jnp.asarray(samples.averages["probability"].mean(0)), jnp.asarray(split.test.y)
        )
        summary["all_chains_together"] = {k: float(v) for k, v in together._asdict().items()}
    if _regularizer(config, name) is None:
        summary["precisions"] = {
            layer: _spread(values[:, -1].astype(np.float64))
            for layer, values in samples.hyper["prior"].items()
        }
    return summary


def _setting(config: Config, name: str) -> dict[str, float]:
    if name == "sghmc_ours":
        return {
            "learning_rate": config.ours_step,
            "momentum_decay": config.ours_decay,
            "temperature": config.ours_temperature,
            "regularizer": config.ours_regularizer,
        }
    setting = {"step": getattr(config, f"{name}_step")}
    if name in ("momentum", "sghmc"):
        setting["momentum_decay"] = config.momentum_decay
    if name in OPTIMIZERS:
        setting["regularizer"] = config.regularizer
    return setting


def _spread(values: np.ndarray) -> dict[str, float]:
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sd": sd}


def _curve(errors: np.ndarray) -> dict[str, list[float]]:
    """Mean, lowest and highest error over seeds at every epoch."""
    return {
        "mean": errors.mean(0).tolist(),
        "low": errors.min(0).tolist(),
        "high": errors.max(0).tolist(),
    }


def _compare(method: dict[str, Any], sghmc: dict[str, Any]) -> dict[str, Any]:
    """The paired difference of test errors to SGHMC's: positive where SGHMC is better."""
    from scipy import stats

    differences = np.subtract(method["test_error"]["seeds"], sghmc["test_error"]["seeds"])
    count, mean = len(differences), float(differences.mean())
    if count < 2 or differences.std() == 0:
        return {"difference": mean, "interval": None, "p_value": None}
    error = differences.std(ddof=1) / np.sqrt(count)
    reach = float(stats.t.ppf(0.975, count - 1) * error)
    p_value = float(2 * stats.t.sf(abs(mean) / error, count - 1))
    return {"difference": mean, "interval": [mean - reach, mean + reach], "p_value": p_value}


def plot(result: dict[str, Any]) -> "Figure":
    figure, (axis,) = pictures.panels(1, (7, 4.6))
    for name, curve in result["curves"].items():
        epochs = result["first_epoch"] + np.arange(len(curve["mean"]))
        color = methods.COLORS.get(name, methods.OURS)
        axis.plot(epochs, 100 * np.array(curve["mean"]), color=color, label=LABELS[name])
        low, high = 100 * np.array(curve["low"]), 100 * np.array(curve["high"])
        axis.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
    final = [curve["mean"][-1] for curve in result["curves"].values()]
    axis.set_ylim(85 * min(final), 200 * max(final))
    axis.set(xlabel="iteration (passes over the data)", ylabel="test error (%)")
    axis.set_title(f"Mean and range over {result['num_seeds']} seeds")
    axis.legend(frameon=False)
    return figure


def claims(config: dict[str, Any], result: dict[str, Any]) -> list[Claim]:
    along = {name: float(np.mean(curve["mean"])) for name, curve in result["curves"].items()}
    final = {name: row["test_error"]["mean"] for name, row in result["methods"].items()}

    def faster(paper: str, quick: str, slow: str) -> Claim:
        here = f"Mean error along the way {along[quick]:.2%}, of {LABELS[slow]} {along[slow]:.2%}."
        return Claim(paper, here, along[quick] < along[slow])

    shown = ", ".join(f"{LABELS[name]} {final[name]:.2%}" for name in methods.LABELS)
    worst = max(final[name] for name in methods.LABELS if name not in OPTIMIZERS)
    return [
        faster("SGD with momentum converges faster than SGD.", "momentum", "sgd"),
        faster("SGHMC converges to a low error much more rapidly than SGLD.", "sghmc", "sgld"),
        Claim(
            "The samplers' final results are better than the optimizers'.",
            f"Final errors: {shown}.",
            worst < min(final[name] for name in OPTIMIZERS),
        ),
    ]


def table(result: dict[str, Any]) -> "Table":
    rows = []
    for name, method in result["methods"].items():
        compared = result["comparisons"].get(name, {})
        interval = compared.get("interval")
        rows.append(
            (
                LABELS[name],
                f"{100 * method['test_error']['mean']:.2f} ± "
                f"{100 * method['test_error']['sd']:.2f}",
                f"{method['nll']['mean']:.4f}",
                f"{method['ece']['mean']:.4f}",
                f"{100 * interval[0]:+.2f} to {100 * interval[1]:+.2f}" if interval else "",
                f"{compared['p_value']:.1g}" if interval else "",
                f"{method['seconds_after_compilation']:.0f}",
            )
        )
    headings = ("method", "test error %", "nll", "ece", "− SGHMC (95 %)", "p", "s")
    return methods.table(f"Fig. 4: {result['note']}", headings, rows)
