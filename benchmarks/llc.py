"""The local learning coefficient of deep linear networks, untuned, against its exact value.

    python benchmarks/llc.py [--sizes 1e3 1e4 1e5 1e6] [--seeds 2] [--peers FOLDER] [--json FILE]

A network f(x) = W_L … W_1 x is looked at where all its layers have the rank of their product, with
singular values 1, as gradient descent from small weights leaves them. Inputs are white, N a
thousand times the number of parameters, and the mean loss is ½‖W_L … W_1 − W*‖², without sampling
error. `deep_linear_coefficient` is Aoyagi's exact λ; "singular" is what of it no Hessian sees.
Nothing is tuned for a network, but the rules were made with networks like these in view.

"one chain" is a single chain without the runs at half the step and a quarter of the localization;
"100 gradients" is that with `num_gradients=100`, of which the Hessian takes 26. `--peers FOLDER`
also runs devinterp 1.3.2 on the first network, in an environment of its own in this folder:
`estimate_learning_coeff` with white data at its defaults (SGLD, step 0.01, 10 chains of 100 draws,
no burn-in, no localization, Nβ by the batch), and with our N, β and γ at several step sizes.
"""

import argparse
import json
import math
import pathlib
import subprocess
import time

import jax
import numpy as np

import sghmc
from sghmc.complexity.learning_coefficient import deep_linear_coefficient
from workloads import peers
from workloads.deep_linear import layers_at, mean_loss

EXAMPLES_A_PARAMETER = 1_000
"""As data grow with models: with N fixed, directions that data determine would become few."""
NETWORKS = {
    1e3: {"4/5": ([16, 24, 20, 16], 13), "bottleneck": ([16, 24, 24, 12, 16], 12)},
    1e4: {"4/5": ([50] * 5, 40), "bottleneck": ([50, 80, 80, 25, 50], 25)},
    1e5: {"4/5": ([180] * 4, 144), "bottleneck": ([200, 240, 240, 60, 200], 60)},
    1e6: {"4/5": ([580] * 4, 464), "bottleneck": ([600, 800, 800, 200, 600], 200)},
}
"""By number of parameters: the rank is 4/5 of the widths, or that of the narrowest layer."""
HALVES = (([16, 24, 16], 8), ([30, 40, 30], 15), ([24] * 4, 12))
"""Networks whose rank is half their widths: a fifth to a quarter of λ is singular."""


def measured(kind: str, widths: list[int], rank: int, seed: int, **options) -> dict:
    layers = layers_at(widths, rank, seed)
    size = sum(int(np.prod(layer.shape)) for layer in layers)
    num_examples = EXAMPLES_A_PARAMETER * size
    loss, exact = mean_loss(layers), deep_linear_coefficient(widths, rank)
    began = time.perf_counter()
    found = sghmc.llc(jax.random.key(seed), loss, layers, num_examples=num_examples, **options)
    return {
        "kind": kind,
        "parameters": size,
        "num_examples": num_examples,
        "widths": widths,
        "rank": rank,
        "exact": exact,
        "singular": 1 - rank * (widths[0] + widths[-1] - rank) / 2 / exact,
        "estimate": found.estimate,
        "standard_error": found.standard_error,
        "error": found.estimate / exact - 1,
        "localization": found.settings.localization,
        "localized": found.localized,
        "monte_carlo_error": found.monte_carlo_error,
        "gradients": found.num_steps,
        "seconds": time.perf_counter() - began,
        "verdict": found.verdict,
    }


def shown(row: dict) -> str:
    widths = "-".join(map(str, row["widths"]))
    return (
        f"| {row['kind']} | {row['parameters']:,} | {widths}, {row['rank']} | "
        f"{row['exact']:,.1f} | {row['singular']:.1%} | "
        f"{row['estimate']:,.1f} ± {row['standard_error']:.2g} | "
        f"{row['localized']:,.1f} ± {row['monte_carlo_error']:.2g} | "
        f"{row['error']:+.1%} | {row['localization']:.3g} | {row['gradients']:,} | "
        f"{row['seconds']:.0f} | {row['verdict']} |"
    )


def compare(folder: pathlib.Path, row: dict) -> list[dict]:
    """devinterp on the network of a row: what it gives at each of its settings."""
    question = {key: row[key] for key in ("widths", "rank", "localization")}
    question |= {"seed": 0, "nbeta": row["num_examples"] / math.log(row["num_examples"])}
    answer = subprocess.run(
        [peers.environment("devinterp", folder), "-W", "ignore", "-m", "workloads.peer_devinterp"],
        cwd=pathlib.Path(__file__).parent, input=json.dumps(question), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    rows = json.loads(answer.stdout.splitlines()[-1])
    return [{**each, "error": each["estimate"] / row["exact"] - 1} for each in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Learning coefficients, untuned.")
    parser.add_argument("--sizes", type=float, nargs="*", default=[1e3, 1e4, 1e5])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}\n")
    print(
        "| network | parameters | widths, rank | exact λ | singular | estimate | at γ | error | "
        "γ | gradients | seconds | verdict |\n" + "| --- " * 12 + "|"
    )
    rows = []

    def tell(*network, **options) -> dict:
        rows.append(measured(*network, **options))
        print(shown(rows[-1]), flush=True)
        return rows[-1]

    for size in arguments.sizes:
        for kind, (widths, rank) in NETWORKS[size].items():
            for seed in range(arguments.seeds):
                tell(kind, widths, rank, seed)
            one = {"num_chains": 1, "check": False}
            tell(f"{kind}, one chain", widths, rank, 0, **one)
            for seed in range(arguments.seeds):
                tell(f"{kind}, 100 gradients", widths, rank, seed, **one, num_gradients=100)
    if 1e3 in arguments.sizes:
        for widths, rank in HALVES:
            tell("half", widths, rank, 0)
            tell("half, γ given", widths, rank, 0, localization=30.0)
    others = []
    if arguments.peers:
        others = compare(arguments.peers, rows[0])
        print("\n| devinterp | step | estimate | error | gradients |\n" + "| --- " * 5 + "|")
    for each in others:
        print(
            f"| {each['setting']} | {each['step']:g} | {each['estimate']:,.1f} | "
            f"{each['error']:+.1%} | {each['gradients']:,} |"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"ours": rows, "devinterp": others}, indent=1))


if __name__ == "__main__":
    main()
