"""What mkdocs calls while it builds the site: pages and pictures that are made, not written.

`extra.makers` in mkdocs.yml names modules of this folder. `write(folder)` of the one named
"reference" writes what becomes the folder reference/ of the site; a maker may leave there what is
still good from the last time. WITHOUT=gallery in the environment leaves the gallery out.
"""

import importlib
import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_DOCS = Path(__file__).parent
_MADE = _DOCS.parent / "results" / "docs"
_LOADS = re.compile(
    r"""<(?:img|script|iframe|source|video|audio|embed)\b[^>]*?\bsrc(?:set)?\s*=\s*["']?(?:https?:)?//[^>]*>
    |<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*?
     \bhref\s*=\s*["']?(?:https?:)?//[^>]*>
    |(?:@import\s+|url\(\s*)["']?(?:https?:)?//[^"')]*""",
    re.VERBOSE | re.IGNORECASE,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add to what is written what is made."""
    sys.path.insert(0, str(_DOCS))
    without = os.environ.get("WITHOUT", "").split()
    for maker in (each for each in config.extra["makers"] if each not in without):
        folder = _MADE / maker
        folder.mkdir(parents=True, exist_ok=True)
        importlib.import_module(maker).write(folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                uri = path.relative_to(_MADE).as_posix()
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run a page's code where the page asks for what it prints."""
    outputs = importlib.import_module("outputs")
    return outputs.with_outputs(page.file.src_uri, markdown, _MADE / "outputs")


@event_priority(-100)  # once the index is there
def on_post_build(config: MkDocsConfig) -> None:
    """Give search its index where pages are opened from a folder; refuse loads from elsewhere."""
    site = Path(config.site_dir)
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    (site / "search" / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for load in loads(path.read_text(encoding="utf-8")):
                raise PluginError(f"{path} would load {load} from the network.")


def loads(text: str) -> list[str]:
    """What a page or a style sheet loads from elsewhere; links to follow are none of it."""
    return _LOADS.findall(text)
