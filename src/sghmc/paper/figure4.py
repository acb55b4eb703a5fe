"""Fig. 4: test error of a Bayesian network on MNIST under SGD, momentum, SGLD and SGHMC.

The paper's network (784-100-10, sigmoid) and settings; several seeds as chains of one program. The
optimizers have a fixed regularizer and predict with their last iterate; the samplers learn the
precisions by Gibbs steps and predict with the average over draws after burn-in.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import paper
from sghmc.data.archives import Images, load_mnist
from sghmc.gradients import Minibatch
from sghmc.models.networks import MLP
from sghmc.paper import Claim, draw, methods
from sghmc.paper.methods import OPTIMIZERS, MethodSettings
from sghmc.posterior.posterior import Posterior
from sghmc.results.samples import Samples
from sghmc.results.scores import ClassScores, class_scores
from sghmc.samplers import Sampler
from sghmc.samplers.sghmc import SGHMC

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

_NUM_GRAY_LEVELS = 256
"""Number of gray levels, by which pixels are divided as in the authors' scripts."""
_NUM_TRAINING_DIGITS = 1297
"""Training rows of scikit-learn's 1,797 digits; the other 500 are the test set."""


def load(dataset: str, data: str | None, num_validation: int) -> tuple[Images, Images]:
    """Return training and test images; a random `num_validation` of the training set are unused.

    They were the paper's validation set.
    """
    if dataset == "mnist":
        train, test = load_mnist(data)
    elif dataset == "digits":
        train, test = _digits()
    else:
        raise ValueError(f'dataset must be "mnist" or "digits", but is {dataset!r}.')
    train, test = (Images(x.astype(np.float32) / _NUM_GRAY_LEVELS, y) for x, y in (train, test))
    rest = np.random.default_rng(0).permutation(len(train.y))[num_validation:]
    return Images(train.x[rest], train.y[rest]), test


def _digits() -> tuple[Images, Images]:
    """Return scikit-learn's 8 × 8 digits, their 16 levels scaled to the range of MNIST's pixels."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    x, y = 16 * digits.data[order], digits.target[order].astype(np.int32)
    first, rest = slice(_NUM_TRAINING_DIGITS), slice(_NUM_TRAINING_DIGITS, None)
    return Images(x[first], y[first]), Images(x[rest], y[rest])


LABELS = methods.LABELS | {"sghmc_ours": "SGHMC, our setting"}
PAPER = MethodSettings(
    sgd=0.16e-4,
    momentum=0.4e-5,
    sgld=0.2e-4,
    sghmc=0.2e-5,
    momentum_decay=0.01,
    regularizer=1.0,
)


@dataclasses.dataclass(frozen=True)
class OurSetting:
    """Our setting beside the paper's: a cold posterior with a fixed regularizer."""

    learning_rate: float = 0.4e-5
    momentum_decay: float = 0.01
    temperature: float = 0.1
    regularizer: float = 1.0


@dataclasses.dataclass(frozen=True)
class Length:
    """Length of a run: epochs, burn-in among them, and seeds."""

    num_epochs: int
    num_burnin: int
    num_seeds: int


@dataclasses.dataclass(frozen=True)
class Figure4Config:
    """Settings of the paper; without a GPU and without `full` a run has the `small` length."""

    data: str | None = None
    dataset: str = "mnist"
    full: bool = False
    num_hidden: int = 100
    batch_size: int = 500
    length: Length = Length(num_epochs=800, num_burnin=50, num_seeds=16)
    small: Length = Length(num_epochs=30, num_burnin=5, num_seeds=2)
    num_quiet_epochs: int = 1
    num_validation: int = 10_000
    settings: MethodSettings = PAPER
    ours: OurSetting = OurSetting()


QUICK = {
    "dataset": "digits",
    "full": True,
    "num_hidden": 20,
    "batch_size": 100,
    "length": Length(120, 60, 3),
    "num_quiet_epochs": 40,
    "num_validation": 200,
    "settings": MethodSettings(3e-3, 3e-4, 1e-3, 1e-4, momentum_decay=0.05, regularizer=1.0),
    "ours": OurSetting(learning_rate=1e-4, momentum_decay=0.05),
}


def run(config: Figure4Config, key: jax.Array, *, progress: bool = True) -> dict[str, Any]:
    config, note = _sized(config)
    train, test = load(config.dataset, config.data, config.num_validation)
    result: dict[str, Any] = {"note": note, "methods": {}, "curves": {}}
    for name in LABELS:
        samples = _run_method(config, name, train, test, key, progress)
        result["methods"][name] = _summary(config, name, samples, test)
        result["curves"][name] = _curve(methods.over_time(name, samples).error)
    errors = {name: row["test_error"]["seeds"] for name, row in result["methods"].items()}
    result["comparisons"] = {
        name: methods.compare(errors[name], errors["sghmc"]) for name in LABELS if name != "sghmc"
    }
    length = config.length
    result["first_epoch"] = length.num_burnin + 1
    result["num_epochs"], result["num_seeds"] = length.num_epochs, length.num_seeds
    return result


def _sized(config: Figure4Config) -> tuple[Figure4Config, str]:
    full, small = config.length, config.small
    if not methods.is_cut(config):
        return config, f"{full.num_epochs} epochs, {full.num_seeds} seeds"
    note = (
        f"no accelerator: {small.num_epochs} epochs and {small.num_seeds} seeds where the full "
        f"run (--full) has {full.num_epochs} and {full.num_seeds}"
    )
    return dataclasses.replace(config, length=small), note


