"""`sghmc.torch`: what a step costs, and the laws of published PyTorch samplers.

    python benchmarks/pytorch.py speed [--device cuda]   # beside SGD with momentum
    python benchmarks/pytorch.py laws                    # exactly, from their updates

The parts are in `workloads`, with what they measure; `PART --help` lists options.
"""

from workloads import parts

if __name__ == "__main__":
    parts.run(__doc__, {"speed": "pytorch_speed", "laws": "pytorch_laws"})
