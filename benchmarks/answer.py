"""Seconds to an answer: `sample(…, "auto", …)` against NUTS, each a fresh process.

    python benchmarks/answer.py [--only WORD …] [--repeat 3] [--peers numpyro blackjax]
    python benchmarks/answer.py --show FILE … # the table of rows that --json kept
    python benchmarks/answer.py --keys 20     # is the promised tolerance kept?
    python benchmarks/answer.py --gpu         # the first and the second call on an accelerator

For each posterior of `posteriors.py` and each of the methods: CPU seconds of the whole process,
imports and compilation included (median of the repeats), seconds of the wall, the smallest
effective size of any parameter (bulk and tail), and the largest error of any mean and standard
deviation against a long run of NumPyro's NUTS (dense mass, 4 × 10,000 draws; kept in
`results/answer/`). Ours also tells how many programs it compiled, and how long that took; how long
the same call takes again, with other data of the same shape; and how long `health()` takes.

NUTS is NumPyro's as it comes: vectorized, 4 chains, 1,000 draws after 1,000 of warm-up, on the sum
of the same log-likelihood over all rows. blackjax, which runs where `--blackjax` names a Python
that has it (and numpyro, equinox, jaxtyping: the posteriors are ours), warms up by its window
adaptation.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

FOLDER = pathlib.Path(__file__).parents[1] / "results" / "answer"
NUM_CHAINS, NUM_DRAWS, NUM_WARMUP = 4, 1_000, 1_000
METHODS = ("ours", "numpyro", "blackjax")


# One method on one posterior: what a fresh process does


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def flat(positions) -> np.ndarray:
    """Draws with axes (chain, draw, raveled parameter)."""
    import jax

    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(positions)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)


def prepared(name: str, *seeds: int):
    """Posteriors of ours, of one model but with other data each, and a start."""
    import jax

    import sghmc
    from workloads import posteriors

    case = posteriors.CASES[name]
    made = [case.make(seed=seed) for seed in seeds]
    if not case.is_model:
        first, start = made[0][:2]
        if isinstance(first, sghmc.Potential):
            return [first] * len(seeds), start
        functions = first.log_likelihood, first.log_prior
        return [sghmc.Posterior(*functions, each[0].data) for each in made], start
    import sghmc.interop.numpyro

    found = [sghmc.interop.numpyro.posterior(made[0][0], **each[1]) for each in made]
    return found, found[0].init(jax.random.key(0))


def ours(name: str, seed: int, engine: str, again: bool) -> tuple[np.ndarray, dict]:
    import jax

    compiled: list[float] = []

    def note(event: str, seconds: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)  # pyright: ignore
    import sghmc

    targets, start = prepared(name, *([seed, seed + 1] if again else [seed]))

    def answer(target):
        began = cpu_seconds(), time.perf_counter()
        samples = sghmc.sample(
            jax.random.key(seed),
            target,
            engine,  # pyright: ignore[reportArgumentType]
            start,
            num_samples=NUM_DRAWS,
            num_chains=NUM_CHAINS,
            progress=False,
        )
        return samples, cpu_seconds() - began[0], time.perf_counter() - began[1]

    samples, _, wall = answer(targets[0])
    facts = {
        "first_seconds": wall,
        "programs": len(compiled),
        "compile_seconds": sum(compiled),
        "engine": samples.tuning.engine,
        "choice": samples.tuning.choice,
        "is_met": samples.tuning.is_met,
        "stages": samples.tuning.stages,
        "steps": samples.num_steps,
    }
    if again:
        began = cpu_seconds()
        samples.health()
        facts["health_cpu"] = cpu_seconds() - began
        compiled.clear()
        _, facts["again_cpu"], facts["again_seconds"] = answer(targets[1])
        facts["again_programs"] = len(compiled)
    return flat(samples.positions), facts


def plain(name: str, seed: int):
    """The potential as a NUTS user would write it, and a start."""
    import jax
    import jax.numpy as jnp

    import sghmc
    from workloads import posteriors

    if posteriors.CASES[name].is_model:
        (target,), start = prepared(name, seed)
    else:
        target, start, *_ = posteriors.CASES[name].make(seed=seed)
    if isinstance(target, sghmc.Potential):
        return target.function, start
    rows = jax.vmap(target.log_likelihood, (None, 0))
    return lambda p: -jnp.sum(rows(p, target.data)) - target.log_prior(p), start


def numpyro(name: str, seed: int, num_draws=NUM_DRAWS, **settings) -> tuple[np.ndarray, dict]:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    from workloads import posteriors

    options = {
        "num_warmup": NUM_WARMUP,
        "num_samples": num_draws,
        "num_chains": NUM_CHAINS,
        "chain_method": "vectorized",
        "progress_bar": False,
    }
    if posteriors.CASES[name].is_model:
        model, arguments = posteriors.CASES[name].make(seed=seed)
        mcmc = MCMC(NUTS(model, **settings), **options)
        mcmc.run(jax.random.key(seed), **arguments)
    else:
        potential, start = plain(name, seed)
        mcmc = MCMC(NUTS(potential_fn=potential, **settings), **options)
        starts = jax.tree.map(lambda leaf: jnp.zeros((NUM_CHAINS, *leaf.shape)) + leaf, start)
        mcmc.run(jax.random.key(seed), init_params=starts)
    return flat(mcmc.get_samples(group_by_chain=True)), {}


def blackjax(name: str, seed: int) -> tuple[np.ndarray, dict]:
    import blackjax  # pyright: ignore[reportMissingImports]
    import jax

    potential, start = plain(name, seed)

    def density(position):
        return -potential(position)

    def chain(key):
        warm_up = blackjax.window_adaptation(blackjax.nuts, density)
        first, second = jax.random.split(key)
        (state, parameters), _ = warm_up.run(first, start, num_steps=NUM_WARMUP)
        kernel = blackjax.nuts(density, **parameters)

        def step(state, key):
            state, _ = kernel.step(key, state)
            return state, state.position

        return jax.lax.scan(step, state, jax.random.split(second, NUM_DRAWS))[1]

    return flat(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), NUM_CHAINS))), {}


def reference(name: str, seed: int) -> np.ndarray:
    """Draws of a long run, in double precision where data enter by a small matrix."""
    import jax

    from workloads import posteriors

    case = posteriors.CASES[name]
    quick = [] if case.is_model else case.make(seed=seed)[2:]
    if not quick:
        return numpyro(name, seed, case.num_reference, dense_mass=True)[0]
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    with jax.enable_x64(True):
        start = case.make(seed=seed)[1]
        kernel = NUTS(potential_fn=quick[0].function, dense_mass=True)
        mcmc = MCMC(
            kernel,
            num_warmup=NUM_WARMUP,
            num_samples=case.num_reference,
            num_chains=NUM_CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        starts = jax.tree.map(lambda leaf: jnp.zeros((NUM_CHAINS, *leaf.shape)) + leaf, start)
        mcmc.run(jax.random.key(seed), init_params=starts)
        return flat(mcmc.get_samples(group_by_chain=True))


def run_one(options) -> None:
    """What a fresh process does: the draws and the facts go into a file."""
    began = time.perf_counter()
    if options.one == "reference":
        draws, facts = reference(options.posterior, options.seed), {}
    elif options.one == "ours":
        draws, facts = ours(options.posterior, options.seed, options.engine, options.again)
    elif options.one == "keys":
        draws, facts = keys(options.posterior, options.seed, options.keys)
    else:
        draws, facts = globals()[options.one](options.posterior, options.seed)
    facts = {"cpu": cpu_seconds(), "wall": time.perf_counter() - began, **facts}
    np.savez(options.out, draws=draws, facts=json.dumps(facts))


# The comparison


def fresh(method: str, name: str, seed: int, options, *more: str) -> tuple[np.ndarray, dict]:
    """The draws and facts of a method in a process of its own, without any cache."""
    python = options.blackjax if method == "blackjax" else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.npz"
        command = [python, "-W", "ignore", __file__, "--one", method, "--posterior", name]
        command += ["--seed", str(seed), "--out", str(out), "--engine", options.engine, *more]
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": ""}
        subprocess.run(command, check=True, env=environment)
        with np.load(out) as found:
            return found["draws"], json.loads(str(found["facts"]))


def moments(draws: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mean and sd of each parameter, and their Monte Carlo errors."""
    from sghmc.results import convergence

    found = convergence.summarize(list(draws.transpose(2, 0, 1)))
    return tuple(found[name] for name in ("mean", "sd", "mcse_mean", "mcse_sd"))


