"""Results as JSON: what was written is read, and what is broken says so by name."""

import pytest

from sghmc.core import files


def test_what_is_written_is_read(tmp_path):
    content = {"number": 0.1, "names": ["σ", "<b>"], "nothing": None}
    files.write_json(tmp_path / "a.json", content)
    assert files.read_json(tmp_path / "a.json") == content
    assert (tmp_path / "a.json").read_text("utf-8").endswith("}\n")


def test_files_of_an_earlier_run_stay_when_a_later_one_fails(tmp_path):
    folder = tmp_path / "figure"
    with files.drafts(folder) as stage:
        files.write_json(stage / "result.json", {"number": 1})
    with pytest.raises(ValueError, match="JSON"), files.drafts(folder) as stage:  # noqa: PT012
        files.write_json(stage / "config.json", {})
        files.write_json(stage / "result.json", {"number": float("nan")})
    assert [path.name for path in folder.iterdir()] == ["result.json"]
    assert files.read_json(folder / "result.json") == {"number": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is broken: Expecting"),
        (b"\xff", "is broken: "),
        (b"[1]", "does not hold named results"),
        (b"[" * 100_000, "is broken: it is nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "is broken: "),
    ],
    ids=["no JSON", "no text", "a list", "too deep", "a number that is too long"],
)
def test_what_is_no_result(tmp_path, content, message):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        files.read_json(path)


def test_a_file_too_large_for_a_result_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MAX_JSON_BYTES", 10)
    (tmp_path / "result.json").write_text('{"a": 1234567}')
    with pytest.raises(ValueError, match="14 bytes, but results have at most 10"):
        files.read_json(tmp_path / "result.json")
