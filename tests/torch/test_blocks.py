# ruff: noqa: E402
"""Blocks: every number once, whatever the threads, and from where a run was left."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import normals
from sghmc.torch.normals import NormalBlock


def block(seed: int = 0, dtype=torch.float32) -> NormalBlock:
    return NormalBlock(dtype, np.random.SeedSequence(seed))


def taken(source: NormalBlock, *sizes: int):
    return torch.cat([given(source, size) for size in sizes])


def given(source: NormalBlock, size: int):
    start = source.take(size)
    return source.numbers[start : start + size].clone()


@pytest.mark.parametrize("size", [1, 17, 30_000, 700_001])
def test_no_number_is_given_twice(size):
    """Over the end of a block, too; in double precision, which has none twice by chance."""
    source = block(dtype=torch.float64)
    drawn = taken(source, *[size] * (3 if size > 100 else 200))
    assert len(torch.unique(drawn)) == len(drawn)
    assert 0.5 < drawn.std() < 2 if size > 1 else True


def test_every_chunk_has_its_own_numbers():
    drawn = taken(block(dtype=torch.float64), normals._MAX_BLOCK_NUMBERS)
    assert len(torch.unique(drawn)) == len(drawn)
    assert abs(drawn.mean()) < 5 / normals._MAX_BLOCK_NUMBERS**0.5


def test_how_far_numpy_goes_at_once_changes_nothing(monkeypatch):
    expected = taken(block(), 40_000)
    monkeypatch.setattr(normals, "_PASS_WORDS", 1_000)
    assert torch.equal(taken(block(), 40_000), expected)


def test_seeds_make_the_numbers():
    found = taken(block(), 30_000, 5, 30_000)
    assert torch.equal(taken(block(), 30_000, 5, 30_000), found)
    assert not torch.any(found == taken(block(1), 30_000, 5, 30_000))


@pytest.mark.parametrize("num_taken", [0, 1, 2, 63, 64, 65])
def test_a_state_goes_on(num_taken):
    """In the middle of a block, at its end and before the first, also once saved again."""
    source, other, third = block(), block(7), block(8)
    taken(source, *[10] * num_taken, 1)
    saved = source.state()
    other.load_state(saved)
    third.load_state(other.state())
    expected = taken(source, *[10] * 100)
    assert torch.equal(taken(other, *[10] * 100), expected)
    assert torch.equal(taken(third, *[10] * 100), expected)
    assert torch.equal(other.state(), source.state())


def test_a_state_that_took_nothing_goes_on():
    source, other = block(), block(7)
    other.load_state(source.state())
    assert torch.equal(taken(other, 10), taken(source, 10))


def test_what_is_needed_once_makes_no_large_block():
    source = block()
    source.take(3)
    assert source.numbers.numel() == 3 * 64
    source.take(normals._MAX_BLOCK_NUMBERS + 1)
    assert source.numbers.numel() == normals._MAX_BLOCK_NUMBERS + 2  # an even count
