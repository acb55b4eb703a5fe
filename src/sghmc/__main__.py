"""`python -m sghmc`: the command line."""

from sghmc.cli import main

main()
