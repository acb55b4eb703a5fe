"""Reading what people have, in the format they have it."""

from sghmc.data.mapped import MemoryMapped
from sghmc.data.parquet import Parquet
from sghmc.data.stream import Stream

__all__ = ["MemoryMapped", "Parquet", "Stream"]
