"""`sghmc.torch`: costs of a step, MNIST beside ensembles, laws of published PyTorch samplers.

    python benchmarks/pytorch.py speed [--device cuda]   # beside SGD with momentum
    python benchmarks/pytorch.py mnist --data FOLDER     # `tune` beside SGD, an ensemble, dropout
    python benchmarks/pytorch.py laws                    # exactly, from their updates

The parts are in `workloads`, with what they measure; `PART --help` lists options.
"""

from workloads import parts

if __name__ == "__main__":
    parts.run(__doc__, {"speed": "pytorch_speed", "mnist": "pytorch_mnist", "laws": "pytorch_laws"})
