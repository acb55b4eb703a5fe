"""What a run needs of memory and disk, by shapes alone, and what is refused for it."""

import math

import equinox as eqx
import jax

from sghmc.core import runtime
from sghmc.engine.chain import returned_arrays
from sghmc.engine.layout import Layout
from sghmc.engine.options import RunOptions
from sghmc.samplers import Kernel
from sghmc.types import PyTree

_SURE = 64
"""Copies of its parameters that no run needs: where so many fit, nothing else is looked at."""


def num_bytes(arrays: PyTree) -> int:
    """Of all arrays, or of what says their shapes; one that is there twice counts once."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(eqx.filter(arrays, _has_shape))}
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves.values())


def _has_shape(leaf) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def state_bytes(kernel: Kernel, layout: Layout) -> int:
    """What one chain's state needs on each of its devices, which the loop carries once."""
    like = [jax.ShapeDtypeStruct((leaf.size,), leaf.dtype) for leaf in layout.leaves]
    state = jax.eval_shape(kernel.init, like, jax.tree.unflatten(layout.treedef, like))
    whole = num_bytes(like)
    return math.ceil(num_bytes(state) / whole * _position_bytes(layout))


def _position_bytes(layout: Layout) -> int:
    """Of one chain's parameters, on each of its devices."""
    shapes = [leaf.shape for leaf in layout.leaves]
    if layout.shardings is not None:
        pairs = zip(shapes, layout.shardings, strict=True)
        shapes = [where.shard_shape(shape) for shape, where in pairs]
    pairs = zip(shapes, layout.leaves, strict=True)
    return sum(math.prod(shape) * leaf.dtype.itemsize for shape, leaf in pairs)


def draw_bytes(layout: Layout, options: RunOptions, hyper: PyTree) -> int:
    """Of what is stored of one chain's draw, without what `info` and `trace` add."""
    if options.keep is None:
        return num_bytes(layout.like) + num_bytes(hyper)
    kept = eqx.filter_eval_shape(returned_arrays, "keep", options.keep, layout.like, hyper)
    return num_bytes(kept) + num_bytes(hyper)


def check_memory(
    kernel: Kernel, layout: Layout, options: RunOptions, hyper: PyTree, num_parts: int
) -> None:
    """Refuse what cannot fit, before anything is made; chains are spread over `num_parts`."""
    num_chains, limit, accelerator = layout.num_chains, runtime.memory_bytes(), device_room(options)
    room = limit if accelerator is None else accelerator
    draws = num_chains * options.num_samples * draw_bytes(layout, options, hyper)
    state = 0
    if room is not None and _SURE * num_chains * num_bytes(layout.like) > room:
        state = num_chains // num_parts * state_bytes(kernel, layout)
    if accelerator is not None and state > accelerator:
        raise MemoryError(_too_large(num_chains, "The state", state, "each device", accelerator))
    if options.checkpoint is not None:
        path = options.checkpoint.path
        free = runtime.free_bytes(path)
        if free is not None and draws > free and draws > free + runtime.folder_bytes(path):
            raise MemoryError(_too_many(layout, options, draws, "the checkpoint's disk", free))
        draws = 0
    if limit is None:
        return
    if draws > limit:
        raise MemoryError(_too_many(layout, options, draws, "this machine's memory", limit))
    on_host = draws + (num_devices(options) * state if accelerator is None else 0)
    if on_host > limit:
        what = "The state" if draws == 0 else "The state and the draws"
        raise MemoryError(_too_large(num_chains, what, on_host, "this machine", limit))


def _too_large(num_chains: int, what: str, need: int, where: str, limit: int) -> str:
    return (
        f"{what} of {num_chains} chains of this size need {shown(need)} of memory, but {where} has "
        f"{shown(limit)}: run fewer chains at a time, take parameters in bfloat16 with "
        f"StochasticRounding, keep fewer draws, or spread the run, mesh= and sharding=."
    )


def _too_many(layout: Layout, options: RunOptions, need: int, where: str, limit: int) -> str:
    disk = "" if options.checkpoint else ", write them to a disk, checkpoint=sghmc.Checkpoint(path)"
    return (
        f"{layout.num_chains} chains of {options.num_samples:,} draws need {shown(need)}, but "
        f"{where} has room for {shown(limit)}: keep less of a draw, keep=, only their means, "
        f"averages= with keep=lambda params: (), or fewer of them, thinning=…{disk}."
    )


def device_room(options: RunOptions) -> int | None:
    """The least memory among this process's accelerators; None where they are CPUs."""
    devices = jax.local_devices()[:1] if options.mesh is None else options.mesh.local_devices
    known = [runtime.device_bytes(device) for device in devices]
    return min((size for size in known if size is not None), default=None)


def num_devices(options: RunOptions) -> int:
    """Of the run, in this process."""
    return 1 if options.mesh is None else len(options.mesh.local_devices)


def shown(size: float) -> str:
    """Bytes, as people say them."""
    if size < 1000:
        return f"{size:,.0f} bytes"
    power = min(4, int(math.log10(size) / 3 + 1e-9))
    return f"{_rounded(size / 1000**power)} {['kB', 'MB', 'GB', 'TB'][power - 1]}"


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
