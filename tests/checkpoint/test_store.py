"""The store of draws, read by those that others wrote: zarr and xarray, tensorstore, ArviZ."""

import contextlib
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import tensorstore

import sghmc
from sghmc.checkpoint import zarr
from sghmc.checkpoint.store import DiskStore
from sghmc.checkpoint.zarr import DrawFile
from sghmc.engine import driver
from sghmc.engine.driver import Bar
from sghmc.results import summaries

LocalStore = pytest.importorskip("zarr.storage").LocalStore
xarray = pytest.importorskip("xarray")
arviz: Any = summaries._import_arviz()  # which keeps its daily announcement from us
EVERY, NUM_SAMPLES = 10, 25
WEIGHTS = np.dtype("f4").itemsize * 2 * 6  # bytes of a draw's, for two chains


def opened(folder):
    if arviz.__version__.startswith("0."):
        return arviz.InferenceData.from_datatree(xarray.open_datatree(folder, engine="zarr"))
    return arviz.from_zarr(folder)


def by_tensorstore(folder) -> np.ndarray:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    return tensorstore.open(spec).result().read().result()


# The store of a run


POSTERIOR = sghmc.Posterior(
    lambda p, y, hyper: -0.5 * hyper["scale"] * (y - p["layers"][0]["bias"]) ** 2,
    lambda p, hyper: -0.5 * jnp.sum(p["weights"] ** 2) - 0.5 * p["layers"][0]["bias"] ** 2,
    jnp.ones(5),
    hyper={"scale": 2.0},
)


def bias(params, hyper):
    return params["layers"][0]["bias"]


def means(averages):
    return averages


def sample(folder):
    """Two chains with nested names, a scalar, hyperparameters and every statistic there is."""
    return sghmc.sample(
        jax.random.key(0),
        POSTERIOR,
        sghmc.HMC(0.5, 2),
        {"weights": jnp.zeros((2, 3)), "layers": [{"bias": jnp.zeros(())}]},
        num_samples=NUM_SAMPLES,
        num_chains=2,
        averages={"bias": bias},
        trace=means,
        checkpoint=sghmc.Checkpoint(folder, every=EVERY),
        progress=False,
    )


