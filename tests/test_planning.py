"""The sums of a plan, and its verdict at the border."""

import pytest

from sghmc.planning import Plan


def made(**parts) -> Plan:
    usual = {
        "device": {"states of chains": 100, "temporary": None, "data": 20},
        "host": {"draws": 1000},
        "disk": {"files": 7},
        "device_room": None,
        "host_room": None,
        "disk_room": None,
        "num_devices": 3,
        "has_own_memory": False,
    }
    return Plan(**usual | parts)


def test_cpus_share_the_memory_of_the_machine():
    assert made().on_device == 120
    assert made().on_host == 1000 + 3 * 120
    assert made(has_own_memory=True).on_host == 1000
    assert made().on_disk == 7


@pytest.mark.parametrize(
    ("room", "least"), [("device_room", 120), ("host_room", 1360), ("disk_room", 7)]
)
def test_what_just_fits_fits(room, least):
    assert made(**{room: least}).fits
    assert not made(**{room: least - 1}).fits


def test_a_plan_is_shown_line_by_line():
    lines = str(made(host_room=2000, disk_room=5)).splitlines()
    assert lines[0].split() == ["each", "device", "states", "of", "chains", "100", "bytes"]
    assert lines[1].endswith("not compiled")
    assert [line.split()[0] for line in lines[3:7]] == ["memory", "disk", "memory", "disk"]
    assert "in all, of 2 kB" in lines[5]
    assert lines[5].endswith("1.36 kB")
    assert "in all, of 5 bytes" in lines[6]
    assert lines[7] == "It does not fit."
    own = str(made(device_room=500, has_own_memory=True))
    assert "each device  in all, of 500 bytes" in own
    assert own.endswith("It fits.")
    assert "in all" not in str(made(device_room=500))
