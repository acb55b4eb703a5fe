"""The command line: parses, calls, saves. No science. One file a group of commands."""

from sghmc.core.optional import require

require("typer", extra="cli")

from sghmc.cli import demo, fit, ratings, report, reproduce
from sghmc.cli.session import app

__all__ = ["app", "demo", "fit", "main", "ratings", "report", "reproduce"]


def main() -> None:
    """The entry point of the `sghmc` command."""
    app()
