"""Models in files, without pickle: a line of text, a checksum, and arrays with a JSON header."""

import hashlib
import io
import json
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

import sghmc
from sghmc.estimators.rows import Scaling

if TYPE_CHECKING:
    from sghmc.estimators.base import BayesianEstimator

_MAGIC = b"sghmc model, format "
_VERSION = 3
_ATTRIBUTES = (
    "n_features_in_",
    "likelihood_power_",
    "sharpness_",
    "noise_",
    "hidden_layer_sizes_",
    "diagnostics_",
    "table_",
)
_PLAIN = (str, bool, int, float)


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or comes from another version."""


def write(model: "BayesianEstimator", path: pathlib.Path) -> None:
    content = _packed(model)
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = _MAGIC + str(_VERSION).encode() + b"\n" + digest + b"\n" + content
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(whole)
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def read(path: pathlib.Path, wanted: type) -> Any:
    """The model in a file, which must be a `wanted`."""
    header, arrays = _unpacked(path)
    kinds = {kind.__name__: kind for kind in _leaves(wanted)}
    if header["class"] not in kinds:
        raise ModelFileError(
            f"{path} holds a {header['class']}, not a {wanted.__name__}: load it with "
            f"{header['class']}.load or sghmc.estimators.load."
        )
    params = {name: _tuple(value) for name, value in header["params"].items()}
    model = kinds[header["class"]](**params)
    for name, value in header["attributes"].items():
        setattr(model, name, value)
    model.draws_ = _part(arrays, "draw")
    for name, parts in _scalings(arrays).items():
        setattr(model, name, Scaling(parts["center"], parts["scale"]))
    for name, values in _part(arrays, "array").items():
        setattr(model, name, values)
    for name, values in header["lists"].items():
        setattr(model, name, np.array(values, dtype=object))
    return model


def _packed(model: "BayesianEstimator") -> bytes:
    arrays = {f"draw/{name}": values for name, values in model.draws_.items()}
    header: dict[str, Any] = {
        "class": type(model).__name__,
        "sghmc": sghmc.__version__,
        "params": {name: _plain(name, value) for name, value in model.get_params().items()},
        "attributes": {name: getattr(model, name) for name in _ATTRIBUTES if hasattr(model, name)},
        "lists": {},
    }
    for name in ("input_scaling_", "target_scaling_"):
        if hasattr(model, name):
            for part, values in getattr(model, name)._asdict().items():
                arrays[f"{name}/{part}"] = np.asarray(values)
    for name in ("classes_", "feature_names_in_"):
        if hasattr(model, name):
            values = getattr(model, name)
            if values.dtype == object:
                header["lists"][name] = [_plain(name, value) for value in values.tolist()]
            else:
                arrays[f"array/{name}"] = values
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(name, entry) for entry in value]
    # A generator's state is of no use to a model that only predicts.
    if name == "random_state":
        return None
    raise TypeError(
        f"{name} holds {value!r}, which a model file cannot hold: it stores text, booleans and "
        f"numbers."
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _unpacked(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    whole = path.read_bytes()
    first, _, rest = whole.partition(b"\n")
    if not first.startswith(_MAGIC):
        raise ModelFileError(f"{path} is not a model file of sghmc.")
    version = first.removeprefix(_MAGIC).decode(errors="replace")
    if version != str(_VERSION):
        raise ModelFileError(
            f"{path} has format {version!r}, but this version of sghmc ({sghmc.__version__}) reads "
            f"format {_VERSION}: fit and save the model again."
        )
    digest, _, content = rest.partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ModelFileError(f"{path} is damaged or cut short: its checksum does not match.")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def _part(arrays: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    prefix = f"{kind}/"
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def _scalings(arrays: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    found = {name: _part(arrays, name) for name in ("input_scaling_", "target_scaling_")}
    return {name: parts for name, parts in found.items() if parts}


def _leaves(kind: type) -> list[type]:
    """The classes below `kind` that have none below them: those that can be made."""
    below = kind.__subclasses__()
    return [leaf for each in below for leaf in _leaves(each)] if below else [kind]
