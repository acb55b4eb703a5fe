"""What there is: memory of devices and of this machine, and room on its disks."""

import os
import pathlib
import shutil
from typing import Any

_CGROUP = pathlib.Path("/sys/fs/cgroup/memory.max")
_MEMINFO = pathlib.Path("/proc/meminfo")


def device_bytes(device: Any) -> int | None:
    """The memory of an accelerator that jax may use; None where that is the machine's own."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    return None if stats is None else stats.get("bytes_limit")


def memory_bytes() -> int | None:
    """The most that this process could ever have: RAM and swap, or a container's limit."""
    known = [_physical(), _container()]
    found = [size for size in known if size is not None]
    return min(found, default=None)


def _physical() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):  # not on Windows
            return None
    sizes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
    }
    return 1024 * (sizes["MemTotal"] + sizes.get("SwapTotal", 0))


def _container() -> int | None:
    try:
        said = _CGROUP.read_text().strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None


def free_bytes(path: os.PathLike | str) -> int | None:
    """Room on the disk of a folder that need not exist yet."""
    folder = pathlib.Path(path).absolute()
    above = next((each for each in (folder, *folder.parents) if each.exists()), None)
    return None if above is None else shutil.disk_usage(above).free


def held_bytes(path: os.PathLike | str) -> int:
    """What lies in a folder now."""
    return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())
