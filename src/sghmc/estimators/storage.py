"""Files of models, without pickle: a line of text, a checksum, and arrays with a JSON header."""

import hashlib
import inspect
import io
import json
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from sghmc.core import files
from sghmc.core.version import __version__
from sghmc.data.archives import read_npz
from sghmc.estimators.weighted_rows import Scaling

_MAGIC = b"sghmc model, format "
_VERSION = 3
_ATTRIBUTES = (
    "n_features_in_",
    "missing_columns_",
    "far_columns_",
    "likelihood_power_",
    "sharpness_",
    "noise_",
    "target_rounding_",
    "hidden_layer_sizes_",
    "diagnostics_",
    "table_",
    "likelihood_",
)
_SCALINGS = ("input_scaling_", "target_scaling_")
_ARRAYS = ("classes_", "feature_names_in_", "input_range_")
_PLAIN = (str, bool, int, float)
_MAX_LINE_BYTES = 100
"""Bytes that the first two lines do not exceed."""


class ModelFileError(ValueError):
    """A file that is not a model, is damaged, or comes from another version."""


def write(model: Any, path: pathlib.Path) -> None:
    content = _packed(model)
    digest = hashlib.sha256(content).hexdigest().encode()
    whole = _MAGIC + str(_VERSION).encode() + b"\n" + digest + b"\n" + content
    files.write(path, whole)


def class_in(path: pathlib.Path) -> str:
    """Return the name of the class of the model in a file."""
    return _unpacked(path)[0]["class"]


def read(path: pathlib.Path, wanted: type) -> Any:
    """Read a model of the class `wanted` from a file."""
    header, arrays = _unpacked(path)
    kinds = {kind.__name__: kind for kind in _concrete(wanted)}
    if header["class"] not in kinds:
        raise ModelFileError(
            f"{path} holds a {header['class']}, not a {wanted.__name__}: load it with "
            f"{header['class']}.load or sghmc.estimators.load."
        )
    params = {name: _tuple(value) for name, value in header["params"].items()}
    try:
        model = kinds[header["class"]](**params)
    except TypeError as error:
        raise ModelFileError(f"{path} is none that sghmc wrote: {error}.") from error
    fitted: dict[str, Any] = {**header["attributes"], **_part(arrays, "array")}
    fitted |= {name: np.array(values, object) for name, values in header["lists"].items()}
    for name in _SCALINGS:
        if parts := _part(arrays, name):
            fitted[name] = Scaling(parts["center"], parts["scale"])
    for name, value in fitted.items():
        setattr(model, name, value)
    model.draws_ = _part(arrays, "draw")
    for name, values in arrays.items():
        if values.dtype.kind in "fc" and not (np.isrealobj(values) and np.isfinite(values).all()):
            raise ModelFileError(
                f"{path} is none that sghmc wrote: {name!r} holds what is not a finite number."
            )
    return model


def check_prediction(predict: Callable[[], Any], path: pathlib.Path) -> None:
    """Refuse a model that cannot predict: draws of other names or shapes than its settings need."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = np.asarray(predict(), float)
        fault = "its predictions are not finite" if not np.isfinite(predicted).all() else None
    except Exception as error:  # each model has its own way to miss a part
        fault = f"it cannot predict ({type(error).__name__}: {error})"
    if fault is not None:
        raise ModelFileError(f"{path} is none that sghmc wrote: {fault}.")


def _packed(model: Any) -> bytes:
    arrays = {f"draw/{name}": values for name, values in model.draws_.items()}
    header: dict[str, Any] = {
        "class": type(model).__name__,
        "sghmc": __version__,
        "params": {name: _plain(name, value) for name, value in model.get_params().items()},
        "attributes": {name: getattr(model, name) for name in _ATTRIBUTES if hasattr(model, name)},
        "lists": {},
    }
    for name in _SCALINGS:
        if hasattr(model, name):
            for part, values in getattr(model, name)._asdict().items():
                arrays[f"{name}/{part}"] = np.asarray(values)
    for name in _ARRAYS:
        if (values := getattr(model, name, None)) is not None:
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
    """Return the header and the arrays in a file, if they could be a model's."""
    files.check_plain(path)
    with open(path, "rb") as file:
        first = file.readline(_MAX_LINE_BYTES)
        if not first.startswith(_MAGIC):
            raise ModelFileError(f"{path} is not a model file of sghmc.")
        version = first.removeprefix(_MAGIC).decode(errors="replace").rstrip("\n")
        if version != str(_VERSION):
            raise ModelFileError(
                f"{path} has format {version!r}, but this version of sghmc ({__version__}) reads "
                f"format {_VERSION}: fit and save the model again."
            )
        digest, content = file.readline(_MAX_LINE_BYTES).rstrip(b"\n"), file.read()
    if hashlib.sha256(content).hexdigest().encode() != digest:
        raise ModelFileError(f"{path} is damaged or cut short: its checksum does not match.")
    try:
        # What is written here is not packed: neither is what is read.
        arrays = read_npz(content, str(path), most_ratio=1)
        header = json.loads(arrays.pop("header").tobytes())
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelFileError(f"{path} is none that sghmc wrote: {error}.") from error
    _check(header, arrays, path)
    return header, arrays


def _check(header: Any, arrays: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Refuse what `_packed` does not write: names that a model lacks, values of other types."""
    kinds = {"class": str, "sghmc": str, "params": dict, "attributes": dict, "lists": dict}
    is_header = (
        isinstance(header, dict)
        and {name: type(value) for name, value in header.items()} == kinds
        and set(header["attributes"]) <= set(_ATTRIBUTES)
        and set(header["lists"]) <= set(_ARRAYS)
        and all(isinstance(values, list) for values in header["lists"].values())
        and all(isinstance(v, _PLAIN) for values in header["lists"].values() for v in values)
    )
    if not is_header:
        raise ModelFileError(f"{path} is none that sghmc wrote: its header is not a model's.")
    known = {f"array/{name}" for name in _ARRAYS}
    known |= {f"{name}/{part}" for name in _SCALINGS for part in Scaling._fields}
    for name in arrays:
        if name not in known and not name.startswith("draw/"):
            raise ModelFileError(f"{path} is none that sghmc wrote: it holds an array {name!r}.")
    for name in _SCALINGS:
        if len(_part(arrays, name)) not in (0, len(Scaling._fields)):
            raise ModelFileError(f"{path} is none that sghmc wrote: it holds half of {name!r}.")


def _part(arrays: dict[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    prefix = f"{kind}/"
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def _concrete(kind: type) -> list[type]:
    """Return the concrete subclasses of `kind`, itself last if it is concrete."""
    below = [each for child in kind.__subclasses__() for each in _concrete(child)]
    return below if inspect.isabstract(kind) else [*below, kind]
