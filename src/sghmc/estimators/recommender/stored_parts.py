"""What a model file has besides draws: ratings, their scale, and features, as arrays by name."""

import dataclasses
import json
from typing import Any

import numpy as np

from sghmc.data.ratings import Ratings
from sghmc.data.side_information import Entries, SideEncoding
from sghmc.estimators.recommender.side import Side
from sghmc.estimators.storage import ModelFileError
from sghmc.models.factor_gibbs import SIDES

_RATINGS, _FEATURES = "ratings.", "features."
"""Begin the names of their arrays, where draws have names without either."""


def packed(model: Any) -> dict[str, np.ndarray]:
    """All arrays of a fitted recommender."""
    columns = dataclasses.asdict(model.ratings_)
    parts = {name: column for name, column in columns.items() if column is not None}
    parts |= {"scale": model.scale_, "num_fits": np.array(model.num_fits_)}
    arrays = {f"{_RATINGS}{name}": part for name, part in parts.items()}
    for side, each in model.sides_.items():
        text = json.dumps(each.encoding.plain()).encode()
        named = {"encoding": np.frombuffer(text, np.uint8), **each.entries._asdict()}
        arrays |= {f"{_FEATURES}{side}.{name}": part for name, part in named.items()}
    return model.draws_ | arrays


def unpack(model: Any, path: str) -> None:
    """Give a model that was read what `packed` put among its draws."""
    ratings, features = (_taken(model.draws_, prefix) for prefix in (_RATINGS, _FEATURES))
    try:
        model.scale_, model.num_fits_ = ratings.pop("scale"), int(ratings.pop("num_fits"))
        model.ratings_ = Ratings(**ratings)
        model.sides_ = {
            side: _side(_taken(features, f"{side}."))
            for side in SIDES
            if any(name.startswith(f"{side}.") for name in features)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} is none that sghmc wrote: {error}.") from error


def _side(parts: dict[str, np.ndarray]) -> Side:
    encoding = SideEncoding.restored(json.loads(parts.pop("encoding").tobytes()))
    return Side(encoding, Entries(**parts))


def _taken(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Those whose name begins so, without the beginning; they are no longer in `arrays`."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}
