"""Ways to make predictions of text by one transformer architecture, at equal gradients.

Each method returns the networks whose predictions are averaged. All choices are made by the
validation text; the test text is not seen here.
"""

import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import sghmc
from sghmc.models import Transformer
from sghmc.tuning.tune import NUM_PRODUCTS
from sghmc.types import PyTree
from workloads import text

SGD_RATES = (0.03, 0.1, 0.3, 1.0)
TEMPERATURES = (1.0, 0.3, 0.1, 0.03)
DECAYS = (0.1, 0.03, 0.01)
"""Of SGHMC's momenta in a step: the smaller, the further chains go, and the warmer batches make
them."""
NUM_MEMBERS = 4
"""Of the deep ensemble."""
PRIOR_SCALE = 3.0
WARM_SHARE = 0.5
"""Of all gradients, for training before anything is sampled or averaged."""
BURNIN_SHARE = 0.25
"""Of the draws."""
_LOOKS = 30
"""Times that training is looked at by the validation text."""
_RANK = 16
"""Of SWAG's covariance, beside its diagonal."""
_ROWS = 64
"""Of a Hessian product."""
_GRADIENTS_OF_PRODUCT = 2.5


class Setup(NamedTuple):
    """What all methods are given."""

    model: Transformer
    split: text.Split
    batch: int
    num_gradients: int
    num_draws: int
    seed: int
    rates: tuple[float, ...]
    temperatures: tuple[float, ...] = TEMPERATURES
    decays: tuple[float, ...] = DECAYS

    def key(self, *numbers: int) -> jax.Array:
        key = jax.random.key(self.seed)
        for number in numbers:
            key = jax.random.fold_in(key, number)
        return key

    def start(self, member: int = 0) -> PyTree:
        return eqx.filter_jit(self.model.init)(self.key(0, member))


class Outcome(NamedTuple):
    """Networks, how many gradients each run of the method took, and what was chosen.

    Bits and calibration error are those of the validation text, the latter where it was looked at.
    """

    members: list[PyTree]
    num_gradients: int
    bits: float
    setting: dict[str, Any]
    calibration_error: float = math.nan


# Training


class Trainer:
    """Steps of an optimizer, whose rate is an argument of the compiled program."""

    def __init__(self, setup: Setup, optimizer: Callable[[Any], optax.GradientTransformation]):
        self.setup, self.optimizer = setup, optimizer
        self.posterior = setup.model.posterior(setup.split.train)
        self.advance = jax.jit(self._advance, static_argnames="count", donate_argnums=0)

    def begin(self, params: PyTree) -> tuple[PyTree, PyTree]:
        return jax.tree.map(jnp.copy, params), self.optimizer(0.0).init(params)

    def _advance(self, carry, key, rate, *, count: int):
        posterior, optimizer = self.posterior, self.optimizer(rate)

        def loss(params, rows):  # a mean over symbols, in nats
            return -jnp.mean(posterior.log_likelihoods(params, posterior.rows(rows)))

        def step(carry, key):
            params, state = carry
            rows = jax.random.randint(key, (self.setup.batch,), 0, posterior.num_rows)
            updates, state = optimizer.update(jax.grad(loss)(params, rows), state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, carry, jax.random.split(key, count))[0]

    def run(
        self, params: PyTree, key: jax.Array, rate: float, num_steps: int, every: int
    ) -> Iterator[tuple[int, PyTree]]:
        """Parameters after every so many steps; they are gone when the next are asked for."""
        carry = self.begin(params)
        for done in range(0, num_steps, every):
            count = min(every, num_steps - done)
            carry = self.advance(carry, jax.random.fold_in(key, done), rate, count=count)
            yield done + count, carry[0]


def adamw(num_steps: int | None):
    """With a cosine schedule down to a twentieth; without a number of steps, at a constant rate."""

    def optimizer(rate):
        schedule = _warmed(rate) if num_steps is None else _cosine(rate, num_steps)
        steps = optax.adamw(schedule, b1=0.9, b2=0.99, weight_decay=0.1)
        return optax.chain(optax.clip_by_global_norm(1.0), steps)

    return optimizer


