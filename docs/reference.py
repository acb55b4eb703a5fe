"""Makes the reference: a page for each sampler, and one for each group of other names.

What a page says are the docstrings, so that there is one place to keep it right.
"""

import importlib
import importlib.util
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import sghmc
import sghmc.interop.numpyro
import sghmc.interop.optax
from sampler_table import EXAMPLES, markdown
from sghmc import estimators, models, samplers
from sghmc.core import checks, random, tree
from sghmc.recommender import rating_answers, ratings
from sghmc.results.samples import Samples
from sghmc.results.views import Views


class Group(NamedTuple):
    """A page: its title, what it is about, and the names on it, each with how it is imported."""

    title: str
    about: str
    members: dict[str, Any]


def _of(module: ModuleType, *names: str) -> dict[str, Any]:
    return {f"{module.__name__}.{name}": getattr(module, name) for name in names}


def _of_torch(*names: str) -> dict[str, Any]:
    """Names of `sghmc.torch`; where PyTorch is missing, a word in the place of their docstrings."""
    if importlib.util.find_spec("torch"):
        return _of(importlib.import_module("sghmc.torch"), *names)
    missing = property(doc="PyTorch was missing when this page was made from docstrings.")
    return {f"sghmc.torch.{name}": missing for name in names}


SAMPLERS = list(dict.fromkeys(type(example) for example in EXAMPLES.values()))
ADAPTATIONS = ("Adapt", "AdaptMass", "AdaptScale", "AdaptHMC")
GROUPS = {
    "sampling": Group(
        "Draw",
        "The one call, what it returns, and how it is stopped and resumed.",
        _of(sghmc, "sample", "plan", "Plan", "cache", "Samples", "Until", "Checkpoint", "Stepper")
        | _of(
            sghmc, "DivergenceError", "GradientNoiseError", "CheckpointError", "CheckpointWarning"
        )
        | _of(sghmc, "LostProcessError", "ProcessError"),
    ),
    "targets": Group(
        "Targets",
        "What is sampled, with priors and hyperparameters.",
        _of(sghmc, "Posterior", "Potential", "GaussianPrior", "Gibbs", "RowLikelihood", "RowPrior"),
    ),
    "transforms": Group(
        "Constraints",
        "Parameters that are positive, ordered, shares or factors of matrices.",
        _of(sghmc.transforms, *sghmc.transforms.__all__),
    ),
    "gradients": Group(
        "Gradients",
        "How a step sees the data.",
        _of(
            sghmc,
            "FullBatch",
            "Minibatch",
            "ControlVariate",
            "NoisyGradient",
            "EmpiricalFisher",
        ),
    ),
    "tuning": Group(
        "Tune and trust",
        "Settings without hand work, and whether the draws can be trusted.",
        _of(sghmc, "tune", "tune_network", "Tuned", "BudgetError")
        | _of(sghmc.results.health, "Health")
        | _of(sghmc, "HealthWarning", "kernel_stein_discrepancy"),
    ),
    "complexity": Group(
        "Learning coefficient",
        "How many directions a trained model uses.",
        _of(sghmc, "llc", "LearningCoefficient")
        | _of(
            importlib.import_module("sghmc.complexity.learning_coefficient"),
            "deep_linear_coefficient",
        ),
    ),
    "adaptation": Group(
        "Adaptation",
        "What changes a sampler while it burns in, and leaves it alone from then on.",
        _of(sghmc, *ADAPTATIONS),
    ),
    "theory": Group(
        "Theory",
        "The exact law of a setting on a Gaussian.",
        _of(
            sghmc.theory,
            "stationary_law",
            "Law",
            "friction_law",
            "stability_limit",
            "affine_map",
            "AffineMap",
            "entropy_growth",
            "chi_squared",
        ),
    ),
    "data": Group(
        "Data",
        "Sources larger than memory, and files of ratings.",
        _of(sghmc.data, "MemoryMapped", "Parquet", "Stream")
        | _of(ratings, "load_ratings", "from_table", "Ratings", "synthetic_ratings")
        | _of(sghmc, "DataError"),
    ),
    "models": Group(
        "Models",
        "Networks and matrix factorization: each makes its posterior and its Gibbs updates.",
        _of(models, "MLP", "Transformer", "Adapters", "LowRank", "merged", "MatrixFactorization"),
    ),
    "estimators": Group(
        "Estimators",
        "Bayesian models with scikit-learn's interface.",
        _of(estimators, *estimators.__all__) | _of(rating_answers, "RatingAnswers"),
    ),
    "interop": Group(
        "Other libraries",
        "Their models in, our samplers out.",
        _of(sghmc.interop.numpyro, "posterior", "NumPyroPosterior")
        | _of(sghmc.interop.optax, "transformation")
        | _of(sghmc.interop, "nuts"),
    ),
    "torch": Group(
        "PyTorch",
        "The samplers as optimizers, and what becomes of their draws.",
        _of_torch("tune", "SGHMC", "BAOAB", "SGLD", "PSGLD", "SGNHT", "GaussianPrior", "Collector")
        | _of_torch(
            "Tuned",
            "Prediction",
            "GaussianPrediction",
            "gaussian_loss",
            "Chains",
            "Cyclical",
            "Sampler",
        ),
    ),
    "extending": Group(
        "Parts of a sampler",
        "What a new sampler is made of; the page Extend shows it at work.",
        _of(sghmc, "Sampler", "Dynamics", "Kernel", "StepInfo")
        | _of(samplers, "Adaptable", "AdaptsMass", "AdaptsStepSize", "EstimatesNoise")
        | _of(samplers, "NoiseRoom", "LazyRows", "CachesEvaluation", "RescalesMomenta")
        | _of(sghmc, "Gradient", "GradientEstimator", "Oracle", "Evaluation", "Change")
        | _of(sghmc, "Target", "Adaptation", "Moment")
        | _of(
            checks, "array_setting", "check_setting", "rescale", "scaled", "value_at", "values_over"
        )
        | _of(tree, *tree.__all__)
        | _of(random, *random.__all__),
    ),
}


