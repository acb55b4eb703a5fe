"""Are the results of this tree those of another commit, bit for bit?

    python benchmarks/same_bits.py                        # against the parent of HEAD
    python benchmarks/same_bits.py --base v1.2 --only sghmc auto
    python benchmarks/same_bits.py --except "linear regression"

Checks the other commit out beside this tree, in a temporary folder, and makes the recorded runs of
`tests/support/recorded_runs.py` in both, in processes of their own: those of a mesh with two CPU
devices, those of PyTorch where it can be imported. Prints a table and
returns 1 where a run differs that `--except` does not name.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
EQUAL = "equal"


def compared(before: Any, now: Any) -> str:
    """Compare the arrays of a run by path: "equal", or what differs in words.

    An error in place of arrays is its text. Two equal errors are no equal results.
    """
    if isinstance(before, str) or isinstance(now, str):
        texts = [each if isinstance(each, str) else "results" for each in (before, now)]
        return f"error: {texts[0]} before, {texts[1]} now"
    if before.keys() != now.keys():
        return f"other arrays: {', '.join(sorted(before.keys() ^ now.keys()))}"
    worst, where = -1.0, ""
    for path, old in before.items():
        new = now[path]
        if old.dtype != new.dtype or old.shape != new.shape:
            return f"{path}: {old.dtype}{old.shape} before, {new.dtype}{new.shape} now"
        if old.tobytes() != new.tobytes():
            error = _largest_difference(old, new)
            if error > worst or not where:
                worst, where = error, path
    return f"{worst:.3g} in {where}" if where else EQUAL


def _largest_difference(old: np.ndarray, new: np.ndarray) -> float:
    """Infinity where only one of two numbers is NaN."""
    old, new = old.astype(np.float64), new.astype(np.float64)
    both = np.isnan(old) & np.isnan(new)
    error = np.where(both | (old == new), 0.0, np.abs(new - old))
    return float(np.max(np.where(np.isnan(error), np.inf, error), initial=0.0))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="HEAD~1", help="commit to compare with")
    parser.add_argument("--only", nargs="+", default=[""], help="runs with this in their name")
    parser.add_argument(
        "--except", nargs="+", default=[], dest="expected", help="runs that may differ"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the runs")
    given = parser.parse_args(arguments)
    for folder in ("src", "tests/support"):
        sys.path.insert(0, str(ROOT / folder))
    import recorded_runs

    runs = recorded_runs.all_by_name()
    names = [name for name in runs if any(each in name for each in given.only)]
    unknown = [name for name in given.expected if name not in runs]
    if unknown or not names:
        parser.error(f"there is no run {', '.join(unknown or given.only)}: see --list")
    if given.list:
        print("\n".join(names))
        return 0

    def found(tree: pathlib.Path) -> dict[str, Any]:
        results = {}
        for count in sorted({runs[name].num_devices for name in names}):
            some = [name for name in names if runs[name].num_devices == count]
            results |= recorded_runs.results_elsewhere(some, count, tree)
        return results

    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "base"
        _git("worktree", "add", "--quiet", "--detach", str(tree), given.base)
        try:
            before = found(tree)
        finally:
            _git("worktree", "remove", "--force", str(tree))
    now = found(ROOT)
    words = {name: compared(before[name], now[name]) for name in names}
    width = max(map(len, names))
    for name in names:
        note = " (expected)" if words[name] != EQUAL and name in given.expected else ""
        print(f"{name:{width}} | {words[name]}{note}")
    differing = [name for name in names if words[name] != EQUAL and name not in given.expected]
    print(f"{len(names)} runs against {given.base}: {len(differing)} differ unexpectedly.")
    return 1 if differing else 0


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