def momentum(num_steps: int):
    def optimizer(rate):
        steps = optax.sgd(_cosine(rate, num_steps), momentum=0.9)
        return optax.chain(optax.clip_by_global_norm(1.0), steps)

    return optimizer


_WARM_UP = 100


def _warmed(rate):
    return lambda step: rate * jnp.minimum(1.0, (step + 1) / _WARM_UP)


def _cosine(rate, num_steps: int):
    def schedule(step):
        turn = 0.5 * (1 + jnp.cos(math.pi * jnp.minimum(1.0, step / num_steps)))
        return _warmed(rate)(step) * (0.05 + 0.95 * turn)

    return schedule


def _fetched(params: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, params)


class Judge:
    """Bits per character of the validation text."""

    def __init__(self, setup: Setup):
        self.predict = text.predictor(setup.model, setup.split.validation)

    def __call__(self, members: list[PyTree]) -> float:
        return self.predict(members).bits()


class Trained(NamedTuple):
    """The best checkpoint of a run."""

    bits: float
    params: PyTree
    step: int


def _best_of_run(
    trainer: Trainer, judge: Judge, start: PyTree, key: jax.Array, rate: float, num_steps: int
) -> Trained:
    found = Trained(math.inf, start, 0)
    for step, params in trainer.run(start, key, rate, num_steps, max(1, num_steps // _LOOKS)):
        bits = judge([params])
        if bits < found.bits:
            found = Trained(bits, _fetched(params), step)
    return found


def _checkpoint(setup: Setup, optimizer, rates: tuple[float, ...]) -> Outcome:
    judge, trainer = Judge(setup), Trainer(setup, optimizer(setup.num_gradients))
    runs = {
        rate: _best_of_run(trainer, judge, setup.start(), setup.key(1), rate, setup.num_gradients)
        for rate in rates
    }
    rate = min(runs, key=lambda rate: runs[rate].bits)
    bits, params, step = runs[rate]
    setting = {"rate": rate, "step": step, "tried": {str(r): run.bits for r, run in runs.items()}}
    return Outcome([params], setup.num_gradients, bits, setting)


# Methods


def best_adamw(setup: Setup) -> list[Outcome]:
    """AdamW's best checkpoint, of the best rate."""
    return [_checkpoint(setup, adamw, setup.rates)]


def best_momentum(setup: Setup) -> list[Outcome]:
    return [_checkpoint(setup, momentum, SGD_RATES)]


def ensemble(setup: Setup, share: int = NUM_MEMBERS) -> list[Outcome]:
    """Members trained by AdamW from starts of their own, each with 1/`share` of the gradients."""
    judge, num_steps = Judge(setup), setup.num_gradients // share
    trainer, runs = Trainer(setup, adamw(num_steps)), {}
    for rate in setup.rates:
        members = [
            _best_of_run(
                trainer, judge, setup.start(member), setup.key(1, member), rate, num_steps
            ).params
            for member in range(NUM_MEMBERS)
        ]
        runs[rate] = (judge(members), members)
    rate = min(runs, key=lambda rate: runs[rate][0])
    setting = {"rate": rate, "members": NUM_MEMBERS, "steps": num_steps}
    setting["tried"] = {str(r): bits for r, (bits, _) in runs.items()}
    return [Outcome(runs[rate][1], NUM_MEMBERS * num_steps, runs[rate][0], setting)]


def full_ensemble(setup: Setup) -> list[Outcome]:
    """The usual one, in which each member takes as much as a single network."""
    return ensemble(setup, share=1)


def swag(setup: Setup) -> list[Outcome]:
    """A normal law from the mean, the variances and the last deviations along AdamW's path.

    After the first part of the gradients the rate stays constant, and moments are gathered. Draws
    are θ̄ + √½ σ z + √½ D z'/√(K − 1) (Maddox et al., 2019), of which the scale ½ is theirs.
    """
    judge, trainer = Judge(setup), Trainer(setup, adamw(None))
    warm = int(WARM_SHARE * setup.num_gradients)
    every = max(1, (setup.num_gradients - warm) // (4 * _RANK))
    runs = {}
    for rate in setup.rates:
        mean, square, number, deviations = None, None, 0, []
        for step, params in trainer.run(
            setup.start(), setup.key(1), rate, setup.num_gradients, every
        ):
            if step <= warm:
                continue
            leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
            number += 1
            if mean is None or square is None:
                mean, square = leaves, [leaf**2 for leaf in leaves]
            else:
                mean = [m + (x - m) / number for m, x in zip(mean, leaves, strict=True)]
                square = [s + (x**2 - s) / number for s, x in zip(square, leaves, strict=True)]
            deviation = [x - m for x, m in zip(leaves, mean, strict=True)]
            deviations = [*deviations, [d.astype(np.float32) for d in deviation]][-_RANK:]
        members = _swag_draws(setup, mean, square, deviations)
        runs[rate] = (judge(members), members)
    rate = min(runs, key=lambda rate: runs[rate][0])
    setting = {"rate": rate, "draws": setup.num_draws}
    setting["tried"] = {str(r): bits for r, (bits, _) in runs.items()}
    return [Outcome(runs[rate][1], setup.num_gradients, runs[rate][0], setting)]


def _swag_draws(setup: Setup, mean, square, deviations) -> list[PyTree]:
    rng = np.random.default_rng(setup.seed)
    treedef = jax.tree.structure(setup.start())
    draws = []
    for _ in range(setup.num_draws):
        mixed = rng.normal(size=len(deviations)) / math.sqrt(2 * (len(deviations) - 1))
        leaves = []
        for i, (m, s) in enumerate(zip(mean, square, strict=True)):
            sd = np.sqrt(np.maximum(s - m**2, 0) / 2)
            low = sum(z * each[i] for z, each in zip(mixed, deviations, strict=True))
            leaves.append((m + sd * rng.normal(size=m.shape) + low).astype(np.float32))
        draws.append(jax.tree.unflatten(treedef, leaves))
    return draws


def sampled(setup: Setup) -> list[Outcome]:
    """SGHMC from AdamW's best checkpoints: at temperature 1, and colder where that is needed.

    The best, since a chain of so few steps stays near its start: one that had learned the training
    text by heart is not forgotten. A network that is at its best before the gradients for training
    are spent leaves them to others: so many chains begin, each from a network of its own. Masses
    and step size are `tune_network`'s, for all chains and temperatures those of the first start.
    Draws stream to disk by a checkpoint.

    Temperature 1 is the posterior, and is reported. Of the decays that are tried, the best
    calibrated is taken of those whose draws together are better, on the validation text, than the
    best network they began from. Where none is, colder temperatures are tried until one is; where
    no temperature helps, the best of all in bits is the one chosen.
    """
    judge, trainer = Judge(setup), Trainer(setup, adamw(None))
    warm = int(WARM_SHARE * setup.num_gradients)
    tried = {
        rate: _best_of_run(trainer, judge, setup.start(), setup.key(1), rate, warm)
        for rate in setup.rates
    }
    rate = min(tried, key=lambda rate: tried[rate].bits)
    num_chains = chains_for(warm, tried[rate].step)
    starts = [tried[rate]]
    if num_chains > 1:
        starts = [
            _best_of_run(trainer, judge, setup.start(i), setup.key(1, i), rate, warm // num_chains)
            for i in range(num_chains)
        ]
    posterior = setup.model.posterior(setup.split.train)
    tuned = sghmc.tune_network(
        setup.key(2), posterior, starts[0].params, momentum_decay=1.0, num_rows=_ROWS
    )
    runs: dict[float, list[Outcome]] = {}
    best: dict[float, Outcome] = {}
    to_beat = min(start.bits for start in starts)
    for t in setup.temperatures:
        params = [start.params for start in starts]
        runs[t] = [
            _drawn(setup, judge, posterior, tuned, t, decay, params) for decay in setup.decays
        ]
        best[t] = chosen_of(runs[t], to_beat)
        if best[t].bits < to_beat:
            break
    of_all = {
        "tried": {
            f"temperature {t:g}, decay {decay:g}": (run.bits, run.calibration_error)
            for t in runs
            for decay, run in zip(setup.decays, runs[t], strict=True)
        },
        "rate": rate,
        "rates": {str(r): found.bits for r, found in tried.items()},
        "step": tried[rate].step,
        "start_bits": [start.bits for start in starts],
    }
    chosen = min(best, key=lambda t: best[t].bits)
    reported = [chosen] if chosen == 1 else [chosen, 1.0]
    return [best[t]._replace(setting=best[t].setting | of_all) for t in reported]


def chosen_of(runs: list[Outcome], to_beat: float) -> Outcome:
    """The best calibrated of those that are better in bits; where none is, the best in bits."""
    better = [run for run in runs if run.bits < to_beat]
    if better:
        return min(better, key=lambda run: run.calibration_error)
    return min(runs, key=lambda run: run.bits)


def chains_for(num_steps: int, best_step: int) -> int:
    """How many networks come near their best in so many steps, if one is at its best after some."""
    return min(NUM_MEMBERS, max(1, round(num_steps / best_step)))


def _drawn(
    setup: Setup,
    judge: Judge,
    posterior: sghmc.Posterior,
    tuned: sghmc.SGHMC,
    temperature: float,
    decay: float,
    starts: list[PyTree],
) -> Outcome:
    """One chain from each start, with all the gradients that training and tuning have left.

    Momenta of `tuned` decay within a step; here by the share `decay`.
    """
    friction = jax.tree.map(lambda of_leaf: decay * of_leaf, tuned.friction)
    sampler = tuned.with_settings(friction=friction, temperature=temperature)
    num_chains = len(starts)
    of_tuning = math.ceil(NUM_PRODUCTS * _GRADIENTS_OF_PRODUCT * _ROWS / setup.batch)
    warm = int(WARM_SHARE * setup.num_gradients) // num_chains * num_chains
    left = (setup.num_gradients - warm - of_tuning) // num_chains
    num_draws = setup.num_draws // num_chains
    num_burnin = round(num_draws * BURNIN_SHARE / (1 - BURNIN_SHARE))
    # A draw of a large network costs one gradient more, for its potential.
    thinning = left // (num_draws + num_burnin) - 1
    with tempfile.TemporaryDirectory() as folder:
        samples = sghmc.sample(
            setup.key(3),
            posterior,
            sampler,
            jax.tree.map(lambda *leaves: np.stack(leaves), *starts),
            init_axis=0,
            num_chains=num_chains,
            gradient=sghmc.Minibatch(setup.batch),
            num_samples=num_draws,
            num_burnin=num_burnin,
            thinning=thinning,
            checkpoint=sghmc.Checkpoint(pathlib.Path(folder) / "draws", every=10**9),
            progress=False,
        )
        members = [
            jax.tree.map(lambda leaf, c=c, i=i: np.array(leaf[c, i]), samples.positions)
            for c in range(num_chains)
            for i in range(num_draws)
        ]
        heat = samples.info.kinetic_temperature
        assert heat is not None
    used = warm + of_tuning + num_chains * (thinning + 1) * (num_draws + num_burnin)
    found = judge.predict(members)
    setting = {
        "temperature": temperature,
        "decay": decay,
        "step_size": sampler.step_size,
        "mass": {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf
            for path, leaf in jax.tree.leaves_with_path(sampler.mass)
        },
        "chains": num_chains,
        "draws": len(members),
        "thinning": thinning,
        "kinetic_temperature": float(heat.mean()) / temperature,
        "single_bits": found.own_bits,
    }
    return Outcome(members, used, found.bits(), setting, found.calibration_error())


METHODS: dict[str, Callable[[Setup], list[Outcome]]] = {
    "AdamW": best_adamw,
    "SGD with momentum": best_momentum,
    "ensemble": ensemble,
    "full ensemble": full_ensemble,
    "SWAG": swag,
    "SGHMC": sampled,
}
