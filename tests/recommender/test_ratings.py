"""Ratings: what people have is read as it is; what cannot be right is an error that says so."""

import io
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sghmc.recommender.ratings import (
    Ratings,
    codes_of,
    folds,
    from_table,
    id_of,
    load_ratings,
    synthetic_ratings,
)

pl = pytest.importorskip("polars")

USERS, ITEMS, RATINGS = [1, 1, 6040, 2], [1193, 31, 1193, 3952], [5, 3.5, 4, 1]
ROWS = list(zip(USERS, ITEMS, RATINGS, strict=True))


def triples(ratings: Ratings) -> list[tuple]:
    """The rows in the ids of their source."""
    users, items = ratings.users[ratings.user].tolist(), ratings.items[ratings.item].tolist()
    return list(zip(users, items, ratings.rating.tolist(), strict=True))


def text(delimiter: str, header: str = "") -> str:
    lines = [delimiter.join(map(str, (*row, 978300760 + k))) for k, row in enumerate(ROWS)]
    return "\n".join([*([header] if header else []), *lines, ""])


def packed(path, members: dict[str, str | bytes]):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ratings.dat", text("::")),
        ("u.data", text("\t")),
        ("ratings.csv", text(",", "userId,movieId,rating,timestamp")),
        (
            "windows.csv",
            "\ufeff" + text(",", '"User ID","Item_ID","Rating",t').replace("\n", "\r\n"),
        ),
        ("plain.csv", text(",")),
        ("semicolons.txt", text(";", "user;item;rating;when")),
    ],
)
def test_reads_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content.encode())
    ratings = load_ratings(tmp_path / name)
    assert triples(ratings) == ROWS
    assert ratings.user.dtype == ratings.item.dtype == np.int32
    assert ratings.rating.dtype == np.float32
    assert ratings.users.tolist() == [1, 2, 6040]


@pytest.mark.parametrize(
    "members",
    [
        {"ml-1m/README": "read", "ml-1m/users.dat": "1::F", "ml-1m/ratings.dat": text("::")},
        {"ml-100k/u.item": "x|y", "ml-100k/u.data": text("\t"), "ml-100k/u1.base": "1\t2\t3\t4"},
        {"ml-32m/links.csv": "a,b", "ml-32m/ratings.csv": text(",", "userId,movieId,rating,t")},
        {"mine.csv": text(",", "user,item,rating,t"), "notes": "only one table"},
    ],
)
def test_reads_archives_in_place(tmp_path, members):
    path = packed(tmp_path / "ml.zip", members)
    assert triples(load_ratings(path)) == ROWS
    assert list(tmp_path.iterdir()) == [path]


def test_reads_parquet_and_npz(tmp_path):
    frame = pd.DataFrame({"user": USERS, "movie": ITEMS, "rating": RATINGS})
    frame.to_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", user=np.array(USERS), movie=np.array(ITEMS), rating=RATINGS)
    names = np.array(["zoë", "ann", "bob", "bob"])
    np.savez_compressed(tmp_path / "b.npz", user=names, item=np.array(ITEMS), rating=RATINGS)
    assert triples(load_ratings(tmp_path / "a.parquet")) == ROWS
    assert triples(load_ratings(tmp_path / "a.npz")) == ROWS
    assert load_ratings(tmp_path / "b.npz").users.tolist() == ["ann", "bob", "zoë"]


def test_tables_in_memory_agree():
    names = ["b", "a", "a", "c"]
    columns = {"userId": names, "item_id": ITEMS, "rating": RATINGS}
    wanted = list(zip(names, ITEMS, RATINGS, strict=True))
    frame = pd.DataFrame(columns)
    tables = [
        frame,
        frame.astype({"userId": "category", "item_id": float}),
        pl.DataFrame(columns, strict=False),
        pa.table(columns),
        columns,
        (np.array(names, object), np.array(ITEMS), np.array(RATINGS)),
        (names, ITEMS, RATINGS),
    ]
    for table in tables:
        ratings = from_table(table)
        assert triples(ratings) == wanted
        assert ratings.users.tolist() == ["a", "b", "c"]
        assert ratings.users.dtype.kind == "U"
    ratings = from_table(frame)
    assert from_table(ratings) is ratings


