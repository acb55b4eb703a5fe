"""The version: here, and nowhere else. The build reads this file."""

__version__ = "0.1.0"
