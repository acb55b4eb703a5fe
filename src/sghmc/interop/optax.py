"""Samplers as optax gradient transformations, for existing training loops."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sghmc.core import random
from sghmc.core.checks import check_count
from sghmc.engine import checks
from sghmc.engine.chain import INIT, MOTION, chain_keys
from sghmc.gradients import Oracle
from sghmc.samplers import Kernel, Sampler, fisher_of
from sghmc.types import Evaluation, PyTree


class TransformationState(NamedTuple):
    """The number of the next step, the sampler's state, and the draw.

    The draw is None unless `observe="middle"`: it is then half a drift from the parameters.
    """

    step: jax.Array
    chain: Any
    draw: PyTree | None


def transformation(
    sampler: Sampler, key: jax.Array, *, size: int, num_steps: int | None = None
) -> optax.GradientTransformation:
    """Make an optax gradient transformation of `sampler`, so that training iterates are a chain.

    The incoming gradients are those of a *mean* loss, as training loops have them,

        (1/n) Σ −log p(xᵢ | θ)  −  (1/N) log p(θ),   the sum over the n examples of a batch,

    and `size` is N, the number of all examples: N times such a gradient is that of the potential.
    A loss without the prior's part means a flat prior. For gradients of the potential itself `size`
    is 1. `num_steps` is the number of steps of the schedules among the settings; only they need it.

    With the same key, settings and gradients the parameters are those of `sample`'s first chain:
    the noise is equal bit for bit, positions are up to rounding; with `observe="middle"` its draws
    are those in `state.draw`. Other chains need other keys. The updates are the difference between
    the chain's next position and the parameters, so `optax.apply_updates` must follow directly, and
    no other transformation may be chained after this one.

    A sampler whose step takes several gradients, or one elsewhere than at the parameters (HMC; UBU;
    SGHMC with `resample_every`), is refused: a training loop provides one gradient a step.

    >>> import jax, jax.numpy as jnp, optax, sghmc
    >>> from sghmc.interop.optax import transformation
    >>> sampler = transformation(sghmc.SGHMC(0.1, friction=1.0), jax.random.key(0), size=1)
    >>> theta = jnp.ones(2)
    >>> state = sampler.init(theta)
    >>> grad = jax.grad(lambda theta: jnp.sum(theta**2) / 2)(theta)
    >>> updates, state = sampler.update(grad, state, theta)
    >>> theta = optax.apply_updates(theta, updates)
    """
    checks.check_key(key)
    _check(sampler, size, num_steps)
    chain = _Chain(sampler, chain_keys(key, 1)[0], size, 1 if num_steps is None else num_steps)
    return optax.GradientTransformation(chain.init, chain.update)  # pyright: ignore[reportArgumentType]


class _Chain:
    """A chain whose gradients come from outside, with kernels for each shape of parameters."""

    def __init__(self, sampler: Sampler, keys: jax.Array, size: int, num_steps: int):
        self.sampler, self.keys, self.size, self.num_steps = sampler, keys, size, num_steps
        self.observes_elsewhere = sampler.dynamics.observe != "end"
        self.kernels: dict[Any, Kernel] = {}

    def init(self, params: PyTree) -> TransformationState:
        position = jax.tree.map(jnp.asarray, params)
        normals = random.normals_like(self.keys[INIT], 0, 1, position)
        chain = self._kernel(position).init(normals, position)
        draw = position if self.observes_elsewhere else None
        return TransformationState(jnp.zeros((), jnp.int32), chain, draw)

    def update(self, updates: PyTree, state: TransformationState, params: PyTree | None = None):
        if params is None:
            raise ValueError(
                "A sampler moves from where the parameters are: call update(gradients, state, "
                "params), with the parameters."
            )
        kernel = self._kernel(params)
        noise = kernel.draw(self.keys[MOTION], state.step, 1, params)
        chain, _ = kernel.step(state.step, noise, state.chain, self._oracle(updates))
        moves = jax.tree.map(jnp.subtract, kernel.position(chain), params)
        draw = kernel.draw_from(state.step, chain) if self.observes_elsewhere else None
        return moves, TransformationState(state.step + 1, chain, draw)

    def _oracle(self, gradients: PyTree) -> Oracle:
        grad = jax.tree.map(lambda leaf: self.size * leaf, gradients)
        unknown = jnp.full((), jnp.nan)
        return Oracle(lambda i, position: Evaluation(unknown, grad), None, is_exact=False)

    def _kernel(self, params: PyTree) -> Kernel:
        """Return the prepared kernel, cached by shapes for loops without jit."""
        leaves, treedef = jax.tree.flatten(params)
        shapes = (treedef, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if shapes not in self.kernels:
            like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
            # Arrays, not tracers, even under jit, since the cached kernel is used in later traces.
            with jax.ensure_compile_time_eval():
                kernel = self.sampler.prepare(like, self.num_steps)
            _check_gradients(self.sampler, kernel)
            self.kernels[shapes] = kernel
        return self.kernels[shapes]


def _check(sampler, size, num_steps) -> None:
    if not isinstance(sampler, Sampler):
        raise TypeError(f"transformation needs a sampler such as sghmc.SGHMC(…), not {sampler!r}.")
    check_count(size, "size")
    check_count(num_steps, "num_steps", or_none="")
    if sampler.schedules and num_steps is None:
        raise ValueError(
            f"{' and '.join(sampler.schedules)} of {sampler.name} follow a schedule: say with "
            f"num_steps how far, so that it can be checked."
        )


def _check_gradients(sampler: Sampler, kernel: Kernel) -> None:
    name = sampler.name
    if kernel.num_gradients != 1:
        raise ValueError(
            f"A training loop hands in one gradient a step, but {name} takes "
            f"{kernel.num_gradients}: run it with sghmc.sample, or use SGHMC or SGLD here."
        )
    if kernel.gradient_use == "slope":
        raise ValueError(
            f"A training loop hands in gradients as numbers, but {name} takes a product with the "
            f"Hessian: run it with sghmc.sample, or without correction."
        )
    if fisher_of(kernel) is not None:
        raise ValueError(
            f"A training loop hands in mean gradients, but {name} with EmpiricalFisher needs those "
            f"of single examples: give gradient_noise as numbers, or run it with sghmc.sample."
        )
    if kernel.gradient_use == "inside":
        raise ValueError(
            f"A training loop hands in gradients at the parameters, but {name} takes them half a "
            f"step further: run it with sghmc.sample, or use BAOAB here."
        )
    if sampler.dynamics.resample_every is not None:
        raise ValueError(
            f"A training loop hands in gradients at the parameters, but {name} with resample_every "
            f"takes some elsewhere: leave it out, or run it with sghmc.sample."
        )