@pytest.fixture(autouse=True, scope="module")
def chunks_of_ten_draws():
    """Of the weights: three chunks, of which the last is not full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr, "_CHUNK_BYTES", 10 * WEIGHTS)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, sample(folder)


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "copy")


def check_same(found, expected, num_draws=NUM_SAMPLES):
    for group in ("posterior", "sample_stats"):
        assert set(found[group].data_vars) == set(expected[group].data_vars)
        for name, wanted in expected[group].data_vars.items():
            array = found[group][name]
            assert (array.dims, array.dtype) == (wanted.dims, wanted.dtype)
            np.testing.assert_array_equal(array.values, wanted.values[:, :num_draws])


@pytest.mark.slow
def test_arviz_opens_what_the_run_returned(finished):
    folder, samples = finished
    found = opened(folder / "draws")
    check_same(found, samples.to_arviz())
    assert set(found["posterior"].data_vars) == {"weights", "layers[0].bias", "hyper.scale"}
    assert 0 < np.mean(found["sample_stats"]["acceptance_rate"]) < 1
    with np.errstate(invalid="ignore"):  # the hyperparameter never moves
        ours, theirs = arviz.summary(samples.to_arviz()), arviz.summary(found)
    pandas.testing.assert_frame_equal(theirs.sort_index(), ours.sort_index())
    np.testing.assert_array_equal(found["run"]["clock"][0], samples.clock)
    np.testing.assert_array_equal(found["run"]["trace.bias"], samples.trace["bias"])


def test_another_reader_of_zarr_sees_the_same(finished):
    folder, samples = finished
    draws = samples.to_arviz()
    for group in ("posterior", "sample_stats"):
        for name, array in draws[group].data_vars.items():
            found = by_tensorstore(folder / "draws" / group / name)
            np.testing.assert_array_equal(found, array.values)


def test_one_draw_is_read_without_the_others(finished, monkeypatch):
    folder, samples = finished
    num_read, get = [], LocalStore.get

    async def counted(self, key, *args, **options):
        buffer = await get(self, key, *args, **options)
        if key.endswith("c.0.0.0.0"):
            assert buffer is not None
            num_read.append(len(buffer))
        return buffer

    monkeypatch.setattr(LocalStore, "get", counted)
    weights = opened(folder / "draws")["posterior"]["weights"]
    np.testing.assert_array_equal(weights[:, 12], samples.positions["weights"][:, 12])
    assert sorted(num_read) == [10 * WEIGHTS, 1024 * 16]  # the index, and one of three chunks


class Killed(BaseException):
    """What ends a run at once."""


def test_an_interrupted_run_is_there_until_its_last_save(finished, tmp_path, monkeypatch):
    class Death(Bar):
        def update(self, num_done, failed_at):
            if num_done >= 14:
                raise Killed

    monkeypatch.setattr(driver, "Bar", Death)
    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)  # a draw at a time
    with pytest.raises(Killed):
        sample(tmp_path)
    check_same(opened(tmp_path / "draws"), finished[1].to_arviz(), num_draws=EVERY)
    monkeypatch.setattr(driver, "Bar", Bar)
    sample(tmp_path)
    check_same(opened(tmp_path / "draws"), finished[1].to_arviz())


def test_no_draws_are_promised_that_a_resumed_run_takes_away(copy, finished, monkeypatch):
    """The newest save is damaged, so that five draws go; killed before they have, and after."""
    (copy / "saves" / f"{NUM_SAMPLES:012d}" / "manifest.json").write_text("damaged")

    def die(*_):
        raise Killed

    monkeypatch.setattr(driver, "_BLOCK_SECONDS", 1e-9)  # a draw at a time
    ways = (
        (DrawFile, "reopen", contextlib.nullcontext()),
        (Bar, "update", pytest.warns(match="is damaged")),
    )
    for kind, name, told in ways:
        with monkeypatch.context() as patch, told:
            patch.setattr(kind, name, die)
            with pytest.raises(Killed):
                sample(copy)
        check_same(opened(copy / "draws"), finished[1].to_arviz(), num_draws=2 * EVERY)


def test_what_the_store_says_of_itself_is_not_believed(copy, finished):
    """A run neither reads it nor leaves it wrong."""
    for path in (copy / "draws").rglob("zarr.json"):
        path.write_text("damaged")
    file = copy / "draws" / "posterior" / "weights" / "c.0.0.0.0"
    file.write_bytes(b"damaged!" + file.read_bytes()[8:])  # in the index
    again = sample(copy)
    np.testing.assert_array_equal(again.positions["weights"], finished[1].positions["weights"])
    check_same(opened(copy / "draws"), finished[1].to_arviz())


# Arrays of every kind


def rows(leaf, num_chains, num_draws):
    """Distinct numbers of a type, axes (chain, draw, …)."""
    dtype, shape = leaf
    shape = (num_chains, num_draws, *shape)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return (numbers % 2 if dtype == "bool" else numbers % 100).astype(jnp.dtype(dtype))


ARRAYS = {
    "scalar": ("float32", ()),
    "double": ("float64", (2,)),
    "half": ("float16", (2, 1, 3)),
    "complex": ("complex64", (2,)),
    "truth": ("bool", (3,)),
    "byte": ("int8", (3,)),
    "count": ("uint32", ()),
    "long": ("int64", (5,)),
    "large": ("float32", (300,)),  # a draw is more than a chunk
    "empty": ("float32", (0,)),
    "brain": ("bfloat16", (3,)),
    "eighth": ("float8_e4m3fn", (3,)),
}


@pytest.mark.parametrize("num_chains", [1, 3])
def test_every_type_and_shape(num_chains, tmp_path):
    draws = {name: rows(leaf, num_chains, 9) for name, leaf in ARRAYS.items()}
    nothing = {"positions": {name: array[:, :0] for name, array in draws.items()}}
    (tmp_path / "draws").mkdir()
    with contextlib.closing(DiskStore(tmp_path / "draws", nothing, 11)) as store:
        store.create()
        for part in (slice(0, 1), slice(1, 7), slice(7, 9)):
            store.append({"positions": {name: array[:, part] for name, array in draws.items()}})
        assert opened(tmp_path / "draws")["posterior"].sizes["draw"] == 0
        store.stored()
        store.publish()
        mapped = store.draws()["positions"]
    found = opened(tmp_path / "draws")
    for name, expected in draws.items():
        assert mapped[name].dtype == expected.dtype
        np.testing.assert_array_equal(mapped[name], expected)
        is_bits = name in ("brain", "eighth")
        array = found["run" if is_bits else "posterior"][name]
        if is_bits:
            assert array.attrs == {"bits_of": ARRAYS[name][0]}
            np.testing.assert_array_equal(array.values.view(expected.dtype), expected)
        else:
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
        path = tmp_path / "draws" / ("run" if is_bits else "posterior") / name
        np.testing.assert_array_equal(by_tensorstore(path), array)


# Names


def paths(names, tmp_path):
    nothing = {"positions": dict.fromkeys(names, np.zeros((1, 0)))}
    (tmp_path / "draws").mkdir(parents=True)
    store = DiskStore(tmp_path / "draws", nothing, 1)
    store.create()
    store.close()
    found = json.loads((tmp_path / "draws" / "zarr.json").read_text())
    arrays = found["consolidated_metadata"]["metadata"]
    return {path.removeprefix("posterior/") for path in arrays if "/" in path}


def test_names_are_kept_and_none_leads_out_or_to_anothers_file(tmp_path):
    kept = ["weights", "my weights", "σ²", "log(p) = 3", "a.b[0]", "_private"]
    assert paths(kept, tmp_path / "kept") == set(kept)
    hostile = ["", ".", "..", "../../up", "/etc/passwd", "a\\b", "a/b", "__x", "zarr.json", "chain"]
    hostile += ["W", "w", "é", "e\u0301", "a\0b", "\ud800", "x" * 300, "x" * 301, " __y", "c:d "]
    found = paths(hostile, tmp_path / "hostile")
    assert len({name.casefold() for name in found}) == len(hostile)
    for name in found:
        assert not set(name) & set("/\\:\0")
        assert not name.startswith(("__", "."))
        assert len(name.encode()) <= 200
        assert zarr.safe_name(name) == name, "a manifest with it would not be believed"
    inside = {path.parent.name for path in (tmp_path / "hostile").rglob("c.0.0")}
    assert inside == found
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "hostile"}
