"""Reading what people have, in the format they have it."""

from sghmc.data.mapped import MemoryMapped

__all__ = ["MemoryMapped"]
