"""Bayesian networks: multilayer perceptrons for tables, a transformer for text."""

from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from sghmc.core.checks import check_choice, check_count, checked_codes
from sghmc.posterior.gibbs import GaussianPrior, Gibbs, draw_precision, scaled_log_density
from sghmc.posterior.posterior import Posterior
from sghmc.types import PyTree


class MLP(eqx.Module):
    """A multilayer perceptron with Gaussian priors whose precisions are learned.

        f(x) = W_L σ(… σ(W_1 x + b_1) …) + b_L
        "categorical":  y ~ softmax(f(x))      "gaussian":  y ~ N(f(x), λ_y⁻¹)
        W_l, b_l ~ N(0, λ⁻¹), each with its own λ ~ Gamma(1, 1); λ_y ~ Gamma(1, 1)

    | field | meaning |
    | --- | --- |
    | `sizes` | (inputs, hidden, …, outputs) |
    | `activation` | σ, default the paper's sigmoid |
    | `likelihood` | "categorical" (labels 0, 1, …) or "gaussian" (an array of `outputs` numbers) |
    | `prior` | prior of the weights and of their precisions |

    The paper's network is `MLP((784, 100, 10))`.

    >>> import jax
    >>> model = MLP((4, 8, 3))
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, jax.numpy.ones(4)).shape
    (3,)
    """

    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array] = jax.nn.sigmoid
    likelihood: Literal["categorical", "gaussian"] = "categorical"
    prior: GaussianPrior = GaussianPrior()

    def __check_init__(self):
        if len(self.sizes) < 2 or any(size < 1 for size in self.sizes):
            raise ValueError(
                f"sizes must be (inputs, hidden, …, outputs), all positive, but is {self.sizes}."
            )
        if self.likelihood not in ("categorical", "gaussian"):
            raise ValueError(
                f'likelihood must be "categorical" or "gaussian", but is {self.likelihood!r}.'
            )

    def init(self, key: jax.Array, scale: float = 0.01) -> PyTree:
        """Draw weights from N(0, scale²); biases are 0."""
        keys = jax.random.split(key, len(self.sizes) - 1)
        pairs = zip(keys, self.sizes[:-1], self.sizes[1:], strict=True)
        return [
            {"weight": scale * jax.random.normal(k, (n_in, n_out)), "bias": jnp.zeros(n_out)}
            for k, n_in, n_out in pairs
        ]

    def apply(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Return f(x), for one input or for rows of inputs."""
        for layer in params[:-1]:
            x = self.activation(x @ layer["weight"] + _as_row(layer["bias"], x))
        return x @ params[-1]["weight"] + _as_row(params[-1]["bias"], x)

    def log_likelihood(self, params: PyTree, example: PyTree, hyper: PyTree) -> jax.Array:
        output = self.apply(params, example["x"])
        if self.likelihood == "categorical":
            value = jax.nn.log_softmax(output)[example["y"]]
        else:
            precision, error = hyper["noise"], output - example["y"]
            value = 0.5 * error.size * jnp.log(precision) - 0.5 * precision * jnp.sum(error**2)
        return value * example["weight"] if "weight" in example else value

    def log_prior(self, params: PyTree, hyper: PyTree) -> jax.Array:
        return self.prior.log_density(params, hyper["prior"])

    def posterior(self, x, y, weight=None) -> Posterior:
        """Return the posterior given inputs (rows), labels or targets, and weights of the rows."""
        x, y = np.asarray(x), np.asarray(y)
        if x.ndim != 2 or x.shape[1] != self.sizes[0]:
            raise ValueError(
                f"x must have shape (rows, {self.sizes[0]}) for an MLP of sizes {self.sizes}, but "
                f"has {x.shape}."
            )
        if self.likelihood == "categorical":
            checked_codes(y, self.sizes[-1], "y")
        elif y.shape[1:] != (self.sizes[-1],):
            raise ValueError(
                f"y must have shape (rows, {self.sizes[-1]}) for an MLP of sizes {self.sizes}, but "
                f"has {y.shape}."
            )
        data = {"x": x, "y": y} | ({} if weight is None else {"weight": np.asarray(weight)})
        like = jax.eval_shape(self.init, jax.random.key(0))
        hyper: dict[str, PyTree] = {"prior": self.prior.start(like)}
        if self.likelihood == "gaussian":
            hyper["noise"] = jnp.ones(())
        return Posterior(self.log_likelihood, self.log_prior, data, hyper=hyper)

    def gibbs(self, every: int, start: int = 0) -> Gibbs:
        """Return the Gibbs update of the precisions; for the noise it passes over the data."""
        return Gibbs(self._update, every, start)

    def _update(self, key: jax.Array, params: PyTree, posterior: Posterior) -> PyTree:
        of_prior, of_noise = jax.random.split(key)
        hyper: dict[str, PyTree] = {"prior": self.prior.update(of_prior, params)}
        if self.likelihood == "gaussian":
            count, total = posterior.sum_over_data(lambda rows: self._squares(params, rows))
            prior = self.prior
            hyper["noise"] = draw_precision(
                of_noise, prior.shape, prior.rate, count, total, temperature=prior.temperature
            )
        return hyper

    def _squares(self, params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return the weighted count and sum of squared errors of each row."""
        errors = self.apply(params, rows["x"]) - rows["y"]
        weight = rows["weight"] if "weight" in rows else jnp.ones(len(errors))
        return weight * errors.shape[1], weight * jnp.sum(errors**2, axis=1)


def _as_row(bias: jax.Array, x: jax.Array) -> jax.Array:
    return bias.reshape((1,) * (x.ndim - 1) + bias.shape)


# A transformer for text, symbol by symbol.

_MEAN_SQUARE_OFFSET = 1e-6
"""Added to the mean square in a normalisation, so that zeros stay zeros."""
_ROTATION_BASE = 10_000.0
"""Base of the rotary embedding: the slowest pair turns once in about 2π times as many symbols."""


class Transformer(eqx.Module):
    """A decoder-only transformer with normal priors, which predicts the next symbol of a text.

        x = E[c];  for every block: x ← x + W₂ attention(W₁ n(x)),  x ← x + W₄ gelu(W₃ n(x))
        p(c_{t+1} | c_1 … c_t) = softmax(W₅ n(x_t)),   n(x) = x / √(mean x²)
        E ~ N(0, s²),  W ~ N(0, s²/inputs),  W₂ and W₄: N(0, s²/(2·depth·inputs))

    | field | symbol | meaning |
    | --- | --- | --- |
    | `num_symbols` | | symbols are 0, …, num_symbols − 1 |
    | `context` | L | predictions of a window, which use nothing before the window |
    | `width`, `depth`, `num_heads` | | numbers of an activation, blocks, heads of an attention |
    | `prior_scale` | s | of all priors |
    | `compute_type` | | "float32", or "bfloat16" for matrix products: parameters stay as they are |
    | `remat` | | recompute activations of a block for its gradient: less memory, more time |

    Attention is causal, positions are rotations of its heads, and there are neither biases nor
    gains, so that every parameter is a weight with a scale known a priori. A scan runs the stacked
    blocks, so that compilation does not take longer for more of them.

    Linear layers are `eqx.nn.Linear`, by the names "blocks.attend" (W₁), "blocks.attended" (W₂),
    "blocks.expand" (W₃), "blocks.contract" (W₄) and "readout" (W₅): `Adapters` may change them.

    >>> import jax
    >>> model = Transformer(num_symbols=5, context=8, width=16, depth=2, num_heads=2)
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, jax.numpy.array([0, 3, 1])).shape
    (3, 5)
    """

    num_symbols: int
    context: int
    width: int
    depth: int
    num_heads: int
    prior_scale: float = 1.0
    compute_type: Literal["float32", "bfloat16"] = "float32"
    remat: bool = False

    def __check_init__(self):
        for name in ("num_symbols", "context", "width", "depth", "num_heads"):
            check_count(getattr(self, name), name)
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width must be a multiple of twice num_heads, since the numbers of a head turn in "
                f"pairs, but is {self.width} for {self.num_heads} heads."
            )
        if not self.prior_scale > 0:
            raise ValueError(f"prior_scale must be positive, but is {self.prior_scale!r}.")
        check_choice(self.compute_type, "compute_type", ("float32", "bfloat16"))

    def init(self, key: jax.Array) -> PyTree:
        """Draw parameters from the prior with s = 1."""
        of_embedding, of_blocks, of_readout = jax.random.split(key, 3)
        width, small = self.width, (2 * self.depth) ** -0.5

        def block(key: jax.Array) -> dict[str, eqx.nn.Linear]:
            keys = jax.random.split(key, 4)
            return {
                "attend": _linear(keys[0], width, 3 * width, 1.0),
                "attended": _linear(keys[1], width, width, small),
                "expand": _linear(keys[2], width, 4 * width, 1.0),
                "contract": _linear(keys[3], 4 * width, width, small),
            }

        return {
            "embedding": jax.random.normal(of_embedding, (self.num_symbols, width)),
            "blocks": eqx.filter_vmap(block)(jax.random.split(of_blocks, self.depth)),
            "readout": _linear(of_readout, width, self.num_symbols, 1.0),
        }

    def apply(self, params: PyTree, codes: Int[Array, " time"]) -> Float[Array, "time symbol"]:
        """Return the logits of the symbol after each of `codes`, given those up to it."""

        def layer(x, block):
            block = _in_type(block, self.compute_type)
            return self._transformed(block, self._attended(block, x)), None

        x = params["embedding"][codes].astype(self.compute_type)
        x, _ = lax.scan(jax.checkpoint(layer) if self.remat else layer, x, params["blocks"])
        readout = _in_type(params["readout"], self.compute_type)
        return jax.vmap(readout)(_normalized(x)).astype(jnp.float32)

    def _attended(self, block: PyTree, x: Float[Array, "time width"]) -> jax.Array:
        parts = jax.vmap(block["attend"])(_normalized(x)).reshape(len(x), 3, self.num_heads, -1)
        query, key, value = _turned(parts[:, 0]), _turned(parts[:, 1]), parts[:, 2]
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return x + jax.vmap(block["attended"])(found.reshape(x.shape))

    def _transformed(self, block: PyTree, x: Float[Array, "time width"]) -> jax.Array:
        hidden = jax.nn.gelu(jax.vmap(block["expand"])(_normalized(x)))
        return x + jax.vmap(block["contract"])(hidden)

    def precisions(self, params: PyTree) -> PyTree:
        """Return the prior precisions, a number for each leaf of the parameters.

        They are also the mass for a sampler: all parameters then have the same scale a priori.
        """
        of_scale = self.prior_scale**-2

        def of_leaf(path, leaf) -> float:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if name == "embedding":
                return of_scale
            is_added = name in ("blocks.attended.weight", "blocks.contract.weight")
            return of_scale * leaf.shape[-1] * (2 * self.depth if is_added else 1)

        return jax.tree.map_with_path(of_leaf, params)

    def log_prior(self, params: PyTree) -> jax.Array:
        return scaled_log_density(params, self.precisions(params))

    def posterior(
        self, codes, stride: int = 1, log_prior: Callable[[PyTree], jax.Array] | None = None
    ) -> Posterior:
        """Return the posterior given a text, as a vector of symbols' codes.

        An example is a window of L + 1 symbols, in which the last L are predicted from those before
        them in the window; windows begin at every `stride`-th symbol:

            log p(window i | θ) = (stride/L) Σ_t log p(c_{t+1} | c_1 … c_t, θ)

        With stride = L the text is cut into windows, and U is minus the log-likelihood of that cut.
        With stride = 1 each symbol is predicted in L windows, from contexts of all lengths, and
        U is the mean over the L possible cuts. Either way each symbol of the text counts once: the
        N of temperature 1 is the number of symbols, however many windows contain one.

        `log_prior` replaces the model's own prior, for example by that of adapters.
        """
        codes = checked_codes(codes, self.num_symbols, "codes")
        check_count(stride, "stride")
        if len(codes) <= self.context:
            raise ValueError(
                f"The text has {len(codes)} symbols, but a window needs context + 1 = "
                f"{self.context + 1}: give more text, or a model with a smaller context."
            )
        starts = np.arange(0, len(codes) - self.context, stride, dtype=np.int32)
        windows = Windows(self, jnp.asarray(codes), stride / self.context)
        return Posterior(windows, log_prior or self.log_prior, starts)


