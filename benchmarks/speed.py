"""Speed: `sghmc.sample` beside bare loops and other libraries, in one run, in turns.

    python benchmarks/speed.py [--quick] [--gpu] [--only PART …] [--peers NAME …] [--out FOLDER]

W1, W2 and W3 (benchmarks/README.md says what they are), how the cost of a step grows, and what
comes on top of steps. All programs of a table take turns, so that ratios do not depend on the
machine's moods. Writes speed.md, speed.json and scaling.png.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import jax
import rich

from workloads import costs, factors, gaussian, network, peers, scaling
from workloads.options import Options

TABLES = {"W1": gaussian, "W2": network, "W3": factors}
PARTS = [*TABLES, "scaling", "costs"]
ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, no peers")
    parser.add_argument("--gpu", action="store_true", help="what an accelerator is for")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--peers", nargs="*", choices=list(peers.PACKAGES), default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results" / "speed")
    given = parser.parse_args()
    names = list(peers.PACKAGES) if given.peers is None and not given.quick else given.peers or []
    options = Options(
        quick=given.quick,
        gpu=given.gpu,
        repeats=given.repeats or (2 if given.quick else 5),
        peers=[] if given.gpu else names,
        peers_folder=ROOT / ".peers",
    )
    rich.reconfigure(file=io.StringIO(), force_terminal=True)  # progress bars cost what they cost
    given.out.mkdir(parents=True, exist_ok=True)
    report = Report(given.out)
    for name in options.peers:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):  # tables will say so
            peers.environment(name, options.peers_folder)
    for part in given.only:
        report.add(part, options)
    print(judgement(report.bars), flush=True)


class Report:
    """What was measured so far, written anew after each part."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.started = folder, time.perf_counter()
        self.sections: list[str] = []
        self.bars: list[dict[str, Any]] = []
        self.json: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()}

    def add(self, part: str, options: Options) -> None:
        if part == "scaling":
            self._add_curves(scaling.curves(options))
        elif part == "costs":
            if not options.gpu:
                self.bars += costs.measure(options.quick)
        else:
            for table in TABLES[part].tables(options):
                self.sections.append(table.markdown())
                self.bars += table.judged()
                self.json.setdefault("tables", {})[table.title] = table.seconds
        self._write()
        print(f"{part} done after {time.perf_counter() - self.started:.0f} s.", flush=True)

    def _add_curves(self, curves: Sequence[scaling.Curve]) -> None:
        lines = [curve.markdown() for curve in curves]
        self.sections.append("\n".join(["### How a step's cost grows", "", scaling.HEADER, *lines]))
        self.json["scaling"] = [curve.as_json() for curve in curves]
        plot(curves, self.folder / "scaling.png")

    def _write(self) -> None:
        load = os.getloadavg()
        self.json |= {"bars": self.bars, "load_after": load}
        before = self.json["load_before"]
        head = f"{self.json['machine']}; load average {before[0]:.1f} before, {load[0]:.1f} after."
        text = "\n\n".join([head, *self.sections, judgement(self.bars)]) + "\n"
        (self.folder / "speed.md").write_text(text, encoding="utf-8")
        (self.folder / "speed.json").write_text(json.dumps(self.json, indent=1), encoding="utf-8")


def judgement(bars: list[dict[str, Any]]) -> str:
    lines = [
        "### Bars",
        "",
        "| workload | what | measured | at most | |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for bar in bars:
        verdict = "met" if bar["is_met"] else "missed"
        lines.append(
            f"| {bar['title'].split(':')[0]} | {bar['what']} | {bar['measured']:.3g} "
            f"| {bar['limit']:g} | {verdict} |"
        )
    return "\n".join(lines)


def machine() -> str:
    device = jax.devices()[0]
    kind = device.device_kind if device.platform != "cpu" else platform.processor() or "CPU"
    return (
        f"{kind}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}"
    )


def plot(curves: Sequence[scaling.Curve], path: pathlib.Path) -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("agg")
    figure, axes = plt.subplots(
        1, len(curves), figsize=(4 * len(curves), 3.2), layout="constrained"
    )
    for axis, curve in zip(axes, curves, strict=True):
        axis.loglog(curve.sizes, [1e6 * seconds for seconds in curve.seconds], marker="o")
        largest, cost = curve.sizes[-1], 1e6 * curve.seconds[-1]
        line = [cost * (size / largest) ** curve.expected for size in curve.sizes]
        axis.loglog(curve.sizes, line, linestyle=":", color="gray")
        axis.set_xlabel(curve.against)
        axis.set_title(f"exponent {curve.exponent:.2f}, expected {curve.expected:g}", fontsize=10)
    axes[0].set_ylabel("µs a step")
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
