"""Puts what a page's code prints under the code, when the site is built.

A block of Python that is followed by the line `<!-- output -->` gets what it printed in that line's
place. The blocks of a page run one after the other, and again only if one of them has changed.
Where PyTorch is missing, code that imports it is shown without what it prints.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import re
from pathlib import Path

BLOCK = re.compile(r"```python\n(.*?)```(\n\n<!-- output -->)?", re.DOTALL)


def with_outputs(page: str, text: str, cache: Path) -> str:
    """The page with its outputs; `cache` is a folder for what was printed the last time."""
    if "<!-- output -->" not in text or not can_run(text):
        return text
    codes = [code for code, _ in BLOCK.findall(text)]
    digest = hashlib.sha256("\0".join(codes).encode()).hexdigest()
    kept = cache / f"{page.replace('/', '-')}.json"
    known = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    if known.get("digest") != digest:
        known = {"digest": digest, "printed": printed(page, codes)}
        cache.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(known), encoding="utf-8")
    outputs = iter(known["printed"])

    def shown(match: re.Match) -> str:
        output = next(outputs)
        block = f"```python\n{match[1]}```"
        return f"{block}\n\n```text\n{output.rstrip()}\n```" if match[2] else block

    return BLOCK.sub(shown, text)


def can_run(source: str) -> bool:
    """Whether all that a script or a page imports can be here; PyTorch need not be installed."""
    return "import torch\n" not in source or importlib.util.find_spec("torch") is not None


def printed(page: str, codes: list[str]) -> list[str]:
    """What each block prints, without progress bars."""
    names: dict = {"__name__": "__main__"}
    outputs = []
    for code in codes:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(code, page, "exec"), names)
        outputs.append(output.getvalue())
    return outputs