def sizes(draws: np.ndarray) -> tuple[float, float]:
    """The smallest effective size of any parameter, bulk and tail."""
    from sghmc.results import convergence

    found = convergence.summarize(list(draws.transpose(2, 0, 1)))
    return float(found["ess_bulk"].min()), float(found["ess_tail"].min())


def truth(name: str, seed: int, options) -> tuple[np.ndarray, ...]:
    path = FOLDER / f"{name} {seed}.npz"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        draws, _ = fresh("reference", name, seed, options)
        np.savez(path, *moments(draws))
    with np.load(path) as found:
        return tuple(found[f"arr_{i}"] for i in range(4))


def errors(draws: np.ndarray, right: tuple[np.ndarray, ...]) -> dict[str, float]:
    """The largest errors of a mean, in sds, and of an sd, relative, with Monte Carlo errors."""
    mean, sd, mean_noise, sd_noise = moments(draws)
    of_mean, of_sd = (mean - right[0]) / right[1], sd / right[1] - 1
    i, j = int(np.argmax(np.abs(of_mean))), int(np.argmax(np.abs(of_sd)))
    return {
        "mean_error": float(of_mean[i]),
        "mean_noise": float(np.hypot(mean_noise[i], right[2][i]) / right[1][i]),
        "sd_error": float(of_sd[j]),
        "sd_noise": float(np.hypot(sd_noise[j], right[3][j]) / right[1][j]),
    }


