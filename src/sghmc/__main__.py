"""Entry point of the command `sghmc`, also as `python -m sghmc`."""

import sys


def main() -> None:
    """Run the command; say in one line which extra is missing where it is not installed."""
    try:
        from sghmc.cli import app
    except ModuleNotFoundError as error:
        if "pip install" not in str(error):
            raise
        sys.exit(f"sghmc: {error}")
    app()


if __name__ == "__main__":
    main()
