"""Pace: how many draws are made at a time, by the time that they took."""

import pytest

from sghmc.engine import driver


def blocks(seconds_per_draw, compilation, num_blocks, most=10**9, least=1):
    """Follow blocks whose times are known, the first with a compilation."""
    pace, steps = driver.Pace(least), []
    for i in range(num_blocks):
        count = min(pace.count, most)
        pace.follow(count, count * seconds_per_draw + (compilation if i == 0 else 0.0))
        steps.append(count)
    return pace, steps


def test_one_draw_then_half_a_second_of_them():
    made, steps = blocks(0.001, compilation=0.099, num_blocks=4)
    assert steps == [1, 5, 80, 500]  # 0.5 s of what the first took; 16 times; as many as fit
    assert made.first_seconds == pytest.approx(0.1)


def test_a_draw_that_takes_longer_is_made_alone():
    assert blocks(3.0, compilation=0.0, num_blocks=3)[1] == [1, 1, 1]


def test_no_more_than_are_left():
    assert blocks(0.001, compilation=0.0, num_blocks=3, most=10)[1] == [1, 10, 10]


def test_no_fewer_than_a_program_makes_at_once():
    assert blocks(0.1, compilation=0.0, num_blocks=3, least=32)[1] == [32, 32, 32]
    assert blocks(0.1, compilation=0.0, num_blocks=2, least=32, most=20)[1] == [20, 20]


def test_memory_is_given_back_after_a_long_first_block_alone(monkeypatch):
    given = []
    monkeypatch.setattr(driver, "_give_memory_back", lambda: given.append(True))
    blocks(0.001, compilation=0.9, num_blocks=3)
    assert given == []
    blocks(2.0, compilation=0.5, num_blocks=3)
    assert len(given) == 1