def test_ids_stay_what_they_are(tmp_path):
    """007 is not 7, NA is somebody's name, and a 20-digit number does not fit an integer."""
    ids = ["007", "7", "NA", "12345678901234567890"]
    lines = ["user,item,rating", *(f"{name},1,3" for name in ids)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    ratings = load_ratings(tmp_path / "a.csv")
    assert ratings.users[ratings.user].tolist() == ids
    assert ratings.items.tolist() == [1]


def test_columns_can_be_named():
    table = {"user": [1], "reader": ["x"], "book": ["y"], "stars": [3]}
    assert triples(from_table(table, user="reader", item="book", rating="stars")) == [("x", "y", 3)]
    with pytest.raises(ValueError, match="no 'pages'"):
        from_table(table, item="pages", rating="stars")


def test_joined_ratings_keep_codes():
    old = from_table((["b", "c", "b"], [5, 5, 6], [1, 2, 3]))
    new = from_table((["a", "c"], [6, 5], [4, 5]))
    both = old.joined(new)
    assert triples(both) == [("b", 5, 1), ("b", 6, 3), ("a", 6, 4), ("c", 5, 5)]
    assert both.users.tolist() == ["b", "c", "a"]
    assert both.user.dtype == np.int32


def test_ids_on_a_command_line_are_text():
    assert id_of("7", np.array([3, 7])) == 7
    assert id_of("7", np.array(["7"])) == "7"
    assert id_of("2.5", np.array([0.5, 2.5])) == 2.5
    with pytest.raises(ValueError, match="Ids are numbers here, 3 for example, but 'ann'"):
        id_of("ann", np.array([3]))


def test_codes_of_ids():
    known = np.array(["b", "a"])
    assert codes_of(["a", "z", "b", "a"], known).tolist() == [1, -1, 0, 1]
    assert codes_of([3.0, 9], np.array([7, 3])).tolist() == [1, -1]
    with pytest.raises(TypeError, match="numbers here, 7 for example, but 'a'"):
        codes_of(["a"], np.array([7]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"user": [], "item": [], "rating": []}, "0 rows"),
        ({"user": [1], "rating": [3]}, "columns user, rating: no column of items"),
        ({"user": [1], "item": [1], "movie": [1], "rating": [3]}, "more than one column of items"),
        ({"user": [1, 2], "item": [1], "rating": [3, 4]}, "different lengths"),
        ({"user": [1, 2], "item": [1, 1], "rating": [3, float("nan")]}, "NaN in row 2; 1 of its 2"),
        ({"user": [1, 2], "item": [1, 1], "rating": ["3", "good"]}, "'good' in row 2; 1 of its 2"),
        ({"user": [1, 2], "item": [1, 1], "rating": [3, np.inf]}, "inf in row 2"),
        ({"user": [1, None], "item": [1, 1], "rating": [3, 4]}, "user column .* no id in row 2"),
        ({"user": ["a", ""], "item": [1, 1], "rating": [3, 4]}, "user column .* no id in row 2"),
        ({"user": [1, "a"], "item": [1, 1], "rating": [3, 4]}, "user column .* not of one type"),
        ({"user": np.ones((2, 2)), "item": [1, 1], "rating": [3, 4]}, "one axis, but has 2"),
    ],
)
def test_bad_tables_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        from_table(table)


def test_no_table_is_refused():
    with pytest.raises(TypeError, match="not int"):
        from_table(3)


def test_duplicates():
    table = ([1, 2, 1, 2, 1], [5, 5, 5, 6, 5], [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="user 1 and item 5 again in row 3; 2 of 5 rows"):
        from_table(table)
    assert triples(from_table(table, duplicates="last")) == [(2, 5, 2), (2, 6, 4), (1, 5, 5)]
    assert triples(from_table(table, duplicates="mean")) == [(1, 5, 3), (2, 5, 2), (2, 6, 4)]
    with pytest.raises(ValueError, match='duplicates must be "error"'):
        from_table(table, duplicates="first")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "user,item,rating\n", "0 rows"),
        ("a.csv", "user,item,rating\n1,2,3\n1,2\n", "a.csv cannot be read as a table"),
        ("a.csv", "user,item,rating\n1,2,x\n", "a.csv has 'x' in row 1"),
        ("a.csv", "user,item\n1,2\n", "no column of ratings"),
        ("a.csv", b"user,item,rating\n\xff,2,3\n", "cannot be read as a table"),
        ("ratings.dat", "1::2::3::4\n1::3\n", "cannot be read as a table"),
        ("a.parquet", "PAR1 and nothing else", "not a complete parquet file"),
        ("a.npz", "not a zip file", "truncated or damaged"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        load_ratings(path)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        load_ratings(tmp_path / "nowhere.csv")
    with pytest.raises(FileNotFoundError, match="holds none of"):
        load_ratings(tmp_path)


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", user=np.array([1, "a"], object), item=[1, 2], rating=[1, 2])
    with pytest.raises(ValueError, match=r"user.npy in .*a.npz holds Python objects"):
        load_ratings(tmp_path / "a.npz")


def test_truncated_archives_are_refused(tmp_path):
    whole = packed(tmp_path / "whole.zip", {"ratings.dat": text("::") * 100}).read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "part.zip").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"part\.zip .*truncated or damaged"):
            load_ratings(tmp_path / "part.zip")
    damaged = bytearray(whole)
    damaged[60] ^= 255
    (tmp_path / "damaged.zip").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"ratings\.dat in .*damaged\.zip"):
        load_ratings(tmp_path / "damaged.zip")


