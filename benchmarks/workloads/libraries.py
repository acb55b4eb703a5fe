"""The law that a sampler's draws have: ours beside other libraries', at the same settings.

    python benchmarks/samplers.py libraries [--peers NAME …] [--json FILE]

The target is U = θ²/2, so the variance of the draws should be 1. A call of a library's step is then
an affine map of its state, z' = Fz + noise. F is the difference of two calls with the same random
numbers, the covariance of the noise comes from a million calls; the stationary variance follows
from S = FSFᵀ + Q, without a chain that would have to be long enough. Where chains forget fast
enough, 20,000 of them are run as well. Steps are called as users call them, in double
precision, with what is not said below at its default. Ours are computed by `sghmc.theory`.

All three libraries write the settings in the same way: step size ε, friction α, unit mass, and β
the variance of the gradient's noise, which is taken off the injected noise.
"""

import argparse
import json
import pathlib
import subprocess

import numpy as np

import sghmc
from sghmc import theory
from workloads import peers
from workloads.affine import NUM_STEPS, Seen, Setting, stationary_variance

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = (
    Setting(0.1, 0.01),
    Setting(0.01, 0.01),
    Setting(0.001, 0.01),
    Setting(0.1, 1.0),
    Setting(0.01, 1.0),
    Setting(0.1, 1.0, 4.0),
)
OURS = {
    "SGHMC(ε, α, gradient_noise=β)": lambda s: sghmc.SGHMC(*s[:2], gradient_noise=s.noise),
    "SGHMC(…, resample_every=10)": lambda s: sghmc.SGHMC(
        *s[:2], gradient_noise=s.noise, resample_every=10
    ),
    "BAOAB(ε, α, gradient_noise=β)": lambda s: sghmc.BAOAB(*s[:2], gradient_noise=s.noise),
    "SGLD(ε, gradient_noise=β)": lambda s: sghmc.SGLD(s.step_size, gradient_noise=s.noise),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peers", nargs="*", choices=list(peers.PACKAGES), default=None)
    parser.add_argument("--json", type=pathlib.Path, default=None)
    given = parser.parse_args()
    names = list(peers.PACKAGES) if given.peers is None else given.peers
    table = {f"sghmc: `{name}`": ours(make) for name, make in OURS.items()}
    for name in names:
        try:
            seen = measured(name)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name} could not be installed or run here: {error}\n")
            continue
        for sampler, laws in seen["samplers"].items():
            cells = [cell(Seen(*law)) for law in laws]
            table[f"{name} {seen['version']}: `{sampler}`"] = cells
    print(markdown(table))
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=1, ensure_ascii=False), encoding="utf-8")


def ours(make) -> list[str]:
    """The exact variances of one of our samplers."""
    cells = []
    for setting in SETTINGS:
        law = theory.stationary_law(make(setting), 1.0, setting.noise)
        cells.append(f"{law.covariance.item():.4f}")
    return cells


def measured(name: str) -> dict:
    """What a library's steps do, told by a program that runs where the library is."""
    python = peers.environment(name, ROOT / ".peers")
    command = [python, "-W", "ignore", "-m", f"workloads.peer_law_{name}", json.dumps(SETTINGS)]
    return json.loads(
        subprocess.run(command, cwd=ROOT / "benchmarks", check=True, capture_output=True).stdout
    )


def cell(seen: Seen) -> str:
    """The variance that follows from a step and, where it is short enough, that of the chains."""
    variance = stationary_variance(np.array(seen.transition), np.array(seen.noise))
    if not np.isfinite(variance):
        return "none: unstable"
    radius = np.max(np.abs(np.linalg.eigvals(seen.transition)))
    forgotten = radius**NUM_STEPS < 0.01
    return f"{variance:.3f}" + (f" ({seen.chains:.2f})" if forgotten else "")


def markdown(table: dict[str, list[str]]) -> str:
    head = [
        f"ε = {s.step_size:g}, α = {s.friction:g}" + (f", β = {s.noise:g}" if s.noise else "")
        for s in SETTINGS
    ]
    lines = [f"| variance of the draws | {' | '.join(head)} |"]
    lines.append("| --- |" + " ---: |" * len(head))
    return "\n".join(lines + [f"| {name} | {' | '.join(row)} |" for name, row in table.items()])
