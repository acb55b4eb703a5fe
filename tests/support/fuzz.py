"""Random runs: samplers × gradients × options × kinds of parameters, each from its seed alone."""

import pathlib
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from cases import SAMPLERS

ROOT = pathlib.Path(sghmc.__file__).parent
PARAMETERS: dict[str, Any] = {
    "a number": jnp.zeros(()),
    "a vector": jnp.ones(3),
    "nested": {"a": (jnp.zeros(2), [jnp.ones((1, 2))]), "b": jnp.zeros(())},
    "nothing in a leaf": {"a": jnp.ones(2), "none": jnp.zeros((0, 3))},
    "None in it": {"a": jnp.ones(2), "b": None},
    "half precision": {"a": jnp.ones(3, jnp.bfloat16), "b": jnp.ones(2)},
    "half precision alone": jnp.ones(3, jnp.float16),
    "many": jnp.zeros(300),
    "whole numbers": jnp.arange(3),
    "numpy": np.ones(2, np.float32),
    "double of numpy": np.ones(2, np.float64),
    "empty": {},
    "a list": [0.0, 1.0],
    "not finite": jnp.array([0.0, jnp.nan]),
}
DATA_ROWS = (1, 2, 7, 40)


def _gradients(rng: np.random.Generator, num_rows: int) -> sghmc.Gradient:
    size = int(rng.choice([1, 2, num_rows, num_rows + 1]))
    replacement = [True, False, "epochs", "palindrome"][rng.integers(4)]
    makers: list[Callable[[], sghmc.Gradient]] = [
        sghmc.FullBatch,
        lambda: sghmc.Minibatch(size, replacement=replacement),
        lambda: sghmc.ControlVariate(size, replacement=replacement),
        lambda: sghmc.NoisyGradient(float(rng.choice([0.0, 0.5]))),
    ]
    return makers[rng.integers(len(makers))]()


def _options(rng: np.random.Generator) -> dict[str, Any]:
    options: dict[str, Any] = {
        "num_samples": int(rng.choice([1, 2, 9])),
        "num_burnin": int(rng.choice([0, 0, 3])),
        "thinning": int(rng.choice([1, 1, 3])),
        "num_chains": int(rng.choice([1, 2, 5])),
        "info": bool(rng.random() < 0.8),
        "throw": bool(rng.random() < 0.5),
    }
    if rng.random() < 0.2:
        options["keep"] = [
            lambda p: (),
            lambda p: jax.tree.leaves(p)[0],
            lambda p: {"sum": sum(jnp.sum(leaf) for leaf in jax.tree.leaves(p))},
        ][rng.integers(3)]
    if rng.random() < 0.2:
        options["averages"] = {"leaf": lambda p: jax.tree.leaves(p)[0]}
    return options


def _posterior(rng: np.random.Generator, num_rows: int) -> sghmc.Posterior:
    """A Gaussian whose rows are the parameters' sum, or one that falls off a cliff."""
    data = rng.normal(size=(num_rows, 2)).astype(np.float32)
    steepness = float(rng.choice([0.5, 0.5, 1e4]))

    def total(params):
        leaves = [jnp.sum(jnp.asarray(x).astype(jnp.float32)) for x in jax.tree.leaves(params)]
        return jnp.sum(jnp.stack(leaves))

    def square(params):
        leaves = [jnp.sum(jnp.asarray(x, jnp.float32) ** 2) for x in jax.tree.leaves(params)]
        return jnp.sum(jnp.stack(leaves))

    return sghmc.Posterior(
        lambda params, row: -0.5 * jnp.sum((row - total(params)) ** 2),
        lambda params: -steepness * square(params),
        data,
    )


def run(seed: int) -> str:
    """One random run. What came of it, in a word; raises AssertionError where that is not sound.

    Sound are draws that are finite or flagged, and errors that this library raises itself.
    """
    rng = np.random.default_rng(seed)
    num_rows = int(rng.choice(DATA_ROWS))
    kind, sampler = (list(d)[rng.integers(len(d))] for d in (PARAMETERS, SAMPLERS))
    made = f"seed {seed}: {sampler} on {kind!r}, {num_rows} rows"
    try:
        gradient, options = _gradients(rng, num_rows), _options(rng)
        made += f", {gradient}, {options}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sghmc.HealthWarning)
            samples = sghmc.sample(
                jax.random.key(seed),
                _posterior(rng, num_rows),
                SAMPLERS[sampler],
                PARAMETERS[kind],
                gradient=gradient,
                progress=False,
                **options,
            )
    except Exception as error:
        where = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if ROOT not in where.parents or not str(error):
            raise AssertionError(f"{made}\nraised {error!r} in {where}") from error
        return type(error).__name__
    finite = np.ones(samples.info.is_finite.shape, bool)
    for leaf in jax.tree.leaves(samples.positions):
        finite &= np.isfinite(np.asarray(leaf, np.float32)).reshape(*finite.shape, -1).all(-1)
    unflagged = samples.info.is_finite & ~finite
    assert not unflagged.any(), f"{made}: {unflagged.sum()} draws are not finite and not flagged"
    return "draws"
