"""What comes on top of steps: compilation, running averages, memory."""

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_PARAMETERS = 10_000


def measure(quick: bool) -> list[dict[str, Any]]:
    """Each in a process of its own, where nothing is compiled or allocated yet."""
    num_draws = 20_000 if quick else 1_000_000
    return [
        *(_limited(f"compilation, {name}", "s", 3.0, _apart("startup", name)) for name in MODELS),
        *(
            _limited(
                f"averages of every tenth step / without, {name}",
                "×",
                1.03,
                _apart("averages", name),
            )
            for name in (list(AVERAGED)[:1] if quick else AVERAGED)
        ),
        _limited(
            f"memory above import: {num_draws:,} draws of {NUM_PARAMETERS:,} parameters, averages",
            "MiB",
            300.0,
            _apart("memory", num_draws),
        ),
    ]


def _limited(what: str, unit: str, limit: float, measured: float) -> dict[str, Any]:
    return {"title": "Costs", "what": f"{what}, {unit}", "measured": measured, "limit": limit,
            "is_met": measured <= limit}  # fmt: skip


def _apart(name: str, *arguments: object) -> float:
    command = [sys.executable, "-m", "workloads.costs", name, *map(str, arguments)]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def _first(run) -> float:
    """Seconds of the first call beyond those of the second."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds[0] - seconds[1]


def _gaussian() -> float:
    from workloads import gaussian
    from workloads.options import Options

    return _first(gaussian.ours(1, Options(True, False, 1, [], Path())))


def _network() -> float:
    from workloads import images, network

    data = images.make()
    return _first_sample(network, network.MODEL.posterior(*data), images.BATCH, True)


def _factors() -> float:
    from workloads import factors

    data = factors.made_up_ratings()
    return _first_sample(factors, factors.MODEL.posterior(*data), factors.BATCH, "epochs")


def _first_sample(workload, posterior, batch_size: int, replacement: Any) -> float:
    import jax

    import sghmc

    gibbs, start = workload.MODEL.gibbs(10), workload.MODEL.init(jax.random.key(1))
    return _first(
        lambda: sghmc.sample(
            jax.random.key(0),
            posterior,
            workload.SAMPLER,
            start,
            gradient=sghmc.Minibatch(batch_size, replacement),
            num_samples=2,
            thinning=10,
            gibbs=gibbs,
            keep=workload.nothing,
            progress=False,
        )
    )


MODELS = {
    "Fig. 3's Gaussian": _gaussian,
    "Fig. 4's network": _network,
    "Table 1's factors": _factors,
}


def startup(name: str) -> float:
    return MODELS[name]()


def _wide(num_draws: int, averages, thinning: int = 1) -> Any:
    import jax
    import jax.numpy as jnp

    import sghmc
    from workloads.scaling import nothing, squares

    return sghmc.sample(
        jax.random.key(0),
        sghmc.Potential(squares),
        sghmc.SGHMC(0.1, friction=1.0),
        jnp.zeros(NUM_PARAMETERS),
        num_samples=num_draws,
        thinning=thinning,
        keep=nothing,
        averages=averages,
        progress=False,
    )


def _squares_with(functions: dict[str, Any]) -> Any:
    return _wide(1_000, functions, 10)


def _network_with(functions: dict[str, Any]) -> Any:
    import jax

    import sghmc
    from workloads import images, network

    return sghmc.sample(
        jax.random.key(0),
        _images_posterior(),
        network.SAMPLER,
        network.MODEL.init(jax.random.key(1)),
        gradient=sghmc.Minibatch(images.BATCH),
        num_samples=50,
        thinning=10,
        keep=network.nothing,
        averages=functions,
        progress=False,
    )


@functools.cache
def _images_posterior() -> Any:
    from workloads import images, network

    return network.MODEL.posterior(*images.make())


AVERAGED = {"½‖θ‖²": _squares_with, "Fig. 4's network": _network_with}


def averages(name: str) -> float:
    """The time of a run with a running mean and a mean square, over that without; in turns."""
    import jax

    from workloads.timing import Table, take_turns

    def square(params: Any, *hyper: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf**2, params)

    both = {"mean": lambda params, *hyper: params, "square": square}

    def program(functions: dict[str, Any]) -> Callable[[], float]:
        def run() -> float:
            samples = AVERAGED[name](functions)
            return samples.seconds - samples.startup_seconds

        return run

    programs = {"without": program({}), "with": program(both)}
    return Table("", "µs", "without", take_turns(programs, 7)).ratio("with", "without")


def memory(num_draws: str) -> float:
    """MiB at the peak, less those once sghmc is imported and jax has started."""
    import jax.numpy as jnp

    import sghmc  # noqa: F401

    jnp.zeros(1).block_until_ready()
    before = _peak()
    _wide(int(num_draws), {"mean": lambda theta: theta, "square": lambda theta: theta**2})
    return _peak() - before


def _peak() -> float:
    """MiB; of this program alone, where getrusage would count the one that started it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print({"startup": startup, "averages": averages, "memory": memory}[name](*arguments))
