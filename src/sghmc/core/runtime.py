"""The machine that a run executes on: XLA options, precision, memory, and several processes.

One of several processes leads and writes; all agree, and none waits for one that is gone.
"""

import atexit
import contextlib
import contextvars
import functools
import math
import os
import pathlib
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool

from sghmc.types import PyTree

T = TypeVar("T")

# XLA.

_XLA_OPTIONS = {
    # Wide vectors on CPUs that have them: normals then cost two thirds of what they do without.
    "loop": {"xla_cpu_prefer_vector_width": 512},
    # A program that runs once costs mostly its compilation.
    "once": {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
}


def has_accelerator() -> bool:
    """Tell whether programs run on something other than a CPU by default."""
    return jax.default_backend() != "cpu"


@functools.cache
def jit_options(kind: Literal["loop", "once"]) -> dict[str, Any]:
    """Return arguments of `jax.jit`: for the loop of a run, or for a program that runs once.

    There are none for an accelerator; an option that this XLA does not know is left out.
    """
    known = {}
    for name, value in ({} if has_accelerator() else _XLA_OPTIONS[kind]).items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda: 0, compiler_options={name: value})()
            known[name] = value
    return {"compiler_options": known} if known else {}


def unfused(number: Any, function: Callable[..., PyTree], *args: Any) -> PyTree:
    """Return `function(*args)`, computed once on CPUs, however many operations use the result.

    XLA for CPUs fuses a producer into each of its consumers, and would compile and compute it for
    every one of them again. It does not fuse through a branch; this one is always taken, and
    depends on a number below 2³² so that the compiler cannot know it. An accelerator would ask the
    host which branch it is, so there is none there.
    """
    make = functools.partial(function, *args)  # whose arguments stay what they are: some are sizes
    shapes = None if has_accelerator() else jax.eval_shape(make)
    if not jax.tree.leaves(shapes):
        return make()
    return lax.cond(never(number), functools.partial(jax.tree.map, jnp.zeros_like, shapes), make)


def never(number: Any) -> Bool[Array, ""]:
    """Return False, computed from a number below 2³² so that the compiler cannot know it."""
    return (jnp.asarray(number).astype(jnp.uint32) >> np.uint32(1)).astype(jnp.int32) < 0


# Elements of a piece: a dozen arrays of so many stay in a processor's cache.
_PIECE_ENTRIES = 16_384


def in_pieces(
    function: Callable[..., tuple[jax.Array, ...]], groups: Sequence[tuple[jax.Array, ...]]
) -> list[tuple[jax.Array, ...]]:
    """Return `function` of each group of arrays; it works entry by entry, and keeps shapes.

    The arrays of a group are broadcast against each other, except single numbers of a single group.
    The entries of all groups go through one program, on CPUs a piece at a time, which stays in the
    cache.

    Left alone, XLA would look through broadcast rows and compute parts of `function` for these
    alone, in a program whose size, and so the time to compile it, grows exponentially with the
    length of the computation. A loop or, on accelerators, a barrier prevents that.
    """
    shapes = [jnp.broadcast_shapes(*(array.shape for array in group)) for group in groups]
    whole = [
        [jnp.broadcast_to(array, shape).reshape(-1) for array in group]
        for group, shape in zip(groups, shapes, strict=True)
    ]
    is_alone = len(groups) == 1
    vectors = [
        column[0].reshape(-1)[0] if is_alone and groups[0][i].size == 1 else jnp.concatenate(column)
        for i, column in enumerate(zip(*whole, strict=True))
    ]
    sizes = [math.prod(shape) for shape in shapes]
    results = (_behind_barriers if has_accelerator() else _in_loop)(function, vectors, sum(sizes))
    parts = zip(*(jnp.split(result, np.cumsum(sizes)[:-1]) for result in results), strict=True)
    return [
        tuple(part.reshape(shape) for part in of_group)
        for of_group, shape in zip(parts, shapes, strict=True)
    ]


def _behind_barriers(
    function: Callable[..., tuple[jax.Array, ...]], vectors: list[jax.Array], size: int
) -> tuple[jax.Array, ...]:
    results = function(*lax.optimization_barrier(vectors))
    return lax.optimization_barrier(tuple(jnp.broadcast_to(result, size) for result in results))


