"""Models in files: every bit comes back, and nothing is believed that was not written here."""

import abc
import hashlib
import io
import json
import os
import zipfile
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from sghmc import estimators
from sghmc.estimators import BayesianLinearRegression, storage
from sghmc.estimators.storage import ModelFileError
from sghmc.estimators.weighted_rows import Scaling


class Kind(abc.ABC):
    """What the models of these tests have in common: nothing is only that."""

    @abc.abstractmethod
    def predict(self): ...


class Toy(BaseEstimator, Kind):
    n_features_in_: int
    table_: dict[str, Any]
    input_scaling_: Scaling
    classes_: np.ndarray
    feature_names_in_: np.ndarray
    draws_: dict[str, np.ndarray]

    def __init__(self, sizes=(3, 2), rate=0.1, random_state=None):
        self.sizes, self.rate, self.random_state = sizes, rate, random_state

    def predict(self): ...


class Other(BaseEstimator, Kind):
    def predict(self): ...


def fitted(**attributes) -> Any:
    model = Toy(sizes=(4,), rate=np.float64(0.5), random_state=np.random.RandomState(0))
    model.n_features_in_ = 2
    model.table_ = {"target": "y", "columns": [{"name": "σ"}]}
    model.input_scaling_ = Scaling(np.array([1.0, -2.0]), np.array([3.0, 4.0]))
    model.classes_ = np.array(["b", "ä"], object)
    model.feature_names_in_ = np.array(["x", "y"])
    model.draws_ = {"coef": np.random.default_rng(0).normal(size=(5, 2)), "nu": np.ones(5, ">f4")}
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@pytest.fixture
def path(tmp_path):
    storage.write(fitted(), tmp_path / "model")
    return tmp_path / "model"


def test_what_is_written_is_read(path):
    model, found = fitted(), storage.read(path, Kind)
    assert type(found) is Toy
    assert found.get_params() == {"sizes": (4,), "rate": 0.5, "random_state": None}
    assert (found.n_features_in_, found.table_) == (model.n_features_in_, model.table_)
    for name in ("center", "scale"):
        np.testing.assert_array_equal(
            getattr(found.input_scaling_, name), getattr(model.input_scaling_, name)
        )
    assert not hasattr(found, "target_scaling_")
    for name in ("classes_", "feature_names_in_"):
        assert getattr(found, name).tolist() == getattr(model, name).tolist()
        assert getattr(found, name).dtype == getattr(model, name).dtype
    assert list(found.draws_) == ["coef", "nu"]
    for name, draws in model.draws_.items():
        assert found.draws_[name].tobytes() == draws.tobytes()
        found.draws_[name][0] = 7  # as those of a model that was fitted


def test_one_of_another_kind_says_which(path):
    with pytest.raises(ModelFileError, match=r"holds a Toy, not a Other: load it with Toy\.load"):
        storage.read(path, Other)


def test_a_class_that_somebody_has_derived_from_can_still_be_read(path):
    class Derived(Toy):
        pass

    for wanted in (Toy, Kind):
        assert type(storage.read(path, wanted)) is Toy
    with pytest.raises(ModelFileError, match="holds a Toy, not a Derived"):
        storage.read(path, Derived)
    derived = Derived()
    derived.draws_ = {}
    storage.write(derived, path)
    for wanted in (Derived, Toy, Kind):
        assert type(storage.read(path, wanted)) is Derived
    with pytest.raises(ModelFileError, match="holds a Derived, not a Other"):
        storage.read(path, Other)