class Windows(eqx.Module):
    """The log-likelihood of a window of a text, as a function of its first position."""

    model: Transformer
    text: Int[Array, " symbol"]
    weight: float

    def __call__(self, params: PyTree, start: Int[Array, ""]) -> jax.Array:
        window = lax.dynamic_slice(self.text, (start,), (self.model.context + 1,))
        window = window.astype(jnp.int32)
        scores = jax.nn.log_softmax(self.model.apply(params, window[:-1]))
        return self.weight * jnp.sum(jnp.take_along_axis(scores, window[1:, None], axis=1))


def _linear(key: jax.Array, num_inputs: int, num_outputs: int, scale: float) -> eqx.nn.Linear:
    own, of_weight = jax.random.split(key)
    layer = eqx.nn.Linear(num_inputs, num_outputs, use_bias=False, key=own)
    weight = scale * num_inputs**-0.5 * jax.random.normal(of_weight, (num_outputs, num_inputs))
    return eqx.tree_at(lambda layer: layer.weight, layer, weight)


def _in_type(params: PyTree, dtype: str) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def _normalized(x: Float[Array, "time width"]) -> jax.Array:
    """Return x / √(mean x²), with the mean in single precision."""
    square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * lax.rsqrt(square + _MEAN_SQUARE_OFFSET)).astype(x.dtype)


def _turned(heads: Float[Array, "time head size"]) -> jax.Array:
    """Rotate pairs of a head's numbers by angles in proportion to the time.

    Products of a query and a key then depend on their distance in time (Su et al., 2021).
    """
    time, _, size = heads.shape
    rates = _ROTATION_BASE ** -(np.arange(0, size, 2) / size)
    angles = (np.arange(time)[:, None] * rates[None])[:, None]
    cos, sin = (jnp.asarray(function(angles), heads.dtype) for function in (np.cos, np.sin))
    first, second = jnp.split(heads, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