def _run_method(config: Figure4Config, name, train: Images, test: Images, key, progress) -> Samples:
    """Run all seeds of one method; for a seed every method has the same starts and batches."""
    model = MLP((train.x.shape[1], config.num_hidden, 10))
    x, y = jnp.asarray(test.x), jnp.asarray(test.y)
    steps, length = len(train.y) // config.batch_size, config.length

    def predict(params, hyper):
        return jax.nn.softmax(model.apply(params, x))

    posterior, gibbs = model.posterior(*train), None
    fixed = _regularizer(config, name)
    if fixed is not None:
        posterior = _regularized(posterior, fixed)
    else:
        gibbs = model.gibbs(steps, start=steps * (config.num_quiet_epochs - 1))
    of_starts, of_run = (jax.random.fold_in(key, i) for i in range(2))
    return draw(
        of_run,
        posterior,
        _sampler(config, name, steps * config.num_quiet_epochs),
        jax.vmap(model.init)(jax.random.split(of_starts, length.num_seeds)),
        init_axis=0,
        num_chains=length.num_seeds,
        gradient=Minibatch(config.batch_size, replacement="epochs"),
        thinning=steps,
        num_burnin=length.num_burnin,
        num_samples=length.num_epochs - length.num_burnin,
        gibbs=gibbs,
        progress=progress,
        **methods.kept(
            name,
            lambda params, hyper: class_scores(predict(params, hyper), y),
            {"probability": predict},
            lambda means: class_scores(means["probability"], y),
        ),
    )


def _regularizer(config: Figure4Config, name: str) -> float | None:
    """Return the fixed precision of all weights, or None where precisions are learned."""
    if name in OPTIMIZERS:
        return config.settings.regularizer
    return config.ours.regularizer if name == "sghmc_ours" else None


def _sampler(config: Figure4Config, name: str, num_quiet_steps: int) -> Sampler:
    if name != "sghmc_ours":
        return config.settings.sampler(name, num_quiet_steps)
    ours = config.ours
    warm = methods.warm_after(num_quiet_steps, ours.temperature)
    return SGHMC.from_learning_rate(ours.learning_rate, ours.momentum_decay, temperature=warm)


def _regularized(posterior: Posterior, regularizer: float) -> Posterior:
    """Return the likelihood of `posterior` with a fixed Gaussian prior, as the optimizers have."""

    def log_prior(params, hyper):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return -0.5 * hyper["regularizer"] * squares

    return Posterior(
        posterior.log_likelihood, log_prior, posterior.data, {"regularizer": regularizer}
    )


def _last(name: str, samples: Samples) -> ClassScores:
    scores = methods.over_time(name, samples)
    return ClassScores(*(values[:, -1].astype(np.float64) for values in scores))


def _summary(config: Figure4Config, name: str, samples: Samples, test: Images) -> dict[str, Any]:
    scores, is_ours = _last(name, samples), name == "sghmc_ours"
    spread = methods.mean_and_sd
    summary: dict[str, Any] = {
        "test_error": {**spread(scores.error), "seeds": scores.error.tolist()},
        **{score: spread(getattr(scores, score)) for score in ("nll", "brier", "ece")},
        "seconds": samples.seconds,
        "seconds_after_compilation": samples.seconds - samples.startup_seconds,
        "setting": dataclasses.asdict(config.ours) if is_ours else config.settings.of(name),
    }
    if name not in OPTIMIZERS:
        mean = jnp.asarray(samples.averages["probability"].mean(0))
        scores = class_scores(mean, jnp.asarray(test.y))
        summary["all_chains_together"] = {k: float(v) for k, v in scores._asdict().items()}
    if _regularizer(config, name) is None:
        summary["precisions"] = {
            layer: spread(values[:, -1].astype(np.float64))
            for layer, values in samples.hyper["prior"].items()
        }
    return summary


def _curve(errors: np.ndarray) -> dict[str, list[float]]:
    """Return mean, lowest and highest error over seeds at every epoch."""
    return {
        "mean": errors.mean(0).tolist(),
        "low": errors.min(0).tolist(),
        "high": errors.max(0).tolist(),
    }


def plot(result: dict[str, Any]) -> "Figure":
    figure, (axis,) = paper.panels(1, (7, 4.6))
    for name, curve in result["curves"].items():
        epochs = result["first_epoch"] + np.arange(len(curve["mean"]))
        color = methods.COLORS.get(name, methods.OURS)
        axis.plot(epochs, 100 * np.array(curve["mean"]), color=color, label=LABELS[name])
        low, high = 100 * np.array(curve["low"]), 100 * np.array(curve["high"])
        axis.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
    # From a little below the best final error to twice the worst: the start is far off the top.
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
        compared, error = result["comparisons"].get(name, {}), method["test_error"]
        interval = compared.get("interval")
        rows.append(
            (
                methods.SHORT.get(name, "SGHMC, ours"),
                f"{100 * error['mean']:.2f} ± {100 * error['sd']:.2f}",
                f"{method['nll']['mean']:.4f}",
                f"{method['ece']['mean']:.4f}",
                f"{100 * interval[0]:+.2f} to {100 * interval[1]:+.2f}" if interval else "",
                f"{compared['p_value']:.1g}" if interval else "",
                f"{method['seconds_after_compilation']:.0f}",
            )
        )
    headings = ("method", "test error %", "nll", "ece", "less SGHMC", "p", "s")
    return paper.table(f"Fig. 4: {result['note']}", headings, rows)
