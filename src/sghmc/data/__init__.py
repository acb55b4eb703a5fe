"""Reading what people have, in the format they have it."""

from sghmc.data.sources.mapped import MemoryMapped
from sghmc.data.sources.parquet import Parquet
from sghmc.data.sources.stream import Stream

__all__ = ["MemoryMapped", "Parquet", "Stream"]