def test_what_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(TypeError, match="rate holds <object"):
        storage.write(fitted(rate=object()), tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_every_bit_is_watched(path):
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(place % 8)
        path.write_bytes(flipped)
        with pytest.raises(ModelFileError):
            storage.read(path, Kind)
    for length in (0, 10, 30, 90, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            storage.read(path, Kind)


def test_another_format_is_told(path):
    path.write_bytes(path.read_bytes().replace(b"format 3", b"format 4", 1))
    with pytest.raises(ModelFileError, match=r"format '4', but this version .* reads format 3"):
        storage.read(path, Kind)


# Files that somebody crafted, with the right checksum

HEADER = {"class": "Toy", "sghmc": "0", "params": {}, "attributes": {}, "lists": {}}


def craft(path, content):
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(b"sghmc model, format 3\n" + digest + b"\n" + content)
    return path


def with_header(header, save=np.savez, **arrays):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = io.BytesIO()
    save(content, header=np.frombuffer(text, np.uint8), **arrays)
    return content.getvalue()


CRAFTED = {
    "no zip": b"anything at all",
    "pickle": b"\x80\x04\x95",
    "no header": with_header(HEADER).replace(b"header.npy", b"reader.npy"),
    "no JSON": with_header(b"{"),
    "no text": with_header(b"\xff\xfe"),
    "deep": with_header(b"[" * 100_000),
    "a list": with_header([1, 2]),
    "no class": with_header({k: v for k, v in HEADER.items() if k != "class"}),
    "more": with_header(HEADER | {"code": "x"}),
    "class of another type": with_header(HEADER | {"class": ["Toy"]}),
    "unknown class": with_header(HEADER | {"class": "Popen"}),
    "abstract class": with_header(HEADER | {"class": "Kind"}),
    "params of another type": with_header(HEADER | {"params": [1]}),
    "unknown params": with_header(HEADER | {"params": {"command": "rm"}}),
    "a method": with_header(HEADER | {"attributes": {"predict": "mine"}}),
    "dunder": with_header(HEADER | {"attributes": {"__class__": "mine"}}),
    "unknown list": with_header(HEADER | {"lists": {"draws_": []}}),
    "list of another type": with_header(HEADER | {"lists": {"classes_": 3}}),
    "list of lists": with_header(HEADER | {"lists": {"classes_": [[1]]}}),
    "unknown array": with_header(HEADER, **{"array/predict": np.ones(2)}),
    "half a scaling": with_header(HEADER, **{"input_scaling_/center": np.ones(2)}),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_files_are_refused_with_a_message(name, tmp_path):
    path = craft(tmp_path / "model", CRAFTED[name])
    with pytest.raises(
        ModelFileError, match=r"model (is none that sghmc wrote|holds a (Popen|Kind))"
    ) as e:
        storage.read(path, Kind)
    assert "pickle" not in str(e.value)


def test_a_plain_header_is_one(tmp_path):
    path = craft(tmp_path / "model", with_header(HEADER))
    assert storage.read(path, Kind).draws_ == {}


def test_a_file_that_would_explode_is_not_unpacked(tmp_path):
    """Small packed arrays, and many: none of them alone is beyond a limit."""
    arrays = {f"draw/{k}": np.zeros(1 << 21) for k in range(6)}  # 16 MB each, from 16 KB
    path = craft(tmp_path / "model", with_header(HEADER, np.savez_compressed, **arrays))
    assert path.stat().st_size < 200_000
    with pytest.raises(ModelFileError, match="would unpack from"):
        storage.read(path, Kind)


def test_what_has_no_end_is_not_read():
    if not os.path.exists("/dev/zero"):
        pytest.skip("the system has no such file")
    with pytest.raises(ValueError, match="/dev/zero is a pipe or a device"):
        storage.read(storage.pathlib.Path("/dev/zero"), Kind)


def linear(**changed) -> Any:
    """A model with draws by hand; None: without these draws."""
    model: Any = BayesianLinearRegression()
    model.n_features_in_ = 2
    model.input_scaling_ = Scaling(np.zeros(2), np.ones(2))
    model.target_scaling_ = Scaling(np.zeros(()), np.ones(()))
    draws = {"coef": np.ones((5, 1, 2)), "intercept": np.ones((5, 1)), "noise": np.ones(5)}
    model.draws_ = {n: each for n, each in {**draws, **changed}.items() if each is not None}
    return model


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"coef": np.full((5, 1, 2), np.nan)}, "'draw/coef' holds what is not a finite number"),
        ({"coef": np.ones((5, 1, 2), complex)}, "'draw/coef' holds what is not a finite number"),
        ({"coef": None}, "cannot predict .KeyError: 'coef'"),
        ({"noise": None}, "cannot predict .KeyError: 'noise'"),
        ({"coef": np.ones((5, 1, 3))}, "cannot predict .ValueError"),
        ({"noise": np.ones(4)}, "draws of unequal numbers"),
        ({"noise": np.zeros(5)}, "its predictions are not finite"),
    ],
)
def test_draws_that_cannot_predict_are_refused(changed, fault, tmp_path):
    linear().save(tmp_path / "model")
    assert len(estimators.load(tmp_path / "model").sample_posterior()["coef"]) == 5
    linear(**changed).save(tmp_path / "model")
    with pytest.raises(ModelFileError, match=f"is none that sghmc wrote: .*{fault}"):
        BayesianLinearRegression.load(tmp_path / "model")


def test_no_member_is_taken_for_a_pickle(tmp_path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("header.npy", b"\x80\x04\x95")
    with pytest.raises(ModelFileError, match=r"header\.npy in .* is not an \.npy file"):
        storage.read(craft(tmp_path / "model", content.getvalue()), Kind)


STORED = {
    "missing_columns_": ["x"],
    "far_columns_": ["y"],
    "likelihood_power_": 2.0,
    "sharpness_": 1.25,
    "noise_": "student",
    "target_rounding_": 0.125,
    "hidden_layer_sizes_": [4, 3],
    "diagnostics_": {"rhat": 1.01},
    "likelihood_": "ordinal",
}
"""What a fit learns besides draws, scalings and names."""


def test_all_that_a_fit_learns_is_in_the_file(path):
    storage.write(fitted(**STORED, target_scaling_=Scaling(np.array(2.0), np.array(0.5))), path)
    found = storage.read(path, Kind)
    learned = {name: getattr(found, name) for name in STORED}
    assert {n: list(v) if isinstance(v, tuple) else v for n, v in learned.items()} == STORED
    assert (float(found.target_scaling_.center), float(found.target_scaling_.scale)) == (2.0, 0.5)
