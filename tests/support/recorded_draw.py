"""Stands in for `draw` of the experiments: notes what a run was asked for, runs nothing."""

from types import SimpleNamespace
from typing import Any


class RecordedDraw:
    def __init__(self, **samples: Any):
        self.samples = SimpleNamespace(**samples)
        self.calls: list[SimpleNamespace] = []

    def __call__(self, key, posterior, sampler, init, **options) -> Any:
        self.calls.append(
            SimpleNamespace(key=key, posterior=posterior, sampler=sampler, init=init, **options)
        )
        return self.samples

    @property
    def call(self) -> SimpleNamespace:
        return self.calls[-1]
