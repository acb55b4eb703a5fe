"""Outputs on pages are made from the code above them, again only when that code changes."""

import json

import outputs

PAGE = """Text.

```python
x = 20
```

```python
print(x + 1)
```

<!-- output -->

More text.

```python
print("not asked for")
```
"""


def test_what_a_block_prints_stands_below_it(tmp_path):
    text = outputs.with_outputs("a/page.md", PAGE, tmp_path)
    assert "print(x + 1)\n```\n\n```text\n21\n```\n\nMore text." in text
    assert "```text\nnot asked for" not in text
    assert "<!-- output -->" not in text


def test_a_page_whose_library_is_missing_is_shown_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs.importlib.util, "find_spec", lambda name: None)
    page = PAGE.replace("x = 20", "import torch\nx = 20")
    assert outputs.with_outputs("page.md", page, tmp_path) == page
    assert not any(tmp_path.iterdir())
    assert outputs.can_run(PAGE)


def test_code_runs_again_only_when_it_has_changed(tmp_path):
    outputs.with_outputs("page.md", PAGE, tmp_path)
    (kept,) = tmp_path.iterdir()
    known = json.loads(kept.read_text())
    known["printed"][1] = "kept"
    kept.write_text(json.dumps(known))
    assert "```text\nkept\n```" in outputs.with_outputs("page.md", PAGE, tmp_path)
    changed = PAGE.replace("x = 20", "x = 30")
    assert "```text\n31\n```" in outputs.with_outputs("page.md", changed, tmp_path)


def test_a_page_that_asks_for_nothing_is_left_alone(tmp_path):
    page = "```python\nraise SystemExit\n```\n"
    assert outputs.with_outputs("page.md", page, tmp_path) == page
