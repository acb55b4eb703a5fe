"""Factors of a fitted recommender for other programs: means and spreads, in one file."""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from sghmc.core import atomic_file
from sghmc.core.optional import require
from sghmc.data.ratings import Ratings

KINDS = (".npz", ".arrow")


class Factors(NamedTuple):
    """Mean and standard deviation over draws of the rows of a side; the bias is the last column."""

    mean: np.ndarray
    std: np.ndarray


def aligned_factors(draws: dict[str, np.ndarray]) -> dict[str, Factors]:
    """Of both sides, every draw turned so that its factors lie as those of the last.

    Turning the factors of users and items alike changes no product, and a chain does turn them: so
    rows can be averaged only after it was undone (the orthogonal Procrustes problem).
    """
    rows = np.concatenate([draws["user"], draws["item"]], axis=1).astype(np.float64)
    last = rows[-1, :, :-1]
    for draw in rows:
        left, _, right = np.linalg.svd(draw[:, :-1].T @ last)
        draw[:, :-1] = draw[:, :-1] @ (left @ right)
    mean, std = rows.mean(axis=0), rows.std(axis=0, ddof=min(1, len(rows) - 1))
    count = draws["user"].shape[1]
    return {
        "user": Factors(mean[:count], std[:count]),
        "item": Factors(mean[count:], std[count:]),
    }


def write(
    path: pathlib.Path, draws: dict[str, np.ndarray], ratings: Ratings, scale: np.ndarray
) -> None:
    """An .npz with arrays of both sides, or an .arrow file with a row for each user and item.

    A predicted rating is center + spread · (user's · item's factors + both biases).
    """
    if path.suffix not in KINDS:
        raise ValueError(f"{path} must end in one of {', '.join(KINDS)}: its ending is its format.")
    factors = aligned_factors(draws)
    with atomic_file.draft(path) as draft:
        if path.suffix == ".npz":
            _write_npz(draft, factors, ratings, scale)
        else:
            _write_arrow(draft, factors, ratings, scale)


def _write_npz(
    path: pathlib.Path, factors: dict[str, Factors], ratings: Ratings, scale: np.ndarray
) -> None:
    arrays = {"users": ratings.users, "items": ratings.items, "scale": scale}
    for side, (mean, std) in factors.items():
        arrays |= {f"{side}_factors": mean[:, :-1], f"{side}_factor_stds": std[:, :-1]}
        arrays |= {f"{side}_bias": mean[:, -1], f"{side}_bias_std": std[:, -1]}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _write_arrow(
    path: pathlib.Path, factors: dict[str, Factors], ratings: Ratings, scale: np.ndarray
) -> None:
    pa = require("pyarrow", extra="data")
    ids = {"user": ratings.users, "item": ratings.items}
    mean, std = (np.concatenate(parts) for parts in zip(*factors.values(), strict=True))

    def lists(values: np.ndarray) -> Any:
        flat = pa.array(values.astype(np.float32).ravel())
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])

    table = pa.table(
        {
            "side": [side for side, known in ids.items() for _ in known],
            "id": [str(each) for known in ids.values() for each in known.tolist()],
            "bias": mean[:, -1].astype(np.float32),
            "bias_std": std[:, -1].astype(np.float32),
            "factors": lists(mean[:, :-1]),
            "factor_stds": lists(std[:, :-1]),
        }
    ).replace_schema_metadata({"center": str(scale[0]), "spread": str(scale[1])})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
