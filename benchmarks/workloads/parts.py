"""One script for several benchmarks: the first argument names the part that takes the rest."""

import argparse
import importlib
import sys


def run(description: str | None, parts: dict[str, str]) -> None:
    """Call `main` of the module of `workloads` that belongs to the part on the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=list(parts))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="PART --help lists them")
    given = parser.parse_args()
    sys.argv = [f"{sys.argv[0]} {given.part}", *given.options]
    importlib.import_module(f"workloads.{parts[given.part]}").main()
