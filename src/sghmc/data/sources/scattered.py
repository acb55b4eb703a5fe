"""Many short reads all over a file in one system call.

Mapping a page of a file for every row of a large one costs far more than the row: Linux's
asynchronous input reads rows where they lie, a thousand to a call, and maps nothing. Where there is
no such call, `available` says so.
"""

import concurrent.futures
import ctypes
import functools
import os
import platform
import queue
import sys
import weakref

import numpy as np

_AT_ONCE = 1_024
_MOST_THREADS = 4
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""The numbers of io_setup, io_destroy, io_getevents and io_submit."""
_REQUEST = np.dtype(
    {
        "names": ["operation", "file", "address", "size", "offset"],
        "formats": ["<u2", "<u4", "<u8", "<u8", "<i8"],
        "offsets": [16, 20, 24, 32, 40],
        "itemsize": 64,
    }
)
"""The kernel's `struct iocb`; operation 0 is a read."""
_EVENT = np.dtype([("data", "<u8"), ("request", "<u8"), ("result", "<i8"), ("more", "<i8")])


@functools.cache
def available() -> "Scattered | None":
    """What reads, one for the process; None where the system cannot."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return None
    try:
        return Scattered()
    except OSError:
        return None


class Scattered:
    """Reads of equal size, by some threads at once: most of their time goes into copying."""

    def __init__(self):
        numbers = _CALLS[platform.machine()]
        self._setup, self._destroy, self._events, self._submit = numbers
        self._num_threads = min(_MOST_THREADS, os.cpu_count() or 1)
        self._contexts = queue.SimpleQueue()
        for _ in range(self._num_threads):
            context = ctypes.c_ulong(0)
            _call(self._setup, _AT_ONCE, ctypes.addressof(context))
            self._contexts.put(context.value)
            weakref.finalize(self, _call, self._destroy, context.value)
        self._threads = concurrent.futures.ThreadPoolExecutor(self._num_threads, "sghmc-reads")

    def read(self, file: int, offsets: np.ndarray, addresses: np.ndarray, size: int) -> None:
        """Read `size` bytes from each offset of a file to each address; OSError where one cannot.

        The addresses must belong to memory that the caller owns.
        """
        parts = zip(
            np.array_split(offsets, self._num_threads),
            np.array_split(addresses, self._num_threads),
            strict=True,
        )
        for _ in self._threads.map(lambda part: self._read(file, part[0], part[1], size), parts):
            pass

    def _read(self, file: int, offsets: np.ndarray, addresses: np.ndarray, size: int) -> None:
        requests = np.zeros(_AT_ONCE, _REQUEST)
        requests["file"], requests["size"] = file, size
        pointers = requests.ctypes.data + _REQUEST.itemsize * np.arange(_AT_ONCE, dtype=np.uint64)
        events = np.empty(_AT_ONCE, _EVENT)
        context = self._contexts.get()
        try:
            for start in range(0, len(offsets), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                count = len(offsets[part])
                requests["offset"][:count] = offsets[part]
                requests["address"][:count] = addresses[part]
                self._run(context, pointers[:count], events)
                if not (events["result"][:count] == size).all():
                    raise OSError("a read came back short")
        finally:
            self._contexts.put(context)

    def _run(self, context: int, pointers: np.ndarray, events: np.ndarray) -> None:
        done = 0
        while done < len(pointers):
            left = len(pointers) - done
            place = pointers.ctypes.data + pointers.itemsize * done
            accepted = _call(self._submit, context, left, place)
            into = events.ctypes.data + _EVENT.itemsize * done
            done += _call(self._events, context, accepted, accepted, into, 0)


def _call(number: int, *arguments: int) -> int:
    result = _system()(number, *(ctypes.c_ulong(argument) for argument in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "asynchronous input failed")
    return result


@functools.cache
def _system():
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return syscall
