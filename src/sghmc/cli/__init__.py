"""The command line: parses, calls, saves. No science. One file a group of commands."""

from sghmc.core.checks import require

require("typer", extra="cli")

from sghmc.cli import commands, ratings, report
from sghmc.cli.session import app

__all__ = ["app", "commands", "main", "ratings", "report"]


def main() -> None:
    """The entry point of the `sghmc` command."""
    app()
