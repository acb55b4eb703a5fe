"""Draws by name: their diagnostics, tables of effective sizes and R-hats, and their arviz form.

Only arrays come in here, so that `samples` can build on it.
"""

import contextlib
import dataclasses
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from sghmc.core.checks import require
from sghmc.results import convergence
from sghmc.types import PyTree

if TYPE_CHECKING:
    import arviz
    import pandas

_NOTHING_KEPT = (
    "The run kept nothing of its draws, so there is nothing to convert: give sample(…) a keep "
    "function that returns arrays, or none to keep the positions."
)
_PLOTS = {
    "trace": "plot_trace",
    "rank": "plot_rank",
    "autocorrelation": "plot_autocorr",
    "pair": "plot_pair",
}


@dataclasses.dataclass(frozen=True)
class Info:
    """Diagnostics of each kept draw, axes (chain, draw); None if the sampler has none.

    After a run without `info` there is `is_finite` alone.
    """

    potential: Any
    is_finite: np.ndarray
    kinetic_temperature: np.ndarray | None = None
    acceptance: np.ndarray | None = None
    data_share: np.ndarray | None = None


def named_leaves(positions: PyTree, hyper: PyTree = None) -> dict[str, np.ndarray]:
    """Return every array of the draws under the name of its path.

    Dictionary keys and attributes are joined by dots, indices of tuples and lists are in brackets:
    `weights`, `layers[0].bias`. An array or a tuple at the top has no name of its own and is called
    `position`; hyperparameters start with `hyper`.

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
    """Return `root` and the entries of a path in a pytree, joined as in `named_leaves`."""
    for entry in path:
        if isinstance(entry, jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey):
            root += jax.tree_util.keystr((entry,))
        else:
            word = jax.tree_util.keystr((entry,), simple=True)
            root = f"{root}.{word}" if root else word
    return root


def quantities(
    variables: Mapping[str, np.ndarray], max_count: int | None = None
) -> dict[str, np.ndarray]:
    """Return the single numbers of the variables by name, axes (chain, draw).

    Of more than `max_count`, so many are taken, evenly spaced.

    >>> import numpy as np
    >>> list(quantities({"level": np.zeros((4, 10)), "weights": np.zeros((4, 10, 2))}))
    ['level', 'weights[0]', 'weights[1]']
    """
    ends = np.cumsum([0] + [math.prod(leaf.shape[2:]) for leaf in variables.values()])
    count = min(max_count or ends[-1], ends[-1])
    chosen = np.unique(np.linspace(0, ends[-1] - 1, count).astype(int))
    found = {}
    for (name, leaf), first, end in zip(variables.items(), ends, ends[1:], strict=False):
        for place in chosen[(first <= chosen) & (chosen < end)] - first:
            at = np.unravel_index(place, leaf.shape[2:]) if leaf.ndim > 2 else ()
            label = f"{name}[{', '.join(map(str, map(int, at)))}]" if at else name
            found[label] = leaf[(slice(None), slice(None), *at)]
    return found


class SummaryTable(NamedTuple):
    """A row for every quantity of the draws: its name, and `convergence.COLUMNS` by name."""

    names: list[str]
    columns: dict[str, np.ndarray]

    @classmethod
    def of(
        cls, variables: Mapping[str, np.ndarray], max_count: int | None = None
    ) -> "SummaryTable":
        """Summarize variables with axes (chain, draw, …); of very many quantities, some.

        >>> import numpy as np
        >>> draws = np.random.default_rng(0).normal(size=(4, 100, 2))
        >>> found = SummaryTable.of({"weights": draws})
        >>> found.names, found.worst("r_hat", is_largest=True)[1] < 1.1
        (['weights[0]', 'weights[1]'], True)
        """
        found = quantities(variables, max_count)
        if not found:
            return cls([], {name: np.empty(0) for name in convergence.COLUMNS})
        return cls(list(found), convergence.summarize(list(found.values())))

    def frame(self) -> "pandas.DataFrame":
        return require("pandas", extra="arviz").DataFrame(self.columns, index=self.names)

    def worst(self, column: str, *, is_largest: bool) -> tuple[str, float]:
        """Return name and value of the largest or smallest entry; NaN if none is known."""
        values = self.columns[column]
        known = np.flatnonzero(~np.isnan(values))
        if len(known) == 0:
            return "", math.nan
        choose = np.argmax if is_largest else np.argmin
        row = known[choose(values[known])]
        return self.names[row], float(values[row])


def summary(
    variables: Mapping[str, np.ndarray], names: Sequence[str] | None = None
) -> "pandas.DataFrame":
    """Return a row for every quantity: mean, sd, HDI, Monte Carlo errors, sizes, R-hat."""
    if not variables:
        raise ValueError(_NOTHING_KEPT)
    _check_names(list(variables), names)
    chosen = variables if names is None else {name: variables[name] for name in names}
    return SummaryTable.of(chosen).frame()


def to_arviz(
    variables: Mapping[str, np.ndarray],
    statistics: dict[str, np.ndarray],
    **groups: dict[str, np.ndarray],
) -> "arviz.InferenceData":
    """Return draws and their statistics as arviz groups, posterior and sample_stats, and others."""
    if not variables:
        raise ValueError(_NOTHING_KEPT)
    # numpy has no name for bfloat16 and its like, and xarray no use.
    variables = {
        name: leaf.astype(np.float32) if leaf.dtype.kind == "V" else leaf
        for name, leaf in variables.items()
    }
    return from_groups({"posterior": variables, "sample_stats": statistics} | groups)


def from_groups(groups: Mapping[str, dict[str, np.ndarray]], **names: Any) -> Any:
    """Make an `InferenceData`, from ArviZ 1 on a `DataTree`, of groups of arrays.

    `names` are `coords` and `dims`, as arviz takes them.
    """
    arviz, groups = _import_arviz(), {name: group for name, group in groups.items() if group}
    # arviz warns about arrays with more chains than draws; here short runs of many chains are fine.
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="More chains|Found chain dimension", category=UserWarning
        )
        if arviz.__version__.startswith("0."):
            return arviz.from_dict(**groups, **names)
        return arviz.from_dict(groups, **names)


def plot(
    data: "arviz.InferenceData", kind: str, names: Sequence[str] | None, **options: Any
) -> Any:
    """Draw one of arviz's plots; return its axes, from ArviZ 1 on its `PlotCollection`."""
    if kind not in _PLOTS:
        raise ValueError(f"There is no plot {kind!r}: there are {list(_PLOTS)}.")
    _check_names(list(map(str, data["posterior"].data_vars)), names)
    function = getattr(_import_arviz(), _PLOTS[kind])
    return function(data, var_names=None if names is None else list(names), **options)


def _check_names(known: list[str], names: Sequence[str] | None) -> None:
    for name in names or ():
        if name not in known:
            raise ValueError(f"There is no variable {name!r} among the draws: there are {known}.")


def _import_arviz() -> ModuleType:
    """Import arviz, which is slow: only where it is used."""
    with warnings.catch_warnings():
        # Once a day arviz announces its next major version.
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        try:
            return require("arviz", extra="arviz")
        except OSError:
            # It notes the day in the user's cache folder, and cannot be imported if that is not
            # writable or if two processes do so at once: it gets a folder of its own.
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
