"""How much of the benchmark to run, and where."""

import pathlib
from typing import NamedTuple


class Options(NamedTuple):
    quick: bool
    gpu: bool
    repeats: int
    peers: list[str]
    peers_folder: pathlib.Path

    def scaled(self, count: float) -> int:
        """That many steps, or a tenth of them in a quick run."""
        return max(1, int(count / 10 if self.quick else count))
