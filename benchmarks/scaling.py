"""What large runs cost: compilation, processes, checkpoints, memory, data beyond memory.

    python benchmarks/scaling.py compile      # seconds until the first step of a deep network
    python benchmarks/scaling.py hosts        # a second process; sums over processes; a plan
    python benchmarks/scaling.py checkpoint   # with it and without; --memory: draws on disk
    python benchmarks/scaling.py file --folder /tmp/rows --rows 100_000_000   # larger than memory

The parts are in `workloads`, with what they measure; `PART --help` lists options. Nothing else
should run beside.
"""

from workloads import parts

if __name__ == "__main__":
    parts.run(
        __doc__,
        {
            "compile": "first_step",
            "hosts": "hosts",
            "checkpoint": "checkpoints",
            "file": "mapped_file",
        },
    )
