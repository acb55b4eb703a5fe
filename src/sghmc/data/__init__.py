"""Read data from files and streams: memory-mapped arrays, Parquet, iterators, tables."""

from sghmc.data.mapped import MemoryMapped
from sghmc.data.parquet import Parquet
from sghmc.data.stream import Stream

__all__ = ["MemoryMapped", "Parquet", "Stream"]
