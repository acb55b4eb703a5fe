"""devinterp's learning coefficient of a deep linear network, as its own call estimates it."""

import json
import sys

import torch
from devinterp.optim.sgld import SGLD
from devinterp.slt.sampler import estimate_learning_coeff
from torch.utils.data import DataLoader, TensorDataset

from workloads.deep_linear import matrices_at

torch.set_num_threads(1)  # small networks: threads would wait for each other
NUM_ROWS, BATCH_SIZE = 20_000, 512
STEPS = (1e-5, 3e-6, 1e-6)


def half_square(outputs, labels):
    """½‖·‖², a mean over rows."""
    return 0.5 * ((outputs - labels) ** 2).sum(1).mean()


def main() -> None:
    asked = json.loads(sys.stdin.read())
    matrices = matrices_at(asked["widths"], asked["rank"], asked["seed"])
    torch.manual_seed(asked["seed"])

    def network():
        layers = [torch.nn.Linear(*matrix.shape[::-1], bias=False) for matrix in matrices]
        for layer, matrix in zip(layers, matrices, strict=True):
            layer.weight.data = torch.from_numpy(matrix.copy())
        return torch.nn.Sequential(*layers)

    inputs = torch.randn(NUM_ROWS, asked["widths"][0])
    with torch.no_grad():
        data = TensorDataset(inputs, network()(inputs))

    def evaluate(model, batch):
        return half_square(model(batch[0]), batch[1]), {}

    given = {"nbeta": asked["nbeta"], "localization": asked["localization"]}
    settings = [("defaults", {"lr": 0.01}), *(("our N, β, γ", {"lr": lr, **given}) for lr in STEPS)]
    rows = []
    for name, optimizer in settings:
        try:
            estimate = estimate_learning_coeff(
                network(), DataLoader(data, BATCH_SIZE, shuffle=True), evaluate=evaluate,
                sampling_method=SGLD, optimizer_kwargs=dict(optimizer), seed=asked["seed"],
                init_loss=1e-30, verbose=False,
            )  # fmt: skip
        except RuntimeError as error:  # it raises where the loss has become NaN
            print(error, file=sys.stderr)
            estimate = float("nan")
        rows.append(
            {
                "setting": name,
                "parameters": sum(matrix.size for matrix in matrices),
                "step": optimizer["lr"],
                "estimate": float(estimate),
                "gradients": 1_000,
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
