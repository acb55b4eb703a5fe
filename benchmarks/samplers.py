"""What samplers draw: their laws, and their errors at equal cost.

    python benchmarks/samplers.py libraries     # the laws of ours and of other libraries' samplers
    python benchmarks/samplers.py palindromes   # what the order of minibatches costs
    python benchmarks/samplers.py austerity     # the accept step on a subset of the data
    python benchmarks/samplers.py equal-cost    # every sampler on three targets, equal gradients

The parts are in `workloads`, with what they measure; `PART --help` lists options. `referee.py`
compares samplers and batch schemes on eight targets by one rule for all settings.
"""

from workloads import parts

if __name__ == "__main__":
    parts.run(
        __doc__,
        {
            "libraries": "libraries",
            "palindromes": "palindromes",
            "austerity": "austerity",
            "equal-cost": "family",
        },
    )
