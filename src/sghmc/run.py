"""sample(): checks what it is given, runs the compiled loop block by block, gathers the draws."""

import contextlib
import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from sghmc import keep as keeping
from sghmc import loop, random
from sghmc.gibbs import Gibbs
from sghmc.gradients import FullBatch, Gradient
from sghmc.layout import Layout
from sghmc.loop import NEVER, Carry, Program, Record
from sghmc.posterior import Posterior, Potential, Target
from sghmc.progress import Bar, Interruption
from sghmc.samplers.base import Sampler
from sghmc.samples import DivergenceError, Info, Samples
from sghmc.types import PyTree

_BLOCK_SECONDS = 0.5
_BLOCK_BYTES = 1 << 25


def sample(
    key: jax.Array,
    target: Target,
    sampler: Sampler,
    init: PyTree,
    *,
    gradient: Gradient | None = None,
    num_samples: int = 1000,
    num_burnin: int = 0,
    thinning: int = 1,
    num_chains: int = 1,
    init_axis: int | None = None,
    keep: Callable[..., PyTree] | None = None,
    averages: dict[str, Callable[..., PyTree]] | None = None,
    trace: Callable[[dict[str, PyTree]], PyTree] | None = None,
    gibbs: Gibbs | None = None,
    progress: bool = True,
    throw: bool = True,
) -> Samples:
    """Draw from a posterior or a potential.

    | argument | meaning |
    | --- | --- |
    | `key` | a typed jax key, `jax.random.key(0)`: the same key gives the same draws |
    | `init` | where chains start; with `init_axis=0` it carries a leading chain axis |
    | `gradient` | `FullBatch()` (default), `Minibatch(500)`, `NoisyGradient(V)` |
    | `num_samples` | kept draws of each chain; a draw is `thinning` sampler steps |
    | `num_burnin` | draws discarded first |
    | `keep` | function of a position: what is stored of a draw; `lambda p: ()` stores nothing |
    | `averages` | functions of a position: their means over kept draws, in constant memory |
    | `trace` | function of the averages so far, stored with each draw: how an average settles |
    | `gibbs` | exact updates of hyperparameters between steps |
    | `progress` | show steps per second, time left and health |
    | `throw` | raise `DivergenceError` when a chain is not finite, instead of flagging its draws |

    `keep` and `averages` take (position, hyper) where the posterior has hyperparameters. Ctrl-C
    returns what was drawn so far.

    >>> import jax, jax.numpy as jnp, sghmc
    >>> target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    >>> samples = sghmc.sample(
    ...     jax.random.key(0), target, sghmc.SGHMC(0.1, friction=1.0), jnp.zeros(2),
    ...     num_samples=100, num_chains=4, progress=False,
    ... )
    >>> samples.positions.shape
    (4, 100, 2)
    """
    _check_key(key)
    _check_counts(num_samples, num_burnin, thinning, num_chains)
    if not isinstance(target, Potential | Posterior):
        raise TypeError(f"sample needs a Posterior or a Potential, not {target!r}.")
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sample needs a sampler such as sghmc.SGHMC(…), not {sampler!r}.")
    gradient = FullBatch() if gradient is None else gradient
    if not isinstance(gradient, Gradient):
        raise TypeError(f"gradient must be sghmc.Minibatch(500) or the like, not {gradient!r}.")
    if keep is not None and not callable(keep):
        raise TypeError(f"keep must be a function of the position, not {keep!r}.")
    if averages is not None and not isinstance(averages, dict):
        raise TypeError(f"averages must be a dict {{name: function}}, not {averages!r}.")
    positions = _start_positions(init, init_axis, num_chains)
    if sampler.subtracts_gradient_noise and not gradient.is_independent:
        raise ValueError(
            "gradient_noise must not be subtracted with shuffled epochs: their errors cancel over "
            "a pass, and subtracting cools the chain. Use replacement=True, or gradient_noise=0."
        )
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), positions)
    _check_functions(target, like)
    _check_gibbs(gibbs, target, like)
    total = num_burnin + num_samples
    program = Program(
        target=target,
        kernel=sampler.prepare(like, total * thinning),
        estimator=gradient.prepare(target, like),
        gibbs=gibbs,
        keep=keep,
        averages=dict(averages or {}),
        trace=trace,
        keys=_chain_keys(key, num_chains),
        layout=Layout.of(like, num_chains),
        thinning=thinning,
    )
    _check_start(program, positions)
    run = _Run(program, loop.start(program, positions), num_burnin, num_samples)
    return run.finish(progress, throw)


