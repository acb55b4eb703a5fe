"""W2: SGHMC on the paper's network, 784-100-10, batches of 500, against momentum descent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import sghmc
from sghmc.core import random
from sghmc.models import MLP
from workloads import bare, images, peers
from workloads.options import Options
from workloads.timing import Bar, Program, Table, clocked, take_turns

MODEL = MLP((images.NUM_INPUTS, images.NUM_HIDDEN, images.NUM_CLASSES))
SAMPLER = sghmc.SGHMC.from_learning_rate(images.LEARNING_RATE, images.MOMENTUM_DECAY)
SHARED = "the same, batches shared"
NOISE_SCALE = (2 * images.LEARNING_RATE * images.MOMENTUM_DECAY) ** 0.5


def nothing(params, hyper):
    return ()


def tables(options: Options) -> list[Table]:
    posterior = MODEL.posterior(*images.make())
    if not options.gpu:
        return [table(options, posterior)]
    one, many = (gpu_table(options, posterior, num_chains) for num_chains in (1, 64))
    both = {f"one chain, {name}": seconds for name, seconds in one.seconds.items()}
    both |= {f"64 chains, {name}": seconds for name, seconds in many.seconds.items()}
    base = "one chain, sghmc.sample"
    bars = [Bar(f"64 chains, {name}", base, 6.0) for name in ("sghmc.sample", SHARED)]
    return [one, many, Table("W2: a step of all chains", "µs", base, both, bars)]


def table(options: Options, posterior: sghmc.Posterior) -> Table:
    num_steps = options.scaled(1_000)
    programs: dict[str, Program] = {
        "optax momentum": momentum(posterior, 1, num_steps),
        "the same, compiled as ours": momentum(posterior, 1, num_steps, as_ours=True),
        "sghmc.sample": ours(posterior, 1, num_steps),
        **parts(posterior, num_steps),
        "NumPy": numpy_loop(posterior, options.scaled(100)),
    }
    others, notes = peers.started(
        options.peers, options.peers_folder, "network", options.scaled(300)
    )
    seconds = take_turns({**programs, **others}, options.repeats)
    peers.close(others)
    bars = [
        Bar("sghmc.sample", "optax momentum", 1.10),
        Bar("sghmc.sample", "bare scan of our step", 1.03),
    ]
    return Table("W2: a step", "µs", "optax momentum", seconds, bars, notes)


def parts(posterior: sghmc.Posterior, num_steps: int) -> dict[str, Program]:
    rates = images.LEARNING_RATE, images.MOMENTUM_DECAY
    start, gradient = MODEL.init(jax.random.key(1)), sghmc.Minibatch(images.BATCH)
    return bare.scans(posterior, SAMPLER, rates, gradient, start, num_steps)


def gpu_table(options: Options, posterior: sghmc.Posterior, num_chains: int) -> Table:
    num_steps = options.scaled(20_000 if num_chains == 1 else 4_000)
    programs = {
        "optax momentum": momentum(posterior, num_chains, num_steps),
        "sghmc.sample": ours(posterior, num_chains, num_steps),
    }
    if num_chains == 1:
        programs |= parts(posterior, num_steps)
    else:
        programs[SHARED] = ours(posterior, num_chains, num_steps, shared=True)
    seconds = take_turns(programs, options.repeats)
    bars = [Bar("sghmc.sample", "optax momentum", 1.10)]
    return Table(f"W2, {num_chains} chain(s): a step of all", "µs", "optax momentum", seconds, bars)


def ours(
    posterior: sghmc.Posterior, num_chains: int, num_steps: int, *, shared: bool = False
) -> Program:
    """Without what comes before the first block: compilation in the first turn, checks in all."""

    def run() -> float:
        samples = sghmc.sample(
            jax.random.key(0),
            posterior,
            SAMPLER,
            MODEL.init(jax.random.key(1)),
            gradient=sghmc.Minibatch(images.BATCH, shared=shared),
            num_samples=5,
            thinning=num_steps // 4,
            num_chains=num_chains,
            keep=nothing,
            progress=True,
        )
        return (samples.seconds - samples.startup_seconds) / (num_steps // 4 * 4)

    return run


def momentum(
    posterior: sghmc.Posterior, num_chains: int, num_steps: int, *, as_ours: bool = False
) -> Program:
    """The limit: the same batches by the same generator, the same gradient, optax's update."""
    optimizer = optax.sgd(images.LEARNING_RATE, momentum=1 - images.MOMENTUM_DECAY)
    keys = jax.random.bits(jax.random.key(0), (num_chains, 2), jnp.uint32)

    def chain(posterior, params, key):
        def step(carry, t):
            params, state = carry
            rows = random.integers(key, t, 1, images.BATCH, posterior.num_rows)
            grad = jax.grad(posterior.estimate)(params, posterior.rows(rows))
            updates, state = optimizer.update(grad, state)
            return (optax.apply_updates(params, updates), state), None

        start = (params, optimizer.init(params))
        return lax.scan(step, start, jnp.arange(num_steps))[0]

    of_all = jax.vmap(chain, (None, None, 0)) if num_chains > 1 else chain
    run = bare.jitted(of_all, as_ours=as_ours)
    key = keys if num_chains > 1 else keys[0]
    start = MODEL.init(jax.random.key(1))
    return clocked(lambda: jax.block_until_ready(run(posterior, start, key)), num_steps)


def numpy_loop(posterior: sghmc.Posterior, num_steps: int) -> Program:
    x, y = (np.asarray(posterior.data[name]) for name in ("x", "y"))
    rng = np.random.default_rng(0)
    shapes = ((images.NUM_INPUTS, images.NUM_HIDDEN), (images.NUM_HIDDEN,),
              (images.NUM_HIDDEN, images.NUM_CLASSES), (images.NUM_CLASSES,))  # fmt: skip
    params = [0.01 * rng.standard_normal(shape, np.float32) for shape in shapes]
    velocity = [np.zeros_like(part) for part in params]

    def gradient(x, y):
        a, b, c, d = params
        hidden = 1 / (1 + np.exp(-(x @ a + b)))
        scores = hidden @ c + d
        error = np.exp(scores - scores.max(1, keepdims=True))
        error /= error.sum(1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        error *= images.NUM_ROWS / images.BATCH
        back = (error @ c.T) * hidden * (1 - hidden)
        grads = (x.T @ back, back.sum(0), hidden.T @ error, error.sum(0))
        return [part + grad for part, grad in zip(params, grads, strict=True)]

    def run():
        for _ in range(num_steps):
            rows = rng.integers(0, images.NUM_ROWS, images.BATCH)
            for i, grad in enumerate(gradient(x[rows], y[rows])):
                velocity[i] *= 1 - images.MOMENTUM_DECAY
                velocity[i] -= images.LEARNING_RATE * grad
                velocity[i] += NOISE_SCALE * rng.standard_normal(grad.shape, np.float32)
                params[i] += velocity[i]

    return clocked(run, num_steps)