def write(folder: Path) -> None:
    shutil.rmtree(folder)  # pages of names that are gone
    for name, content in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name → content."""
    samplers = {kind.__name__: kind for kind in (*SAMPLERS, sghmc.Austerity)}
    written = {"index.md": _index(samplers), "samplers/index.md": _sampler_index(samplers)}
    for name, kind in samplers.items():
        written[f"samplers/{name.lower()}.md"] = f"# {name}\n\n{_entry(f'sghmc.{name}', kind, 2)}"
    for name, group in GROUPS.items():
        entries = (
            f"## {path.rpartition('.')[2]}\n\n{_entry(path, member, 3)}"
            for path, member in group.members.items()
        )
        written[f"{name}.md"] = f"# {group.title}\n\n{group.about}\n\n" + "\n".join(entries)
    return written


def _index(samplers: dict[str, type]) -> str:
    """All names, by page."""
    lines = ["# Reference", "", "Every public name, from its docstring.", "", "## Samplers", ""]
    lines += [f"- [{n}](samplers/{n.lower()}.md): {_first(k)}" for n, k in samplers.items()]
    for page, group in GROUPS.items():
        lines += ["", f"## [{group.title}]({page}.md)", ""]
        for path, member in group.members.items():
            name = path.rpartition(".")[2]
            lines.append(f"- [{name}]({page}.md#{name.lower()}): {_first(member)}")
    return "\n".join(lines) + "\n"


def _sampler_index(samplers: dict[str, type]) -> str:
    links = (f"- [{n}]({n.lower()}.md): {_first(k)}" for n, k in samplers.items())
    return f"# Samplers\n\n{markdown()}\n\n" + "\n".join(links) + "\n"


def _entry(path: str, member: Any, level: int) -> str:
    """How it is called and what it says, and for a class the same of its methods."""
    parts = [_call(path, member), as_markdown(inspect.getdoc(member) or "")]
    for name, method in _methods(member):
        parts += [f"{'#' * level} {name}", _call(f".{name}", method)]
        parts.append(as_markdown(inspect.getdoc(method) or ""))
    return "\n\n".join(part for part in parts if part) + "\n"


def _methods(member: Any) -> Iterator[tuple[str, Any]]:
    """The public methods that a class of ours documents itself."""
    if not isinstance(member, type):
        return
    views = vars(Views) if member is Samples else {}
    for name, attribute in {**vars(member), **views}.items():
        method = getattr(attribute, "fget", None) or getattr(attribute, "__func__", attribute)
        function = inspect.unwrap(method)
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield name, attribute if isinstance(attribute, property) else method


def _first(member: Any) -> str:
    return (inspect.getdoc(member) or "").split("\n\n", 1)[0].replace("\n", " ")


def _call(path: str, member: Any) -> str:
    """How it is called, with the defaults; nothing for a property or an exception."""
    if isinstance(member, property) or (isinstance(member, type) and issubclass(member, Exception)):
        return ""
    arguments, is_named = [], False
    for name, parameter in inspect.signature(member).parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_named:
            arguments.append("*,")
        is_named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        arguments.append(_argument(name, parameter))
    lines = [f"    {argument}" for argument in arguments]
    call = [f"{path}(", *lines, ")"] if lines else [f"{path}()"]
    return "\n".join(["```python", *call, "```"])


def _argument(name: str, parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    if parameter.default is inspect.Parameter.empty:
        return f"{stars}{name},"
    default = parameter.default
    shown = f'"{default}"' if isinstance(default, str) else repr(default)
    return f"{name}={'…' if ' at 0x' in shown else shown},"


def as_markdown(text: str) -> str:
    """A docstring with its example fenced; its formulas are indented, as Markdown wants code."""
    text = text.replace("\\\n", "")
    return re.sub(r"(?ms)^(>>> .*?)(?=\n\n|\Z)", r"```pycon\n\1\n```", text)