class _Run:
    """The host's side of a run: how far it is, and the draws it has gathered."""

    def __init__(self, program: Program, carry: Carry, num_burnin: int, num_samples: int):
        self.program, self.carry = program, carry
        self.num_burnin, self.num_samples = num_burnin, num_samples
        self.done = 0
        self.gathered: Record | None = None
        self.started = time.perf_counter()
        self.startup_seconds = 0.0

    def finish(self, progress: bool, throw: bool) -> Samples:
        total = self.num_burnin + self.num_samples
        capacity, pace = self._capacity(), {True: _Pace(), False: _Pace()}
        with Interruption() as interruption, Bar(progress, total * self.program.thinning) as bar:
            while self.done < total and not interruption.happened:
                is_burnin = self.done < self.num_burnin
                left = (
                    self.num_burnin - self.done if is_burnin else min(total - self.done, capacity)
                )
                with pace[is_burnin].timing(left) as count:
                    failed_at = self._advance(count, 0 if is_burnin else capacity)
                self.startup_seconds = sum(each.first_seconds for each in pace.values())
                bar.update(self.done * self.program.thinning, failed_at)
                if throw and (failed_at < NEVER).any():
                    raise DivergenceError(_explain(failed_at), self._samples())
        if self.done < total:
            warnings.warn(
                f"Interrupted after {self.done} of {total} draws; those so far are returned.",
                stacklevel=3,
            )
        return self._samples()

    def _advance(self, count: int, capacity: int) -> np.ndarray:
        """Make `count` draws, gather them, and tell at which step each chain failed."""
        self.carry, records = loop.advance(
            self.program, self.carry, np.int32(self.done), np.int32(count), capacity=capacity
        )
        failed_at = np.atleast_1d(self.carry.failed_at)
        if capacity:
            self._gather(records, self.done - self.num_burnin, count)
        self.done += count
        return failed_at

    def _gather(self, records: Record, first: int, count: int) -> None:
        layout = self.program.layout
        new = jax.tree.map(lambda leaf: layout.outward(np.asarray(leaf), leading=1), records)
        if self.gathered is None:
            self.gathered = jax.tree.map(
                lambda leaf: np.empty(
                    (leaf.shape[0], self.num_samples, *leaf.shape[2:]), leaf.dtype
                ),
                new,
            )
        for rows, leaf in zip(jax.tree.leaves(self.gathered), jax.tree.leaves(new), strict=True):
            rows[:, first : first + count] = leaf[:, :count]

    def _capacity(self) -> int:
        """How many draws the compiled loop may hold: few enough that memory is the draws' own."""
        record = jax.eval_shape(lambda: loop.observe(self.program, 0, self.carry)[1])
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(record))
        return max(1, min(self.num_samples, _BLOCK_BYTES // size))

    def _samples(self) -> Samples:
        layout = self.program.layout
        num_kept = max(0, self.done - self.num_burnin)
        if self.gathered is None:
            capacity = jax.eval_shape(lambda: loop.observe(self.program, 0, self.carry)[1])
            nothing = jax.tree.map(lambda leaf: np.empty((0, *leaf.shape), leaf.dtype), capacity)
            record = jax.tree.map(lambda leaf: layout.outward(leaf, leading=1), nothing)
        else:
            record = jax.tree.map(lambda rows: rows[:, :num_kept], self.gathered)
        means = layout.over_chains(keeping.mean)(self.carry.sums)
        return Samples(
            positions=record.kept,
            hyper=record.hyper,
            trace=record.trace,
            averages=jax.tree.map(lambda leaf: layout.outward(np.asarray(leaf)), means),
            info=Info(**record.info._asdict()),
            num_steps=self.done * self.program.thinning,
            seconds=time.perf_counter() - self.started,
            startup_seconds=self.startup_seconds,
        )


class _Pace:
    """How many draws to make before looking up: one, to compile, then half a second's worth."""

    def __init__(self):
        self.count, self.first_seconds = 1, 0.0

    @contextlib.contextmanager
    def timing(self, most: int):
        count = min(self.count, most)
        start = time.perf_counter()
        yield count
        elapsed = time.perf_counter() - start
        self.first_seconds = self.first_seconds or elapsed
        self.count = max(1, int(count * min(16.0, _BLOCK_SECONDS / elapsed)))


def _explain(failed_at: np.ndarray) -> str:
    failed = np.flatnonzero(failed_at < NEVER)
    first = failed[failed_at[failed].argmin()]
    return (
        f"Chain {first} left the finite numbers at step {failed_at[first]} "
        f"({len(failed)} of {len(failed_at)} chains did). Take a smaller step_size (sghmc.theory "
        f"has the stability limit), start nearer the mode, or look for NaN in the data; "
        f"throw=False returns the flagged draws, and this error carries them as .samples."
    )


def _check_key(key) -> None:
    is_array = isinstance(key, jax.Array | np.ndarray)
    is_key = is_array and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not is_key or key.shape != ():
        shown = f"an array of dtype {key.dtype} and shape {key.shape}" if is_array else repr(key)
        raise TypeError(
            f"key must be one typed jax key, such as jax.random.key(0), but is {shown}."
        )


def _check_counts(num_samples, num_burnin, thinning, num_chains) -> None:
    lowest = {"num_samples": 1, "num_burnin": 0, "thinning": 1, "num_chains": 1}
    given = dict(zip(lowest, (num_samples, num_burnin, thinning, num_chains), strict=True))
    for name, number in given.items():
        if not isinstance(number, int | np.integer) or number < lowest[name]:
            raise ValueError(
                f"{name} must be a whole number from {lowest[name]}, but is {number!r}."
            )
    if (num_burnin + num_samples) * thinning >= NEVER:
        raise ValueError(
            f"(num_burnin + num_samples) · thinning is {(num_burnin + num_samples) * thinning}, "
            f"but a run has at most {NEVER - 1} steps: split it."
        )


def _check_gibbs(gibbs, target, like: PyTree) -> None:
    if gibbs is None:
        return
    if not isinstance(gibbs, Gibbs):
        raise TypeError(f"gibbs must be sghmc.Gibbs(update, every=…), not {gibbs!r}.")
    if getattr(target, "hyper", None) is None:
        raise ValueError(
            "gibbs updates hyperparameters, but the target has none: give Posterior(…, hyper=…)."
        )
    returned = jax.eval_shape(lambda params: gibbs.update(jax.random.key(0), params, target), like)
    old, new = (
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), hyper)
        for hyper in (target.hyper, returned)
    )
    if old != new:
        raise ValueError(
            f"The Gibbs update must return hyper with the structure, shapes and dtypes it was "
            f"given, {old}, but returns {new}."
        )


