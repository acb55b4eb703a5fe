# ruff: noqa: E402
"""Who draws the same numbers: equal seeds, on ranks that hold the same; and who does not."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch.normals import Normals, NormalSource


def first(source: NormalSource):
    return torch.cat([torch.randn(4, generator=each) for each in source.generators])


class Shard:
    """What is looked at of a `DTensor`."""

    device = torch.device("cpu")

    def __init__(self, ranks: tuple[int, ...], is_shard: tuple[bool, ...]):
        class Kind:
            def __init__(self, value):
                self.value = value

            def is_shard(self):
                return self.value

        class Mesh:
            def get_local_rank(self, axis):
                return ranks[axis]

        self.device_mesh, self.placements = Mesh(), [Kind(value) for value in is_shard]


def source(seed: int, *shards: Any) -> Any:
    return first(Normals(seed).source(Shard(*shards) if shards else torch.zeros(1)))  # pyright: ignore


def test_seeds_and_shards_make_the_numbers():
    assert torch.equal(source(0), source(0))
    distinct = [
        source(0),
        source(1),
        source(0, (0,), (True,)),
        source(0, (1,), (True,)),
        source(1, (1,), (True,)),
        source(0, (1, 0), (True, True)),
        source(0, (0, 1), (True, True)),
    ]
    numbers = torch.cat(distinct)
    assert len(torch.unique(numbers)) == len(numbers)


def test_replicas_share_their_numbers():
    """Of the axes of a mesh, those that replicate do not count."""
    assert torch.equal(source(0, (0, 1), (False, True)), source(0, (5, 1), (False, True)))
    assert torch.equal(source(0, (3,), (False,)), source(0))


def test_devices_are_told_by_their_order_not_their_number():
    """Rank 1 of a DDP has its parameters on device 1, and must draw what rank 0 does."""
    normals = Normals(0)
    for number in (3, 3, 1):
        on_device: Any = type("OnDevice", (), {"device": torch.device("cpu", number)})()
        normals.source(on_device)
    assert list(normals.state_dict()) == ["cpu:0", "cpu:1", "all"]


def test_states_go_on():
    normals = Normals(0)
    first(normals.source(torch.zeros(1)))
    saved = normals.state_dict()
    expected = first(normals.source(torch.zeros(1)))
    other = Normals(0)
    other.load_state_dict(saved, 1)
    assert other.state_dict().keys() == saved.keys()  # also before they are needed
    assert torch.equal(first(other.source(torch.zeros(1))), expected)


def test_noise_that_no_state_had_is_new_and_said_to_be():
    """A run that was saved on an accelerator goes on, right but not bit for bit."""
    other = Normals(0)
    other.load_state_dict({"cuda:0": torch.zeros(1, 16, dtype=torch.uint8)}, 7)
    with pytest.warns(UserWarning, match=r"noise for \['cuda:0'\], not for cpu:0"):
        resumed = first(other.source(torch.zeros(1)))
    assert not torch.equal(resumed, first(Normals(0).source(torch.zeros(1))))
    other.load_state_dict({}, 0)  # saved before the first step
    assert torch.equal(
        first(other.source(torch.zeros(1))), first(Normals(0).source(torch.zeros(1)))
    )


def test_a_state_of_fewer_generators_is_refused():
    made = Normals(0).source(torch.zeros(1))
    with pytest.raises(ValueError, match="shorter"):
        made.load_state(made.state()[:-1])