def compare(name: str, options) -> dict:
    row: dict = {"name": name}
    right = truth(name, 0, options) if options.judge else None
    for method in ("ours", *options.peers):
        runs = [fresh(method, name, 0, options) for _ in range(options.repeat)]
        draws, facts = runs[0]
        bulk, tail = sizes(draws)
        row[method] = {
            **facts,
            "cpu": statistics.median(run[1]["cpu"] for run in runs),
            "wall": statistics.median(run[1]["wall"] for run in runs),
            "bulk": bulk,
            "tail": tail,
            **({} if right is None else errors(draws, right)),
        }
    again = fresh("ours", name, 0, options, "--again")[1]
    row["ours"] |= {key: again[key] for key in again if key.startswith(("again", "health"))}
    return row


def show(row: dict, peers: list[str]) -> None:
    mine = row["ours"]
    told = [f"{mine['cpu']:.1f}", f"{mine['bulk']:,.0f}, {mine['tail']:,.0f}"]
    for peer in peers:
        told += [f"{row[peer]['cpu']:.1f}", f"{row[peer]['bulk']:,.0f}, {row[peer]['tail']:,.0f}"]
        told += [f"{mine['cpu'] / row[peer]['cpu']:.2f}"]
    if "sd_error" in mine:
        told += [f"{100 * mine['sd_error']:+.1f} % ± {100 * mine['sd_noise']:.1f}"]
        told += [f"{mine['mean_error']:+.3f} ± {mine['mean_noise']:.3f}"]
    told += [mine["engine"], f"{mine['programs']}, {mine['compile_seconds']:.1f}"]
    told += [
        f"{mine['again_cpu']:.1f}",
        f"{mine['health_cpu']:.2f}" if "health_cpu" in mine else "–",
    ]
    print(f"| {row['name']} | {' | '.join(told)} |", flush=True)


