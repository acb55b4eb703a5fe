"""What a step of `sghmc.torch` costs beside `torch.optim.SGD(momentum=0.9, foreach=True)`.

    python benchmarks/pytorch.py speed                  # a CPU: Fig. 4's network, 10⁷ parameters
    python benchmarks/pytorch.py speed --device cuda    # Fig. 4's network, and 10⁸ parameters

A step is zero_grad, forward, backward and the optimizer's step, batches of 100 or 500. Optimizers
take turns in one process; the ratio shown is the median of the ratios within a turn. Memory is that
of the whole step at its peak: on an accelerator by torch's allocator, on a CPU by processes of
their own (a network of 10⁷ parameters). The noise alone is a standard normal for every parameter,
by the sampler's own source and, on the CPU, by one of torch's generators; the floor is what SGD and
the sampler's own noise take together, and the bar on a CPU is so much above it.

A sampler may draw the noise of many steps at once: a turn has so many steps that this counts.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from sghmc.torch import SGHMC, GaussianPrior, pieces
from sghmc.torch.normals import Normals
from sghmc.torch.pieces import Piece

BAR, ABOVE_FLOOR, MEMORY_BAR = 1.15, 0.08, 1.1
NUM_DATA = 50_000
NETWORKS = {
    "Fig. 4, 784-100-10": (784, 100, 10),
    "10⁷ parameters": (784, 2_000, 2_000, 2_000, 10),
    "10⁸ parameters": (784, 6_870, 6_870, 6_870, 10),
}
FIGURE_4, SMALLER, LARGE = NETWORKS


@dataclasses.dataclass
class Bar:
    what: str
    measured: float
    allowed: float

    def __str__(self) -> str:
        verdict = "met" if self.measured <= self.allowed else "MISSED"
        return f"{self.what}: {self.measured:.3f}, allowed {self.allowed} — {verdict}"


def network(sizes: tuple[int, ...], device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs, device=device), torch.nn.Sigmoid()]
    return torch.nn.Sequential(*layers[:-1])


def optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)
    given = {"num_data": NUM_DATA, "prior": GaussianPrior(1.0), "seed": 0}
    return SGHMC.from_learning_rate(model.parameters(), 1e-4 / NUM_DATA, 0.1, **given)


def training_step(
    name: str, sizes: tuple[int, ...], device: str, batch_size: int = 500
) -> Callable[[], None]:
    model = network(sizes, device)
    stepper = optimizer(name, model)
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(batch_size, sizes[0], device=device, generator=generator)
    y = torch.randint(0, 10, (batch_size,), device=device, generator=generator)

    def step() -> None:
        stepper.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        stepper.step()

    return step


def noise_alone(sizes: tuple[int, ...], device: str) -> Callable[[], None]:
    tensors = [param.detach() for param in network(sizes, device).parameters()]
    plan = pieces.cut(tensors, [{} for _ in tensors], Normals(0))

    def draw(piece: Piece) -> None:
        piece.normals()

    return lambda: plan.run(draw)


def noise_of_torch(sizes: tuple[int, ...], device: str) -> Callable[[], object]:
    numbers = torch.empty(sum(param.numel() for param in network(sizes, device).parameters()))
    generator = torch.Generator().manual_seed(0)
    return lambda: numbers.normal_(generator=generator)


def seconds(step: Callable[[], object], count: int, device: str) -> float:
    """A step's time, once all that was asked of the device is done."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    if device != "cpu":
        torch.get_device_module(device).synchronize()
    return (time.perf_counter() - start) / count


def times(
    name: str, device: str, turns: int, count: int, batch_size: int = 500
) -> tuple[dict[str, float], float]:
    """Median times, and the median ratio of SGHMC's to SGD's within a turn."""
    sizes = NETWORKS[name]
    programs: dict[str, Callable[[], object]] = {
        "sgd": training_step("sgd", sizes, device, batch_size),
        "sghmc": training_step("sghmc", sizes, device, batch_size),
        "noise alone": noise_alone(sizes, device),
    }
    if device == "cpu":
        programs["noise by torch"] = noise_of_torch(sizes, device)
    for program in programs.values():
        seconds(program, 5, device)
    seen: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(turns):
        for each, program in programs.items():
            seen[each].append(seconds(program, count, device))
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(seen["sghmc"], seen["sgd"], strict=True)
    )
    return {each: statistics.median(values) for each, values in seen.items()}, ratio


def accelerator_memory(name: str, sizes: tuple[int, ...], device: str) -> float:
    """Bytes at the peak of a step."""
    memory = torch.get_device_module(device)
    memory.empty_cache()
    before = memory.memory_allocated()
    step = training_step(name, sizes, device)
    step()
    memory.reset_peak_memory_stats()
    for _ in range(3):
        step()
    memory.synchronize()
    return memory.max_memory_allocated() - before


def cpu_memory(name: str) -> float:
    """Bytes that a process needs more, at its peak, than one that only imports; of five of them."""
    script = pathlib.Path(__file__).parents[1] / "pytorch.py"
    command = [sys.executable, str(script), "speed", "--peak-of", name]
    runs = (subprocess.run(command, check=True, capture_output=True) for _ in range(5))
    return statistics.median(float(run.stdout) for run in runs)


def print_peak(name: str) -> None:
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = training_step(name, NETWORKS[SMALLER], "cpu")
    for _ in range(3):
        step()
    print(unit * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or another that torch has")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="of torch, on the CPU")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak_of:
        print_peak(given.peak_of)
        return
    torch.set_num_threads(given.threads)
    where = f"{torch.get_num_threads()} threads of a CPU"
    if given.device != "cpu":
        where = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    print(f"torch {torch.__version__}, {where}\n")
    is_cpu = given.device == "cpu"
    plans = [(FIGURE_4, 500, 200)]
    plans += [(FIGURE_4, 100, 200), (SMALLER, 100, 5)] if is_cpu else [(LARGE, 500, 20)]
    bars, table = [], {}
    for name, batch_size, count in plans:
        measured, ratio = times(name, given.device, given.turns, count, batch_size)
        what = f"{name}, batches of {batch_size}"
        table[what] = {**measured, "ratio": ratio}
        print(f"{what}: " + ", ".join(f"{n} {1e6 * t:,.0f} µs" for n, t in measured.items()))
        print(f"  SGHMC / SGD {ratio:.3f}")
        for each in (n for n in measured if n.startswith("noise")):
            print(f"  SGD and the {each} / SGD {1 + measured[each] / measured['sgd']:.3f}")
        floor = 1 + measured["noise alone"] / measured["sgd"]
        if is_cpu or name == LARGE:
            allowed = floor + ABOVE_FLOOR if is_cpu else BAR
            bars.append(Bar(f"a step of {what} / SGD", ratio, round(allowed, 3)))
    if given.device == "cpu":
        peaks = {name: cpu_memory(name) for name in ("sgd", "sghmc")}
        shown = SMALLER
    else:
        sizes, shown = NETWORKS[LARGE], LARGE
        peaks = {n: accelerator_memory(n, sizes, given.device) for n in ("sgd", "sghmc")}
    table["memory"] = peaks
    print(f"memory, {shown}: " + ", ".join(f"{n} {b / 2**20:,.0f} MiB" for n, b in peaks.items()))
    bars.append(Bar(f"memory of a step, {shown} / SGD", peaks["sghmc"] / peaks["sgd"], MEMORY_BAR))
    print("\n" + "\n".join(map(str, bars)))
    if given.json is not None:
        given.json.write_text(json.dumps(table, indent=1), encoding="utf-8")