@pytest.mark.parametrize("name", ["../evil.csv", "/etc/evil.csv", "a/../../b", "..\\b", "C:\\b"])
def test_members_that_escape_are_refused(tmp_path, name):
    path = packed(tmp_path / "a.zip", {"ratings.dat": text("::"), name: "x"})
    with pytest.raises(ValueError, match="leads out of the archive"):
        load_ratings(path)


def test_members_that_explode_are_refused(tmp_path):
    path = packed(tmp_path / "a.zip", {"ratings.dat": b"\0" * (80 << 20)})
    with pytest.raises(ValueError, match=r"to 83,886,080 bytes"):
        load_ratings(path)


def test_declared_sizes_that_lie_are_refused(tmp_path):
    """The directory says 10 bytes; what is packed are many more: it is not unpacked further."""
    content = bytearray(packed(tmp_path / "a.zip", {"ratings.dat": b"1" * 100_000}).read_bytes())
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        where = content.index(signature) + offset
        content[where : where + 4] = (10).to_bytes(4, "little")
    (tmp_path / "b.zip").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        load_ratings(tmp_path / "b.zip")


def test_archives_without_a_table_are_refused(tmp_path):
    path = packed(tmp_path / "a.zip", {"a.csv": "x", "b.csv": "y"})
    with pytest.raises(ValueError, match=r"holds a\.csv, b\.csv"):
        load_ratings(path)


def test_npz_arrays_larger_than_their_bytes_are_refused(tmp_path):
    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(stream, header)
    path = packed(tmp_path / "a.npz", {"user.npy": stream.getvalue()})
    with pytest.raises(ValueError, match=r"128 bytes where its header, .* needs 8796093022336"):
        load_ratings(path)


def test_synthetic_ratings():
    ratings = synthetic_ratings(3, 30, 20, rank=2, density=0.2)
    assert (ratings.num_users, ratings.num_items) == (30, 20)
    assert len(np.unique(ratings.user)) == 30
    assert len(np.unique(ratings.item)) == 20
    assert triples(ratings) == triples(synthetic_ratings(3, 30, 20, rank=2, density=0.2))
    assert triples(ratings) == triples(from_table(triples_as_columns(ratings)))
    with pytest.raises(ValueError, match="density"):
        synthetic_ratings(0, density=0)


def triples_as_columns(ratings: Ratings):
    return tuple(zip(*triples(ratings), strict=True))


def test_folds_partition_the_rows():
    ratings = synthetic_ratings(0, 20, 10)
    parts = folds(ratings, 5, seed=1)
    tested = np.concatenate([test for _, test in parts])
    assert np.array_equal(np.sort(tested), np.arange(len(ratings)))
    for train, test in parts:
        assert not np.intersect1d(train, test).size
        assert len(train) + len(test) == len(ratings)
    with pytest.raises(ValueError, match="would be empty"):
        folds(ratings.take(np.arange(3)), 5)
    with pytest.raises(ValueError, match="from 2"):
        folds(ratings, 1)


def test_synthetic_noise_is_as_large_as_asked_for():
    """2,000 ratings: a standard deviation is known to 1.6 %, and 8 % off for one seed in 10⁶."""
    noisy, exact = (synthetic_ratings(3, 100, 50, density=0.4, noise=each) for each in (0.7, 0.0))
    assert np.std(noisy.rating - exact.rating) == pytest.approx(0.7, rel=0.08)


@pytest.mark.parametrize(
    "column",
    [
        [978300760, 978302109, 978301968],
        np.array([978300760, 978302109, 978301968], "datetime64[s]"),
        ["2000-12-31T22:12:40", "2000-12-31T22:35:09", "2000-12-31T22:32:48"],
    ],
    ids=["seconds", "dates", "text"],
)
def test_times_are_seconds_and_follow_their_rows(column):
    table = {"user": [1, 1, 2], "item": [1, 2, 1], "rating": [3.0, 4.0, 5.0], "Timestamp": column}
    ratings = from_table(table)
    assert ratings.time is not None
    assert ratings.time.tolist() == [978300760, 978302109, 978301968]
    taken = ratings.take(np.array([2, 0]))
    assert taken.time is not None
    assert taken.time.tolist() == [978301968, 978300760]
    new = {"user": [1], "item": [2], "rating": [1.0], "timestamp": [7.0]}
    joined = ratings.joined(from_table(new))
    assert joined.time is not None
    assert joined.time.tolist() == [978300760, 978301968, 7]
    del new["timestamp"]
    assert ratings.joined(from_table(new)).time is None


def test_times_that_do_not_tell_are_none():
    table = {"user": [1, 1], "item": [1, 2], "rating": [3.0, 4.0]}
    for column in (["soon", "later"], [1.0, np.nan], [None, 3.0]):
        assert from_table(table | {"time": column}).time is None
