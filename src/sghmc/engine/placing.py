"""Which devices a run has: what a mesh cannot spread is refused here."""

import jax

from sghmc.core import processes
from sghmc.engine.mesh import OverMesh
from sghmc.engine.options import RunOptions
from sghmc.engine.partition import AXES, CHAIN, DATA, MODEL, check_mesh, for_compiler
from sghmc.engine.placement import OneDevice, Placement
from sghmc.gradients.base import Gradient
from sghmc.posterior.base import AbstractPosterior
from sghmc.posterior.stacked import StackedPosterior
from sghmc.posterior.target import Target


def placement_for(options: RunOptions, target: Target | StackedPosterior) -> Placement:
    """Where a run with these options has its arrays."""
    mesh, num_chains = options.mesh, options.num_chains
    check_mesh(mesh, options.sharding)
    if mesh is None:
        if processes.are_many():
            raise ValueError(
                f"jax.distributed runs {jax.process_count()} processes, but sample was given no "
                f"mesh: give mesh=jax.make_mesh(({jax.device_count()},), ('chain',)) or the like, "
                f"the same in every process."
            )
        return OneDevice()
    unknown = [name for name in mesh.axis_names if name not in AXES]
    if unknown:
        raise ValueError(
            f"The mesh has an axis {unknown[0]!r}, but a run is spread over axes among "
            f"{', '.join(map(repr, AXES))}: name its axes by what they should spread."
        )
    left_out = jax.process_count() - len({device.process_index for device in mesh.devices.flat})
    if left_out:
        raise ValueError(
            f"The mesh leaves out the devices of {left_out} of {jax.process_count()} processes: "
            f"make it of all jax.devices()."
        )
    rules = None if options.sharding is None else tuple(options.sharding)
    over = OverMesh(for_compiler(mesh), rules)
    if num_chains % over.size(CHAIN):
        raise ValueError(
            f"num_chains is {num_chains}, which the mesh cannot spread evenly over {CHAIN!r}: "
            f"{over.size(CHAIN)} devices. Take a multiple of that, or a smaller axis."
        )
    _check_data(target, options.gradient, over)
    return over


def _check_data(target: Target | StackedPosterior, gradient: Gradient, over: OverMesh) -> None:
    source, num_shards = target.source, over.size(DATA)
    if source is not None and source.is_sequential and processes.are_many():
        raise ValueError(
            f"A stream is read by one process, but the run has {jax.process_count()}: give each "
            f"process a source with random access, such as MemoryMapped."
        )
    if over.has_spread_rows and source is not None:
        raise ValueError(
            f"sharding spreads parameters over {DATA!r}, for which the rows must be arrays, but "
            f"they are read from a source: spread parameters over {MODEL!r} alone, or give arrays."
        )
    if num_shards == 1 or over.has_spread_rows:
        return
    remedy = f"leave the axis {DATA!r}, of {num_shards} devices, out of the mesh"
    if not isinstance(target, AbstractPosterior):
        is_stack = isinstance(target, StackedPosterior)
        what = "posteriors with data of their own" if is_stack else "a Potential"
        raise ValueError(f"A mesh spreads the rows of one Posterior, not {what}: {remedy}.")
    if source is None:
        return
    if source.is_sequential:
        raise ValueError(f"The rows of a stream come in one order, to one reader: {remedy}.")
    size = gradient.batch_rows
    if size is not None and size % num_shards:
        raise ValueError(
            f"batch_size is {size}, but the rows of a source are read in {num_shards} equal parts, "
            f"one for each device along {DATA!r}: take a multiple of {num_shards}, or {remedy}."
        )