def _start_positions(init: PyTree, init_axis: int | None, num_chains: int) -> PyTree:
    """The starts of all chains, with a leading chain axis."""
    if init_axis not in (None, 0):
        raise ValueError(f"init_axis must be None or 0, but is {init_axis!r}.")
    leaves = jax.tree.leaves(init)
    if not leaves:
        raise ValueError("init holds no parameters: give a pytree of float arrays.")
    for path, leaf in jax.tree.leaves_with_path(init):
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        name = f"init{jax.tree_util.keystr(path)}"
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{name} has dtype {array.dtype}, but parameters are real numbers: give floats, "
                f"for example {name}.astype(float)."
            )
        if init_axis == 0 and (array.ndim == 0 or array.shape[0] != num_chains):
            raise ValueError(
                f"With init_axis=0 the leading axis of init counts chains, but {name} has shape "
                f"{array.shape} and num_chains is {num_chains}."
            )
        if not np.all(np.isfinite(np.asarray(array, np.float64))):
            raise ValueError(f"{name} is not finite: chains must start at finite numbers.")
    arrays = jax.tree.map(jnp.asarray, init)
    if init_axis == 0:
        return arrays
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_chains, *leaf.shape)), arrays)


def _check_functions(target: Target, like: PyTree) -> None:
    """U, log-likelihood and log-prior must return one real number."""
    if isinstance(target, Potential):
        shown = {"The potential U(params)": jax.eval_shape(target.function, like)}
    else:
        hyper = () if target.hyper is None else (target.hyper,)
        example = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), target.data
        )
        shown = {
            "log_likelihood(params, example)": jax.eval_shape(
                target.log_likelihood, like, example, *hyper
            ),
            "log_prior(params)": jax.eval_shape(target.log_prior, like, *hyper),
        }
    for name, out in shown.items():
        if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(
                f"{name} must return one real number, a float array of shape (), but returns "
                f"{out}. Sum over the parts of one example with jnp.sum."
            )


def _check_start(program: Program, positions: PyTree) -> None:
    potentials, are_finite = loop.look(program, positions)
    for chain in np.flatnonzero(~np.atleast_1d(are_finite)):
        raise ValueError(
            f"The potential or its gradient is not finite where chain {chain} starts: the "
            f"potential is {np.atleast_1d(potentials)[chain]}. Start elsewhere, or look for NaN in "
            f"the data and log of zero in the model."
        )


def _chain_keys(key: jax.Array, num_chains: int) -> jax.Array:
    """Words of the keys (chain, stream): a chain's do not depend on how many chains there are."""
    chains = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_chains))
    streams = jnp.arange(loop.NUM_STREAMS)
    return random.words(
        jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(chains, streams)
    )
