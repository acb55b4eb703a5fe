"""Other libraries' models in, our samplers out. Each library is imported by its own file only."""

from sghmc.interop.reference import nuts

__all__ = ["nuts"]
