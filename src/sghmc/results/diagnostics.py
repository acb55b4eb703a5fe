"""Draws by name: tables of their effective sample sizes and R-hats, and what arviz makes of them.

Only arrays come in here, so that `samples` can build on it. arviz is slow to import and is
imported where it is used.
"""

import contextlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from sghmc.core.optional import require
from sghmc.results import convergence
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz
    import pandas


_NOTHING = (
    "The run kept nothing of its draws, so there is nothing to convert: give sample(…) a keep "
    "function that returns arrays, or none to keep the positions."
)


def named_leaves(positions: PyTree, hyper: PyTree = None) -> dict[str, np.ndarray]:
    """Every array of the draws under the name of its path.

    Dictionary keys and attributes are joined by dots, places in tuples and lists are in brackets:
    `weights`, `layers[0].bias`. What has no name of its own, an array or a tuple at the top, is
    called `position`; hyperparameters come after `hyper`.

    >>> import numpy as np
    >>> draws = {"layers": [{"bias": np.zeros((4, 10))}]}
    >>> list(named_leaves(draws, np.zeros((4, 10))))
    ['layers[0].bias', 'hyper']
    """
    named: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree.leaves_with_path(positions):
        name = path_name("", path)
        named["position" + name if name.startswith("[") or not name else name] = leaf
    for path, leaf in jax.tree.leaves_with_path(hyper):
        name = path_name("hyper", path)
        if name in named:
            raise ValueError(f"{name!r} names both a parameter and a hyperparameter: rename one.")
        named[name] = leaf
    return named


def path_name(root: str, path: tuple[Any, ...]) -> str:
    """`root` and the entries of a path in a pytree, joined as `named_leaves` says."""
    for entry in path:
        if isinstance(entry, jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey):
            root += jax.tree_util.keystr((entry,))
        else:
            word = jax.tree_util.keystr((entry,), simple=True)
            root = f"{root}.{word}" if root else word
    return root


def numbers(variables: dict[str, np.ndarray], most: int | None = None) -> dict[str, np.ndarray]:
    """The single numbers of the variables by name, axes (chain, draw): all, or `most` of them.

    >>> import numpy as np
    >>> list(numbers({"level": np.zeros((4, 10)), "weights": np.zeros((4, 10, 2))}, most=100))
    ['level', 'weights[0]', 'weights[1]']
    """
    ends = np.cumsum([0] + [math.prod(leaf.shape[2:]) for leaf in variables.values()])
    chosen = np.unique(np.linspace(0, ends[-1] - 1, min(most or ends[-1], ends[-1])).astype(int))
    found = {}
    for (name, leaf), first, end in zip(variables.items(), ends, ends[1:], strict=False):
        for place in chosen[(first <= chosen) & (chosen < end)] - first:
            at = np.unravel_index(place, leaf.shape[2:]) if leaf.ndim > 2 else ()
            label = f"{name}[{', '.join(map(str, map(int, at)))}]" if at else name
            found[label] = leaf[(slice(None), slice(None), *at)]
    return found


def to_arviz(variables: dict[str, np.ndarray], statistics: dict[str, np.ndarray]):
    """Draws and their statistics as arviz has them: groups posterior and sample_stats."""
    if not variables:
        raise ValueError(_NOTHING)
    # numpy has no name for bfloat16 and its like, and xarray no use.
    variables = {
        name: leaf.astype(np.float32) if leaf.dtype.kind == "V" else leaf
        for name, leaf in variables.items()
    }
    return from_groups({"posterior": variables, "sample_stats": statistics})


def from_groups(groups: dict[str, dict[str, np.ndarray]], **names: Any) -> Any:
    """What arviz makes of groups of arrays: an `InferenceData`, from ArviZ 1 on a `DataTree`.

    `names` are `coords` and `dims`, as arviz takes them.
    """
    arviz, groups = _import_arviz(), {name: group for name, group in groups.items() if group}
    # arviz takes every array with more draws than chains for granted, and warns about the others;
    # short pilot runs of many chains are no mistake here.
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="More chains|Found chain dimension", category=UserWarning
        )
        if arviz.__version__.startswith("0."):
            return arviz.from_dict(**groups, **names)
        return arviz.from_dict(groups, **names)


class Table(NamedTuple):
    """A row for every number of the draws: its name, and `convergence.COLUMNS` by name."""

    names: list[str]
    columns: dict[str, np.ndarray]

    def frame(self) -> "pandas.DataFrame":
        return require("pandas", extra="arviz").DataFrame(self.columns, index=self.names)

    def worst(self, column: str, *, is_largest: bool) -> tuple[str, float]:
        """The name and the value of the largest or smallest one; NaN where none is known."""
        values = self.columns[column]
        known = np.flatnonzero(~np.isnan(values))
        if len(known) == 0:
            return "", math.nan
        choose = np.argmax if is_largest else np.argmin
        row = known[choose(values[known])]
        return self.names[row], float(values[row])


def table(variables: dict[str, np.ndarray], most: int | None = None) -> Table:
    """A row for every number of the variables, axes (chain, draw, …); or for `most`, evenly spaced.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(4, 100, 2))
    >>> found = table({"weights": draws})
    >>> found.names, found.worst("r_hat", is_largest=True)[1] < 1.1
    (['weights[0]', 'weights[1]'], True)
    """
    found = numbers(variables, most)
    if not found:
        return Table([], {name: np.empty(0) for name in convergence.COLUMNS})
    return Table(list(found), convergence.summarize(list(found.values())))


def summary(
    variables: dict[str, np.ndarray], names: Sequence[str] | None = None
) -> "pandas.DataFrame":
    """A row for every number: mean, sd, HDI, Monte Carlo errors, effective sizes, R-hat."""
    if not variables:
        raise ValueError(_NOTHING)
    _check_names(list(variables), names)
    chosen = variables if names is None else {name: variables[name] for name in names}
    return table(chosen).frame()


_PLOTS = {
    "trace": "plot_trace",
    "rank": "plot_rank",
    "autocorrelation": "plot_autocorr",
    "pair": "plot_pair",
}


def plot(data: "arviz.InferenceData", kind: str, names: Sequence[str] | None, **options):
    """One of arviz's plots of the draws; its axes, from ArviZ 1 on its `PlotCollection`."""
    if kind not in _PLOTS:
        raise ValueError(f"There is no plot {kind!r}: there are {list(_PLOTS)}.")
    _check_names(list(map(str, data["posterior"].data_vars)), names)
    function = getattr(_import_arviz(), _PLOTS[kind])
    return function(data, var_names=None if names is None else list(names), **options)


def _check_names(known: list[str], names: Sequence[str] | None) -> None:
    for name in names or ():
        if name not in known:
            raise ValueError(f"There is no variable {name!r} among the draws: there are {known}.")


def _import_arviz():
    with warnings.catch_warnings():
        # Once a day arviz announces its next major version.
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        try:
            return require("arviz", extra="arviz")
        except OSError:
            # It notes the day in the user's cache folder, and cannot be imported where that is not
            # writable or where two processes do so at once: it gets a folder of its own.
            with tempfile.TemporaryDirectory() as folder, _environment("XDG_CACHE_HOME", folder):
                return require("arviz", extra="arviz")


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
