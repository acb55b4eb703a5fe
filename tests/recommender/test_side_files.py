"""Features from files in MovieLens' formats, made up here, and from any table."""

import zipfile

import numpy as np
import pytest

from sghmc.recommender.features import load_side

pq = pytest.importorskip("pyarrow.parquet")

FLAGS = {1: "0|1|0|0|0|1" + "|0" * 13, 2: "0" + "|0" * 7 + "|1" + "|0" * 10}
TEXTS = {
    "u.user": ("user", "1|24|M|writer|85711\n3|53|F|other|T8H1N\n"),
    "u.item": (
        "item",
        f"1|Héros (1995)|01-Jan-1995||http://x|{FLAGS[1]}\n2|unknown||||{FLAGS[2]}\n",
    ),
    "users.dat": ("user", "1::F::1::10::48067\n3::M::56::16::70072-1\n"),
    "movies.dat": ("item", "1::Héros (1995)::Action|Comedy\n2::No year::Drama\n"),
}
EXPECTED = {
    "u.user": ([1, 3], {"age": [24, 53], "gender": ["M", "F"], "occupation": ["writer", "other"]}),
    "u.item": ([1, 2], {"year": [1995, None], "genres": [["Action", "Comedy"], ["Drama"]]}),
    "users.dat": ([1, 3], {"age": [1, 56], "gender": ["F", "M"], "occupation": ["10", "16"]}),
    "movies.dat": ([1, 2], {"year": [1995, None], "genres": [["Action", "Comedy"], ["Drama"]]}),
}


@pytest.mark.parametrize("place", ["file", "folder", "archive"])
@pytest.mark.parametrize("name", TEXTS)
def test_movielens_files_from_anywhere(tmp_path, name, place):
    role, text = TEXTS[name]
    content = text.encode("latin-1")
    (tmp_path / name).write_bytes(content)
    path = {"file": tmp_path / name, "folder": tmp_path, "archive": tmp_path / "ml.zip"}[place]
    if place == "archive":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"ml/{name}", content)
            archive.writestr("ml/README", "words")
    ids, columns = EXPECTED[name]
    found = load_side(path, role)
    assert found.ids.tolist() == ids
    for column, values in columns.items():
        assert found.columns[column].to_pylist() == values


def test_tables_with_ids_as_they_are_written(tmp_path):
    """007 is not 7; where all are whole numbers, ids are those."""
    (tmp_path / "people.csv").write_text("id,age,town\n007,30,Ulm\n12,,Ulm\n")
    found = load_side(tmp_path / "people.csv", "user")
    assert found.ids.tolist() == ["007", "12"]
    assert found.columns["age"].to_pylist() == [30, None]
    (tmp_path / "movies.csv").write_text(
        'movieId,title,genres\n1,"Toys, again (1995)",War|Drama\n2,Sea (1940),War\n'
    )
    found = load_side(tmp_path, "item")
    assert found.ids.tolist() == [1, 2]
    assert found.columns["year"].to_pylist() == [1995, 1940]
    np.savez(tmp_path / "users.npz", user=[4, 5], age=[1.0, 2.0])
    assert load_side(tmp_path / "users.npz", "user").columns["age"].to_pylist() == [1, 2]


def test_parquet_keeps_its_types(tmp_path):
    import pyarrow as pa

    table = pa.table({"item": ["x", "y"], "tags": [["a"], ["a", "b"]]})
    pq.write_table(table, tmp_path / "items.parquet")
    found = load_side(tmp_path / "items.parquet", "item")
    assert found.ids.tolist() == ["x", "y"]
    assert found.columns["tags"].to_pylist() == [["a"], ["a", "b"]]


def test_wrong_files_are_named(tmp_path):
    (tmp_path / "u.user").write_text("1|24|M|writer|85711\n3|53\n")
    with pytest.raises(ValueError, match=r"u.user of .* has 2 fields in row 2, where 5 belong"):
        load_side(tmp_path / "u.user", "user")
    with pytest.raises(FileNotFoundError, match="no file"):
        load_side(tmp_path / "nothing.csv", "user")
    (tmp_path / "b.csv").write_text("name,age\nann,3\n")
    with pytest.raises(ValueError, match="no column of users"):
        load_side(tmp_path / "b.csv", "user")
