"""The command line, one file for each group of commands: it parses, calls and saves."""

from sghmc.core.checks import require

require("typer", extra="cli")

from sghmc.cli import commands, ratings, report
from sghmc.cli.session import app

__all__ = ["app", "commands", "ratings", "report"]
