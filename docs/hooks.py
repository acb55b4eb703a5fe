"""What mkdocs calls while it builds the site: pages and pictures that are made, not written.

Each maker is a module of this folder with `write(folder)`. It writes files below `folder`, which
stands for this folder: what it writes to `folder / "reference/index.md"` is that page of the site.
"""

import importlib
import shutil
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_DOCS = Path(__file__).parent
_MADE = _DOCS.parent / "results" / "docs"
_MAKERS = ("reference",)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add to what is written what is made."""
    sys.path.insert(0, str(_DOCS))
    shutil.rmtree(_MADE, ignore_errors=True)
    for maker in _MAKERS:
        importlib.import_module(maker).write(_MADE)
    for path in sorted(_MADE.rglob("*")):
        if path.is_file():
            uri = path.relative_to(_MADE).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files