def _in_loop(
    function: Callable[..., tuple[jax.Array, ...]], vectors: list[jax.Array], size: int
) -> tuple[jax.Array, ...]:
    # Two pieces at least: XLA unrolls a loop of one.
    length = max(1, min(_PIECE_ENTRIES, -(-size // 2)))

    def piece(start: Any) -> tuple[jax.Array, ...]:
        part = [x if x.ndim == 0 else lax.dynamic_slice_in_dim(x, start, length) for x in vectors]
        return tuple(jnp.broadcast_to(result, length) for result in function(*part))

    def one(k: jax.Array, results: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        # The last piece reaches back into the one before, and computes the same there.
        start = jnp.minimum(k * length, size - length)
        return tuple(
            lax.dynamic_update_slice_in_dim(result, part, start, 0)
            for result, part in zip(results, piece(start), strict=True)
        )

    like = jax.eval_shape(piece, np.int32(0))
    empty = tuple(jnp.zeros(size, leaf.dtype) for leaf in like)
    return lax.fori_loop(0, -(-size // length), one, empty)


# Precision.


@functools.cache
def _mend_constants() -> None:
    """Let numpy constants of a model have 64 bits in one program and 32 in another.

    jax 0.10 remembers the dtype of a numpy array by its identity, whatever the precision: an index
    array that a model closes over would keep the dtype of the first program that used it.
    """
    try:
        from jax._src.dtypes import register_canonicalize_value_handler
        from jax._src.literals import TypedNdArray
    except ImportError:  # another jax, which may not need it
        return
    # Equal identities of what jax sees keep a constant of a program single.
    known: dict[tuple[int, Any], tuple[Any, Any]] = {}

    def canonical(array: np.ndarray) -> Any:
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        place = id(array), dtype
        source, found = known.get(place, (lambda: None, lambda: None))
        typed = found()
        if source() is not array or typed is None:
            typed = TypedNdArray(np.asarray(array, dtype))
            forget = functools.partial(known.pop, place)
            known[place] = weakref.ref(array, lambda _: forget(None)), weakref.ref(typed)
        return typed

    register_canonicalize_value_handler(np.ndarray, canonical)


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Compute in 64 bits, and let arrays of different precision meet, whatever the user chose."""
    _mend_constants()
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def widened(leaf: Any) -> Any:
    """Convert a leaf of a pytree to double precision, if it is an array of real numbers."""
    is_float = isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)
    return np.asarray(leaf, np.float64) if is_float else leaf


# Memory and disk.

_CGROUP_LIMIT = pathlib.Path("/sys/fs/cgroup/memory.max")
_MEMINFO = pathlib.Path("/proc/meminfo")


def device_bytes(device: Any) -> int | None:
    """Return the memory of an accelerator that jax may use; None where it is the machine's own."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    return None if stats is None else stats.get("bytes_limit")


def memory_bytes() -> int | None:
    """Return the most memory that this process can have: RAM and swap, or a container's limit."""
    found = []
    try:
        lines = _MEMINFO.read_text().splitlines()
        sizes = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
        known = [sizes[name] for name in ("MemTotal", "SwapTotal") if name in sizes]
        found.append(1024 * sum(int(size.split()[0]) for size in known))
    except OSError:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # not on Windows
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError):
        limit = _CGROUP_LIMIT.read_text().strip()
        found += [int(limit)] if limit.isdigit() else []  # else "max"
    return min(found, default=None)


def free_bytes(path: os.PathLike | str) -> int | None:
    """Return the free space on the disk of a folder that need not exist yet."""
    folder = pathlib.Path(path).absolute()
    above = next((each for each in (folder, *folder.parents) if os.path.exists(each)), None)
    return None if above is None else shutil.disk_usage(above).free


def folder_bytes(path: os.PathLike | str) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())


# Several processes.

# Letters of a process's error message that the others get.
_MAX_MESSAGE_LETTERS = 2000
# Words in the error of a collective operation whose other side is gone.
_LOST_PEER = (
    "gloo",
    "nccl",
    "coordination service",
    "heartbeat",
    "connection reset",
    "unavailable:",
)


class LostProcessError(RuntimeError):
    """Another process of the run ended, or cannot be reached."""


class ProcessError(RuntimeError):
    """Another process of the run failed, or has other arguments; the message says which and why."""


# Whether this process computes as if there were no others, which wait for it.
_works_alone = contextvars.ContextVar("works_alone", default=False)


def is_multiprocess() -> bool:
    """Tell whether several processes share this run."""
    return jax.process_count() > 1 and not _works_alone.get()


def is_leader() -> bool:
    """Tell whether this is the process that writes and decides."""
    return jax.process_index() == 0


def avoid_preemption() -> None:
    """Ask the system not to preempt a thread of this process when another one wakes.

    gloo has a thread that wakes when numbers come in, and then polls until the thread that adds
    them up lets go of a lock. Where the first has interrupted the second, on a core of both, it
    does so for a whole time slice: 4 ms for a sum that takes 0.14 ms.
    """
    if has_accelerator() or not hasattr(os, "SCHED_BATCH"):
        return
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def broadcast(numbers: Any) -> np.ndarray:
    """Return the leader's numbers, in every process."""
    numbers = np.asarray(numbers)
    if not is_multiprocess():
        return numbers
    from jax.experimental import multihost_utils

    with detect_lost_peer():
        return np.asarray(multihost_utils.broadcast_one_to_all(numbers))


def broadcast_tree(tree: PyTree) -> PyTree:
    """Return the leader's arrays; the others give the same structure, shapes and dtypes."""
    return jax.tree.map(lambda leaf: broadcast(leaf).astype(leaf.dtype), tree)


def on_leader(function: Callable[[], Any]) -> Any:
    """Return `function()` on the leader, None elsewhere; where it fails, all processes do.

    The function may sample: it runs as in a program of one process.
    """

    def alone() -> Any:
        token = _works_alone.set(True)
        try:
            return function() if is_leader() else None
        finally:
            _works_alone.reset(token)

    return together(alone, "The run")


def text_of_leader(function: Callable[[], str]) -> str:
    """Return, in every process, the text that `function` returns on the leader."""
    return gather_texts(on_leader(function) or "")[0]


def gather_texts(text: str) -> list[str]:
    """Return the text that each process gave, by their numbers."""
    if not is_multiprocess():
        return [text]
    from jax.experimental import multihost_utils

    sent = np.frombuffer(text.encode(), np.uint8)
    with detect_lost_peer():
        # Padded, since processes exchange arrays of a shape known to all.
        lengths = np.asarray(multihost_utils.process_allgather(np.asarray(len(sent), np.int32)))
        padded = np.zeros(max(1, lengths.max()), np.uint8)
        padded[: len(sent)] = sent
        received = np.asarray(multihost_utils.process_allgather(padded))
    return [
        row[:length].tobytes().decode(errors="replace")
        for row, length in zip(received, lengths, strict=True)
    ]


def together(function: Callable[[], T], what: str) -> T:
    """Return `function()`, which waits for no process; where it fails in one, all fail."""
    try:
        outcome = function()
    except Exception as error:
        gather_texts(f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_LETTERS])
        raise
    texts = gather_texts("")
    failed = next((i for i, text in enumerate(texts) if text), None)
    if failed is not None:
        raise ProcessError(
            f"{what} failed in process {failed} of {jax.process_count()}. It says: {texts[failed]}"
        )
    return outcome


def fetch(tree: PyTree) -> PyTree:
    """Copy arrays to the host, in every process, on whatever devices their parts are."""
    if not is_multiprocess():
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    def of_leaf(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    with detect_lost_peer():
        return jax.tree.map(of_leaf, tree)


@contextlib.contextmanager
def detect_lost_peer() -> Iterator[None]:
    """Turn the error of an operation whose other side is gone into `LostProcessError`."""
    try:
        yield
    except Exception as error:  # its type differs from one kind of network to the next
        text = str(error).lower()
        if not is_multiprocess() or not any(word in text for word in _LOST_PEER):
            raise
        message = (
            f"Process {jax.process_index()} of {jax.process_count()} has lost another process of "
            f"the run, and ends: {str(error).splitlines()[0][:200]}. Start the run again on the "
            f"processes that are left, with the same arguments: with a checkpoint it goes on from "
            f"its last save."
        )
        # Print at once: jax may end this process before anything is said of an exception.
        print(f"sghmc: {message}", file=sys.stderr, flush=True)
        leave_at_exit(1)
        raise LostProcessError(message) from error


def leave_at_exit(code: int) -> None:
    """Have this process end without jax, which would wait for those that are lost."""
    atexit.register(_leave, code)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