def header(options) -> None:
    columns = ["posterior", "CPU s", "effective (bulk, tail)"]
    for peer in options.peers:
        columns += [f"{peer}: CPU s", f"{peer}: effective", f"CPU s / {peer}'s"]
    columns += ["worst sd", "worst mean, in sds"] if options.judge else []
    columns += ["engine", "programs, compile s", "again, CPU s", "health, CPU s"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")


def keep_promises(options) -> None:
    """Over many keys: how often the worst standard deviation is off by more than the tolerance."""
    columns = ["posterior", "runs", "promised (`is_met`)", "outside 5 %", "promised and outside"]
    columns += ["worst sd", "told: ± (median)", "CPU s of a repeated call"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    total = np.zeros(4, int)
    for name in chosen(options):
        right = truth(name, 0, options)
        draws, facts = fresh("keys", name, 0, options, "--keys", str(options.keys))
        worst = np.array([errors(each, right)["sd_error"] for each in draws])
        is_met, is_outside = np.array(facts["is_met"]), np.abs(worst) > 0.05
        counts = [len(worst), is_met.sum(), is_outside.sum(), (is_met & is_outside).sum()]
        total += counts
        told = [*map(str, counts), f"{100 * worst[np.argmax(np.abs(worst))]:+.1f} %"]
        told += [f"{100 * np.median(facts['error']):.1f} %", f"{np.median(facts['cpu'][1:]):.1f}"]
        print(f"| {name} | {' | '.join(told)} |", flush=True)
    print(f"| all | {' | '.join(map(str, total))} | | | |")


def keys(name: str, seed: int, count: int) -> tuple[np.ndarray, dict]:
    """The same data with as many keys as asked for, in one process."""
    import jax

    import sghmc

    (posterior,), start = prepared(name, seed)
    draws, facts = [], {"is_met": [], "error": [], "cpu": []}
    for key in range(count):
        began = cpu_seconds()
        samples = sghmc.sample(
            jax.random.key(100 + key),
            posterior,
            "auto",
            start,
            num_samples=NUM_DRAWS,
            num_chains=NUM_CHAINS,
            progress=False,
        )
        facts["cpu"].append(cpu_seconds() - began)
        facts["is_met"].append(samples.tuning.is_met)
        facts["error"].append(samples.tuning.monte_carlo_error)
        draws.append(flat(samples.positions))
    return np.stack(draws), facts


def on_accelerator() -> None:
    """The bars of an accelerator: seconds of the wall, without imports, first and second call."""
    import jax

    import sghmc
    from workloads import posteriors

    print(
        f"{jax.devices()[0].device_kind}\n| posterior | first s | again s | engine |\n|"
        + " --- |" * 4
    )
    for count, size in ((100_000, 3), (1_000_000, 50)):
        seconds, engine = [], ""
        first, start = posteriors.logistic(count, size, seed=0)
        other, _ = posteriors.logistic(count, size, seed=1)
        # The same functions: jax knows a program by them, and other ones would be compiled again.
        functions = first.log_likelihood, first.log_prior
        for seed, data in enumerate((first.data, other.data)):
            posterior = sghmc.Posterior(*functions, data)
            jax.block_until_ready(posterior.data)
            began = time.perf_counter()
            samples = sghmc.sample(
                jax.random.key(seed),
                posterior,
                "auto",
                start,
                num_samples=NUM_DRAWS,
                num_chains=NUM_CHAINS,
                progress=False,
            )
            seconds.append(time.perf_counter() - began)
            engine = samples.tuning.engine
            print(samples.tuning, flush=True)
        print(f"| logistic, {count:,} × {size} | {seconds[0]:.1f} | {seconds[1]:.2f} | {engine} |")


def chosen(options) -> list[str]:
    from workloads import posteriors

    return [n for n in posteriors.CASES if not options.only or any(w in n for w in options.only)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", help="words of posteriors' names")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=["numpyro"], choices=METHODS[1:])
    parser.add_argument("--blackjax", default=sys.executable, help="a Python that has blackjax")
    parser.add_argument("--engine", default="auto", help="auto, auto:exact or auto:minibatch")
    parser.add_argument("--no-errors", dest="judge", action="store_false")
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the rows")
    parser.add_argument("--show", type=pathlib.Path, nargs="*", help="print rows of such files")
    parser.add_argument("--seed", type=int, default=0)
    for hidden in ("--one", "--posterior", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return run_one(options)
    if options.gpu:
        return on_accelerator()
    if options.keys:
        return keep_promises(options)
    if options.show:
        header(options)
        for row in (row for path in options.show for row in json.loads(path.read_text("utf-8"))):
            show(row, options.peers)
        return None
    rows = []
    header(options)
    for name in chosen(options):
        rows.append(compare(name, options))
        show(rows[-1], options.peers)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(rows, indent=1))
    return None


if __name__ == "__main__":
    main()
